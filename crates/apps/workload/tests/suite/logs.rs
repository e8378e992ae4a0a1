//! fio's logs over time: names, lines, windows, errors.

use crate::common;

use std::path::Path;

use common::{Fault, Ram, job_runner, run_to_end};
use sluice_workload::RunError;
use time::Nanos;

fn ram() -> Ram {
    Ram::new(1024, Nanos::from_micros(100))
}

/// Runs a job whose logs start with `dir`/`L`; returns the names and texts of the logs, by name.
fn logs(ram: Ram, options: &str) -> Vec<(String, String)> {
    let dir = tempfile::tempdir().unwrap();
    let text = options.replace("LOG", &dir.path().join("L").display().to_string());
    let mut host = job_runner(ram, &text);
    assert!(host.open_logs(1).is_ok());
    run_to_end(&mut host);
    host.finish().unwrap();
    let mut found: Vec<(String, String)> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read_to_string(entry.path()).unwrap())
        })
        .collect();
    found.sort();
    found
}

fn names(found: &[(String, String)]) -> Vec<&str> {
    found.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn one_line_per_request() {
    let found = logs(
        ram(),
        "[j]\nrw=write\nbs=8k\nsize=24k\nwrite_lat_log=LOG\nwrite_bw_log=LOG\nwrite_iops_log=LOG",
    );
    let expected = ["L_bw.1.log", "L_clat.1.log", "L_iops.1.log", "L_lat.1.log", "L_slat.1.log"];
    assert_eq!(names(&found), expected);
    let text: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
    // 8192 bytes in 100 us, in units of 1000 bytes per second.
    assert_eq!(text[0], "0, 81920, 1, 8192, 0\n".repeat(3));
    assert_eq!(text[1], "0, 100000, 1, 8192, 0\n".repeat(3));
    assert_eq!(text[2], "0, 1, 1, 8192, 0\n".repeat(3));
    assert_eq!((text[1], text[4]), (text[3], &*"0, 0, 1, 8192, 0\n".repeat(3)));
    let found = logs(ram(), "[j]\nrw=trim\nsize=12k\nwrite_iops_log=LOG\nlog_offset\nnumjobs=2");
    assert_eq!(names(&found), ["L_iops.1.log", "L_iops.2.log"]);
    let lines = "0, 1, 2, 4096, 0, 0\n0, 1, 2, 4096, 4096, 0\n0, 1, 2, 4096, 8192, 0\n";
    assert_eq!((found[0].1.as_str(), found[1].1.as_str()), (lines, lines));
}

#[test]
fn one_line_per_window_and_direction() {
    // 10 ms of ramp without measurements, then 25 ms: two whole windows, and half of one.
    let text = "[j]\nrw=randread\ntime_based\nruntime=25ms\nramp_time=10ms\nlog_avg_msec=10\niodepth=2\n\
                write_lat_log=LOG\nwrite_bw_log=LOG\nwrite_iops_log=LOG";
    let found = logs(ram(), text);
    // Two requests that were due before the end of the ramp are not measured.
    assert_eq!(found[2].1, "10, 19800, 0, 0, 0\n20, 20000, 0, 0, 0\n");
    assert_eq!(found[0].1, "10, 79200, 0, 0, 0\n20, 80000, 0, 0, 0\n", "bandwidth in KiB/s");
    let latencies: String = [10, 20, 25].map(|ms| format!("{ms}, 100000, 0, 0, 0\n")).concat();
    assert_eq!(found[3].1, latencies);
    // A window without completions has no line; with log_max_value, lines have the maximum instead
    // of the average.
    let text = "[j]\nrw=read\nbssplit=4k/50:64k/50\nrandseed=1\nthinktime=30ms\nthinktime_blocks=20\nnumber_ios=40\n\
                log_avg_msec=10\nlog_max_value\nwrite_lat_log=LOG";
    let found = logs(ram().per_sector(Nanos::from_micros(10)), text);
    let (_, lat) = &found[1];
    let lines: Vec<Vec<u64>> = lat
        .lines()
        .map(|line| line.split(", ").map(|column| column.parse().unwrap()).collect())
        .collect();
    assert!(lines.iter().all(|line| line[1] == 260_000 && line[2] == 0), "{lat}");
    assert!(lines.len() == 2 && lines[1][0] >= lines[0][0] + 30, "{lat}");
}

#[test]
fn the_name_is_the_jobs_unless_said_and_errors_come_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().join("alpha").display().to_string();
    let mut with_name = job_runner(ram(), &format!("[{name}]\nsize=4k\nwrite_lat_log\n"));
    with_name.open_logs(7).unwrap();
    run_to_end(&mut with_name);
    with_name.finish().unwrap();
    assert!(Path::new(&format!("{name}_clat.7.log")).exists());
    let missing = dir.path().join("no/such/L");
    let mut bad = job_runner(ram(), &format!("[j]\nwrite_bw_log={}\n", missing.display()));
    let error = bad.open_logs(1).unwrap_err();
    assert!(matches!(&error, RunError::Log { job, .. } if job == "j"), "{error}");
    assert!(error.to_string().contains("no/such/L_bw.1.log"), "{error}");
    let specs = common::jobs(&format!("[j]\nwrite_bw_log={}\n", missing.display()));
    let limits = *block::BlockDevice::limits(&ram());
    let error = sluice_workload::check_jobs(&specs, &limits).unwrap_err();
    assert!(matches!(&error, RunError::Log { job, .. } if job == "j"), "{error}");
    // A full disk is detected when the log is written.
    let full = dir.path().join("F");
    std::os::unix::fs::symlink("/dev/full", dir.path().join("F_lat.1.log")).unwrap();
    let mut host = job_runner(ram(), &format!("[j]\nsize=4k\nwrite_lat_log={}\n", full.display()));
    host.open_logs(1).unwrap();
    run_to_end(&mut host);
    let error = host.finish().unwrap_err().to_string();
    assert!(error.contains("F_lat.1.log: No space left"), "{error}");
}

#[test]
fn failed_requests_and_flushes_have_no_lines() {
    let text = "[j]\nrw=read\nsize=12k\ncontinue_on_error=all\nwrite_iops_log=LOG";
    let found = logs(ram().fault(Fault::FailRead(1)), text);
    assert_eq!(found[0].1.lines().count(), 2);
    let found = logs(ram(), "[j]\nrw=write\nsize=12k\nfsync=1\nwrite_iops_log=LOG");
    assert_eq!(found[0].1.lines().count(), 3);
}
