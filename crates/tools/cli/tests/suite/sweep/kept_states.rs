//! `sluice sweep --state-cache`: runs that start from kept states of drives.

// guarantee: B-66

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{SCENARIO, sweep};
use crate::sim_folder::Folder;

/// Two drives with two seeds have four states. Each is of two runs.
const SWEEP: &str = "scenario = \"small.toml\"\nseeds = 2\n[set]\n\
    job.mixed.iodepth = [1, 4]\ndrive.ftl.over_provisioning = [0.2, 0.4]\n";

/// The lines of a scenario that make every run precondition its drive.
const PRECONDITION: &str = "[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n";

fn folder(more: &str) -> Folder {
    let scenario = format!("{SCENARIO}{PRECONDITION}{more}");
    Folder::new(&[("small.toml", &scenario), ("s.toml", SWEEP)])
}

/// Runs the sweep with a new store; returns its rows, its stored runs and standard error.
fn run(folder: &Folder, store: &str, args: &[&str]) -> (String, Vec<(PathBuf, Vec<u8>)>, String) {
    let (_, told) =
        sweep(folder, &[&["s.toml", "--csv", "o.csv", "--store", store], args].concat(), 0);
    let mut runs = Vec::new();
    for entry in fs::read_dir(folder.path(store)).unwrap() {
        let path = entry.unwrap().path();
        runs.push((path.file_name().unwrap().into(), fs::read(&path).unwrap()));
    }
    runs.sort();
    (folder.read("o.csv"), runs, told)
}

fn states(folder: &Folder, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.path(name)).unwrap();
    let mut states: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    states.sort();
    states
}

#[test]
fn rows_and_stored_runs_are_equal_with_and_without_kept_states() {
    let folder = folder("");
    let (rows, runs, told) = run(&folder, "without", &["--no-state-cache", "--jobs", "1"]);
    assert_eq!((rows.lines().count(), runs.len()), (1 + 16, 8 + 1), "{told}");
    assert!(!told.contains("state is kept"), "{told}");
    // Runs at a time may need one state: each run makes it, and one is kept.
    for (store, states_folder, jobs) in [("one", "a", "1"), ("many", "b", "8")] {
        let args = ["--state-cache", states_folder, "--jobs", jobs];
        let first = run(&folder, store, &args);
        assert_eq!((&first.0, &first.1), (&rows, &runs), "{}", first.2);
        let kept = states(&folder, states_folder);
        assert_eq!(kept.len(), 4, "{kept:?}: no partial file and no second copy is left");
        assert!(kept.iter().all(|path| path.extension().is_some_and(|ext| ext == "state")));
        let line = format!("drive0: the state is kept in {states_folder}/");
        assert_eq!(first.2.matches(&line).count(), 4, "{}", first.2);
        // Another sweep starts from them, and changes none.
        let before: Vec<_> = kept.iter().map(|path| fs::read(path).unwrap()).collect();
        let second = run(&folder, &format!("{store}-again"), &args);
        assert_eq!((&second.0, &second.1), (&rows, &runs), "{}", second.2);
        assert!(!second.2.contains("state"), "{}", second.2);
        let after: Vec<_> = kept.iter().map(|path| fs::read(path).unwrap()).collect();
        assert!(before == after && states(&folder, states_folder) == kept);
    }
    // `sluice sim` makes the same files.
    let mut sim = Command::new(env!("CARGO_BIN_EXE_sluice"));
    sim.args(["sim", "small.toml", "--seed", "1", "--state-cache", "sim"]);
    sim.args(["--set", "drive.ftl.over_provisioning=0.4"]).current_dir(folder.path(""));
    assert!(sim.output().unwrap().status.success());
    let [made] = &states(&folder, "sim")[..] else { panic!("one state") };
    let of_sweep = folder.path("a").join(made.file_name().unwrap());
    assert!(fs::read(of_sweep).unwrap() == fs::read(made).unwrap());
}

#[test]
fn the_folder_of_the_scenario_is_used_unless_an_option_says_another() {
    let folder = folder("states = \"own\"\n");
    let (rows, ..) = run(&folder, "a", &[]);
    assert_eq!(states(&folder, "own").len(), 4);
    fs::remove_dir_all(folder.path("own")).unwrap();
    assert_eq!(run(&folder, "b", &["--no-state-cache"]).0, rows);
    assert_eq!(run(&folder, "c", &["--state-cache", "other"]).0, rows);
    assert!(!folder.path("own").exists());
    assert_eq!(states(&folder, "other").len(), 4);
    // A folder that is too small for two keeps the last ones.
    let largest = states(&folder, "other").iter().map(|path| path.metadata().unwrap().len()).max();
    let size = largest.unwrap().to_string();
    let args = ["--state-cache", "small", "--state-cache-size", &size, "--jobs", "1"];
    assert_eq!(run(&folder, "d", &args).0, rows);
    assert_eq!(states(&folder, "small").len(), 1);
    let (_, told) = sweep(&folder, &["s.toml", "--state-cache", "a", "--no-state-cache"], 2);
    assert!(told.contains("cannot be used with"), "{told}");
}

#[test]
fn a_damaged_state_fails_its_runs_and_no_others() {
    let folder = folder("");
    let (rows, ..) = run(&folder, "a", &["--state-cache", "states"]);
    let damaged = &states(&folder, "states")[0];
    let mut bytes = fs::read(damaged).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    fs::write(damaged, &bytes).unwrap();
    let args = ["s.toml", "--csv", "o.csv", "--store", "b", "--state-cache", "states"];
    let (_, told) = sweep(&folder, &args, 1);
    assert!(told.contains("2 of 8 runs failed") && told.contains("is damaged"), "{told}");
    let name = damaged.file_name().unwrap().to_str().unwrap();
    let with_failures = folder.read("o.csv");
    let failed: Vec<_> = with_failures.lines().filter(|line| line.contains(",failed,")).collect();
    assert_eq!(failed.len(), 2, "{with_failures}");
    assert!(failed.iter().all(|line| line.contains(name)), "{with_failures}");
    assert!(with_failures.lines().all(|line| line.contains(",failed,") || rows.contains(line)));
    assert!(fs::read(damaged).unwrap() == bytes, "it is left as it is");
    // Without it, the same command computes what is missing.
    fs::remove_file(damaged).unwrap();
    sweep(&folder, &args, 0);
    assert_eq!(folder.read("o.csv"), rows);
    assert_eq!(states(&folder, "states").len(), 4);
}

#[test]
fn a_folder_that_cannot_be_made_is_a_warning() {
    let folder = Folder::new(&[
        ("small.toml", &format!("{SCENARIO}{PRECONDITION}")),
        ("s.toml", SWEEP),
        ("file", "not a folder"),
    ]);
    let (rows, _, told) = run(&folder, "a", &["--state-cache", "file"]);
    assert_eq!(rows.lines().count(), 1 + 16);
    let warning = "warning: drive0: the state is not kept: ";
    assert_eq!(told.matches(warning).count(), 1, "one line for all runs: {told}");
}

#[test]
fn verification_uses_no_kept_state() {
    let folder = folder("");
    run(&folder, "a", &["--state-cache", "states"]);
    let files = states(&folder, "states");
    for path in &files {
        let mut bytes = fs::read(path).unwrap();
        let at = bytes.len() - 100;
        bytes[at] ^= 1;
        fs::write(path, &bytes).unwrap();
    }
    let args = ["s.toml", "--store", "a", "--state-cache", "states", "--verify", "8"];
    let (_, told) = sweep(&folder, &args, 0);
    assert!(told.contains("8 stored runs are equal"), "{told}");
}
