//! [`RemovalReason`]: why a remote device was removed; [`RemoteDeviceError`]: why one cannot be
//! opened.

use std::io;
use std::path::PathBuf;

use share_proto::{NameError, ProtocolError, WireError};
use time::Nanos;
use transport::JoinError;

/// Why a device was removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemovalReason {
    /// The server's process ended without a message, or was killed.
    #[error("the server is gone: its process has ended")]
    ServerDied,
    /// The server closed the connection: it is shutting down, or an administrator closed it.
    #[error("the server has ended the connection: {0}")]
    Disconnected(ProtocolError),
    /// The server sent a malformed message.
    #[error("the server has sent a malformed message: {0}")]
    Malformed(WireError),
    /// A real controller was unplugged, unbound, or did not recover from a reset.
    #[error("the controller is gone")]
    Removed,
}

/// Why a served drive cannot be opened, or a call to its server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteDeviceError {
    /// No server accepts connections at the socket.
    #[error("no server at {path}: {source}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The server or its drive did not answer in time: it is stopped or overloaded.
    #[error("the server has not answered within {} s: {what}", timeout.as_secs_f64())]
    Timeout {
        /// The call that timed out.
        what: &'static str,
        /// The timeout.
        timeout: Nanos,
    },
    /// A system call on the socket failed.
    #[error("asking the server: {0}")]
    Io(#[source] io::Error),
    /// The server refused the request.
    #[error("the server refuses: {0}")]
    Refused(#[from] ProtocolError),
    /// The server has ended.
    #[error(transparent)]
    Removed(#[from] RemovalReason),
    /// The server's reply is malformed.
    #[error("the server's answer: {0}")]
    Wire(#[from] WireError),
    /// The server's reply does not match the request.
    #[error("the server's reply does not match the request: {reply}")]
    UnexpectedReply {
        /// The reply.
        reply: &'static str,
    },
    /// The parts of the port do not match each other.
    #[error("the drive's port: {0}")]
    Port(#[from] JoinError),
    /// Invalid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The operation needs a remote device.
    #[error("{device} is not a served drive")]
    NotRemote {
        /// The device.
        device: String,
    },
}

impl RemoteDeviceError {
    /// Returns the server's refusal, if it refused.
    pub fn protocol_error(&self) -> Option<&ProtocolError> {
        match self {
            RemoteDeviceError::Refused(refusal)
            | RemoteDeviceError::Removed(RemovalReason::Disconnected(refusal)) => Some(refusal),
            _ => None,
        }
    }

    /// Returns whether the server did not answer in time; the call may be retried later, on the
    /// same connection too.
    pub fn is_timeout(&self) -> bool {
        matches!(self, RemoteDeviceError::Timeout { .. })
    }

    /// Returns whether the server was absent or has ended; a new connection may be tried later.
    pub fn is_disconnected(&self) -> bool {
        matches!(self, RemoteDeviceError::Connect { .. } | RemoteDeviceError::Removed(_))
    }
}
