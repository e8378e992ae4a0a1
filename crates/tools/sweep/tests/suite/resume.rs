//! A store is safe with interruptions, damage, full disks and other sweeps.

use std::fs;
use std::path::Path;

use sluice_sweep::{RunStore, StoreError, csv};

use crate::fixture::{interrupted_after, settings, usual};

/// Returns the runs of a store, by name.
fn runs(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let mut runs: Vec<(String, Vec<u8>)> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .filter(|(name, _)| name.ends_with(".json"))
        .collect();
    runs.sort();
    runs
}

#[test]
fn a_second_run_computes_only_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::open(folder.path()).unwrap();
    let sweep = usual();
    let first = sweep.run(Some(&store), interrupted_after(3)).unwrap();
    assert!(first.is_interrupted() && first.computed < 12);
    let kept = runs(folder.path());
    assert!(!kept.is_empty());
    let second = sweep.run(Some(&store), settings(2)).unwrap();
    assert_eq!((second.computed, second.is_interrupted()), (12 - kept.len(), false));
    let all = runs(folder.path());
    assert_eq!(all.len(), 8);
    assert!(kept.iter().all(|run| all.contains(run)), "what was kept is unchanged");
    fs::remove_file(folder.path().join(&all[0].0)).unwrap();
    assert_eq!(sweep.run(Some(&store), settings(2)).unwrap().computed, 1 + 4);
    assert_eq!(runs(folder.path()), all);
}

#[test]
fn a_damaged_run_is_named_and_computed_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::open(folder.path()).unwrap();
    let sweep = usual();
    let expected = sweep.run(Some(&store), settings(2)).unwrap();
    let all = runs(folder.path());
    let path = folder.path().join(&all[2].0);
    fs::write(&path, &all[2].1[..all[2].1.len() / 2]).unwrap();
    let again = sweep.run(Some(&store), settings(2)).unwrap();
    assert_eq!(again.damaged.len(), 1);
    assert_eq!(again.damaged[0].0, path);
    assert_eq!(csv(&again.keys, &again.rows), csv(&expected.keys, &expected.rows));
    assert_eq!(runs(folder.path()), all, "it is whole again");
}

#[test]
fn two_sweeps_in_one_store_at_once_have_the_rows_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let expected = usual().run(None, settings(2)).unwrap();
    let expected = csv(&expected.keys, &expected.rows);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let store = RunStore::open(folder.path()).unwrap();
                let results = usual().run(Some(&store), settings(2)).unwrap();
                assert_eq!(csv(&results.keys, &results.rows), expected);
                assert!(results.damaged.is_empty());
            });
        }
    });
    assert_eq!(runs(folder.path()).len(), 8);
}

#[test]
fn an_error_of_the_store_ends_the_sweep_and_keeps_the_runs_before() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::open(folder.path()).unwrap();
    let sweep = usual();
    sweep.run(Some(&store), settings(1)).unwrap();
    let all = runs(folder.path());
    for (name, _) in &all {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    // Folders have the names of the runs that are missing: they cannot be read.
    let second = sweep.run(Some(&store), interrupted_after(2)).unwrap();
    let kept = runs(folder.path());
    assert!(second.is_interrupted());
    for (name, _) in all.iter().filter(|run| !kept.contains(run)) {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let error = sweep.run(Some(&store), settings(1)).unwrap_err().to_string();
    assert!(error.contains(&folder.path().display().to_string()), "{error}");
    for (name, _) in all.iter().filter(|run| !kept.contains(run)) {
        fs::remove_dir(folder.path().join(name)).unwrap();
    }
    assert_eq!(runs(folder.path()), kept);
    // The folder is gone when the first run is to be written.
    fs::remove_dir_all(folder.path()).unwrap();
    let results = sweep.run(Some(&store), settings(1)).unwrap();
    assert!(matches!(results.store_error, Some(StoreError::Io { .. })));
    assert!(results.is_interrupted());
}
