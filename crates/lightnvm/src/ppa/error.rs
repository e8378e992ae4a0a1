//! What goes wrong with vectors: refused before they are sent ([`Refused`]), failed at some of their
//! addresses ([`VectorError`]), or not answered ([`PpaError`]).

use std::fmt;

use nvme::{Address, Status};

use super::{Buffer, BufferRangeError, FailedMask, RequestId, VectorKind};
use crate::OcssdError;
use crate::vector::MemoryError;

/// Why a vector was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// As many vectors are outstanding as the session holds; reap some first.
    #[error("{vectors} vectors are outstanding, as many as the session holds: reap some first")]
    SessionFull {
        /// How many.
        vectors: usize,
    },
    /// No address, or too many.
    #[error("a vector of {addresses} addresses: it has 1 to {limit}")]
    Length {
        /// Addresses given.
        addresses: usize,
        /// Addresses at most.
        limit: usize,
    },
    /// A write or copy that is not in whole write units.
    #[error("{addresses} addresses to write: it must be a multiple of ws_min ({unit})")]
    WriteUnit {
        /// Addresses given.
        addresses: usize,
        /// Smallest write, in sectors.
        unit: u32,
    },
    /// A copy from and to different numbers of addresses.
    #[error("a copy of {from} sectors to {to}")]
    CopyLengths {
        /// Sources.
        from: usize,
        /// Targets.
        to: usize,
    },
    /// The drive does not copy, or the session does not let it.
    #[error(
        "the drive does not copy sectors by itself, or the session was opened without: read and write them"
    )]
    CannotCopy,
    /// The buffer has fewer sectors than the vector has addresses.
    #[error("a buffer of {sectors} sectors for {addresses} addresses")]
    Buffer {
        /// Sectors of the buffer.
        sectors: u32,
        /// Addresses given.
        addresses: usize,
    },
    /// The buffer is another drive's.
    #[error("the buffer belongs to another drive: take one from the buffers of its own")]
    ForeignBuffer,
}

impl RejectReason {
    /// Whether the vector would be taken later.
    pub fn is_busy(&self) -> bool {
        matches!(self, RejectReason::SessionFull { .. })
    }
}

/// A vector that was not taken, and the buffer that came with it.
#[derive(Debug)]
pub struct Rejected {
    /// Why.
    pub reason: RejectReason,
    /// The buffer, if there was one.
    pub buffer: Option<Buffer>,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for Rejected {}

/// A vector of which some addresses failed.
#[derive(Debug)]
pub struct VectorError {
    /// What was asked.
    pub kind: VectorKind,
    /// How the first command that failed ended.
    pub status: Status,
    /// Which addresses of the vector failed.
    pub failed: FailedMask,
    /// The same addresses; of a copy, the sources.
    pub addresses: Vec<Address>,
    /// The buffer, if there was one; what did not fail has been transferred.
    pub buffer: Option<Buffer>,
}

/// Addresses that a message names at most.
const ADDRESSES_SHOWN_MAX: usize = 4;

/// `1/2/3/4, 1/2/3/5 and 7 more`
pub(crate) fn format_addresses(addresses: &[Address]) -> String {
    let named: Vec<String> =
        addresses.iter().take(ADDRESSES_SHOWN_MAX).map(Address::to_string).collect();
    match addresses.len().saturating_sub(ADDRESSES_SHOWN_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

impl fmt::Display for VectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}: {}", self.kind, format_addresses(&self.addresses), self.status)
    }
}

impl std::error::Error for VectorError {}

/// What can go wrong for who waits for a vector.
#[derive(Debug, thiserror::Error)]
pub enum PpaError {
    /// Some of its addresses failed.
    #[error(transparent)]
    Vector(#[from] Box<VectorError>),
    /// It was not taken.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// The drive did not answer. The vector is still outstanding, and so is its buffer: it comes
    /// back through [`reap`](super::Session::reap) if the drive ever ends it.
    #[error("{kind} {request} did not end, and nothing else did, within {polls} polls")]
    Timeout {
        /// What was asked.
        kind: VectorKind,
        /// The vector.
        request: RequestId,
        /// How often the drive was polled in vain.
        polls: u64,
    },
    /// The vector is not outstanding: it was reaped, or is another session's.
    #[error("{request} is not outstanding")]
    NoSuchVector {
        /// The vector.
        request: RequestId,
    },
    /// The drive writes at least more sectors at a time than it transfers.
    #[error("the drive writes {unit} sectors at least, but a command transfers {limit} at most")]
    WriteUnit {
        /// Smallest write, in sectors.
        unit: u32,
        /// Largest transfer, in sectors.
        limit: u32,
    },
    /// A session that could hold no vector.
    #[error("a session of {queue_depth} commands and {vectors} vectors: it has at least 1 of each")]
    Config {
        /// Commands outstanding.
        queue_depth: u16,
        /// Vectors outstanding.
        vectors: u16,
    },
    /// A buffer has no such place.
    #[error(transparent)]
    BufferRange(#[from] BufferRangeError),
    /// No memory that the drive may touch.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// An admin command failed.
    #[error(transparent)]
    Ssd(#[from] OcssdError),
}

impl PpaError {
    /// How the drive answered, if some addresses failed.
    pub fn status(&self) -> Option<Status> {
        match self {
            PpaError::Vector(e) => Some(e.status),
            _ => None,
        }
    }
}

impl From<super::AddressError> for PpaError {
    fn from(error: super::AddressError) -> PpaError {
        PpaError::Ssd(error.into())
    }
}
