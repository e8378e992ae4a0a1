//! Group `live`: real-time 4 KB IOPS that an emulated drive sustains with one host thread and one
//! drive thread, and the lateness of its completions.
//!
//! A drive without timing shows the cost of the path. A drive with NAND timing (FEMU's default, 1.6
//! million reads per second by its closed form) shows whether the emulation keeps up with it.
//!
//! Reads of the drive with NAND timing have bounds, as shares of its closed form. How late completions are depends on how
//! long this machine leaves a spinning thread alone, and has none. The part that is the drive's own has one: the rest lies
//! in times in which the machine did not run the drive's thread.

use std::path::Path;

use event::{IdlePolicy, RealClock, RealRunner, ThreadUse};
use scenario::Scenario;
use sim::analytic::ClosedFormLimits;
use stack::{DriveThreadState, SnapshotCell, Stack, precondition};
use time::Component;
use workload::{IoCpuCosts, JobRunner, JobSpec};

use super::{BenchError, Measurement, RunLength, Sink};

const BENCH: &str = "live";

/// The largest share of its closed form that a drive may reach: in real time, too, it is no faster than its flash.
const FASTEST: f64 = 1.01;

/// The least share of its closed form that a drive is to reach when enough is outstanding: 1 million of the 1.6 million
/// reads per second of FEMU's default.
const KEPT_UP: f64 = 1.0 / 1.6;

/// The queue depth from which the latency of the drive does not limit the rate.
const DEEP: u32 = 256;

/// The queue depth whose own lateness has a bound.
const BOUND_DEPTH: u32 = 64;

/// The largest p99 of the drive's own part of its lateness, in nanoseconds.
const OWN_LATENESS_MAX: f64 = 2_000.0;

const NULL: &str = "[drive]\npreset = \"nvme-null\"\nnull = { latency = 0, bandwidth = 0 }\n";
const NAND: &str = "[drive]\npreset = \"femu-default\"\ndata = \"none\"\n\
                    [precondition]\nfill = \"sequential\"\n";

/// Measures the group.
///
/// # Errors
/// When the system refuses memory or threads, or the output fails.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for (drive, text, jobs) in [
        ("null", NULL, &[("randread", 128), ("randwrite", 128)][..]),
        ("nand", NAND, &[("randread", 64), ("randread", 256), ("randwrite", 64)][..]),
    ] {
        for &(rw, depth) in jobs {
            measure(effort, drive, text, rw, depth, sink)?;
        }
    }
    Ok(())
}

fn setup(error: impl std::fmt::Display) -> BenchError {
    BenchError::Io(std::io::Error::other(error.to_string()))
}

/// A run of a job on a drive in real time.
pub(super) struct LiveRun {
    /// Requests per second.
    pub(super) iops: f64,
    /// The drive after it, and what its thread recorded.
    live: DriveThreadState,
}

/// Runs a job of 4 KB requests on the first drive of a scenario, with one host thread and one drive
/// thread. The ramp is not measured.
///
/// # Errors
/// When the system refuses memory or threads, or a request fails.
pub(super) fn run_live(
    scenario: &Scenario,
    rw: &str,
    depth: u32,
    [runtime, ramp]: [&str; 2],
) -> Result<LiveRun, BenchError> {
    let plan = &scenario.drives[0];
    let stack = Stack::build(plan, None).map_err(setup)?;
    let mut runner = time::VirtualRunner::new();
    let stack =
        precondition(stack, &scenario.precondition, &mut runner, 1, &mut |_| {}).map_err(setup)?;
    let Stack { drive, device, port, .. } = stack;
    let depth_text = depth.to_string();
    let pairs = [
        ("rw", rw),
        ("bs", "4k"),
        ("iodepth", depth_text.as_str()),
        ("norandommap", "1"),
        ("time_based", "1"),
        ("runtime", runtime),
        ("ramp_time", ramp),
    ];
    let pairs = pairs.iter().enumerate().map(|(i, (k, v))| (*k, *v, i + 1));
    let (job, _) = JobSpec::from_pairs(rw, Path::new("bench"), pairs).map_err(setup)?;
    let mut host = JobRunner::new(device, vec![job], IoCpuCosts::default(), 1).map_err(setup)?;

    // The drive's thread starts where virtual time stopped, which is the start of the clock.
    let clock = RealClock::start();
    let real = RealRunner::new(clock, IdlePolicy::default())?;
    port.set_drive_waker(real.waker())?;
    let stopper = real.stop_handle();
    let mut live =
        DriveThreadState::new(drive, clock, SnapshotCell::new(), ThreadUse::OneComponent);
    let thread = std::thread::spawn(move || {
        let result = real.run(&mut live);
        (live, result)
    });
    while !host.is_done() {
        if !host.poll(clock.now()) {
            std::hint::spin_loop();
        }
    }
    stopper.stop();
    let (live, result) = thread.join().map_err(|_| BenchError::Thread("live drive"))?;
    result?;
    let result = host.finish().map_err(setup)?;

    let iops = result.jobs.iter().flat_map(|j| &j.directions).map(|d| d.iops()).sum();
    Ok(LiveRun { iops, live })
}

fn measure(
    effort: RunLength,
    name: &str,
    text: &str,
    rw: &str,
    depth: u32,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let scenario = Scenario::parse(Path::new("bench"), text).map_err(setup)?;
    let times = effort.choose(["3s", "500ms"], ["50ms", "10ms"]);
    let LiveRun { iops, live } = run_live(&scenario, rw, depth, times)?;
    let case = format!("{name}, 4 KB {rw}, QD {depth}");
    let measured = Measurement::new(BENCH, case.clone(), "iops", iops, "1/s");
    let limits = ClosedFormLimits::from_spec(&scenario.drives[0]);
    let closed = if rw == "randread" { limits.random_read.as_ref() } else { None };
    sink.push(match closed.map(|l| l.iops()).filter(|iops| iops.is_finite()) {
        Some(iops) => {
            let measured = measured.with_reference("closed form of the drive", iops);
            let measured = measured.at_most(FASTEST * iops);
            if depth >= DEEP { measured.at_least(KEPT_UP * iops) } else { measured }
        }
        None => measured,
    })?;
    let late = live.drive.lateness().read();
    for (metric, value) in [
        ("late_p50", late.p50),
        ("late_p99", late.p99),
        ("late_max", late.max),
        ("late_machine_p99", late.machine.p99),
        ("late_machine_max", late.machine.max),
        ("late_own_p50", late.own.p50),
        ("late_own_p99", late.own.p99),
        ("late_own_max", late.own.max),
    ] {
        let row = Measurement::new(BENCH, case.clone(), metric, value.0 as f64, "ns");
        let is_bound = metric == "late_own_p99" && name == "nand" && depth == BOUND_DEPTH;
        sink.push(if is_bound { row.at_most(OWN_LATENESS_MAX) } else { row })?;
    }
    Ok(())
}
