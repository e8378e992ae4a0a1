//! Counts the instructions of a simulated I/O. Unlike `sluice bench sim`, the count is independent
//! of noise.
//!
//! | case | instructions counted, per 4 KB request, 64 outstanding |
//! |---|---|
//! | `sim-read` | random reads of a drive that was filled sequentially |
//! | `sim-overwrite` | random overwrites of a drive that was filled, and overwritten once at random |
//!
//! Both cases cover all of a simulation without a recording: the job's next request, the queue pair,
//! the drive with its FTL and flash timing, the completion, and the latency histogram. Building and
//! preconditioning the drive are not counted. callgrind counts, also by crate.
//!
//! | command | effect |
//! |---|---|
//! | `cargo bench --package sluice-stack --bench instructions` | counts, and fails if a bound is exceeded |
//! | the same with `-- run sim-overwrite 10` | runs ten times as many requests without valgrind |

use std::path::Path;
use std::process::ExitCode;

use scenario::Scenario;
use sluice_stack::{RunObserver, Stack, co_simulate, precondition};
use testkit::instructions::{CountedCase, CountingMethod, Failed, InstructionBench, Marker};
use time::VirtualRunner;
use workload::{IoCpuCosts, JobRunner, JobSpec};

/// Requests per batch, which is one job.
const BATCH: u64 = 50_000;
/// Requests of the job before the counted ones: overwrites reach the steady state of garbage
/// collection, which begins after all free lines are written.
const WARM_UP: u64 = 300_000;
/// Seed of preconditioning and of the jobs.
const SEED: u64 = 1;

/// Maximum instructions, for the workspace's own profile as `cargo bench` uses it: 5 % more than
/// counted.
const CASES: [CountedCase; 2] = [
    CountedCase { name: "sim-read", base: "", bound: 4549.0, batch: BATCH },
    CountedCase { name: "sim-overwrite", base: "", bound: 15828.0, batch: BATCH },
];

/// Runs a job to its end. The marker is called before and after the simulation.
fn simulate(
    stack: &mut Stack,
    runner: &mut VirtualRunner,
    (rw, requests): (&str, u64),
    marker: &mut Marker,
) -> Result<(), Failed> {
    let bytes = (requests * 4096).to_string();
    let pairs = [
        ("rw", rw),
        ("bs", "4k"),
        ("iodepth", "64"),
        ("norandommap", "1"),
        ("io_size", bytes.as_str()),
    ];
    let pairs = pairs.iter().enumerate().map(|(i, (key, value))| (*key, *value, i + 1));
    let (job, _) = JobSpec::from_pairs(rw, Path::new("bench"), pairs)?;
    let mut host = JobRunner::new(&mut stack.device, vec![job], IoCpuCosts::default(), SEED)?;
    marker.mark()?;
    co_simulate(runner, &mut host, &mut stack.drive, RunObserver::new(&mut |_, _, _| true));
    marker.mark()?;
    let completed: u64 = host.finish()?.jobs.iter().map(|job| job.requests.completed).sum();
    match completed == requests {
        true => Ok(()),
        false => Err(format!("{completed} of {requests} requests are complete").into()),
    }
}

/// Runs a case in this process, and prints the write amplification of overwrites.
fn run(case: &str, batches: u64, marker: &mut Marker) -> Result<(), Failed> {
    let (rw, overwrite) = match case {
        "sim-read" => ("randread", ""),
        "sim-overwrite" => ("randwrite", "overwrite = \"random 1x\"\n"),
        _ => return Err(format!("no such case: {case}").into()),
    };
    let text = format!(
        "[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\npersonality = \"block\"\n\
         [precondition]\nfill = \"sequential\"\n{overwrite}"
    );
    let scenario = Scenario::parse(Path::new("bench"), &text)?;
    let mut runner = VirtualRunner::new();
    let stack = Stack::build(&scenario.drives[0], None)?;
    let mut stack = precondition(stack, &scenario.precondition, &mut runner, SEED, &mut |_| {})?;
    simulate(&mut stack, &mut runner, (rw, WARM_UP), &mut Marker::Off)?;
    let before = stack.ftl_stats().ok_or("the drive has no FTL")?;
    simulate(&mut stack, &mut runner, (rw, batches * BATCH), marker)?;
    let stats = stack.ftl_stats().ok_or("the drive has no FTL")?.since(&before);
    if let Some(value) = stats.write_amplification() {
        println!(
            "{{\"bench\": \"instructions\", \"case\": \"{case}\", \"metric\": \
             \"write_amplification\", \"value\": {value:.3}, \"unit\": \"\"}}"
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    InstructionBench {
        cases: &CASES,
        ratios: &[],
        differences: &[],
        batches: 1,
        method: CountingMethod::Callgrind,
        run,
    }
    .main()
}
