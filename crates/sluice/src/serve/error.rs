//! [`ServeError`]: why drives cannot be served, or could not be to the end.

use std::io;

use ::serve::nbd::{BindError, Endpoint, NbdError};
use ::serve::share::{ListenError, ShareError};

use crate::stack::StackError;

/// Why drives cannot be served, or could not be to the end.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A stack could not be built or preconditioned.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// A server could not start.
    #[error("drive {drive}: {source}")]
    Nbd {
        /// Name of the drive.
        drive: String,
        /// Why.
        #[source]
        source: NbdError,
    },
    /// Several drives need several ports, and there are no more.
    #[error("drive number {} would listen on TCP port {first} + {index}: there is none", index + 1)]
    PortTooHigh {
        /// The port given.
        first: u16,
        /// The drive's place.
        index: usize,
    },
    /// Two servers would listen at one place.
    #[error("{endpoint} is given twice: each `--nbd`, and the socket, needs a place of its own")]
    DuplicateEndpoint {
        /// The place.
        endpoint: Endpoint,
    },
    /// One thread per drive submits, and so one core does.
    #[error(
        "path.cores = {cores}: the server of a drive submits from one core; set cores = 1, or run the \
         scenario with `sluice sim`"
    )]
    Cores {
        /// Cores asked for.
        cores: u16,
    },
    /// A drive cannot be shared as the scenario says.
    #[error("drive {drive} cannot be shared: {why}")]
    Share {
        /// Name of the drive.
        drive: String,
        /// Why, and what to do.
        why: String,
    },
    /// The socket, or the thread behind it.
    #[error(transparent)]
    Socket(#[from] ::serve::share::ShareError),
    /// Whether a drive's image is whole could not be noted.
    #[error("noting that an image is being preconditioned: {source}")]
    PreconditionMarker {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(#[source] io::Error),
    /// A thread could not be started, or cannot sleep.
    #[error("cannot run threads: {0}")]
    Threads(#[source] io::Error),
    /// The server had to give up.
    #[error("drive {drive}: the NBD server failed: {source}{why}")]
    Server {
        /// Name of the drive.
        drive: String,
        /// What failed.
        #[source]
        source: io::Error,
        /// Why, where that is known, after a semicolon.
        why: String,
    },
    /// The drive could not be shut down in order.
    #[error("drive {drive}: its image could not be written back: {source}")]
    ShutDown {
        /// Name of the drive.
        drive: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A thread has panicked: a bug.
    #[error("drive {drive}: {thread} has failed; its image is as after a power cut")]
    Panicked {
        /// Name of the drive.
        drive: String,
        /// Which thread.
        thread: &'static str,
    },
}

impl ServeError {
    /// Returns whether the error is a usage error: the user's request is invalid.
    pub fn is_usage(&self) -> bool {
        match self {
            ServeError::Stack(e) => e.is_usage(),
            ServeError::PortTooHigh { .. }
            | ServeError::DuplicateEndpoint { .. }
            | ServeError::Cores { .. }
            | ServeError::Share { .. }
            | ServeError::Socket(ShareError::Listen(
                ListenError::Path(_) | ListenError::NotASocket(_) | ListenError::InUse(_),
            )) => true,
            ServeError::Nbd { source, .. } => matches!(
                source,
                NbdError::Bind(BindError::Endpoint(_) | BindError::NotLoopback { .. })
            ),
            _ => false,
        }
    }
}
