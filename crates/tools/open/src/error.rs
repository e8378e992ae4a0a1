//! [`TargetOpenError`]: errors of opening a device. [`CloseError`]: errors of closing a drive cleanly.

use std::io;
use std::path::PathBuf;

use driver::pci::PciError;
use nvme::Status;
use scenario::ScenarioError;
use scenario::UnknownPath;
use stack::{PrepareError, StackError};
use user_io::DirectError;

/// Forms of a target, for error messages.
const ALLOWED: &str = "a scenario (scenario.toml, scenario.toml#NAME), a served drive \
                       (sluice:///run/x.sock), a file or block device, a controller (vfio:0000:01:00.0, \
                       uio:0000:01:00.0?unsafe=1 without an IOMMU, or /dev/ng0n1 beside the kernel's driver), null or null:SIZE";

/// Error of opening a device.
#[derive(Debug, thiserror::Error)]
pub enum TargetOpenError {
    /// The text is not a valid target.
    #[error("cannot open \"{what}\": {why}; what can be opened: {ALLOWED}")]
    Syntax {
        /// The text.
        what: String,
        /// Problem of the text.
        why: &'static str,
    },
    /// The file does not exist.
    #[error("cannot open {}: {source}; what can be opened: {ALLOWED}", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The path is a directory.
    #[error("cannot open {}: it is a directory; what can be opened: {ALLOWED}", path.display())]
    Directory {
        /// The path.
        path: PathBuf,
    },
    /// The scenario is invalid.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The scenario has several drives and none was selected, or the selected one does not exist.
    #[error("{}: {}: name one of its drives: {}", file.display(), problem(asked), drives.iter()
        .map(|d| format!("#{d}")).collect::<Vec<_>>().join(", "))]
    WhichDrive {
        /// Path of the scenario.
        file: PathBuf,
        /// Name of the selected drive.
        asked: Option<String>,
        /// Names of the drives in the scenario.
        drives: Vec<String>,
    },
    /// The scenario names several paths and none was selected, or the selected one does not exist.
    #[error(transparent)]
    WhichPath(#[from] UnknownPath),
    /// An option does not apply to the target, or its value is not possible.
    #[error("{option} = {value} for {what}: {allowed}")]
    Option {
        /// The option of [`OpenOptions`](super::OpenOptions).
        option: &'static str,
        /// Value of the option.
        value: String,
        /// The target.
        what: String,
        /// Allowed values.
        allowed: String,
    },
    /// The stack of the drive cannot be built.
    #[error(transparent)]
    Stack(Box<StackError>),
    /// The drive cannot be preconditioned.
    #[error(transparent)]
    Prepare(Box<PrepareError>),
    /// A thread cannot be started.
    #[error("drive {drive}: its thread cannot run: {source}")]
    Thread {
        /// Name of the drive.
        drive: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The controller cannot be opened.
    #[error(transparent)]
    Controller(#[from] PciError),
    /// Error of the device.
    #[error(transparent)]
    Device(#[from] DirectError),
}

fn problem(asked: &Option<String>) -> String {
    match asked {
        Some(name) => format!("it has no drive \"{name}\""),
        None => "it has several drives".into(),
    }
}

impl TargetOpenError {
    /// Returns whether the error is a usage error: the user's request is invalid.
    pub fn is_usage(&self) -> bool {
        match self {
            TargetOpenError::Stack(error) => error.is_usage(),
            TargetOpenError::Prepare(error) => error.is_usage(),
            TargetOpenError::Controller(error) => error.is_usage_error(),
            TargetOpenError::Thread { .. } | TargetOpenError::Device(_) => false,
            _ => true,
        }
    }

    /// Returns the `errno` of the error.
    pub fn errno(&self) -> i32 {
        let of_os = |source: &io::Error| source.raw_os_error().unwrap_or(libc::EIO);
        match self {
            TargetOpenError::Missing { source, .. } | TargetOpenError::Thread { source, .. } => {
                of_os(source)
            }
            TargetOpenError::Scenario(ScenarioError::Read { source, .. }) => of_os(source),
            TargetOpenError::Directory { .. } => libc::ENOTBLK,
            TargetOpenError::Controller(error) => controller_errno(error),
            TargetOpenError::Device(error) => error.errno(),
            error if error.is_usage() => libc::EINVAL,
            _ => libc::EIO,
        }
    }

    pub(super) fn no_depth() -> TargetOpenError {
        let (option, what) = ("depth", "any device".into());
        TargetOpenError::Option { option, value: "0".into(), what, allowed: "1 or more".into() }
    }
}

/// Returns the `errno` of a controller's failure.
fn controller_errno(error: &PciError) -> i32 {
    match error {
        PciError::NoSuchFunction { .. } | PciError::NotNvme { .. } => libc::ENODEV,
        PciError::NotBound { .. }
        | PciError::Busy { .. }
        | PciError::GroupShared { .. }
        | PciError::InUse { .. } => libc::EBUSY,
        PciError::NoIommu { .. }
        | PciError::NoVfio
        | PciError::NoType1
        | PciError::HasIommu { .. }
        | PciError::NoUio
        | PciError::Unsupported { .. } => libc::EOPNOTSUPP,
        PciError::Permission { .. } | PciError::NoFrames { .. } => libc::EACCES,
        PciError::NoHugePages { .. } => libc::ENOMEM,
        PciError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        PciError::Controller { .. } => libc::EIO,
    }
}

impl From<PrepareError> for TargetOpenError {
    fn from(error: PrepareError) -> TargetOpenError {
        match error {
            PrepareError::Stack(error) => error.into(),
            error => TargetOpenError::Prepare(Box::new(error)),
        }
    }
}

impl From<StackError> for TargetOpenError {
    fn from(error: StackError) -> TargetOpenError {
        TargetOpenError::Stack(Box::new(error))
    }
}

/// Error of closing a drive cleanly. As after a power cut, flushed data is safe.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// The thread of the drive has panicked, which is a bug.
    #[error("drive {drive}: its thread has failed; its image is as after a power cut")]
    Panicked {
        /// Name of the drive.
        drive: String,
    },
    /// The thread of the drive failed.
    #[error("drive {drive}: its thread could not go on: {source}")]
    Thread {
        /// Name of the drive.
        drive: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Requests whose queue was dropped did not complete.
    #[error("drive {drive}: {outstanding} requests of its target did not end")]
    Outstanding {
        /// Name of the drive.
        drive: String,
        /// Number of outstanding requests.
        outstanding: u64,
    },
    /// The target could not be flushed.
    #[error("drive {drive}: the last flush ended with: {status}")]
    Flush {
        /// Name of the drive.
        drive: String,
        /// Status of the flush.
        status: Status,
    },
    /// The image could not be written back.
    #[error("drive {drive}: its image could not be written back: {source}")]
    ShutDown {
        /// Name of the drive.
        drive: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}
