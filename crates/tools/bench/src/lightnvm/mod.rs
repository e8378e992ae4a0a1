//! Group `lightnvm`: the evaluation of [LightNVM17 §5] as measurements with bounds, and benchmarks
//! of the host's FTL.
//!
//! Measurements of a drive use virtual time, so these results are the same on every machine.
//! Measurements of the host use real time. A row with the reference `paper` is compared with the
//! paper's value. A row with a verdict has a bound, and says `fail` if it is not met.
//!
//! | part | subject | clock |
//! |---|---|---|
//! | [`drive`] | rates of the drive, and of pblk on it (table 1, section 5.1) | virtual |
//! | [`mixed_io`] | reads concurrent with writes, by active parallel units (section 5.2, figure 5) | virtual |
//! | [`predictable_latency`] | reads concurrent with writes on separate parallel units (section 5.4, figure 8) | virtual |
//! | [`steady_state`] | write amplification and stalls of a nearly full device (section 4.2.4) | virtual |
//! | [`limiter`] | step response of both kinds of rate limiter (section 4.2.4) | virtual |
//! | [`active_pus`] | change of the number of active parallel units within a run (section 5.2) | virtual |
//! | [`recovery`] | reads of recovery after a power cut, by the drive's size (section 4.2.2) | virtual |
//! | [`errors`] | data loss on failing media (section 4.2.3) | virtual |
//! | [`overhead`] | overhead of pblk per request (section 5, CPU utilization) | real |
//! | [`overhead::device`] | overhead of pblk on a device of this machine (`--device`) | real |
//! | [`shards`] | one and two threads on one sharded device (section 4.2.1) | real |
//! | [`work`] | 4 KB random overwrites with GC, in the drive and on the host | real |

pub mod active_pus;
pub mod drive;
pub mod errors;
pub mod harness;
pub mod limiter;
pub mod mixed_io;
pub mod overhead;
pub mod predictable_latency;
pub mod recovery;
pub mod shards;
pub mod steady_state;
pub mod vector_io;
pub mod work;

use super::{BenchError, BenchFn, LightnvmPart, RunLength, Sink};

pub(super) const BENCH: &str = "lightnvm";

/// The drive of the paper, scaled down in chunks per parallel unit; parallelism and timing are
/// unchanged.
pub(crate) const PRESET: &str = "preset = \"ocssd-mlc-128pu-small\"\ndata = \"none\"\n";

/// The parts in the order of measurement.
const PARTS: &[(LightnvmPart, BenchFn)] = &[
    (LightnvmPart::Drive, drive::run),
    (LightnvmPart::Mixed, mixed_io::run),
    (LightnvmPart::Predictable, predictable_latency::run),
    (LightnvmPart::Active, active_pus::run),
    (LightnvmPart::Steady, steady_state::run),
    (LightnvmPart::Limiter, limiter::run),
    (LightnvmPart::Recovery, recovery::run),
    (LightnvmPart::Errors, errors::run),
    (LightnvmPart::Overhead, overhead::run),
    (LightnvmPart::Shards, shards::run),
    (LightnvmPart::Work, work::run),
];

/// Measures these parts of the group, or all of them if the list is empty.
///
/// # Errors
/// When the system refuses memory or threads, a request fails, or the output fails.
pub fn run_parts(
    parts: &[LightnvmPart],
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    super::run_parts(PARTS, parts, effort, sink)
}

/// Converts a setup error of any part of the stack.
pub(crate) fn setup(error: impl std::fmt::Display) -> BenchError {
    BenchError::Io(std::io::Error::other(error.to_string()))
}
