//! Keys of runs of the golden scenarios, which have every target, layer and personality.

// guarantee: B-58

use std::collections::BTreeSet;
use std::path::Path;

use scenario::Scenario;
use sluice_sweep::RunKey;

#[test]
fn lines_and_comments_of_a_scenario_are_no_inputs_and_two_scenarios_never_have_one_key() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/golden");
    let (mut digests, mut count) = (BTreeSet::new(), 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let key = |text: &str| {
            let scenario = Scenario::parse(&path, text).unwrap();
            RunKey::new(&scenario, &[]).ok().map(|key| key.text().to_owned())
        };
        let Some(plain) = key(&text) else { continue };
        let spread = text.replace('\n', "\n\n# a comment\n");
        assert!(key(&format!("# a comment\n{spread}")).unwrap() == plain, "{}", path.display());
        let mut seeded = Scenario::parse(&path, &text).unwrap();
        seeded.set_seed(77);
        digests.insert(RunKey::new(&seeded, &[]).unwrap().digest());
        digests.insert(RunKey::new(&Scenario::parse(&path, &text).unwrap(), &[]).unwrap().digest());
        count += 1;
    }
    assert!(count > 15, "{count}");
    assert_eq!(digests.len(), 2 * count);
}
