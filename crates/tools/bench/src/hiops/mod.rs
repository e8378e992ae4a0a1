//! Group `hiops`: completion strategies for threads that wait ([HIOPS14 §4]).
//!
//! The controller's thread has the last CPU, as hardware would; all contexts and threads of the
//! host share the first. On a machine with two CPUs the host is therefore a single-core machine. It
//! shows the cost of context switches, but not the benefit of several cores. One harness serves all
//! measurements, with the strategies interleaved.
//!
//! Bounds are ratios within the run: the gain of *coop* and *lazy* over the baseline at 0.5 and 4 KB, the order of the
//! handler's longest runs, the rate that cooperation keeps while it polls, and a hybrid's share of the better of
//! interrupts and polling. Where a machine with one core for the host misses them, `expected.toml` says why.

mod handler;
mod harness;
mod interval;
mod load;
mod machine;
mod sample;
mod tasks;
mod throughput;

pub use harness::{BenchSetting, HiopsHarness};
pub use sample::Sample;
pub use tasks::{TaskCounters, TaskInterval, Tasks};

use ::machine::Variation;
use block::completion::Strategy;
use time::Nanos;

use super::groups::HiopsPart;
use super::{BenchError, BenchFn, Measurement, RunLength, Sink};

const BENCH: &str = "hiops";

/// Default interval of *Poll I/O*: [HIOPS14 §3.3] polls every 16 to 32 µs.
const INTERVAL: Nanos = Nanos::from_micros(16);

/// Number of threads in figures 7 to 9 of \[HIOPS14\].
const THREADS: u32 = 128;

/// Measures parts of the group, all if none is named.
///
/// # Errors
/// When the system refuses memory or threads, a request fails, or the output does.
pub(super) fn run_parts(
    parts: &[HiopsPart],
    length: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let all: [(HiopsPart, BenchFn); 2] =
        [(HiopsPart::Threads, run), (HiopsPart::Machine, machine::run)];
    super::run_parts(&all, parts, length, sink)
}

/// Measures on the modeled machine with one of its numbers varied.
///
/// # Errors
/// As [`run_parts`], and if the machine has no such number.
pub(super) fn run_varied(
    vary: &Variation,
    length: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    machine::run_varied(Some(vary), length, sink)
}

/// Measures with threads of this machine.
///
/// # Errors
/// As [`run_parts`].
fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let mut harness = HiopsHarness::start(effort.choose(256, 16), effort)?;
    throughput::run(effort, &mut harness, sink)?;
    handler::run(effort, &mut harness, sink)?;
    interval::run(effort, &mut harness, sink)?;
    load::run(effort, &mut harness, sink)?;
    let late = harness.stop()?;
    for (metric, value) in [("late_p50", late.p50), ("late_p99", late.p99), ("late_max", late.max)]
    {
        let case = "the controller, over all of the above";
        sink.push(Measurement::new(BENCH, case, metric, value.0 as f64, "ns"))?;
    }
    Ok(())
}

/// The baseline, and the first three steps of figure 8, with the paper's names.
const STEPS: [(&str, Strategy); 4] = [
    ("SCSI", Strategy::SCSI),
    ("non-blocking", Strategy::NON_BLOCKING),
    ("+lazy", Strategy::LAZY),
    ("+coop", Strategy::HIOPS_IRQ),
];

/// Formats a size as in the paper.
fn kilobytes(bytes: u32) -> String {
    if bytes < 1024 {
        format!("{} KB", f64::from(bytes) / 1024.0)
    } else {
        format!("{} KB", bytes / 1024)
    }
}
