//! `--log` prints events of the control plane; without it nothing is printed.

use crate::sim_folder;

use sim_folder::Folder;

/// A small drive that is overwritten until garbage collection runs.
const SCENARIO: &str = "[drive]\npreset = \"tlc-2020s-small\"\ndata = \"none\"\ngeometry.chunks = 16\n\
     ftl.over_provisioning = 0.3\n[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n\
     [[job]]\nname = \"w\"\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"1m\"\n";

#[test]
fn events_are_printed_by_level_and_crate() {
    let folder = Folder::new(&[("a.toml", SCENARIO)]);
    let (quiet, told) = folder.run_to_end(&["a.toml"], 0);
    assert!(!told.contains("DEBUG") && !told.contains("INFO"), "{told}");
    let (printed, told) = folder.run_to_end(&["a.toml", "--log", "debug"], 0);
    assert_eq!(printed, quiet, "logging must not change the results");
    for event in
        ["preconditioning begins", "line opened", "GC begins with a victim", "line reclaimed"]
    {
        assert!(told.contains(event), "{event}");
    }
    assert!(told.contains("DEBUG ftl::"), "{}", &told[..told.len().min(2_000)]);
    let (_, told) = folder.run_to_end(&["a.toml", "--log", "info"], 0);
    assert!(told.contains("preconditioning begins") && !told.contains("DEBUG"), "{told}");
    let (_, told) = folder.run_to_end(&["a.toml", "--log", "off,ftl=debug"], 0);
    assert!(told.contains("line opened") && !told.contains("preconditioning begins"));
}

#[test]
fn a_filter_that_is_none_is_refused() {
    let folder = Folder::new(&[("a.toml", SCENARIO)]);
    let (_, told) = folder.run_to_end(&["a.toml", "--log", "ftl=loud"], 2);
    assert!(told.contains("--log"), "{told}");
}
