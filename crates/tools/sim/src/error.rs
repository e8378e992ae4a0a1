//! [`SimError`]: the errors of a run.

use std::path::PathBuf;

use block::trace::blktrace::WriteError;
use scenario::ScenarioError;
use stack::StackError;
use workload::JobError;

use crate::ProfileError;

/// Error of a run.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A stack could not be built or preconditioned.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// A job description is invalid.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Jobs do not fit the device, or the results of the run are invalid.
    #[error(transparent)]
    Host(#[from] workload::RunError),
    /// The modeled machine of the host cannot run the scenario, or failed.
    #[error(transparent)]
    Machine(#[from] crate::MachineRunError),
    /// The scenario has no jobs.
    #[error("{file}: no jobs: give the scenario a [[job]], job_files, or a job file beside it")]
    NoJobs {
        /// Path of the scenario.
        file: PathBuf,
    },
    /// The trace cannot be written.
    #[error("cannot write the trace to {path}: {source}")]
    Trace {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: std::io::Error,
    },
    /// The thread already records another run.
    #[error("this thread traces a run already")]
    Recording,
    /// The block layer's trace cannot be written.
    #[error("cannot write the block layer's trace to {dir}: {source}")]
    Blktrace {
        /// Path of the directory.
        dir: PathBuf,
        /// Cause of the error.
        #[source]
        source: WriteError,
    },
    /// A job verifies its data, but the drive does not store data.
    #[error(
        "job {job} verifies what it reads back, and drive {drive} keeps no data (data = \"none\"): set \
         data = \"memory\" or \"file\", or remove `verify`"
    )]
    VerifyWithoutData {
        /// Name of the job.
        job: String,
        /// Name of the drive.
        drive: String,
    },
    /// The jobs of the scenario do not fit its drives.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The image's directory cannot be written to.
    #[error("drive {drive}: cannot mark its image as being preconditioned: {source}")]
    PreconditionMarker {
        /// Name of the drive.
        drive: String,
        /// Cause of the error.
        #[source]
        source: std::io::Error,
    },
    /// The image could not be written to disk.
    #[error("drive {drive}: cannot write its image: {source}")]
    Image {
        /// Name of the drive.
        drive: String,
        /// Cause of the error.
        #[source]
        source: std::io::Error,
    },
    /// The run cannot be profiled.
    #[error("profiling: {0}")]
    Profile(#[from] ProfileError),
    /// A block-layer trace is requested, but no drive has a block layer.
    #[error("{file}: `raw` has no block layer to trace: set path.queue_model = \"sq\" or \"mq\"")]
    NoBlockLayer {
        /// Path of the scenario.
        file: PathBuf,
    },
    /// A trace of requests is requested, but a path leads to a set, a key-value target or parallel
    /// units, or has a log, or a drive is a SATA drive.
    #[error(
        "{file}: a trace follows block requests to the flash of one drive: here a path leads to a \
         set, a key-value target or parallel units, or has a log, or a drive is a SATA drive, which shows no \
         flash; `--blktrace` traces requests in the block layer"
    )]
    NotFollowed {
        /// Path of the scenario.
        file: PathBuf,
    },
}

impl SimError {
    /// Returns whether the run was stopped before its jobs began ([`SimOptions::stop`]).
    ///
    /// [`SimOptions::stop`]: crate::SimOptions::stop
    pub fn is_stopped(&self) -> bool {
        matches!(self, SimError::Stack(StackError::Stopped { .. }))
    }

    /// Returns whether the jobs need more memory than the machine has left.
    pub fn lacks_memory(&self) -> bool {
        matches!(self, SimError::Host(workload::RunError::TooLarge { .. }))
    }

    /// Returns whether the error is a usage error: the user's request is invalid.
    pub fn is_usage(&self) -> bool {
        match self {
            SimError::Job(_)
            | SimError::NoJobs { .. }
            | SimError::NoBlockLayer { .. }
            | SimError::NotFollowed { .. }
            | SimError::VerifyWithoutData { .. }
            | SimError::Scenario(_)
            | SimError::Machine(crate::MachineRunError::Refused(_)) => true,
            SimError::Host(e) => {
                use workload::RunError::{
                    DeviceMismatch, NoJobs, TooLarge, Trace, TwoWriters, Units, WrongAddressing,
                };
                matches!(
                    e,
                    DeviceMismatch { .. }
                        | NoJobs
                        | TooLarge { .. }
                        | Trace { .. }
                        | TwoWriters { .. }
                        | Units { .. }
                        | WrongAddressing { .. }
                )
            }
            SimError::Stack(e) => e.is_usage(),
            SimError::Trace { .. }
            | SimError::Machine(_)
            | SimError::Blktrace { .. }
            | SimError::Recording
            | SimError::Profile(_)
            | SimError::PreconditionMarker { .. }
            | SimError::Image { .. } => false,
        }
    }
}
