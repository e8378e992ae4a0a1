//! Group `sim`: simulated I/Os per second of wall time, on one core.
//!
//! The measurement covers all of `sluice sim`: a job's next request, the queue pair, the drive, its
//! FTL and flash timing, the completion, and the recording of its latency. The drive is MQSim's
//! default with `data = "none"`, filled and overwritten at random until GC is in steady state.
//!
//! I/Os per second of wall time are this machine's, and have no bound. The write amplification of the steady state is one
//! of virtual time: within 5 % of the analysis (`sluice drive show`). A quick run does not reach the steady state.

use std::path::Path;
use std::time::Instant;

use scenario::Scenario;
use sim::analytic::ClosedFormLimits;
use stack::{RunObserver, Stack, co_simulate, precondition};
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
    let scenario = Scenario::parse(Path::new("bench"), &text).map_err(setup)?;
    let mut runner = VirtualRunner::new();
    let begin = Instant::now();
    let stack = Stack::build(&scenario.drives[0], None).map_err(setup)?;
    let mut stack =
        precondition(stack, &scenario.precondition, &mut runner, 1, &mut |_| {}).map_err(setup)?;
    let seconds = begin.elapsed().as_secs_f64();
    let case = format!("{preset}, fill and random {overwrite}x");
    sink.push(Measurement::new(BENCH, case, "precondition_time", seconds, "s"))?;

    let limits = ClosedFormLimits::from_spec(&scenario.drives[0]);
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
            let analysis = limits.sustained.as_ref().map(|s| s.write_amplification);
            sink.push(match analysis.filter(|_| rw == "randwrite" && effort == RunLength::Full) {
                Some(analysis) => row.with_reference("analysis", analysis).within(0.05, analysis),
                None => row,
            })?;
        }
    }
    Ok(())
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
