//! [`DriveError`]: why a drive cannot be powered on.

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
    /// The translation layer does not fit the medium, or does not find there what it needs.
    #[error(transparent)]
    Ftl(#[from] RecoveryError),
}
