//! Commands over a drive whose sectors have names: it has no logical blocks.

// guarantee: B-106

use std::path::Path;
use std::process::{Command, Output};

const DRIVE: &str = "[drive]\nname = \"d\"\npreset = \"femu-default\"\npersonality = \"rules\"\n\
    geometry = { channels = 2, pus = 4, chunks = 48, pages = 32, planes = 4 }\n\
    rules = { template = \"nameless\", durable_memory = \"256K\" }\n";

fn sluice(folder: &Path, arguments: &[&str]) -> Output {
    let mut sluice = Command::new(env!("CARGO_BIN_EXE_sluice"));
    sluice.current_dir(folder).args(arguments).output().unwrap()
}

#[test]
fn jobs_and_clients_of_block_devices_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let job = "[[job]]\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"1m\"\n";
    std::fs::write(folder.path().join("job.toml"), format!("{DRIVE}{job}")).unwrap();
    std::fs::write(folder.path().join("d.toml"), DRIVE).unwrap();
    for (arguments, user) in [
        (&["sim", "job.toml"][..], "block requests"),
        (&["serve", "d.toml", "--nbd", "unix:nbd.sock"], "block requests"),
        (&["serve", "d.toml", "--socket", "d.sock"], "partitions of a socket"),
    ] {
        let refused = sluice(folder.path(), arguments);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {text}");
        let reason = format!(
            "the sectors of drive d have names, so that there are no logical blocks for {user}"
        );
        assert!(text.contains(&reason), "{arguments:?}: {text}");
    }
    // `sluice rules explain` prints the rules of such a drive.
    let explained = sluice(folder.path(), &["rules", "explain", "d.toml"]);
    let text = String::from_utf8_lossy(&explained.stdout);
    assert!(explained.status.success() && text.contains("moved"), "{text}");
}
