//! `verify=crc32c` finds the faults of a device, and reports none without a fault.

use crate::common;

use common::{Fault, Ram, run};
use sluice_workload::{Direction, ErrorCause, Mismatch, RunResult};
use time::Nanos;

fn ram() -> Ram {
    Ram::new(512, Nanos::from_micros(50)).per_sector(Nanos(137))
}

fn mismatches(result: &RunResult) -> Vec<(u64, Mismatch)> {
    result
        .failures()
        .map(|(_, f)| match f.cause {
            ErrorCause::Mismatch(m) => (f.lba, m),
            ErrorCause::Status(s) => panic!("{s}"),
        })
        .collect()
}

#[test]
fn a_good_device_verifies() {
    for options in [
        "rw=write",
        "rw=randwrite\niodepth=16",
        "rw=randwrite\niodepth=16\nbssplit=4k/30:16k/30:64k/40",
        "rw=randwrite\niodepth=32\nnorandommap\nio_size=8m",
        "rw=randrw\niodepth=16\nnorandommap\nio_size=8m\nbs=16k",
        "rw=randrw\niodepth=16\nrandom_distribution=zipf:1.2\nio_size=8m",
        "rw=randtrimwrite\niodepth=8",
        "rw=randwrite\ntime_based\nruntime=50ms\niodepth=4\nfsync=5\nend_fsync=1",
        "rw=randwrite\nbs=512k\niodepth=2",
        "rw=randwrite\niodepth=8\nnumjobs=3\nnorandommap",
    ] {
        let (result, _) = run(ram(), &format!("[j]\nverify=crc32c\n{options}"));
        assert_eq!(mismatches(&result), [], "{options}");
        let job = &result.jobs[0];
        assert!(job.requests.verified > 0 && !job.aborted, "{options}");
        assert_eq!(job.requests.issued, job.requests.completed);
        assert!(job.direction(Direction::Read).runtime > Nanos::ZERO, "{options}");
    }
}

#[test]
fn a_write_job_reads_back_what_it_wrote_and_only_that() {
    let (result, log) =
        run(ram(), "[j]\nrw=randwrite\nverify=crc32c\nsize=1m\noffset=512k\niodepth=4");
    assert_eq!((result.jobs[0].directions[0].ios, result.jobs[0].requests.verified), (256, 256));
    assert!(log.iter().all(|(_, r)| (128..384).contains(&r.lba)));
    let (result, log) = run(ram(), "[j]\nrw=randwrite\nverify=crc32c\nsize=1m\nio_size=256k");
    assert_eq!((result.jobs[0].requests.verified, log.len()), (64, 128));
    let (result, _) = run(ram(), "[j]\nrw=randwrite\nverify=crc32c\nsize=1m\ndo_verify=0");
    assert_eq!(result.jobs[0].requests.verified, 0);
}

#[test]
fn every_kind_of_damage_is_found_and_named() {
    let write = "[j]\nrw=write\nverify=crc32c\nsize=1m\ncontinue_on_error=all";
    let (result, _) = run(ram().fault(Fault::Corrupt(17)), write);
    assert_eq!(mismatches(&result), [(17, Mismatch::Checksum)]);
    assert_eq!((result.jobs[0].requests.mismatches, result.jobs[0].requests.verified), (1, 255));
    assert!(result.failures().next().unwrap().1.to_string().contains("sectors 17..+1"));
    let (result, _) = run(ram().fault(Fault::Misdirect(255)), write);
    assert_eq!(mismatches(&result), [(255, Mismatch::NoHeader)]);
    let twice = format!("{write}\nio_size=2m\nfsync=32");
    let (result, _) = run(ram().fault(Fault::LoseOverwrites(9)), &twice);
    assert!(matches!(mismatches(&result)[..], [(9, Mismatch::WrongVersion { .. })]));
}

#[test]
fn a_mismatch_ends_the_job_as_in_fio() {
    let (result, _) = run(ram().fault(Fault::Corrupt(17)), "[j]\nrw=write\nverify=crc32c\nsize=1m");
    let job = &result.jobs[0];
    assert_eq!((job.aborted, job.errno(), job.directions[0].ios), (true, 84, 18));
}

#[test]
fn writes_of_other_jobs_are_no_false_alarm() {
    let text = "[checked]\nrw=randwrite\nverify=crc32c\niodepth=8\n[unchecked]\nrw=randwrite\nnorandommap\niodepth=8\n[trims]\nrw=randtrim\niodepth=2\nnorandommap\nio_size=512k\n[reads]\nrw=randread\nverify=crc32c\niodepth=8";
    let (result, _) = run(ram(), text);
    assert_eq!(mismatches(&result), []);
    assert!(result.jobs[3].requests.verified > 0, "the reads verify data that other jobs wrote");
}
