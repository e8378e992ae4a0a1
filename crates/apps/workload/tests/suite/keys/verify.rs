//! `verify=crc32c` on records finds the faults of a store.

// guarantee: A-16

use nvme::Status;
use sluice_workload::{ErrorCause, Mismatch};

use super::harness::{Run, StoreFault, try_run};

fn faulty(text: &str, fault: StoreFault) -> Run {
    try_run(text, fault, 1).unwrap()
}

fn mismatches(run: &Run) -> Vec<(u64, Mismatch)> {
    let of = |cause| match cause {
        ErrorCause::Mismatch(mismatch) => mismatch,
        ErrorCause::Status(status) => panic!("{status}"),
    };
    run.result.failures().map(|(_, failure)| (failure.lba, of(failure.cause))).collect()
}

#[test]
fn another_version_is_found_by_gets() {
    let text = "[j]\nrecordcount=40\nbs=100\nrw=write\nio_size=8000\nverify=crc32c\n\
                continue_on_error=all";
    let run = faulty(text, StoreFault::LoseUpdates(9));
    assert!(matches!(mismatches(&run)[..], [(9, Mismatch::WrongVersion { .. })]));
    assert_eq!(run.result.jobs[0].requests.verified, 39);
    let shown = run.result.failures().next().unwrap().1.to_string();
    assert!(shown.contains("records 9..+1"), "{shown}");
}

#[test]
fn another_version_is_found_by_scans_and_read_modify_writes() {
    for workload in ["e", "f", "a"] {
        let text = format!(
            "[global]\nrecordcount=60\nbs=100\nverify=crc32c\ndo_verify=0\ncontinue_on_error=all\n\
             [load]\nycsb=load\n[again]\nstonewall\nrw=write\n[run]\nstonewall\nycsb={workload}\n\
             operationcount=400"
        );
        // `rw` and `ycsb` are in different sections, so that `again` overwrites the loaded records.
        let run = faulty(&text, StoreFault::LoseUpdates(11));
        let found = mismatches(&run);
        assert!(!found.is_empty(), "{workload}");
        let versions = found.iter().all(|(_, m)| matches!(m, Mismatch::WrongVersion { .. }));
        assert!(versions, "{workload}: {found:?}");
        assert_eq!(run.result.jobs[1].requests.mismatches, 0, "nothing is read before");
    }
}

#[test]
fn another_record_is_found() {
    let text = "[j]\nrecordcount=40\nbs=100\nrw=write\nverify=crc32c\ncontinue_on_error=all";
    let run = faulty(text, StoreFault::Misdirect { from: 7, to: 30 });
    assert_eq!(mismatches(&run), [(7, Mismatch::WrongSector { lba: 30 })]);
}

/// A seed of the property test found that a job without `verify` put a value that it had got, with the
/// header of another record.
#[test]
fn values_of_jobs_without_verify_are_no_false_alarm() {
    let text = "[global]\nrecordcount=80\nbs=150\n[load]\nycsb=load\nverify=crc32c\n[a]\nstonewall\n\
                ycsb=a\noperationcount=300\n[e]\nycsb=e\noperationcount=60\nverify=crc32c";
    let run = faulty(text, StoreFault::None);
    assert_eq!(mismatches(&run), []);
    assert!(run.result.jobs[2].requests.verified > 0);
}

#[test]
fn a_mismatch_ends_the_job_unless_it_continues() {
    let text = "[j]\nrecordcount=40\nbs=100\nrw=write\nverify=crc32c";
    let run = faulty(text, StoreFault::Misdirect { from: 7, to: 30 });
    let job = &run.result.jobs[0];
    assert_eq!((job.aborted, job.errno(), job.directions[0].ios), (true, 84, 8));
}

#[test]
fn errors_of_the_store_are_statuses_of_operations() {
    let text = "[j]\nrecordcount=40\nbs=100\nrw=randread";
    let run = faulty(text, StoreFault::None);
    let job = &run.result.jobs[0];
    assert!(job.aborted, "no record exists");
    assert_eq!((job.requests.failed, job.requests.not_found, job.errno()), (1, 1, 5));
    let causes: Vec<_> = run.result.failures().map(|(_, failure)| failure.cause).collect();
    assert_eq!(causes, [ErrorCause::Status(Status::KEY_NOT_FOUND)]);
    let run = faulty(&format!("{text}\ncontinue_on_error=read"), StoreFault::None);
    let job = &run.result.jobs[0];
    assert_eq!((job.requests.failed, job.requests.not_found), (40, 40));
    assert_eq!((job.requests.completed, job.aborted), (0, false));
    let write = "[j]\nrecordcount=40\nbs=100\nrw=write\nverify=crc32c\ncontinue_on_error=read";
    let run = faulty(write, StoreFault::FailGets(Status::UNRECOVERED_READ));
    let job = &run.result.jobs[0];
    assert_eq!((job.requests.failed, job.requests.verified), (40, 0), "media errors");
    assert_eq!(job.requests.not_found, 0);
}

#[test]
fn a_full_store_ends_the_job() {
    let text = "[j]\nrecordcount=4000\nbs=8k\nrw=write\niodepth=4";
    let run = faulty(text, StoreFault::None);
    let job = &run.result.jobs[0];
    assert_eq!((job.aborted, job.errno()), (true, 28), "{:?}", job.failures);
    assert!(job.requests.completed > 100 && job.requests.failed >= 1);
    assert_eq!(job.requests.issued, job.requests.completed + job.requests.failed);
}

#[test]
fn a_value_of_another_size_fails() {
    let text = "[put]\nrecordcount=5\nbs=100\nrw=write\n[get]\nstonewall\nrecordcount=5\nbs=120\n\
                rw=read\ncontinue_on_error=read\n[short]\nstonewall\nrecordcount=5\nbs=80\nrw=read\n\
                continue_on_error=read";
    let run = faulty(text, StoreFault::None);
    assert_eq!(run.result.jobs[1].requests.failed, 5);
    assert_eq!(run.result.jobs[2].requests.failed, 5);
    for (_, failure) in run.result.failures() {
        assert_eq!(failure.cause, ErrorCause::Status(Status::INVALID_VALUE_SIZE));
    }
}
