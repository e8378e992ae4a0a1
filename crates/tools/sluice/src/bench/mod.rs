//! `sluice bench`: benchmarks of Sluice itself, one result per line. Each group is a module.
//!
//! A group is a function from [`RunLength`] to measurements in a [`Sink`]. A new group needs a module and
//! an entry in the table of groups.
//!
//! ```
//! use sluice::bench::{Format, Measurement, Sink};
//!
//! let mut out = Vec::new();
//! let mut sink = Sink::new(&mut out, Format::Json);
//! let result = Measurement::new("ring", "bare ring, batch 8", "ns_per_command", 12.5, "ns")
//!     .with_reference("memcpy of 80 bytes", 2.5);
//! sink.push(result)?;
//! sink.finish()?;
//! let line: serde_json::Value = serde_json::from_slice(&out).unwrap();
//! assert_eq!(line["ratio"], 5.0);
//! # Ok::<(), sluice::bench::BenchError>(())
//! ```

pub mod block;
mod device;
pub mod direct;
pub mod echo;
pub mod exec;
mod expected;
pub mod hiops;
pub mod kv;
pub mod lightnvm;
mod measurement;
pub mod multicore;
mod on_first_cpu;
pub mod real_time;
pub mod ring;
mod samples;
pub mod sim;
mod sink;
pub mod uring;

use std::io;

use clap::ValueEnum;

pub use expected::{ExpectedMiss, ExpectedMisses};
pub use measurement::{Bound, Measurement, Reference, Spread, Verdict};
pub use on_first_cpu::on_first_cpu;
pub use samples::{BenchCandidate, Quantiles, Samples, interleave, interleaved};
pub(crate) use sink::aligned;
pub use sink::{Format, Sink};

use crate::cli::CliError;
use crate::cli::args::{BenchArgs, BenchGroup, BenchPart, LightnvmPart};

/// Length of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLength {
    /// Long enough for numbers to quote.
    Full,
    /// Just long enough to check that every measurement works.
    Quick,
}

impl RunLength {
    /// Returns `full` or `quick`, depending on the length.
    pub fn choose<T>(self, full: T, quick: T) -> T {
        match self {
            RunLength::Full => full,
            RunLength::Quick => quick,
        }
    }
}

/// Error of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The system refused memory, a descriptor, a thread, or the output.
    #[error("the system: {0}")]
    Io(#[from] io::Error),
    /// The measurement cannot be run with these arguments.
    #[error("{0}")]
    Setup(String),
    /// Memory for queues cannot be registered.
    #[error("registering memory: {0}")]
    Register(#[from] ::ring::RegisterError),
    /// The memory of a ring is not registered.
    #[error("memory of a ring: {0}")]
    Ring(#[from] ::ring::NotRegistered),
    /// The path to the drive cannot be set up.
    #[error("the raw path: {0}")]
    Raw(#[from] driver::NvmeDeviceError),
    /// A file or device of the host cannot be opened.
    #[error(transparent)]
    Uring(#[from] driver::UringError),
    /// The target cannot be opened.
    #[error(transparent)]
    Open(#[from] crate::open::OpenError),
    /// A request of a measurement failed.
    #[error("a request ended with: {0}")]
    Status(nvme::Status),
    /// A program that is measured for comparison is not installed.
    #[error("{program} is not installed, and {why}: install it ({install})")]
    Program {
        /// Name of the program.
        program: &'static str,
        /// Purpose of the program.
        why: &'static str,
        /// How to install it.
        install: &'static str,
    },
    /// An AHCI controller cannot be created.
    #[error("the controller: {0}")]
    Controller(#[from] drive::AhciConfigError),
    /// An AHCI controller cannot be initialized.
    #[error("bringing the controller up: {0}")]
    Ahci(#[from] driver::AhciError),
    /// The threads that wait for drives cannot be set up.
    #[error("the completion strategies: {0}")]
    Blocking(#[from] ::block::completion::BlockingError),
    /// A completion strategy is invalid.
    #[error(transparent)]
    Strategy(#[from] ::block::completion::StrategyError),
    /// Requests of a measurement failed.
    #[error("{case}: {failed} of {requests} requests failed")]
    Failed {
        /// Measured case.
        case: String,
        /// Number of failed requests.
        failed: u64,
        /// Number of all requests.
        requests: u64,
    },
    /// The block layer cannot be created on the device.
    #[error("the block layer: {0}")]
    Block(#[from] ::block::BlockError),
    /// A measured value is not a number.
    #[error("{case}, {metric}: no finite value was measured")]
    NoValue {
        /// Measured case.
        case: String,
        /// Metric of the case.
        metric: &'static str,
    },
    /// A thread of the measurement ended early.
    #[error("{0}: the other thread ended early")]
    Thread(&'static str),
}

impl From<BenchError> for CliError {
    fn from(error: BenchError) -> CliError {
        CliError::Other(format!("cannot measure: {error}"))
    }
}

/// Measures one group.
pub type BenchFn = fn(RunLength, &mut Sink<'_>) -> Result<(), BenchError>;

/// Measures the named parts of a group, or all of them if none is named.
fn run_parts<P: PartialEq>(
    all: &[(P, BenchFn)],
    named: &[P],
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let wanted = all.iter().filter(|(part, _)| named.is_empty() || named.contains(part));
    for (_, measure) in wanted {
        measure(effort, sink)?;
    }
    Ok(())
}

const GROUPS: &[(BenchGroup, BenchFn)] = &[
    (BenchGroup::Sim, sim::run),
    (BenchGroup::Live, real_time::run),
    (BenchGroup::Ring, ring::run),
    (BenchGroup::Uring, uring::run),
    (BenchGroup::Block, block::run),
    (BenchGroup::Hiops, hiops::run),
    (BenchGroup::Direct, direct::run),
    (BenchGroup::Lightnvm, lightnvm::run),
    (BenchGroup::Exec, exec::run),
];

/// Returns a group's name on the command line.
fn group_name(group: BenchGroup) -> String {
    group.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Runs `sluice bench …`.
///
/// # Errors
/// A group that is not there, a measurement that could not be made, or [`CliError::Bounds`] when a result is outside of
/// its bound and not in the list of expected misses.
pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    if args.machine.is_some() && args.group != BenchGroup::Block {
        let asked = group_name(args.group);
        return Err(CliError::Usage(format!("--machine is for the group `block`, not `{asked}`")));
    }
    if let Some(part) = args.part.iter().find(|part| part.group() != args.group) {
        let (asked, of) = (group_name(args.group), group_name(part.group()));
        let part = part.to_possible_value().map_or_else(String::new, |p| p.get_name().to_owned());
        return Err(CliError::Usage(format!(
            "--part {part} is a part of the group `{of}`, not of `{asked}`"
        )));
    }
    let expected = ExpectedMisses::load(args.bounds.expected.as_deref())?;
    let effort = if args.quick { RunLength::Quick } else { RunLength::Full };
    let format = if args.json { Format::Json } else { Format::Table };
    if let Some(machine) = args.machine {
        let mut out = io::stdout().lock();
        let mut sink = Sink::new(&mut out, format);
        multicore::run(machine, args.costs, effort, &mut sink)?;
        return expected.judge(&sink.finish()?);
    }
    if let Some(device) = &args.device {
        let overhead = [BenchPart::Lightnvm(LightnvmPart::Overhead)];
        let measure = match args.group {
            BenchGroup::Block if args.part.is_empty() => device::block,
            BenchGroup::Hiops if args.part.is_empty() => device::strategies,
            BenchGroup::Lightnvm if args.part == overhead => lightnvm::device_overhead::run,
            other => {
                let asked = group_name(other);
                return Err(CliError::Usage(format!(
                    "--device is for the groups `block` and `hiops`, and for `lightnvm` with `--part \
                     overhead`, not for `{asked}`{}",
                    if args.part.is_empty() { "" } else { " with these parts" }
                )));
            }
        };
        if args.group == BenchGroup::Lightnvm && !args.destroy {
            return Err(CliError::Usage(format!(
                "pblk writes to {device}, and what is there is lost: --destroy says that it may be"
            )));
        }
        let mut out = io::stdout().lock();
        let mut sink = Sink::new(&mut out, format);
        measure(device, effort, &mut sink)?;
        return expected.judge(&sink.finish()?);
    }
    let Some((_, group)) = GROUPS.iter().find(|(name, _)| *name == args.group) else {
        let there: Vec<String> = GROUPS.iter().map(|(name, _)| group_name(*name)).collect();
        let (asked, there) = (group_name(args.group), there.join(", "));
        return Err(CliError::Usage(format!(
            "nothing measures the group `{asked}`; there is {there}"
        )));
    };
    let mut out = io::stdout().lock();
    let mut sink = Sink::new(&mut out, format);
    let of_lightnvm: Vec<_> = args.part.iter().filter_map(|part| part.lightnvm()).collect();
    let of_direct: Vec<_> = args.part.iter().filter_map(|part| part.direct()).collect();
    let of_exec: Vec<_> = args.part.iter().filter_map(|part| part.exec()).collect();
    if !of_exec.is_empty() {
        exec::run_parts(&of_exec, effort, &mut sink)?;
    } else if !of_lightnvm.is_empty() {
        lightnvm::run_parts(&of_lightnvm, effort, &mut sink)?;
    } else if !of_direct.is_empty() {
        direct::run_parts(&of_direct, effort, &mut sink)?;
    } else {
        group(effort, &mut sink)?;
    }
    expected.judge(&sink.finish()?)
}
