//! Virtual and real time agree: one fio job file, run by fio over NBD against a served drive, and by
//! `sluice sim`, on a drive slow enough for the host.

// guarantee: M-11

use crate::served;

use std::path::Path;
use std::process::Command;

use served::*;

/// Few parallel units, and operations of milliseconds.
const SLOW: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, pus = 2, chunks = 64, pages = 64 }\n\
    timing = { read = \"5ms\", program = \"8ms\", erase = \"20ms\" }\n\
    [precondition]\nfill = \"sequential\"\n";

const JOBS: &str = "[global]\nbs=4k\niodepth=4\ntime_based\nruntime=5\nrandrepeat=1\nsize=16m\n\
    [readers]\nrw=randread\n\
    [mixed]\nstonewall\nrw=randrw\nrwmixread=50\n";

/// Attempts in which the drive was on time, of which the median counts.
const ATTEMPTS: usize = 3;

/// Attempts at most. Those in which the drive's own statistics say that the machine did not keep up say nothing.
const ATTEMPTS_MAX: usize = 6;

/// The largest difference, as a share of the virtual figure.
const BOUND: f64 = 0.10;

/// IOPS and mean latency in microseconds, of a direction of a job.
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

/// Runs the job file in both worlds; `None` if the machine did not keep up with the drive in real time.
fn run_both(dir: &Path, host: &str) -> Option<[serde_json::Value; 2]> {
    let jobs = dir.join("jobs.fio");
    std::fs::write(&jobs, JOBS).unwrap();
    let server = Server::start(dir, SLOW);
    let mut fio = program("fio", "fio");
    fio.args(["--output-format=json", "--ioengine=nbd"]);
    fio.arg(format!("--uri={}", server.uri())).arg(&jobs).current_dir(dir);
    let output = succeed(&mut fio);
    let text = String::from_utf8(output.stdout).unwrap();
    let real = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let served = server.stop();
    println!("lateness while it was served: {}", served["lateness_ns"]);
    if !served["lateness_ns"]["kept_up"].as_bool().unwrap() {
        return None;
    }
    let scenario = dir.join("virtual.toml");
    std::fs::write(&scenario, format!("{SLOW}{host}")).unwrap();
    let json = dir.join("virtual.json");
    let mut sim = Command::new(env!("CARGO_BIN_EXE_sluice"));
    succeed(sim.arg("sim").arg(&scenario).arg(&jobs).arg("--json").arg(&json));
    let mut ways: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    Some([real, ways[0].take()])
}

/// What the way of an NBD client costs here: that of a drive that takes no time.
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
    let host = host_costs(dir.path());
    println!("{host}");
    let mut worst_of_attempts = Vec::new();
    for attempt in 1..=ATTEMPTS_MAX {
        let Some([real, simulated]) = run_both(dir.path(), &host) else { continue };
        let mut worst: f64 = 0.0;
        println!("attempt {attempt}");
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
        // Two of three on one side of the bound: the median is there, too.
        let near = worst_of_attempts.iter().filter(|worst| **worst <= BOUND).count();
        let far = worst_of_attempts.len() - near;
        if near.max(far) > ATTEMPTS / 2 {
            assert!(near > far, "real and virtual time differ by {worst_of_attempts:.3?}");
            return;
        }
    }
    let on_time = worst_of_attempts.len();
    testkit::skip!(
        "the drive was on time in {on_time} of {ATTEMPTS_MAX} attempts: the machine is too busy"
    );
}
