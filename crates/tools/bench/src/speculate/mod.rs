//! Group `speculate`: I/O speculation \[Spec14\].
//!
//! | part | figure or table | clock |
//! |---|---|---|
//! | `strategies` | figure 1: which strategy wins, by the latency of the device | virtual |
//! | `profile` | table 2: how long programs could go on | counted instructions |
//! | `clone` | figure 2: the cost of a checkpoint of a program's memory | real |
//! | `library` | a ticket, and reads that are issued early | real |
//! | `exec` | programs that do not sync, that speculate, and that wait | real |

mod clone;
mod library;
mod profile;
mod programs;
mod strategies;

use super::exec::speculated;
use super::{BenchError, BenchFn, RunLength, Sink, SpeculatePart};

pub(super) const BENCH: &str = "speculate";

/// The parts in the order of measurement.
const PARTS: &[(SpeculatePart, BenchFn)] = &[
    (SpeculatePart::Strategies, strategies::run),
    (SpeculatePart::Profile, profile::run),
    (SpeculatePart::Clone, clone::run),
    (SpeculatePart::Library, library::run),
    (SpeculatePart::Exec, speculated::run),
];

/// Measures these parts of the group, or all of them if the list is empty.
///
/// # Errors
/// When the system refuses memory or processes, a program or a simulation fails, or the output fails.
pub fn run_parts(
    parts: &[SpeculatePart],
    length: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    super::run_parts(PARTS, parts, length, sink)
}
