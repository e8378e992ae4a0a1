//! [`KvViolation`]: an invariant that does not hold.

use std::fmt;

use collections::BrokenInvariant;

use crate::format::key::Key;

/// A part of a key-value target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPart {
    /// Versions of keys and their locations.
    Index,
    /// Chunks, their roles and live bytes, and the free lists.
    Space,
    /// Open chunks, the memory of their units, and the durable prefix.
    Buffer,
    /// Outstanding and completed requests.
    Requests,
    /// The write queue and the keys that block requests.
    WriteOrder,
    /// Values of several records or whole chunks that are being written.
    Puts,
    /// Reads of values and of chunks that are compacted.
    Reads,
    /// Compaction, and the evacuation of failed chunks.
    Compaction,
    /// Obsolete chunks until their erases complete.
    Reclaim,
    /// Requests that wait for durability.
    Durability,
}

impl fmt::Display for KvPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvPart::Index => "index",
            KvPart::Space => "space",
            KvPart::Buffer => "buffer",
            KvPart::Requests => "requests",
            KvPart::WriteOrder => "write order",
            KvPart::Puts => "puts",
            KvPart::Reads => "reads",
            KvPart::Compaction => "compaction",
            KvPart::Reclaim => "reclaim",
            KvPart::Durability => "durability",
        })
    }
}

/// An item that an invariant is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvSubject {
    /// The part as a whole.
    Part,
    /// A key, escaped.
    Key(String),
    /// A chunk.
    Chunk(u32),
    /// An append stream.
    Stream(usize),
    /// A request, by its index in the table.
    Request(u32),
    /// An operation, by its index in a table.
    Operation(u32),
}

impl KvSubject {
    #[cold]
    pub(crate) fn key(key: &Key) -> KvSubject {
        KvSubject::Key(key.as_bytes().escape_ascii().to_string())
    }
}

impl fmt::Display for KvSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvSubject::Part => f.write_str("the part"),
            KvSubject::Key(key) => write!(f, "key {key}"),
            KvSubject::Chunk(n) => write!(f, "chunk {n}"),
            KvSubject::Stream(n) => write!(f, "stream {n}"),
            KvSubject::Request(n) => write!(f, "request {n}"),
            KvSubject::Operation(n) => write!(f, "operation {n}"),
        }
    }
}

/// An invariant that does not hold.
pub type KvViolation = BrokenInvariant<KvPart, KvSubject>;

/// Checks of one part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartCheck(pub(crate) KvPart);

impl PartCheck {
    /// Requires a condition. `expected` and `found` describe the values of a violation.
    pub(crate) fn require(
        self,
        condition: bool,
        invariant: &'static str,
        subject: KvSubject,
        expected: impl fmt::Display,
        found: impl fmt::Debug,
    ) -> Result<(), KvViolation> {
        let found = format_args!("{found:?}");
        KvViolation::unless(condition, self.0, invariant, subject, expected, found)
    }

    /// Requires two values to be equal.
    pub(crate) fn equal<T: PartialEq + fmt::Debug>(
        self,
        invariant: &'static str,
        subject: KvSubject,
        expected: T,
        found: T,
    ) -> Result<(), KvViolation> {
        let is_equal = expected == found;
        self.require(is_equal, invariant, subject, format_args!("{expected:?}"), found)
    }
}
