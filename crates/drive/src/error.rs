//! [`DriveError`]: why a drive cannot be powered on.

use std::io;
use std::path::PathBuf;

use ftl::RecoveryError;
use media::OpenError;
use nvme::GeometryError;

/// Why a drive cannot be powered on.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The configuration contradicts itself.
    #[error("{what}: {allowed}")]
    Config {
        /// What cannot be.
        what: String,
        /// What could.
        allowed: String,
    },
    /// The medium cannot be made or opened.
    #[error(transparent)]
    Media(#[from] OpenError),
    /// The shape is impossible, or the Geometry command cannot tell it.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A file beside the image is not what it should be, or the operating system refuses it.
    #[error("{}: {what}", path.display())]
    Sidecar {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The machine has no memory for the drive's own.
    #[error("no memory for the drive: {0}")]
    Memory(#[source] io::Error),
    /// The translation layer does not fit the medium, or does not find there what it needs.
    #[error(transparent)]
    Ftl(#[from] RecoveryError),
}
