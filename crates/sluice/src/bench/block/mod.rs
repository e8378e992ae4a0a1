//! Group `block`: what the block layer costs per request, and how it scales over cores.
//!
//! The multi-queue paper's measurements (SYSTOR'13 section 5) on this machine: 512-byte random reads
//! on the null device, `raw`, `sq` and `mq` in turns in one run, accounting on. Everything between an
//! application's request and its completion is in the number: making the request, submission, tag,
//! dispatch, completion, reaping.
//!
//! | file | noun |
//! |---|---|
//! | [`load`] | an application that keeps requests outstanding |
//! | [`ways`] | the block devices that are compared |
//! | [`cost`] | nanoseconds per request on one core |
//! | [`scale`] | requests per second on several cores, by queue mapping (figures 6, 9, 10) |
//! | [`latency`] | how long one request takes, with more threads than cores too (figure 7, table 2) |

pub mod cost;
pub mod latency;
pub mod load;
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
