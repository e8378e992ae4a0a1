//! [`ProtocolError`]: what a server does not do, and what it would do; [`Gone`]: why a served device is not
//! there any more; [`RemoteDeviceError`]: why one cannot be opened.

use std::io;
use std::path::PathBuf;

use clock::Nanos;
use ring::JoinError;

use super::name::NameError;
use super::wire::WireError;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $number:expr;)*) => {
        /// Why something was refused or has ended; the numbers are those of the wire
        /// (`docs/format/socket.md`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum Code {
            $($(#[$doc])* $name = $number,)*
        }

        impl Code {
            /// All of them.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            pub(crate) fn from_wire(number: u16) -> Option<Code> {
                Code::ALL.iter().copied().find(|code| *code as u16 == number)
            }
        }
    };
}

error_codes! {
    /// The server speaks another version.
    Version = 1;
    /// The message means nothing; the connection ends.
    Malformed = 2;
    /// The message comes at the wrong time; the connection ends.
    Order = 3;
    /// The user may not use that, or it is not there: which of the two is not told.
    NotAllowed = 4;
    /// More queues than the user may have, or has left.
    Queues = 5;
    /// More connections than the user, or all users, may have.
    Connections = 6;
    /// More memory than may be registered.
    Memory = 7;
    /// What was handed over is no memory that can be mapped without danger.
    BadMemory = 8;
    /// Another front end of the server has the partition.
    Taken = 9;
    /// Only the server's own user and root may ask that.
    NotAdmin = 10;
    /// There is no such drive, partition, rule or client (told to administrators only).
    Unknown = 11;
    /// A rule that gives nothing, or more than there is.
    Rule = 12;
    /// The server has run out of something: descriptors, memory.
    Resources = 13;
    /// The drive does not take the host, or is not there any more.
    Drive = 14;
    /// An administrator has ended the connection.
    Kicked = 15;
    /// The user's permission was taken back.
    Denied = 16;
    /// The server is shutting down in order.
    Stopping = 17;
}

/// Something was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ProtocolError {
    /// Why.
    pub code: Code,
    /// The same, with what is allowed instead; 240 bytes at most on the wire.
    pub text: String,
}

impl ProtocolError {
    /// A refusal.
    pub fn new(code: Code, text: impl Into<String>) -> ProtocolError {
        ProtocolError { code, text: text.into() }
    }
}

/// Why a device is not there any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemovalReason {
    /// The server's process has ended without a word, or was killed.
    #[error("the server is gone: its process has ended")]
    ServerDied,
    /// The server has ended the connection: it stops, or somebody there wanted it.
    #[error("the server has ended the connection: {0}")]
    Disconnected(ProtocolError),
    /// The server has sent something that means nothing.
    #[error("the server has sent what cannot be: {0}")]
    Malformed(WireError),
    /// A real controller was pulled out, taken away, or has not come back from a reset.
    #[error("the controller is gone")]
    Removed,
}

/// Why a served drive cannot be opened, or a server not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteDeviceError {
    /// Nobody answers at the socket.
    #[error("no server at {path}: {source}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The server, or its drive, does not answer in time: it is stopped, or has much too much to do.
    #[error("the server has not answered within {} s: {what}", timeout.as_secs_f64())]
    Timeout {
        /// What it was asked.
        what: &'static str,
        /// How long it may take.
        timeout: Nanos,
    },
    /// The system fails.
    #[error("asking the server: {0}")]
    Io(#[source] io::Error),
    /// The server refuses.
    #[error("the server refuses: {0}")]
    Refused(#[from] ProtocolError),
    /// The server is gone.
    #[error(transparent)]
    Removed(#[from] RemovalReason),
    /// The server's answer means nothing.
    #[error("the server's answer: {0}")]
    Wire(#[from] WireError),
    /// The server answers another question.
    #[error("the server's answer is none to what was asked: {reply}")]
    UnexpectedReply {
        /// What came.
        reply: &'static str,
    },
    /// The parts of the port do not fit together.
    #[error("the drive's port: {0}")]
    Port(#[from] JoinError),
    /// A name that cannot be.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A device that is not served was asked for what only those can do.
    #[error("{device} is not a served drive")]
    NotRemote {
        /// The device.
        device: String,
    },
}

impl RemoteDeviceError {
    /// What the server refused, if it did.
    pub fn protocol_error(&self) -> Option<&ProtocolError> {
        match self {
            RemoteDeviceError::Refused(refusal)
            | RemoteDeviceError::Removed(RemovalReason::Disconnected(refusal)) => Some(refusal),
            _ => None,
        }
    }

    /// Whether the server does not answer in time: worth another try later, on the same connection as
    /// well.
    pub fn is_timeout(&self) -> bool {
        matches!(self, RemoteDeviceError::Timeout { .. })
    }

    /// Whether the server is gone, or was not there: worth another try later.
    pub fn is_disconnected(&self) -> bool {
        matches!(self, RemoteDeviceError::Connect { .. } | RemoteDeviceError::Removed(_))
    }
}
