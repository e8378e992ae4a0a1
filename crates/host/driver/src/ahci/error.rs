//! [`AhciError`]: errors of initialization.

use std::io;

use mem::RegisterError;

/// The reason why a controller cannot be initialized.
#[derive(Debug, thiserror::Error)]
pub enum AhciError {
    /// The controller did not finish a step within the number of polls that the caller allows.
    #[error("{step} did not finish within {polls} polls")]
    Timeout {
        /// The step.
        step: &'static str,
        /// Number of polls.
        polls: u64,
    },
    /// The registers do not describe a usable controller.
    #[error("the controller cannot be used: {0}")]
    Unsupported(&'static str),
    /// A drive rejected IDENTIFY DEVICE, or its data is not usable.
    #[error("the drive at port {port} cannot be used: {reason}")]
    Drive {
        /// The port.
        port: u8,
        /// The reason.
        reason: &'static str,
    },
    /// No port has a drive.
    #[error("no drive at any of the controller's {ports} ports")]
    NoDrive {
        /// Number of implemented ports.
        ports: u32,
    },
    /// Memory for command lists cannot be allocated.
    #[error("memory for command lists: {0}")]
    Memory(#[from] io::Error),
    /// Memory for command lists cannot be registered.
    #[error("registering memory for command lists: {0}")]
    Register(#[from] RegisterError),
}
