//! `verify` finds stored runs that are not the runs of this program.

use std::fs;

use serde_json::Value;
use sluice_sweep::{RunStore, Stored, verify};

use crate::fixture::{SCENARIO, settings, sweep};

#[test]
fn a_stored_run_that_differs_is_found_and_others_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::open(folder.path()).unwrap();
    let sweep = sweep(SCENARIO, &["job.mixed.iodepth=1,4"], "2");
    sweep.run(Some(&store), settings(2)).unwrap();
    let check = |count, seed| verify(&sweep, &store, count, seed, settings(2)).unwrap();
    assert_eq!((check(10, 1).checked, check(10, 1).different.len()), (4, 0));
    assert_eq!(check(2, 1).checked, 2);
    // A run with another result and a valid digest, as another program could have stored it.
    let scenario = sweep.points().unwrap().swap_remove(1).scenario;
    let key = sluice_sweep::RunKey::new(&scenario.unwrap(), &[]).unwrap();
    let Stored::Run(mut run) = store.get(&key).unwrap() else { panic!("it is stored") };
    run["jobs"][0]["read"]["total_ios"] = Value::from(1);
    store.put(&key, &run).unwrap();
    let found = check(10, 1);
    assert_eq!((found.checked, found.different.len()), (4, 1));
    assert_eq!(found.different[0].0, store.path(&key));
    assert!(found.different[0].1.ends_with("--set job.mixed.iodepth=1 --seed 1"));
    // A seed chooses the runs: some find it with one run, and some do not.
    let finds = (0..20).map(|seed| check(1, seed).different.len()).collect::<Vec<_>>();
    assert!(finds.contains(&0) && finds.contains(&1), "{finds:?}");
}

#[test]
fn titles_and_comments_of_the_first_sweep_are_no_difference() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::open(folder.path()).unwrap();
    let first = sweep(SCENARIO, &[], "2");
    first.run(Some(&store), settings(1)).unwrap();
    let other = format!("# a comment\n{}", SCENARIO.replace("\"small\"", "\"other\""));
    let other = sweep(&other, &[], "2");
    assert_eq!(other.run(Some(&store), settings(1)).unwrap().computed, 0);
    let found = verify(&other, &store, 2, 1, settings(1)).unwrap();
    assert_eq!((found.checked, found.different.len()), (2, 0));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}
