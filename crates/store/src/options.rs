//! [`Options`]: how a volume is opened.

use clock::Nanos;

use crate::{OpenError, Owner};

/// How a volume is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Who opens it.
    pub owner: Owner,
    /// Somebody of this boot whose mark counts as nobody's: they are known to be gone.
    pub take_over: Option<Owner>,
    /// Whether nothing is to be written, not even that it is in use.
    pub read_only: bool,
    /// Blocks of files in memory, 16 or more. They bound what is buffered.
    pub cache_pages: u32,
    /// Requests under way at most, 1 or more.
    pub requests_max: u32,
    /// What is buffered longer than this is written and made durable without being asked.
    pub dirty_expire: Nanos,
    /// Whether blocks given up are discarded.
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
            discard: true,
        }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let unfit = |what: String| Err(OpenError::Unfit { what });
        match self {
            Options { cache_pages: frames @ (..16 | 4_194_305..), .. } => {
                unfit(format!("{frames} frames; there are 16 to 4194304"))
            }
            Options { requests_max: requests @ (0 | 65_537..), .. } => {
                unfit(format!("{requests} requests; there are 1 to 65536"))
            }
            _ => Ok(()),
        }
    }
}
