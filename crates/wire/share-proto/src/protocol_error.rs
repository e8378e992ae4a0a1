//! [`ProtocolError`]: a request that the server refused; [`Code`]: its reason.

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $number:expr;)*) => {
        /// Reason of a refusal or a disconnect; the values are those on the wire
        /// (`docs/format/socket.md`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum Code {
            $($(#[$doc])* $name = $number,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            pub(crate) fn from_wire(number: u16) -> Option<Code> {
                Code::ALL.iter().copied().find(|code| *code as u16 == number)
            }
        }
    };
}

error_codes! {
    /// The server implements another version.
    Version = 1;
    /// The message is malformed; the connection is closed.
    Malformed = 2;
    /// The message is out of order; the connection is closed.
    Order = 3;
    /// The user may not use the resource, or it does not exist; the reply does not tell which.
    NotAllowed = 4;
    /// More queues than the user may have, or has remaining.
    Queues = 5;
    /// More connections than the user, or all users, may have.
    Connections = 6;
    /// More memory than may be registered.
    Memory = 7;
    /// The descriptor is not memory that can be mapped safely.
    BadMemory = 8;
    /// Another front end of the server uses the partition.
    Taken = 9;
    /// Only the server's own user and root may make this request.
    NotAdmin = 10;
    /// No such drive, partition, rule or client (reported to administrators only).
    Unknown = 11;
    /// The rule grants nothing, or more than exists.
    Rule = 12;
    /// The server is out of descriptors or memory.
    Resources = 13;
    /// The drive refuses the host, or was removed.
    Drive = 14;
    /// An administrator closed the connection.
    Kicked = 15;
    /// The user's permission was removed.
    Denied = 16;
    /// The server is shutting down.
    Stopping = 17;
    /// The FTL refuses the setting, or the drive or target has none.
    Setting = 18;
    /// The drive cannot have the fault.
    Fault = 19;
    /// The drive refuses the change of its namespaces, or it failed.
    Namespace = 20;
    /// The drive does not take the rule program, or has no rules.
    RuleProgram = 21;
}

/// A request that the server refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ProtocolError {
    /// Reason.
    pub code: Code,
    /// The reason as text, with what is allowed instead; at most 240 bytes on the wire.
    pub text: String,
}

impl ProtocolError {
    /// Creates an error.
    pub fn new(code: Code, text: impl Into<String>) -> ProtocolError {
        ProtocolError { code, text: text.into() }
    }
}
