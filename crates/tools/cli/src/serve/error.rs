//! [`ServeError`]: errors of serving drives.

use std::io;

use scenario::UnknownPath;
use scenario::choice::Impossible;
use stack::{PrepareError, StackError};

use nbd::{Endpoint, EndpointBindError, NbdError};
use share_server::{ListenError, ShareError};

/// Error of serving drives.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A stack could not be built or preconditioned.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The scenario names several paths and none was selected, or the selected one does not exist.
    #[error(transparent)]
    WhichPath(#[from] UnknownPath),
    /// NBD can serve none of the paths.
    #[error("{why}: {}", why.help())]
    Impossible {
        /// The reason of the first path.
        why: Impossible,
    },
    /// Neither the scenario nor the command line has an address.
    #[error(
        "nothing to serve at: give --nbd unix:PATH or --nbd tcp:HOST:PORT for NBD clients, or \
         --socket PATH to share the drives between processes, or the scenario [[export]] sections"
    )]
    NoAddress,
    /// The command line and the scenario both have addresses.
    #[error(
        "the scenario says where its paths are served ([[export]]), and so does {option}: remove \
         one of them"
    )]
    AddressTwice {
        /// The option.
        option: &'static str,
    },
    /// Other machines are admitted, and there is no NBD server.
    #[error("--allow-remote is about NBD, and nothing is served over NBD: remove it, or add --nbd")]
    RemoteWithoutNbd,
    /// There are more paths than one process serves.
    #[error(
        "{paths} paths would be served over NBD, and one process serves at most {}: export some of \
         them ([[export]]), or serve one with FILE#NAME",
        super::NBD_PATHS_MAX
    )]
    TooManyPaths {
        /// Number of paths.
        paths: usize,
    },
    /// A drive of a socket belongs to a path or a target.
    #[error(
        "drive {drive} cannot be shared at a socket: {owner} has all of it, and two owners would \
         write what the other does not know; give users a drive of their own"
    )]
    SharedOwner {
        /// Name of the drive.
        drive: String,
        /// The path or target.
        owner: String,
    },
    /// An NBD server could not start.
    #[error("drive {drive}: {source}")]
    Nbd {
        /// Name of the drive.
        drive: String,
        /// Cause of the error.
        #[source]
        source: NbdError,
    },
    /// The NBD servers of several exports could not start.
    #[error(transparent)]
    Exports(NbdError),
    /// Several drives need several ports, but the port numbers are exhausted.
    #[error("drive number {} would listen on TCP port {first} + {index}: there is none", index + 1)]
    PortTooHigh {
        /// The configured port.
        first: u16,
        /// Index of the drive.
        index: usize,
    },
    /// Two servers would listen on one endpoint.
    #[error("{endpoint} is given twice: each `--nbd`, and the socket, needs a place of its own")]
    DuplicateEndpoint {
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// The scenario's partitions cannot be applied to a drive.
    #[error("drive {drive} cannot be shared: {why}")]
    Share {
        /// Name of the drive.
        drive: String,
        /// Cause and remedy.
        why: String,
    },
    /// The socket or its thread failed.
    #[error(transparent)]
    Socket(#[from] share_server::ShareError),
    /// The marker of an incomplete image could not be written or removed.
    #[error("noting that an image is being preconditioned: {source}")]
    PreconditionMarker {
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(#[source] io::Error),
    /// A thread could not be started, or cannot sleep.
    #[error("cannot run threads: {0}")]
    Threads(#[source] io::Error),
    /// The server failed.
    #[error("drive {drive}: the NBD server failed: {source}{why}")]
    Server {
        /// Name of the drive.
        drive: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
        /// Cause after a semicolon, if known.
        why: String,
    },
    /// The drive could not be shut down cleanly.
    #[error("drive {drive}: its image could not be written back: {source}")]
    ShutDown {
        /// Name of the drive.
        drive: String,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// A thread has panicked, which is a bug.
    #[error("drive {drive}: {thread} has failed; its image is as after a power cut")]
    Panicked {
        /// Name of the drive.
        drive: String,
        /// Name of the thread.
        thread: &'static str,
    },
}

impl From<PrepareError> for ServeError {
    fn from(error: PrepareError) -> ServeError {
        match error {
            PrepareError::Stack(error) => ServeError::Stack(error),
            PrepareError::PreconditionMarker { source } => {
                ServeError::PreconditionMarker { source }
            }
        }
    }
}

impl ServeError {
    /// Returns whether the error is a usage error: the user's request is invalid.
    pub fn is_usage(&self) -> bool {
        match self {
            ServeError::Stack(e) => e.is_usage(),
            ServeError::PortTooHigh { .. }
            | ServeError::WhichPath(_)
            | ServeError::Impossible { .. }
            | ServeError::NoAddress
            | ServeError::AddressTwice { .. }
            | ServeError::TooManyPaths { .. }
            | ServeError::RemoteWithoutNbd
            | ServeError::SharedOwner { .. }
            | ServeError::DuplicateEndpoint { .. }
            | ServeError::Share { .. }
            | ServeError::Socket(ShareError::Listen(
                ListenError::Path(_) | ListenError::NotASocket(_) | ListenError::InUse(_),
            )) => true,
            ServeError::Nbd { source, .. } | ServeError::Exports(source) => matches!(
                source,
                NbdError::Bind(
                    EndpointBindError::Endpoint(_) | EndpointBindError::NotLoopback { .. }
                )
            ),
            _ => false,
        }
    }
}
