//! `sluice bench`: benchmarks of Sluice itself, one result per line. Each group is a module.
//!
//! A group is a function from [`RunLength`] to measurements in a [`Sink`]. A new group needs a module and
//! a value of [`BenchGroup`]. [`BenchRequest`] runs groups and parts of them.
//!
//! ```
//! use sluice_bench::{Format, Measurement, Sink};
//!
//! let mut out = Vec::new();
//! let mut sink = Sink::new(&mut out, Format::Json);
//! let result = Measurement::new("ring", "bare ring, batch 8", "ns_per_command", 12.5, "ns")
//!     .with_reference("memcpy of 80 bytes", 2.5);
//! sink.push(result)?;
//! sink.finish()?;
//! let line: serde_json::Value = serde_json::from_slice(&out).unwrap();
//! assert_eq!(line["ratio"], 5.0);
//! # Ok::<(), sluice_bench::BenchError>(())
//! ```

#![forbid(unsafe_code)]

pub mod appnvm;
pub mod block;
pub mod calibrate;
mod device;
pub mod direct;
pub mod echo;
pub mod exec;
mod expected;
mod groups;
pub mod hiops;
pub mod kv;
pub mod lightnvm;
mod measurement;
pub mod multicore;
mod on_first_cpu;
pub mod real_time;
mod request;
pub mod ring;
mod samples;
pub mod scale;
pub mod sim;
mod sink;
pub mod speculate;
pub mod thesis;
pub mod uring;

use std::io;

pub use ::machine::Variation;
pub use expected::{ExpectedMiss, ExpectedMisses};
pub use groups::{
    AppnvmPart, BenchGroup, BenchPart, BlockPart, CostSource, DirectPart, ExecPart, HiopsPart,
    LightnvmPart, NamedValue, ScalePart, SpeculatePart, ThesisPart,
};
pub use measurement::{Bound, MeasuredInterval, Measurement, Reference, SampleSpread, Verdict};
pub use on_first_cpu::on_first_cpu;
pub use request::BenchRequest;
pub use samples::{BenchCandidate, Quantiles, Samples, interleave, interleaved};
pub(crate) use sink::aligned;
pub use sink::{Format, Sink};

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
    Register(#[from] mem::RegisterError),
    /// The memory of a ring is not registered.
    #[error("memory of a ring: {0}")]
    Ring(#[from] mem::NotRegistered),
    /// The path to the drive cannot be set up.
    #[error("the raw path: {0}")]
    Raw(#[from] driver::NvmeDeviceError),
    /// A file or device of the host cannot be opened.
    #[error(transparent)]
    Uring(#[from] driver::UringError),
    /// The target cannot be opened.
    #[error(transparent)]
    Open(#[from] open::TargetOpenError),
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
    Controller(#[from] controller::AhciConfigError),
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
    /// A modeled machine cannot run.
    #[error("the modelled machine: {0}")]
    Machine(#[from] machine::EngineError),
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
    /// The request is invalid.
    #[error("{0}")]
    Usage(String),
    /// Results are outside of their bounds, and not in the list of expected misses.
    #[error("{0}")]
    OutOfBounds(String),
}

/// Measures one group.
pub type BenchFn = fn(RunLength, &mut Sink<'_>) -> Result<(), BenchError>;

/// Measures the named parts of a group, or all of them if none is named.
fn run_parts<P: PartialEq>(
    all: &[(P, BenchFn)],
    named: &[P],
    length: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let wanted = all.iter().filter(|(part, _)| named.is_empty() || named.contains(part));
    for (_, measure) in wanted {
        measure(length, sink)?;
    }
    Ok(())
}
