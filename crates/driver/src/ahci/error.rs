//! [`AhciError`]: why a controller cannot be used.

use std::io;

use ring::RegisterError;

/// Why a controller cannot be brought up.
#[derive(Debug, thiserror::Error)]
pub enum AhciError {
    /// The controller did not do what it was told within as many looks at it as the caller allows.
    #[error("{step} did not happen within {polls} polls")]
    Timeout {
        /// What was waited for.
        step: &'static str,
        /// How often the controller was looked at.
        polls: u64,
    },
    /// The registers do not describe a usable controller.
    #[error("the controller cannot be used: {0}")]
    Unsupported(&'static str),
    /// A drive refused IDENTIFY DEVICE, or its answer cannot be.
    #[error("the drive at port {port} cannot be used: {reason}")]
    Drive {
        /// The port.
        port: u8,
        /// Why.
        reason: &'static str,
    },
    /// No port has a drive.
    #[error("no drive at any of the controller's {ports} ports")]
    NoDrive {
        /// Ports implemented.
        ports: u32,
    },
    /// No memory for command lists.
    #[error("memory for command lists: {0}")]
    Memory(#[from] io::Error),
    /// No registration left for command lists.
    #[error("registering memory for command lists: {0}")]
    Register(#[from] RegisterError),
}
