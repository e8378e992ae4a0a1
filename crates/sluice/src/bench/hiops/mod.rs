//! Group `hiops`: what completion strategies do for threads that wait (HIOPS section 4).
//!
//! | file | noun |
//! |---|---|
//! | [`rig`](Rig) | six drives on an AHCI controller, and threads that read from them |
//! | [`sample`](Sample) | what one stretch of time with one strategy came to |
//! | [`tasks`](Tasks) | context switches and CPU time of the host's threads |
//! | `throughput` | figure 7: I/Os per second by request size |
//! | `handler` | figure 8: how long the interrupt's handler runs |
//! | `interval` | figure 9: the poll interval, with and without cooperation |
//! | `load` | what the paper leaves to do: a hybrid, from 1 thread to 256 |
//!
//! The controller's thread has the last CPU, as hardware would; all contexts and threads of the host
//! have the first. On a machine with two CPUs the host is therefore a machine with one: what cores
//! do for each other cannot be seen, what context switches cost can. One set-up serves all
//! measurements, and strategies take turns on it.

mod handler;
mod harness;
mod interval;
mod load;
mod sample;
mod tasks;
mod throughput;

pub use harness::{BenchSetting, HiopsHarness};
pub use sample::Sample;
pub use tasks::Tasks;

use block::completion::Strategy;
use clock::Nanos;

use super::{BenchError, Measurement, RunLength, Sink};

const BENCH: &str = "hiops";

/// The interval of *Poll I/O* where no other is said: HIOPS section 3.3 polls every 16 to 32 µs.
const INTERVAL: Nanos = Nanos::from_micros(16);

/// The load of HIOPS figures 7 to 9.
const THREADS: u32 = 128;

/// Measures the group.
///
/// # Errors
/// When the system refuses memory or threads, a request fails, or the output does.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let mut rig = HiopsHarness::start(effort.choose(256, 16), effort)?;
    throughput::run(effort, &mut rig, sink)?;
    handler::run(effort, &mut rig, sink)?;
    interval::run(effort, &mut rig, sink)?;
    load::run(effort, &mut rig, sink)?;
    let late = rig.stop()?;
    for (metric, value) in [("late_p50", late.p50), ("late_p99", late.p99), ("late_max", late.max)]
    {
        let case = "the controller, over all of the above";
        sink.push(Measurement::new(BENCH, case, metric, value.0 as f64, "ns"))?;
    }
    Ok(())
}

/// The first three steps of figure 8 in addition to the baseline, in the paper's words.
const STEPS: [(&str, Strategy); 4] = [
    ("SCSI", Strategy::SCSI),
    ("non-blocking", Strategy::NON_BLOCKING),
    ("+lazy", Strategy::LAZY),
    ("+coop", Strategy::HIOPS_IRQ),
];

/// A size in the paper's words.
fn kilobytes(bytes: u32) -> String {
    if bytes < 1024 {
        format!("{} KB", f64::from(bytes) / 1024.0)
    } else {
        format!("{} KB", bytes / 1024)
    }
}
