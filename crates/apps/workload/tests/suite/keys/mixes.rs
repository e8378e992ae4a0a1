//! Each mix of YCSB: counts, ratios, directions, verification, determinism.

use sluice_workload::ycsb::{OperationKind, YcsbWorkload};
use sluice_workload::{Direction, RecordOp, to_fio_json};

use super::harness::{StoreFault, run, try_run};

const RECORDS: u64 = 300;
const OPERATIONS: u64 = 2000;

fn text(workload: &str, options: &str) -> String {
    format!(
        "[global]\nbs=200\nrecordcount={RECORDS}\niodepth=8\nverify=crc32c\ndo_verify=0\n\
         [load]\nycsb=load\n[run]\nstonewall\nycsb={workload}\noperationcount={OPERATIONS}\n{options}\n"
    )
}

#[test]
fn each_mix_has_its_ratios_and_verifies() {
    for workload in YcsbWorkload::ALL {
        let run = run(&text(&workload.to_string(), ""));
        let [load, job] = &run.result.jobs[..] else { panic!("two jobs") };
        let [reads, updates, inserts, scans, modifies] = job.requests.operations;
        assert_eq!(load.requests.operations, [0, 0, RECORDS, 0, 0], "{workload}");
        assert_eq!(job.requests.operations.iter().sum::<u64>(), OPERATIONS, "{workload}");
        assert_eq!((job.requests.issued, job.requests.completed), (OPERATIONS, OPERATIONS));
        assert_eq!((job.requests.failed, job.requests.not_found), (0, 0), "{workload}");
        let mix = workload.mix();
        let shares = [mix.read, mix.update, mix.insert, mix.scan, mix.read_modify_write];
        for ((kind, count), share) in
            OperationKind::ALL.iter().zip(job.requests.operations).zip(shares)
        {
            let expected = OPERATIONS as f64 * share;
            let sigma = (expected * (1.0 - share)).sqrt();
            let (kind, far) = (kind.name(), (count as f64 - expected).abs());
            assert!(far <= 5.0 * sigma, "{workload}, {kind}: {count} of {expected}");
        }
        let ios = |direction| job.direction(direction).ios;
        assert_eq!(ios(Direction::Read), reads + scans, "{workload}");
        assert_eq!(ios(Direction::Write), updates + inserts + modifies, "{workload}");
        assert_eq!(ios(Direction::Trim), 0);
        assert_eq!(job.direction(Direction::Write).bytes, 200 * (updates + inserts + modifies));
        assert_eq!(run.keys, RECORDS + inserts, "{workload}");
        // Each value that was read was put by this run.
        assert_eq!((job.requests.mismatches, job.aborted), (0, false), "{workload}");
        if scans == 0 {
            assert_eq!(job.requests.verified, reads + modifies, "{workload}");
        } else {
            let read = job.direction(Direction::Read).bytes / 200;
            assert_eq!(job.requests.verified, read);
            assert!(read > 20 * scans, "{read} records in {scans} scans");
        }
        assert!(job.ended > job.started, "{workload} takes time");
    }
}

#[test]
fn a_run_repeats_with_its_seed_only() {
    for workload in ["a", "e", "f"] {
        let once = |seed| {
            let run = try_run(&text(workload, ""), StoreFault::None, seed).unwrap();
            (to_fio_json(&run.result, 0).to_string(), run.requests)
        };
        let (first, again, other) = (once(1), once(1), once(2));
        assert!(first == again, "{workload}");
        assert!(first.1 != other.1, "{workload}: another seed draws other operations");
    }
}

#[test]
fn the_json_counts_operations_by_kind() {
    let run = run(&text("f", ""));
    let json = to_fio_json(&run.result, 0);
    let [reads, .., modifies] = run.result.jobs[1].requests.operations;
    let counts = &json["jobs"][1]["ycsb"];
    assert_eq!(counts["read"], reads);
    assert_eq!(counts["read-modify-write"], modifies);
    assert_eq!(json["jobs"][0]["ycsb"]["insert"], RECORDS);
    assert_eq!(json["jobs"][1]["read"]["total_ios"], reads);
    assert_eq!(json["jobs"][1]["write"]["total_ios"], modifies);
}

#[test]
fn options_of_fio_keep_their_meaning() {
    // Two clones at 1000 operations per second and direction, for 0.1 s.
    let options = "numjobs=2\nrate_iops=1000\nruntime=100ms\nfsync=10\nend_fsync=1";
    let run = run(&text("a", options));
    assert_eq!(run.result.jobs.len(), 3);
    for job in &run.result.jobs[1..] {
        for direction in [Direction::Read, Direction::Write] {
            let ios = job.direction(direction).ios;
            assert!((80..=101).contains(&ios), "{ios} in {}", direction.name());
        }
        let writes = job.direction(Direction::Write).ios;
        assert!(job.sync.count() >= writes / 10 - 1 && job.sync.count() <= writes / 10);
        assert_eq!(job.requests.mismatches, 0, "clones do not disturb each other");
    }
    let syncs = run.requests.iter().filter(|r| r.op == RecordOp::Sync).count() as u64;
    let counted: u64 = run.result.jobs.iter().map(|job| job.sync.count()).sum();
    assert_eq!(syncs, counted + 2, "and one at the end of each clone");
}

#[test]
fn clones_insert_records_of_their_own() {
    let run = run(&text("d", "numjobs=3"));
    let inserted: u64 = run.result.jobs[1..].iter().map(|job| job.requests.operations[2]).sum();
    assert!(inserted > 200, "{inserted}");
    assert_eq!(run.keys, RECORDS + inserted);
    assert!(run.result.jobs.iter().all(|job| job.requests.mismatches == 0));
}
