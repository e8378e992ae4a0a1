//! [`OpenError`]: why something cannot be opened; [`CloseError`]: why a drive was not closed in order.

use std::io;
use std::path::PathBuf;

use direct::DirectError;
use driver::pci::PciError;
use nvme::Status;

use crate::scenario::ScenarioError;
use crate::serve::ServeError;
use crate::stack::StackError;

/// What can be opened, for people.
const ALLOWED: &str = "a scenario (scenario.toml, scenario.toml#NAME), a served drive \
                       (sluice:///run/x.sock), a file or block device, a controller (vfio:0000:01:00.0, \
                       uio:0000:01:00.0?unsafe=1 without an IOMMU, or /dev/ng0n1 beside the kernel's driver), null or null:SIZE";

/// Why something cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The words mean nothing.
    #[error("cannot open \"{what}\": {why}; what can be opened: {ALLOWED}")]
    Syntax {
        /// The words.
        what: String,
        /// What is wrong with them.
        why: &'static str,
    },
    /// There is no such file.
    #[error("cannot open {}: {source}; what can be opened: {ALLOWED}", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// There is a directory of that name.
    #[error("cannot open {}: it is a directory; what can be opened: {ALLOWED}", path.display())]
    Directory {
        /// The path.
        path: PathBuf,
    },
    /// The scenario is wrong.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A scenario has several drives, and none was named, or no such drive.
    #[error("{}: {}: name one of its drives: {}", file.display(), problem(asked), drives.iter()
        .map(|d| format!("#{d}")).collect::<Vec<_>>().join(", "))]
    WhichDrive {
        /// Path of the scenario.
        file: PathBuf,
        /// What was named.
        asked: Option<String>,
        /// What there is.
        drives: Vec<String>,
    },
    /// The scenario puts a block layer in front of the drive.
    #[error(
        "{}: path.queue_model puts the shared block layer in front of the drive, and queues of the \
         application's own go past it: set path.queue_model = \"raw\", or remove it", file.display()
    )]
    BlockLayer {
        /// Path of the scenario.
        file: PathBuf,
    },
    /// An option means nothing there, or cannot be met.
    #[error("{option} = {value} for {what}: {allowed}")]
    Option {
        /// The option of [`OpenOptions`](super::OpenOptions).
        option: &'static str,
        /// What it was set to.
        value: String,
        /// What was opened.
        what: String,
        /// What is allowed.
        allowed: String,
    },
    /// The drive could not be built.
    #[error(transparent)]
    Stack(Box<StackError>),
    /// The drive could not be brought to its first state.
    #[error(transparent)]
    Prepare(Box<ServeError>),
    /// A thread could not be started.
    #[error("drive {drive}: its thread cannot run: {source}")]
    Thread {
        /// Name of the drive.
        drive: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The controller cannot be had.
    #[error(transparent)]
    Controller(#[from] PciError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DirectError),
}

fn problem(asked: &Option<String>) -> String {
    match asked {
        Some(name) => format!("it has no drive \"{name}\""),
        None => "it has several drives".into(),
    }
}

impl OpenError {
    /// Returns whether the error is a usage error: the user's request is invalid.
    pub fn is_usage(&self) -> bool {
        match self {
            OpenError::Stack(error) => error.is_usage(),
            OpenError::Prepare(error) => error.is_usage(),
            OpenError::Controller(error) => error.is_usage_error(),
            OpenError::Thread { .. } | OpenError::Device(_) => false,
            _ => true,
        }
    }

    pub(super) fn no_depth() -> OpenError {
        let (option, what) = ("depth", "any device".into());
        OpenError::Option { option, value: "0".into(), what, allowed: "1 or more".into() }
    }
}

impl From<ServeError> for OpenError {
    fn from(error: ServeError) -> OpenError {
        match error {
            ServeError::Stack(error) => error.into(),
            error => OpenError::Prepare(Box::new(error)),
        }
    }
}

impl From<StackError> for OpenError {
    fn from(error: StackError) -> OpenError {
        OpenError::Stack(Box::new(error))
    }
}

/// Why a drive was not closed in order: what was flushed before is there, as after a power cut.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// Its thread has panicked: a bug.
    #[error("drive {drive}: its thread has failed; its image is as after a power cut")]
    Panicked {
        /// Name of the drive.
        drive: String,
    },
    /// Its thread could not go on.
    #[error("drive {drive}: its thread could not go on: {source}")]
    Thread {
        /// Name of the drive.
        drive: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Requests that were given up do not end.
    #[error("drive {drive}: {outstanding} requests of its target did not end")]
    Outstanding {
        /// Name of the drive.
        drive: String,
        /// How many.
        outstanding: u64,
    },
    /// The target could not be flushed.
    #[error("drive {drive}: the last flush ended with: {status}")]
    Flush {
        /// Name of the drive.
        drive: String,
        /// How it ended.
        status: Status,
    },
    /// The image could not be written back.
    #[error("drive {drive}: its image could not be written back: {source}")]
    ShutDown {
        /// Name of the drive.
        drive: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}
