//! Group `direct`: cost and benefit of user-level I/O \[NVMeDirect16\], as measurements with bounds.
//! Every row has a reference from the same run.
//!
//! | part | subject | clock |
//! |---|---|---|
//! | [`null`] | nanoseconds per command through queue, handle and policies | real |
//! | [`mod@file`] | a file of the host, compared with fio's io_uring engine (figure 2) | real |
//! | [`polling`] | polling periods: achieved IOPS, CPU time (figure 3) | real |
//! | [`processes`] | a drive in another process, compared with one in this process | real |
//! | [`service`] | priorities and rates: distribution of service (figure 4) | virtual |

pub mod file;
mod harness;
mod load;
pub mod null;
pub mod polling;
pub mod processes;
pub mod service;

use super::{BenchError, BenchFn, DirectPart, RunLength, Sink};

pub(super) const BENCH: &str = "direct";

/// The parts in the order of measurement.
const PARTS: &[(DirectPart, BenchFn)] = &[
    (DirectPart::Null, null::run),
    (DirectPart::File, file::run),
    (DirectPart::Polling, polling::run),
    (DirectPart::Processes, processes::run),
    (DirectPart::Service, service::run),
];

/// Measures these parts of the group, or all of them if the list is empty.
///
/// # Errors
/// When the system refuses memory or threads, a request fails, or the output fails.
pub fn run_parts(
    parts: &[DirectPart],
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    super::run_parts(PARTS, parts, effort, sink)
}

/// Converts a setup error of any part of the stack.
fn setup(error: impl std::fmt::Display) -> BenchError {
    BenchError::Io(std::io::Error::other(error.to_string()))
}
