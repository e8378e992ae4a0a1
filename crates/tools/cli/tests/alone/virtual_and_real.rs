//! Virtual and real time agree: fio over NBD on a served drive and `sluice sim` run the same job
//! file. The drive is slow enough for the host to keep up with it.
//!
//! A busy machine delays the drive in real time, which the drive's statistics report (`kept_up`).
//! The test then repeats the attempt on a drive whose media are two, four and eight times as slow,
//! with as many requests. The bound is relative, so that it is equally strict on every drive.

// guarantee: M-11

use crate::served;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use served::*;

/// A drive with few parallel units and operations of milliseconds, multiplied by `slowdown`.
fn drive(slowdown: u32) -> String {
    let [read, program, erase] = [5, 8, 20].map(|ms| ms * slowdown);
    format!(
        "[drive]\npreset = \"femu-default\"\n\
         geometry = {{ channels = 2, pus = 2, chunks = 64, pages = 64 }}\n\
         timing = {{ read = \"{read}ms\", program = \"{program}ms\", erase = \"{erase}ms\" }}\n\
         [precondition]\nfill = \"sequential\"\n"
    )
}

/// Jobs that issue the same number of requests with every slowdown.
fn jobs(slowdown: u32) -> String {
    format!(
        "[global]\nbs=4k\niodepth=4\ntime_based\nruntime={}\nrandrepeat=1\nsize=16m\n\
         [readers]\nrw=randread\n\
         [mixed]\nstonewall\nrw=randrw\nrwmixread=50\n",
        5 * slowdown
    )
}

/// The largest slowdown.
const SLOWDOWN_MAX: u32 = 8;

/// Attempts in which the drive kept up; their median is compared with the bound.
const ATTEMPTS: usize = 3;

/// Attempts with the largest slowdown in which the drive may be late before the test reports a busy
/// machine.
const LATE_ATTEMPTS_MAX: usize = 3;

/// Pause after an attempt in which the drive was late.
const PAUSE: Duration = Duration::from_secs(3);

/// The largest difference, as a share of the virtual figure.
const BOUND: f64 = 0.10;

/// IOPS, and mean latency in microseconds, of one direction of a job.
#[derive(Clone, Copy, Debug)]
struct RateAndLatency {
    iops: f64,
    mean_us: f64,
}

fn found(result: &serde_json::Value, job: &str, direction: &str) -> RateAndLatency {
    let jobs = result["jobs"].as_array().unwrap();
    let job = jobs.iter().find(|j| j["jobname"] == job).unwrap();
    RateAndLatency {
        iops: job[direction]["iops"].as_f64().unwrap(),
        mean_us: job[direction]["lat_ns"]["mean"].as_f64().unwrap() / 1e3,
    }
}

/// Runs the job file in real and in virtual time; `None` if the machine did not keep up with the
/// drive.
fn run_both(dir: &Path, host: &str, slowdown: u32) -> Option<[serde_json::Value; 2]> {
    let path = dir.join("jobs.fio");
    std::fs::write(&path, jobs(slowdown)).unwrap();
    let drive = drive(slowdown);
    let server = Server::start(dir, &drive);
    let mut fio = program("fio", "fio");
    fio.args(["--output-format=json", "--ioengine=nbd"]);
    fio.arg(format!("--uri={}", server.uri(""))).arg(&path).current_dir(dir);
    let output = succeed(&mut fio);
    let text = String::from_utf8(output.stdout).unwrap();
    let real = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let served = server.stop();
    println!("lateness while it was served: {}", served["lateness_ns"]);
    if !served["lateness_ns"]["kept_up"].as_bool().unwrap() {
        return None;
    }
    let scenario = dir.join("virtual.toml");
    std::fs::write(&scenario, format!("{drive}{host}")).unwrap();
    let json = dir.join("virtual.json");
    let mut sim = Command::new(env!("CARGO_BIN_EXE_sluice"));
    succeed(sim.arg("sim").arg(&scenario).arg(&path).arg("--json").arg(&json));
    let mut ways: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    Some([real, ways[0].take()])
}

/// Measures the host's cost of an NBD client, with a drive without latency.
fn host_costs(dir: &Path) -> String {
    let null = "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\n";
    let server = Server::start(dir, null);
    let job = ["--rw=randread", "--bs=4k", "--iodepth=1", "--time_based", "--runtime=1"];
    let result = fio_ok(&server, &[&job[..], &["--size=64m"]].concat());
    server.stop();
    let mean = result["jobs"][0]["read"]["lat_ns"]["mean"].as_f64().unwrap();
    let half = (mean / 2.0) as u64;
    format!("[host]\nsubmit_cost = \"{half}ns\"\ncomplete_cost = \"{half}ns\"\n")
}

#[test]
fn one_job_file_gives_the_same_in_both() {
    let dir = tempfile::tempdir().unwrap();
    let mut worst_of_attempts = Vec::new();
    let (mut slowdown, mut late) = (1, 0);
    while late < LATE_ATTEMPTS_MAX {
        let host = host_costs(dir.path());
        println!("{host}media times {slowdown} times as long");
        let Some([real, simulated]) = run_both(dir.path(), &host, slowdown) else {
            late += usize::from(slowdown == SLOWDOWN_MAX);
            slowdown = (2 * slowdown).min(SLOWDOWN_MAX);
            std::thread::sleep(PAUSE);
            continue;
        };
        let mut worst: f64 = 0.0;
        for (job, direction) in [("readers", "read"), ("mixed", "read"), ("mixed", "write")] {
            let (r, v) = (found(&real, job, direction), found(&simulated, job, direction));
            let apart = |a: f64, b: f64| (a / b - 1.0).abs();
            println!(
                "{job} {direction}: real {:.1} IOPS {:.0} us, virtual {:.1} IOPS {:.0} us: {:.1} % \
                 and {:.1} % apart",
                r.iops,
                r.mean_us,
                v.iops,
                v.mean_us,
                100.0 * apart(r.iops, v.iops),
                100.0 * apart(r.mean_us, v.mean_us)
            );
            worst = apart(r.iops, v.iops).max(apart(r.mean_us, v.mean_us)).max(worst);
        }
        worst_of_attempts.push(worst);
        // Two of three attempts on one side of the bound determine the side of the median.
        let near = worst_of_attempts.iter().filter(|worst| **worst <= BOUND).count();
        let far = worst_of_attempts.len() - near;
        if near.max(far) > ATTEMPTS / 2 {
            assert!(near > far, "real and virtual time differ by {worst_of_attempts:.3?}");
            return;
        }
    }
    let on_time = worst_of_attempts.len();
    testkit::skip!(
        "the drive was on time in {on_time} attempts, and late in {late} with its media {SLOWDOWN_MAX} times as \
         slow: the machine is too busy"
    );
}
