//! Traces replay at their own pace, or as fast as the device allows.

mod common;

use std::io::Write;

use block::Op;
use clock::Nanos;
use common::{Ram, jobs, try_run};
use sluice_workload::{Direction, Host, HostCosts, HostError};

fn replay(
    trace: &str,
    options: &str,
) -> Result<(sluice_workload::RunResult, Vec<(Nanos, block::Request)>), HostError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(trace.as_bytes()).unwrap();
    let text = format!("[t]\nread_iolog={}\n{options}", file.path().display());
    try_run(Ram::new(1024, Nanos::from_micros(100)), &text)
}

const MSR: &str = "128166372003061629,hm,1,Read,4096,32768,1\n\
                   128166372003062629,hm,1,Write,512,512,1\n\
                   128166372003081629,hm,1,Read,8192,4096,1\n";

#[test]
fn a_timed_replay_is_an_open_loop() {
    let (result, log) = replay(MSR, "").unwrap();
    let times: Vec<u64> = log.iter().map(|(t, _)| t.0 / 1000).collect();
    assert_eq!(times, [0, 100, 2000]);
    let job = &result.jobs[0];
    assert_eq!((job.directions[0].ios, job.directions[1].ios, job.trace_fit.widened), (2, 1, 1));
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
    assert_eq!(job.delayed, 99);
    let lat = &job.direction(Direction::Read).lat;
    assert_eq!(lat.max(), Nanos(100 * 100_000 - 99 * 1000), "the last waits for all before it");
    let (result, _) = replay(&trace, "").unwrap();
    assert_eq!(
        (result.jobs[0].delayed, result.jobs[0].directions[0].lat.max()),
        (0, Nanos(100_000))
    );
}

#[test]
fn all_actions_of_an_iolog_arrive() {
    let trace = "fio version 3 iolog\n0 f add\n0 f open\n1 f write 0 8192\n2 f sync 0 0\n3 f trim 4096 4096\n4 f close\n";
    let (result, log) = replay(trace, "").unwrap();
    let ops: Vec<Op> = log.iter().map(|(_, r)| r.op).collect();
    assert_eq!(ops, [Op::Write, Op::Flush, Op::Discard]);
    assert_eq!((result.jobs[0].sync.count(), result.jobs[0].completed), (1, 3));
}

#[test]
fn a_bad_line_fails_the_run_with_file_and_line() {
    let error = replay("0 0 0 8 1\n5 0 x 8 1\n", "").unwrap_err();
    assert!(matches!(error, HostError::Trace { .. }));
    assert!(error.to_string().contains(":2: `x` is not the first sector"), "{error}");
    let error = replay("0 0 0 8 1\n5 0 999999999 8 1\n", "").unwrap_err();
    assert!(error.to_string().contains("past the end of the device"), "{error}");
    assert!(replay("0 0 0 8 1\n5 0 999999999 8 1\n", "wrap=1").is_ok());
}

#[test]
fn a_trace_runs_beside_other_jobs() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(MSR.as_bytes()).unwrap();
    let text = format!("[t]\nread_iolog={}\n[r]\nrw=randread\n", file.path().display());
    let ram = Ram::new(1024, Nanos::from_micros(100));
    let mut host = Host::new(ram, jobs(&text), HostCosts::default(), 1).unwrap();
    common::drive(&mut host);
    assert_eq!(host.finish().unwrap().jobs[1].directions[0].ios, 1024);
}
