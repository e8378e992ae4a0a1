//! fio's patterns on records.

use std::collections::BTreeSet;

use sluice_workload::{Direction, RecordOp};

use super::harness::run;

fn records(requests: &[sluice_workload::RecordRequest], op: RecordOp) -> Vec<u64> {
    requests.iter().filter(|r| r.op == op).map(|r| r.record).collect()
}

#[test]
fn a_write_job_puts_every_record_once_and_reads_it_back() {
    let run = run("[j]\nrecordcount=500\nbs=333\nrw=randwrite\niodepth=8\nverify=crc32c");
    let puts = records(&run.requests, RecordOp::Put);
    assert_eq!(puts.iter().copied().collect::<BTreeSet<_>>(), (0..500).collect());
    assert_eq!((puts.len(), run.keys), (500, 500));
    let job = &run.result.jobs[0];
    assert_eq!(
        (job.direction(Direction::Write).ios, job.direction(Direction::Read).ios),
        (500, 500)
    );
    assert_eq!(job.direction(Direction::Write).bytes, 500 * 333);
    assert_eq!((job.requests.verified, job.requests.mismatches), (500, 0));
    assert_eq!(job.requests.operations, [0; 5], "it is not YCSB");
}

#[test]
fn offset_and_size_select_records() {
    let text = "[j]\nrecordcount=100\nbs=1000\nrw=write\noffset=20000\nsize=30%\nnumjobs=2\n\
                offset_increment=10000";
    let run = run(text);
    let mut expected: Vec<u64> = (20..50).chain(30..60).collect();
    let mut puts = records(&run.requests, RecordOp::Put);
    puts.sort_unstable();
    expected.sort_unstable();
    assert_eq!(puts, expected);
}

#[test]
fn trims_delete_and_missing_records_are_counted() {
    let text = "[put]\nrecordcount=50\nbs=100\nrw=write\n[delete]\nstonewall\nrecordcount=60\n\
                bs=100\nrw=trim";
    let run = run(text);
    let job = &run.result.jobs[1];
    assert_eq!((run.keys, job.direction(Direction::Trim).ios), (0, 60));
    assert_eq!((job.requests.failed, job.requests.not_found), (0, 10));
}

#[test]
fn trimwrite_deletes_and_then_puts() {
    let run = run("[j]\nrecordcount=64\nbs=100\nrw=randtrimwrite\niodepth=4\nverify=crc32c");
    let job = &run.result.jobs[0];
    assert_eq!((job.direction(Direction::Trim).ios, job.direction(Direction::Write).ios), (64, 64));
    assert_eq!((run.keys, job.requests.not_found, job.requests.verified), (64, 64, 64));
}

#[test]
fn a_mixed_job_with_a_distribution_and_large_values_verifies() {
    // Values longer than a chunk: whole chunks and a record.
    let text = "[global]\nrecordcount=12\nbs=70000\nverify=crc32c\niodepth=4\n[load]\nrw=write\n\
                do_verify=0\n[mixed]\nstonewall\nrw=randrw\nnorandommap\nio_size=4m\n\
                random_distribution=zipf:1.1";
    let run = run(text);
    let job = &run.result.jobs[1];
    let (reads, writes) = (job.direction(Direction::Read).ios, job.direction(Direction::Write).ios);
    assert!(reads > 20 && writes > 10, "{reads} {writes}");
    assert_eq!((job.requests.mismatches, job.requests.failed), (0, 0));
    assert!(job.requests.verified >= reads);
}

#[test]
fn a_search_for_a_depth_works_on_records() {
    let text = "[load]\nycsb=load\nrecordcount=200\n[search]\nstonewall\nycsb=c\nrecordcount=200\n\
                runtime=1\ntime_based\niodepth=32\nlatency_target=2ms\nlatency_window=5ms";
    let run = run(text);
    let found = run.result.jobs[1].depth_search.unwrap();
    assert!(found.met && found.depth >= 1 && found.depth <= 32, "{found:?}");
}
