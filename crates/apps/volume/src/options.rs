//! [`Options`]: options of a mount.

use time::Nanos;

use crate::on_media::journal::TXN_BYTES;
use crate::{Owner, VolumeOpenError};

/// Options of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The owner to record.
    pub owner: Owner,
    /// An owner of this boot whose mark is ignored, because its process is known to have ended.
    pub take_over: Option<Owner>,
    /// Whether to write nothing, not even the owner mark.
    pub read_only: bool,
    /// Number of pages in the page cache, at least 16. It bounds the buffered data.
    pub cache_pages: u32,
    /// Maximum requests in flight, at least 1.
    pub requests_max: u32,
    /// Age at which buffered changes are written and made durable without a request.
    pub dirty_expire: Nanos,
    /// Age at which ordered barriers are made durable without a request; 0: at once. Until then changes
    /// are collected in memory, and those to the same block reach the device once. They become
    /// durable earlier if a request waits for them, or if they are too many for one transaction.
    pub barrier_delay: Nanos,
    /// Maximum bytes of a transaction, 256 KiB to 16 MiB; a quarter of the journal bounds it, too.
    /// Ordered barriers that are not durable journal at most three quarters of it, and changes beyond wait.
    pub txn_bytes: u32,
    /// Whether to discard freed blocks.
    pub discard: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            owner: Owner::default(),
            take_over: None,
            read_only: false,
            cache_pages: 4096,
            requests_max: 256,
            dirty_expire: Nanos::from_secs(5),
            barrier_delay: Nanos::ZERO,
            txn_bytes: TXN_BYTES as u32,
            discard: true,
        }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), VolumeOpenError> {
        let unfit = |what: String| Err(VolumeOpenError::Unfit { what });
        match self {
            Options { cache_pages: frames @ (..16 | 4_194_305..), .. } => {
                unfit(format!("{frames} frames; there are 16 to 4194304"))
            }
            Options { requests_max: requests @ (0 | 65_537..), .. } => {
                unfit(format!("{requests} requests; there are 1 to 65536"))
            }
            Options { txn_bytes: bytes @ (..262_144 | 16_777_217..), .. } => {
                unfit(format!("{bytes} bytes of a transaction; there are 262144 to 16777216"))
            }
            _ => Ok(()),
        }
    }
}
