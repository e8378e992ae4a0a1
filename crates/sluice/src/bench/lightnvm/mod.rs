//! Group `lightnvm`: the evaluation of the LightNVM paper (FAST'17 section 5) as measurements that
//! can fail, and the host's translation layer at work.
//!
//! Where the paper measures a drive, virtual time stands for it: these results are the same on
//! every machine. Where it measures the host, the time is real. A row whose reference is `paper`
//! stands beside the number of the paper; a row with a verdict says what must hold, and `fail`
//! where it does not.
//!
//! | file | noun | clock |
//! |---|---|---|
//! | [`bed`] | a drive, a block device on it and jobs, in virtual time | virtual |
//! | [`direct`] | vector I/O straight to a drive's parallel units | virtual |
//! | [`drive`] | what the drive and pblk on it reach alone (table 1, section 5.1) | virtual |
//! | [`mixed`] | reads beside writes, by active parallel units (section 5.2, figure 5) | virtual |
//! | [`predictable`] | reads beside writes on parallel units of their own (section 5.4, figure 8) | virtual |
//! | [`steady`] | write amplification and stalls of a nearly full device (section 4.2.4) | virtual |
//! | [`limiter`] | the rate limiter's step response, of both kinds (4.2.4) | virtual |
//! | [`active`] | the number of active parallel units changed within a run (5.2) | virtual |
//! | [`recovery`] | what recovery after a power cut reads, against the drive's size (4.2.2) | virtual |
//! | [`errors`] | what is lost to programs, erases, reads and dies that fail (section 4.2.3) | virtual |
//! | [`overhead`] | what pblk adds to a request (section 5, CPU utilization) | real |
//! | [`device_overhead`] | the same on a device of this machine (`--device`) | real |
//! | [`through`] | vector commands carried out on a block device | |
//! | [`shards`] | one and two threads on one sharded device (section 4.2.1) | real |
//! | [`work`] | 4 KB random overwrites with garbage collection, drive and host | real |

pub mod active_pus;
pub mod block_backed;
pub mod device_overhead;
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

use super::{BenchError, BenchFn, RunLength, Sink};
use crate::cli::args::LightnvmPart;

pub(super) const BENCH: &str = "lightnvm";

/// The drive of the paper, scaled down in chunks per parallel unit: the same parallelism and
/// timing.
pub(crate) const PRESET: &str = "preset = \"ocssd-mlc-128pu-small\"\ndata = \"none\"\n";

/// The parts, in the order in which they are measured.
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

/// Measures the group.
///
/// # Errors
/// When the system refuses memory or threads, a request fails, or the output fails.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    run_parts(&[], effort, sink)
}

/// Measures these parts of the group; all of them if none is named.
///
/// # Errors
/// As for [`run`].
pub fn run_parts(
    parts: &[LightnvmPart],
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    super::run_parts(PARTS, parts, effort, sink)
}

/// Whatever a part of the stack refuses to be set up with.
fn setup(error: impl std::fmt::Display) -> BenchError {
    BenchError::Io(std::io::Error::other(error.to_string()))
}
