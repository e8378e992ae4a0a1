//! [`SimError`]: why a run could not be done.

use std::path::PathBuf;

use block::trace::blktrace::WriteError;
use workload::JobError;

use crate::scenario::ScenarioError;
use crate::stack::StackError;

/// Why a run could not be done.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A stack could not be built or preconditioned.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// A job is wrong.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Jobs do not fit the device, or the run cannot be trusted.
    #[error(transparent)]
    Host(#[from] workload::RunError),
    /// There is nothing to run.
    #[error("{file}: no jobs: give the scenario a [[job]], job_files, or a job file beside it")]
    NoJobs {
        /// The scenario.
        file: PathBuf,
    },
    /// The trace cannot be written.
    #[error("cannot write the trace to {path}: {source}")]
    Trace {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The thread is in the middle of another traced run.
    #[error("this thread traces a run already")]
    Recording,
    /// The block layer's trace cannot be written.
    #[error("cannot write the block layer's trace to {dir}: {source}")]
    Blktrace {
        /// Where.
        dir: PathBuf,
        /// Why.
        #[source]
        source: WriteError,
    },
    /// What is written cannot be read again, and is to be verified.
    #[error(
        "job {job} verifies what it reads back, and drive {drive} keeps no data (data = \"none\"): set \
         data = \"memory\" or \"file\", or remove `verify`"
    )]
    VerifyWithoutData {
        /// The job.
        job: String,
        /// The drive.
        drive: String,
    },
    /// The scenario's own jobs do not go with its drives.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The image's folder cannot be written to.
    #[error("drive {drive}: cannot mark its image as being preconditioned: {source}")]
    PreconditionMarker {
        /// The drive.
        drive: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The image could not be brought to its disk.
    #[error("drive {drive}: cannot write its image: {source}")]
    Image {
        /// The drive.
        drive: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// There is nothing to trace.
    #[error("{file}: `raw` has no block layer to trace: set path.queue_model = \"sq\" or \"mq\"")]
    NoBlockLayer {
        /// The scenario.
        file: PathBuf,
    },
}

impl SimError {
    /// Whether what was asked is at fault, and not the run.
    pub fn is_usage(&self) -> bool {
        match self {
            SimError::Job(_)
            | SimError::NoJobs { .. }
            | SimError::NoBlockLayer { .. }
            | SimError::VerifyWithoutData { .. }
            | SimError::Scenario(_) => true,
            SimError::Host(e) => {
                use workload::RunError::{DeviceMismatch, NoJobs, TooLarge, Trace};
                matches!(e, DeviceMismatch { .. } | NoJobs | TooLarge { .. } | Trace { .. })
            }
            SimError::Stack(e) => e.is_usage(),
            SimError::Trace { .. }
            | SimError::Blktrace { .. }
            | SimError::Recording
            | SimError::PreconditionMarker { .. }
            | SimError::Image { .. } => false,
        }
    }
}
