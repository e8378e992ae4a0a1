//! Group `sim`: simulated I/Os per second of wall time, on one core.
//!
//! The measurement covers all of `sluice sim`: a job's next request, the queue pair, the drive, its
//! FTL and flash timing, the completion, and the recording of its latency. The drive is MQSim's
//! default with `data = "none"`, filled and overwritten at random until GC is in steady state.
//!
//! The state of the preconditioned drive is kept in a file and loaded again, and the memory per sector is measured.
//!
//! Jobs on a modeled machine (`[host] machine`) have a minimum of 100,000 I/Os per second. Other
//! I/Os per second of wall time are this machine's, and have no bound. The write amplification of the steady state is one
//! of virtual time: within 5 % of the analysis (`sluice drive show`). A quick run does not reach the steady state.

use std::path::Path;
use std::time::{Duration, Instant};

use block::BlockDevice;
use scenario::{Scenario, StateFolder};
use sim::analytic::ClosedFormLimits;
use sim::{SimOptions, SimStage, simulate};
use stack::{RunObserver, Stack, StateUse, co_simulate, precondition_stack};
use time::VirtualRunner;
use workload::{IoCpuCosts, JobRunner, JobSpec};

use super::{BenchError, Measurement, RunLength, Sink};

const BENCH: &str = "sim";

/// Measures the group.
///
/// # Errors
/// When the system refuses memory, or the output fails.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let preset = effort.choose("mqsim-default", "mqsim-default-small");
    let overwrite = effort.choose(1.0, 0.05);
    let text = format!(
        "[drive]\npreset = \"{preset}\"\ndata = \"none\"\npersonality = \"block\"\n\
         [precondition]\nfill = \"sequential\"\noverwrite = \"random {overwrite}x\"\n"
    );
    let mut scenario = Scenario::parse(Path::new("bench"), &text).map_err(setup)?;
    let folder = StateDir::new();
    scenario.precondition.states = Some(folder.0.clone());
    let before = resident_bytes()?;
    let (stack, seconds, _) = prepare(&scenario, &mut VirtualRunner::new())?;
    let case = format!("{preset}, fill and random {overwrite}x");
    sink.push(Measurement::new(BENCH, &case, "precondition_time", seconds, "s"))?;
    let sectors = stack.device.limits().sectors as f64;
    let bytes = resident_bytes()?.saturating_sub(before) as f64 / sectors;
    let memory = Measurement::new(BENCH, &case, "memory_per_sector", bytes, "bytes");
    sink.push(match effort {
        RunLength::Full => memory.at_most(12.0),
        // On a small drive, what does not depend on its size counts.
        RunLength::Quick => memory,
    })?;
    // The next drive takes the memory of this one: a virtual machine's host may be slow to provide
    // memory that was never used.
    drop(stack);
    let begin = Instant::now();
    let mut runner = VirtualRunner::new();
    let (mut stack, _, used) = prepare(&scenario, &mut runner)?;
    let load = begin.elapsed().as_secs_f64();
    if !matches!(used, Some(StateUse::Loaded(_))) {
        return Err(BenchError::Io(std::io::Error::other(format!("no kept state: {used:?}"))));
    }
    drop(folder);
    let load = Measurement::new(BENCH, &case, "state_load_time", load, "s");
    sink.push(load.with_reference("preconditioning", seconds))?;

    let limits = ClosedFormLimits::from_spec(&scenario.drives[0]);
    let analysis = limits.sustained.as_ref().map(|s| s.write_amplification);
    let ios = effort.choose(4_000_000u64, 20_000);
    for (case, rw, aim) in [
        ("4 KB random reads, QD 64", "randread", 4.0e6),
        ("4 KB random overwrites in steady-state GC, QD 64", "randwrite", 1.5e6),
    ] {
        let before = stack.ftl_stats();
        let rate = simulated(&mut stack, &mut runner, rw, ios)?;
        let result = Measurement::new(BENCH, case, "simulated_ios_per_second", rate, "1/s");
        sink.push(result.with_reference("aim", aim))?;
        let after = stack.ftl_stats();
        if let (Some(before), Some(after)) = (before, after)
            && let Some(wa) = after.since(&before).write_amplification()
        {
            let row = Measurement::new(BENCH, case, "write_amplification", wa, "");
            sink.push(match analysis.filter(|_| rw == "randwrite" && effort == RunLength::Full) {
                Some(analysis) => row.with_reference("analysis", analysis).within(0.05, analysis),
                None => row,
            })?;
        }
    }
    drop(stack);
    measure_sampled(preset, analysis, effort, sink)?;
    measure_on_machine(effort, sink)
}

/// Number of threads of the jobs on the modeled machine.
const MACHINE_THREADS: u32 = 8;

/// Measures reads of a drive by threads on a modeled machine.
fn measure_on_machine(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let bytes = effort.choose(1_000_000u64, 5_000) / u64::from(MACHINE_THREADS) * 4096;
    let text = format!(
        "[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\npersonality = \"block\"\n\
         [precondition]\nfill = \"sequential\"\n\
         [host]\nmachine = \"i7-4770\"\n\
         [path]\nqueue_model = \"mq\"\ncores = {MACHINE_THREADS}\n\
         [[job]]\nname = \"readers\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = 8\n\
         norandommap = true\nnumjobs = {MACHINE_THREADS}\nio_size = \"{bytes}\"\n"
    );
    let scenario = Scenario::parse(Path::new("bench"), &text).map_err(setup)?;
    // The jobs begin with the first report.
    let mut begin = None;
    let mut progress = |stage| {
        if matches!(stage, SimStage::Running { .. }) {
            begin.get_or_insert_with(Instant::now);
        }
    };
    let options = SimOptions { progress: Some(&mut progress), ..SimOptions::default() };
    let outcome = simulate(&scenario, options).map_err(setup)?;
    let seconds = begin.map_or(f64::NAN, |begin| begin.elapsed().as_secs_f64());
    let jobs = outcome.paths.iter().flat_map(|path| &path.run.jobs);
    let done: u64 = jobs.map(|job| job.requests.completed).sum();
    let case = format!("4 KB random reads by {MACHINE_THREADS} threads on a modelled machine");
    let rate = done as f64 / seconds;
    let row = Measurement::new(BENCH, case, "simulated_ios_per_second", rate, "1/s");
    sink.push(match effort {
        RunLength::Full => row.at_least(100_000.0),
        RunLength::Quick => row,
    })
}

/// Measures a drive whose steady state is drawn from its distribution, and its write amplification.
fn measure_sampled(
    preset: &str,
    analysis: Option<f64>,
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let text = format!(
        "[drive]\npreset = \"{preset}\"\ndata = \"none\"\npersonality = \"block\"\n\
         [precondition]\nsteady = \"sampled\"\n"
    );
    let scenario = Scenario::parse(Path::new("bench"), &text).map_err(setup)?;
    let mut runner = VirtualRunner::new();
    let (mut stack, seconds, _) = prepare(&scenario, &mut runner)?;
    let case = format!("{preset}, sampled steady state");
    let time = Measurement::new(BENCH, &case, "precondition_time", seconds, "s");
    sink.push(time.with_reference("aim", 5.0))?;
    let before = stack.ftl_stats();
    simulated(&mut stack, &mut runner, "randwrite", effort.choose(4_000_000, 20_000))?;
    let counted = stack.ftl_stats().zip(before).map(|(after, before)| after.since(&before));
    let Some(wa) = counted.and_then(|counted| counted.write_amplification()) else {
        return Ok(());
    };
    let row = Measurement::new(BENCH, case, "write_amplification", wa, "");
    sink.push(match analysis.filter(|_| effort == RunLength::Full) {
        Some(analysis) => row.with_reference("analysis", analysis).within(0.05, analysis),
        None => row,
    })
}

/// A folder for the state, which is removed at the end.
struct StateDir(StateFolder);

impl StateDir {
    fn new() -> StateDir {
        let path = std::env::temp_dir().join(format!("sluice-bench-sim-{}", std::process::id()));
        StateDir(StateFolder { path, bytes_max: u64::MAX, worth: Duration::ZERO })
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        // It is gone if nothing could be written.
        let _ = std::fs::remove_dir_all(&self.0.path);
    }
}

/// Builds the stack and preconditions it. Returns the seconds that this took, without those for
/// keeping the state, and how it came to its state.
fn prepare(
    scenario: &Scenario,
    runner: &mut VirtualRunner,
) -> Result<(Stack, f64, Option<StateUse>), BenchError> {
    let begin = Instant::now();
    let mut seconds = 0.0;
    let (plan, what) = (&scenario.drives[0], &scenario.precondition);
    let stack = Stack::build(plan, None).map_err(setup)?;
    let mut progress = |_| seconds = begin.elapsed().as_secs_f64();
    let (stack, used) =
        precondition_stack(stack, plan, what, runner, 1, &mut progress).map_err(setup)?;
    Ok((stack, seconds, used))
}

/// Returns the memory that this process has in use.
fn resident_bytes() -> Result<u64, BenchError> {
    let text = std::fs::read_to_string("/proc/self/status").map_err(BenchError::Io)?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let missing = || BenchError::Io(std::io::Error::other("/proc/self/status has no VmRSS"));
    Ok(kilobytes.ok_or_else(missing)? * 1024)
}

fn setup(error: impl std::error::Error) -> BenchError {
    BenchError::Io(std::io::Error::other(error.to_string()))
}

/// Runs a job of `ios` requests and returns the simulated requests per second of wall time.
fn simulated(
    stack: &mut Stack,
    runner: &mut VirtualRunner,
    rw: &str,
    ios: u64,
) -> Result<f64, BenchError> {
    let bytes = (ios * 4096).to_string();
    let pairs = [
        ("rw", rw),
        ("bs", "4k"),
        ("iodepth", "64"),
        ("norandommap", "1"),
        ("io_size", bytes.as_str()),
    ];
    let pairs = pairs.iter().enumerate().map(|(i, (k, v))| (*k, *v, i + 1));
    let (job, _) = JobSpec::from_pairs(rw, Path::new("bench"), pairs).map_err(setup)?;
    let costs = IoCpuCosts::default();
    let mut host = JobRunner::new(&mut stack.device, vec![job], costs, 1).map_err(setup)?;
    let begin = Instant::now();
    co_simulate(runner, &mut host, &mut stack.drive, RunObserver::new(&mut |_, _, _| true));
    let seconds = begin.elapsed().as_secs_f64();
    let result = host.finish().map_err(setup)?;
    let done: u64 = result.jobs.iter().map(|j| j.requests.completed).sum();
    Ok(done as f64 / seconds)
}
