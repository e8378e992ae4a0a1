//! Options of jobs on keys: values, defaults, and errors with their positions.

use std::path::Path;

use sluice_workload::ycsb::YcsbWorkload;
use sluice_workload::{Addressing, Direction, JobError, KeySpec, YcsbPhase, parse_jobs};

fn problem(text: &str) -> (usize, usize, String) {
    match parse_jobs(Path::new("k.fio"), text).unwrap_err() {
        JobError::Invalid(invalid) => {
            let at = &invalid.location;
            (at.line, at.column, invalid.problem.to_string())
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_workload_has_its_directions_and_defaults() {
    let text = "[l]\nycsb=load\nrecordcount=1k\n[e]\nycsb=E\nrecordcount=1000\noperationcount=10\n\
                bs=64\n[c]\nycsb=c\nrecordcount=5\nruntime=1\n[plain]\nrecordcount=5\nrw=randrw";
    let jobs = parse_jobs(Path::new("k.fio"), text).unwrap().jobs;
    let keys = |phase, record_count, operation_count| {
        Some(KeySpec { ycsb: phase, record_count, operation_count })
    };
    assert_eq!(jobs[0].keys, keys(Some(YcsbPhase::Load), 1024, None));
    assert_eq!(jobs[1].keys, keys(Some(YcsbPhase::Run(YcsbWorkload::E)), 1000, Some(10)));
    assert_eq!(jobs[3].keys, keys(None, 5, None));
    assert!(jobs.iter().all(|job| job.addressing() == Addressing::Keys));
    let uses = |i: usize| Direction::ALL.map(|d| jobs[i].pattern.access.uses(d));
    assert_eq!(uses(0), [false, true, false]);
    assert_eq!(uses(1), [true, true, false]);
    assert_eq!(uses(2), [true, false, false]);
    let sizes: Vec<u64> = jobs.iter().map(|job| job.pattern.block_sizes[0][0].0).collect();
    assert_eq!(sizes, [1000, 64, 1000, 4096]);
}

#[test]
fn options_without_a_meaning_are_errors_where_they_are() {
    let ycsb = "[j]\nycsb=a\nrecordcount=10\noperationcount=5\n";
    for option in [
        "rw=read",
        "rwmixread=5",
        "random_distribution=zipf:1",
        "norandommap",
        "size=50%",
        "io_size=1m",
        "offset=1000",
        "offset_increment=1000",
        "number_ios=5",
        "bssplit=4k/50:8k/50",
        "bsrange=4k-8k",
        "read_iolog=x",
        "replay_scale=2",
        "wrap",
    ] {
        let (line, column, what) = problem(&format!("{ycsb}{option}"));
        let name = option.split('=').next().unwrap();
        assert_eq!((line, column), (5, 1), "{what}");
        assert!(what.contains(&format!("`{name}` does not go with `ycsb`: ")), "{what}");
    }
    // An option of [global] is where it is written.
    let (line, _, what) =
        problem("[global]\nbs=1k\nrw=read\n[j]\nycsb=c\nrecordcount=9\nruntime=1");
    assert_eq!(line, 3, "{what}");
}

#[test]
fn amounts_must_fit() {
    for (text, line, says) in [
        ("[j]\nycsb=a\noperationcount=5", 2, "`ycsb` needs a `recordcount`"),
        ("[j]\nycsb=a\nrecordcount=5", 2, "needs an `operationcount` or a `runtime`"),
        ("[j]\noperationcount=5", 2, "`operationcount` needs a `ycsb` and a `recordcount`"),
        ("[j]\nrecordcount=9\noperationcount=5", 3, "other jobs have `number_ios`"),
        ("[j]\nycsb=load\nrecordcount=9\noperationcount=5", 4, "inserts `recordcount` records"),
        ("[j]\nycsb=load\nrecordcount=9\ntime_based\nruntime=1", 4, "which ends"),
        ("[j]\nycsb=d\nrecordcount=9\nruntime=1\nverify=crc32c", 5, "needs an `operationcount`"),
        (
            "[j]\nycsb=d\nrecordcount=9\nruntime=1\ntime_based\noperationcount=5\nverify=crc32c",
            5,
            "does not go with `verify` of a workload that inserts",
        ),
        ("[j]\nrecordcount=9\nbs=4k,8k\nrw=rw", 3, "values of records have one size"),
        ("[j]\nrecordcount=9\nbs=23\nverify=crc32c", 4, "at least 24 bytes"),
        ("[j]\nrecordcount=9\nbs=100\noffset=900", 4, "`offset` is past the last of 9 records"),
        ("[j]\nrecordcount=9\nbs=100\noffset=150", 4, "not in whole values of 100 bytes"),
        ("[j]\nrecordcount=9\nbs=100\nsize=1000", 4, "past the last of 9 records"),
        ("[j]\nrecordcount=9\nbs=100\nsize=1%", 4, "no whole record"),
        (
            "[j]\nrecordcount=9\nbs=100\nnumjobs=4\noffset_increment=300",
            5,
            "`offset_increment` is past the last",
        ),
        ("[j]\nrecordcount=9\nread_iolog=x", 3, "a trace has no keys"),
    ] {
        let (at, _, what) = problem(text);
        assert!(what.contains(says), "{text}: {what}");
        assert_eq!(at, line, "{text}: {what}");
    }
}

#[test]
fn values_must_be_known() {
    for (option, says) in [
        ("ycsb=g", "expected load, a, b, c, d, e or f"),
        ("ycsb", "expected load"),
        ("recordcount=0", "a number from 1 to 4294967296"),
        ("recordcount=5g", "a number from 1 to 4294967296"),
        ("operationcount=0", "a number from 1"),
        ("recordcout=5", "is not supported"),
    ] {
        let (line, _, what) = problem(&format!("[j]\n{option}"));
        assert_eq!(line, 2);
        assert!(what.contains(says), "{option}: {what}");
    }
}
