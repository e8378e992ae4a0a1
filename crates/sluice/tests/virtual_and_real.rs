//! Virtual and real time agree: one fio job file, run by fio over NBD against a served drive, and by
//! `sluice sim`, on a drive slow enough for the host.

mod served;

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

/// Attempts: the machine is shared, and a moment of somebody else's is not ours.
const ATTEMPTS: usize = 3;

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

/// Runs the job file in both worlds.
fn run_both(dir: &Path, host: &str) -> [serde_json::Value; 2] {
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
    let scenario = dir.join("virtual.toml");
    std::fs::write(&scenario, format!("{SLOW}{host}")).unwrap();
    let json = dir.join("virtual.json");
    let mut sim = Command::new(env!("CARGO_BIN_EXE_sluice"));
    succeed(sim.arg("sim").arg(&scenario).arg(&jobs).arg("--json").arg(&json));
    let mut ways: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    [real, ways[0].take()]
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
    let mut worst = f64::MAX;
    for attempt in 1..=ATTEMPTS {
        let [real, simulated] = run_both(dir.path(), &host);
        worst = 0.0;
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
        if worst <= 0.10 {
            return;
        }
    }
    panic!("the worlds are {:.1} % apart", 100.0 * worst);
}
