//! Group `block`: cost of the block layer per request, and its scaling over cores.
//!
//! The measurements are those of [SYSTOR13 §5] on this machine: 512-byte random reads on the null
//! device. `raw`, `sq` and `mq` are interleaved in one run, with accounting enabled. The measured
//! time covers everything between an application's request and its completion: creating the
//! request, submission, tag, dispatch, completion, reaping. [`scale`] measures figures 6, 9 and 10,
//! [`latency`] figure 7 and table 2.
//!
//! Bounds are ratios within the run: on one thread `mq` costs no more than `sq`, and with a hardware queue each, threads
//! multiply its rate by 0.95 of their number. Latencies with more threads than cores are the scheduler's, and have none.

pub mod cost;
pub mod latency;
pub mod load;
pub mod modeled_machine;
pub mod scale;
pub mod variants;

use super::{BenchError, RunLength, Sink};

pub(super) const BENCH: &str = "block";

/// Measures the group.
///
/// # Errors
/// When the system refuses memory or threads, or the output fails.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    cost::run(effort, sink)?;
    scale::run(effort, sink)?;
    latency::run(effort, sink)
}
