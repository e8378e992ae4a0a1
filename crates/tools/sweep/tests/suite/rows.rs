//! The rows of a sweep depend on the sweep only.

// guarantee: B-57

use sluice_sweep::{RunStatus, RunStore, SweepError, csv};

use crate::fixture::{SCENARIO, interrupted_after, settings, sweep, usual};

#[test]
fn rows_are_equal_with_any_number_of_runs_at_a_time_with_a_store_and_after_interruptions() {
    let sweep = usual();
    let expected = sweep.run(None, settings(1)).unwrap();
    let expected = csv(&expected.keys, &expected.rows);
    for jobs in [2, 5] {
        let results = sweep.run(None, settings(jobs)).unwrap();
        assert_eq!(csv(&results.keys, &results.rows), expected, "{jobs} at a time");
    }
    for count in [1, 6, 11] {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::open(folder.path()).unwrap();
        let first = sweep.run(Some(&store), interrupted_after(count)).unwrap();
        assert!(first.is_interrupted(), "after {count}");
        let rest = sweep.run(Some(&store), settings(3)).unwrap();
        assert_eq!(csv(&rest.keys, &rest.rows), expected, "interrupted after {count}");
        let stored = sweep.run(Some(&store), settings(2)).unwrap();
        assert_eq!(csv(&stored.keys, &stored.rows), expected, "all of them stored");
        // Runs that failed are not stored.
        assert_eq!((stored.computed, stored.progress.failed), (4, 4));
    }
}

#[test]
fn rows_do_not_depend_on_the_order_in_which_runs_were_stored() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::open(folder.path()).unwrap();
    let all = ["job.mixed.iodepth=1,2,4", "drive.ftl.over_provisioning=0.2,0.4"];
    let expected = sweep(SCENARIO, &all, "2").run(None, settings(2)).unwrap();
    let parts = ["job.mixed.iodepth=4,2", "drive.ftl.over_provisioning=0.4"];
    let part = sweep(SCENARIO, &parts, "1..2").run(Some(&store), settings(2)).unwrap();
    assert_eq!((part.computed, part.progress.failed), (2, 0));
    let results = sweep(SCENARIO, &all, "2").run(Some(&store), settings(2)).unwrap();
    assert_eq!(results.computed, 10, "two were stored by the other sweep");
    assert_eq!(csv(&results.keys, &results.rows), csv(&expected.keys, &expected.rows));
}

#[test]
fn a_failed_run_is_a_row_with_its_error_and_its_replay() {
    let results = usual().run(None, settings(2)).unwrap();
    assert_eq!((results.progress.done, results.progress.failed), (12, 4));
    let failed: Vec<_> = results.rows.iter().filter(|r| r.status == RunStatus::Failed).collect();
    assert_eq!(failed.len(), 4);
    for row in failed {
        assert!(!row.error.is_empty() && row.parameters[1] == "1t", "{row:?}");
        let depth = &row.parameters[0];
        let seed = row.seed.unwrap();
        let replay = format!(
            "sluice sim small.toml --set job.mixed.iodepth={depth} --set job.mixed.size=1t --seed {seed}"
        );
        assert_eq!(row.replay, replay);
    }
    let good = results.rows.iter().filter(|row| row.status == RunStatus::Ok);
    assert_eq!(good.count(), 16, "eight runs that read and write");
}

#[test]
fn seeds_are_paired() {
    let results = usual().run(None, settings(2)).unwrap();
    let seeds_of = |depth: &str| -> Vec<Option<u64>> {
        let rows = results.rows.iter().filter(|row| row.parameters == [depth, "1m"]);
        rows.map(|row| row.seed).collect()
    };
    assert_eq!(seeds_of("1"), [Some(0), Some(0), Some(1), Some(1)]);
    assert_eq!(seeds_of("4"), seeds_of("1"));
}

#[test]
fn an_invalid_sweep_has_no_run() {
    let wrong = sweep(SCENARIO, &["job.mixed.iodept=1,2"], "2");
    let error = wrong.run(None, settings(1)).unwrap_err();
    assert!(matches!(error, SweepError::Set(_)), "{error}");
    let image = SCENARIO.replace("[precond", "data = \"file\"\npath = \"x\"\n[precond");
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::open(folder.path()).unwrap();
    let error = sweep(&image, &[], "2").run(Some(&store), settings(1)).unwrap_err();
    assert!(matches!(error, SweepError::NotStorable { .. }), "{error}");
}
