//! [`DriveError`]: the reasons for which a drive cannot be powered on.

use std::io;
use std::path::PathBuf;

use ftl::RecoveryError;
use media::OpenError;
use mem::PersistentMemoryError;
use nvme::GeometryError;

use crate::DriveRulesError;

/// The reason for which a drive cannot be powered on.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The configuration is inconsistent.
    #[error("{what}: {allowed}")]
    Config {
        /// The setting that is not allowed.
        what: String,
        /// The allowed values.
        allowed: String,
    },
    /// The medium cannot be created or opened.
    #[error(transparent)]
    Media(#[from] OpenError),
    /// The geometry is invalid, or the Geometry command cannot represent it.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A sidecar file of the image is invalid, or the operating system refuses access to it.
    #[error("{}: {what}", path.display())]
    Sidecar {
        /// Path of the file.
        path: PathBuf,
        /// Description of the fault.
        what: String,
    },
    /// The memory of a persistent memory region cannot be opened.
    #[error("{}: {source}", path.display())]
    PersistentMemory {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        source: PersistentMemoryError,
    },
    /// The operating system cannot provide the memory that the drive needs.
    #[error("no memory for the drive: {0}")]
    Memory(#[source] io::Error),
    /// The drive does not take its rule program.
    #[error(transparent)]
    Rules(#[from] DriveRulesError),
    /// The FTL does not fit the medium, or recovery does not find the data that it needs.
    #[error(transparent)]
    Ftl(#[from] RecoveryError),
}
