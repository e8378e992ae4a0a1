//! Group `direct`: what user-level I/O costs and is good for (NVMeDirect, HotStorage 2016), as
//! measurements that can fail. Every row stands beside what the same run measured to compare it with.
//!
//! | file | noun | clock |
//! |---|---|---|
//! | [`null`] | nanoseconds per command through queue, handle and policies | real |
//! | [`mod@file`] | a file of the host, beside fio's io_uring engine (figure 2) | real |
//! | [`polling`] | polling periods: IOPS kept, CPU used (figure 3) | real |
//! | [`processes`] | a drive in another process, beside one here | real |
//! | [`service`] | priorities, rates: whose requests are served (figure 4) | virtual |
//! | `load` | a closed loop over a handle | |
//! | `bed` | closed loops over several devices of one drive, in virtual time | |

pub mod file;
mod harness;
mod load;
pub mod null;
pub mod polling;
pub mod processes;
pub mod service;

use super::{BenchError, BenchFn, RunLength, Sink};
use crate::cli::args::DirectPart;

pub(super) const BENCH: &str = "direct";

/// The parts, in the order in which they are measured.
const PARTS: &[(DirectPart, BenchFn)] = &[
    (DirectPart::Null, null::run),
    (DirectPart::File, file::run),
    (DirectPart::Polling, polling::run),
    (DirectPart::Processes, processes::run),
    (DirectPart::Service, service::run),
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
    parts: &[DirectPart],
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    super::run_parts(PARTS, parts, effort, sink)
}

/// Whatever a part of the stack refuses to be set up with.
fn setup(error: impl std::fmt::Display) -> BenchError {
    BenchError::Io(std::io::Error::other(error.to_string()))
}
