//! Traces replay at their own pace, or as fast as the device allows.

use crate::common;

use std::io::Write;

use block::Op;
use common::{Ram, jobs, try_run};
use sluice_workload::{Direction, IoCpuCosts, JobRunner, RunError};
use time::Nanos;

fn replay(
    trace: &str,
    options: &str,
) -> Result<(sluice_workload::RunResult, Vec<(Nanos, block::Request)>), RunError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(trace.as_bytes()).unwrap();
    let text = format!("[t]\nread_iolog={}\n{options}", file.path().display());
    try_run(Ram::new(1024, Nanos::from_micros(100)), &text)
}

const MSR: &str = "128166372003061629,hm,1,Read,4096,32768,1\n\
                   128166372003062629,hm,1,Write,0,4096,1\n\
                   128166372003081629,hm,1,Read,8192,4096,1\n";

#[test]
fn a_timed_replay_is_an_open_loop() {
    let (result, log) = replay(MSR, "").unwrap();
    let times: Vec<u64> = log.iter().map(|(t, _)| t.0 / 1000).collect();
    assert_eq!(times, [0, 100, 2000]);
    let job = &result.jobs[0];
    assert_eq!((job.directions[0].ios, job.directions[1].ios, job.spec.depth()), (2, 1, 1024));
    assert_eq!(
        (job.trace_adjustments.bytes_requested, job.trace_adjustments.bytes_issued),
        (40960, 40960)
    );
    let (_, log) = replay(MSR, "replay_time_scale=200").unwrap();
    assert_eq!(log.iter().map(|(t, _)| t.0 / 1000).collect::<Vec<_>>(), [0, 50, 1000]);
    let (_, log) = replay(MSR, "replay_no_stall=1").unwrap();
    assert_eq!(log.iter().map(|(t, _)| t.0 / 1000).collect::<Vec<_>>(), [0, 100, 200]);
    let (_, log) = replay(MSR, "replay_no_stall=1\niodepth=3").unwrap();
    assert_eq!(log.iter().map(|(t, _)| t.0 / 1000).collect::<Vec<_>>(), [0, 0, 0]);
}

#[test]
fn waiting_for_a_slot_is_latency_and_is_counted() {
    let trace: String = (0..100).map(|i| format!("{} 0 {} 8 1\n", i * 1000, i * 8)).collect();
    let (result, _) = replay(&trace, "iodepth=1").unwrap();
    let job = &result.jobs[0];
    assert_eq!(job.requests.delayed, 99);
    let lat = &job.direction(Direction::Read).lat;
    assert_eq!(
        lat.max(),
        Nanos(100 * 100_000 - 99 * 1000),
        "the last request waits for all earlier ones"
    );
    let (result, _) = replay(&trace, "").unwrap();
    assert_eq!(
        (result.jobs[0].requests.delayed, result.jobs[0].directions[0].lat.max()),
        (0, Nanos(100_000))
    );
}

/// Returns an iolog without times that has `n` reads.
fn without_times(n: u64) -> String {
    let reads: String = (0..n).map(|i| format!("f read {} 4096\n", i * 8192)).collect();
    format!("fio version 2 iolog\nf add\nf open\n{reads}f close\n")
}

/// Depth 1 as in fio, unless the job sets another: a closed loop. The latency of a request counts
/// from its submission.
#[test]
fn a_log_without_times_is_replayed_at_its_depth() {
    for (options, depth) in
        [("", 1), ("iodepth=1", 1), ("iodepth=4", 4), ("iodepth=4\nreplay_no_stall=1", 4)]
    {
        let (result, log) = replay(&without_times(40), options).unwrap();
        let times: Vec<u64> = log.iter().map(|(t, _)| t.0 / 1000).collect();
        let expected: Vec<u64> = (0..40).map(|i| i / depth * 100).collect();
        assert_eq!(times, expected, "{options}");
        let lbas: Vec<u64> = log.iter().map(|(_, r)| r.lba).collect();
        assert_eq!(lbas, (0..40).map(|i| i * 2).collect::<Vec<_>>(), "{options}");
        let job = &result.jobs[0];
        let read = job.direction(Direction::Read);
        assert_eq!((read.lat.min(), read.lat.max()), (Nanos(100_000), Nanos(100_000)), "{options}");
        assert_eq!((job.requests.delayed, u64::from(job.spec.depth())), (0, depth), "{options}");
        // Closed loop: rate = depth / latency.
        assert_eq!(read.iops(), depth as f64 * 10_000.0, "{options}");
    }
}

#[test]
fn a_wait_counts_from_the_end_of_the_one_before() {
    // The wait of 50 us ends during the read, that of 250 us after it; then there is no wait.
    let trace = "fio version 2 iolog\nf read 0 4096\nf wait 50 0\nf read 4096 4096\nf wait 250\n\
                 f read 8192 4096\nf read 12288 4096\n";
    let times = |options| -> Vec<u64> {
        let (_, log) = replay(trace, options).unwrap();
        log.iter().map(|(t, _)| t.0 / 1000).collect()
    };
    assert_eq!(times(""), [0, 100, 350, 450]);
    // With two requests outstanding, the waits determine the times, and the device's latency does
    // not.
    assert_eq!(times("iodepth=2"), [0, 50, 300, 300]);
    assert_eq!(times("replay_time_scale=50"), [0, 100, 600, 700]);
    assert_eq!(times("replay_no_stall=1"), [0, 100, 200, 300]);
    let (result, _) = replay(trace, "").unwrap();
    assert_eq!(result.jobs[0].direction(Direction::Read).lat.max(), Nanos(100_000));
}

#[test]
fn words_of_generated_jobs_have_no_effect_on_a_replay_and_are_listed() {
    let text = "[global]\nbs=8k\nsize=1m\n[t]\nread_iolog=x\nloops=3\nnumber_ios=5\niodepth=2\n";
    let parsed = sluice_workload::parse_jobs("a.fio".as_ref(), text).unwrap();
    assert_eq!(parsed.ignored, ["bs", "loops", "number_ios", "size"]);
    let (result, _) = replay(&without_times(20), "loops=3\nnumber_ios=5\nsize=8k").unwrap();
    assert_eq!(result.jobs[0].direction(Direction::Read).ios, 20);
}

#[test]
fn requests_that_are_not_whole_sectors_name_their_line_and_the_remedy() {
    let trace = "0 0 8 8 1\n5 0 3 1 0\n";
    let error = replay(trace, "").unwrap_err().to_string();
    assert!(error.contains(":2: bytes 1536..+512 are not whole sectors of 4096 bytes"), "{error}");
    assert!(error.contains("`replay_align=4096`"), "{error}");
    let (result, log) = replay(trace, "replay_align=4k").unwrap();
    assert_eq!((log[1].1.lba, log[1].1.sectors), (0, 1));
    let fit = result.jobs[0].trace_adjustments;
    assert_eq!((fit.aligned_requests, fit.bytes_requested, fit.bytes_issued), (1, 4608, 8192));
}

/// Lines that a job can reach are checked before the run. Progress is the position in the file.
#[test]
fn a_trace_is_checked_before_the_run() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"0 0 0 8 1\n1000000 0 8 8 1\n2000000 0 16 8 1\n3000000 0 3 8 1\n").unwrap();
    let limits = *block::BlockDevice::limits(&Ram::new(1024, Nanos::ZERO));
    let check = |options: &str| {
        let text = format!("[t]\nread_iolog={}\n{options}", file.path().display());
        sluice_workload::check_jobs(&jobs(&text), &limits)
    };
    let error = check("").unwrap_err().to_string();
    assert!(error.contains(":4: bytes 1536..+4096"), "{error}");
    assert!(check("runtime=1ms").is_ok(), "the job ends before the last line");
    assert!(
        check("runtime=1ms\nreplay_time_scale=200").is_err(),
        "at double pace the job reaches the last line"
    );
    assert!(check("replay_align=4k").is_ok());
    let text = format!("[t]\nread_iolog={}\nreplay_align=4k", file.path().display());
    let mut host = common::job_runner(Ram::new(1024, Nanos::from_micros(1)), &text);
    let mut runner = time::VirtualRunner::new();
    let mut seen = vec![host.progress()];
    while !host.is_done() {
        runner.step(&mut [&mut host], Nanos::MAX);
        seen.push(host.progress());
    }
    assert!(seen.is_sorted() && seen[0] == 0.0 && seen[seen.len() - 1] == 1.0, "{seen:?}");
    assert!(seen.iter().any(|part| *part > 0.0 && *part < 1.0), "{seen:?}");
}

#[test]
fn all_actions_of_an_iolog_arrive() {
    let trace = "fio version 3 iolog\n0 f add\n0 f open\n1 f write 0 8192\n2 f sync 0 0\n3 f trim 4096 4096\n4 f close\n";
    let (result, log) = replay(trace, "").unwrap();
    let ops: Vec<Op> = log.iter().map(|(_, r)| r.op).collect();
    assert_eq!(ops, [Op::Write, Op::Flush, Op::Discard]);
    assert_eq!((result.jobs[0].sync.count(), result.jobs[0].requests.completed), (1, 3));
}

#[test]
fn a_bad_line_fails_the_run_with_file_and_line() {
    let error = replay("0 0 0 8 1\n5 0 x 8 1\n", "").unwrap_err();
    assert!(matches!(error, RunError::Trace { .. }));
    assert!(error.to_string().contains(":2: `x` is not the first sector"), "{error}");
    let error = replay("0 0 0 8 1\n5 0 999999992 8 1\n", "").unwrap_err();
    assert!(error.to_string().contains("past the end of the device"), "{error}");
    assert!(replay("0 0 0 8 1\n5 0 999999992 8 1\n", "wrap=1").is_ok());
}

#[test]
fn a_trace_runs_beside_other_jobs() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(MSR.as_bytes()).unwrap();
    let text = format!("[t]\nread_iolog={}\n[r]\nrw=randread\n", file.path().display());
    let ram = Ram::new(1024, Nanos::from_micros(100));
    let mut host = JobRunner::new(ram, jobs(&text), IoCpuCosts::default(), 1).unwrap();
    common::run_to_end(&mut host);
    assert_eq!(host.finish().unwrap().jobs[1].directions[0].ios, 1024);
}
