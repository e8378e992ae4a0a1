//! Errors of vectors: rejected before submission ([`Rejected`]), failed at some addresses
//! ([`VectorError`]), or not completed ([`PpaError`]).

use std::fmt;

use nvme::{Address, Status};

use super::{BufferRangeError, FailedMask, RequestId, VectorBuffer, VectorKind};
use crate::OcssdError;
use crate::vector::MemoryError;

/// Why a vector was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// The session's vectors are all outstanding; reap some first.
    #[error("{vectors} vectors are outstanding, as many as the session holds: reap some first")]
    SessionFull {
        /// Number of outstanding vectors.
        vectors: usize,
    },
    /// The vector has no addresses, or too many.
    #[error("a vector has {addresses} addresses, but it must have 1 to {limit}")]
    Length {
        /// Number of addresses.
        addresses: usize,
        /// Maximum number of addresses.
        limit: usize,
    },
    /// A write or copy is not a multiple of the write unit.
    #[error("a write has {addresses} addresses, but it must have a multiple of ws_min ({unit})")]
    WriteUnit {
        /// Number of addresses.
        addresses: usize,
        /// Smallest write in sectors.
        unit: u32,
    },
    /// A copy has different numbers of sources and destinations.
    #[error("a copy has {from} sources, but {to} destinations")]
    CopyLengths {
        /// Number of sources.
        from: usize,
        /// Number of destinations.
        to: usize,
    },
    /// The drive does not support copy, or the session does not allow it.
    #[error(
        "the drive does not support copy, or the session was opened without: read and write instead"
    )]
    CannotCopy,
    /// The buffer has fewer sectors than the vector has addresses.
    #[error("the buffer has {sectors} sectors, but the vector has {addresses} addresses")]
    Buffer {
        /// Sectors of the buffer.
        sectors: u32,
        /// Number of addresses.
        addresses: usize,
    },
    /// The buffer belongs to another drive.
    #[error("the buffer belongs to another drive: allocate one from this drive's buffers")]
    ForeignBuffer,
}

impl RejectReason {
    /// Returns whether the vector may be accepted later.
    pub fn is_busy(&self) -> bool {
        matches!(self, RejectReason::SessionFull { .. })
    }
}

/// A rejected vector, and its buffer.
#[derive(Debug)]
pub struct Rejected {
    /// Reason.
    pub reason: RejectReason,
    /// The buffer, if any.
    pub buffer: Option<VectorBuffer>,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for Rejected {}

/// A vector with failed addresses.
#[derive(Debug)]
pub struct VectorError {
    /// Operation.
    pub kind: VectorKind,
    /// Status of the first failed command.
    pub status: Status,
    /// Mask of the failed addresses.
    pub failed: FailedMask,
    /// The failed addresses; of a copy, the sources.
    pub addresses: Vec<Address>,
    /// The buffer, if any; sectors that did not fail were transferred.
    pub buffer: Option<VectorBuffer>,
}

/// Maximum number of addresses in a message.
const ADDRESSES_SHOWN_MAX: usize = 4;

/// Formats addresses, as in `1/2/3/4, 1/2/3/5 and 7 more`.
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

/// Errors of a synchronous vector operation.
#[derive(Debug, thiserror::Error)]
pub enum PpaError {
    /// Some addresses failed.
    #[error(transparent)]
    Vector(#[from] Box<VectorError>),
    /// The vector was rejected.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// The drive did not complete the vector in time. The vector and its buffer are still
    /// outstanding: [`reap`](super::Session::reap) returns them if the drive ever completes it.
    #[error("{kind} {request} timed out: no vector completed within {polls} polls")]
    Timeout {
        /// Operation.
        kind: VectorKind,
        /// The vector.
        request: RequestId,
        /// Number of polls without a completion.
        polls: u64,
    },
    /// The vector is not outstanding: it was reaped, or belongs to another session.
    #[error("{request} is not outstanding")]
    NoSuchVector {
        /// The vector.
        request: RequestId,
    },
    /// The drive's smallest write exceeds its maximum transfer.
    #[error("the smallest write is {unit} sectors, but a command transfers at most {limit}")]
    WriteUnit {
        /// Smallest write in sectors.
        unit: u32,
        /// Maximum transfer in sectors.
        limit: u32,
    },
    /// The session could hold no vector.
    #[error(
        "a session of {queue_depth} commands and {vectors} vectors, but it needs at least 1 each"
    )]
    Config {
        /// Maximum number of outstanding commands.
        queue_depth: u16,
        /// Maximum number of outstanding vectors.
        vectors: u16,
    },
    /// An access was outside a buffer.
    #[error(transparent)]
    BufferRange(#[from] BufferRangeError),
    /// Memory for the drive cannot be provided.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// An admin command failed.
    #[error(transparent)]
    Ssd(#[from] OcssdError),
}

impl PpaError {
    /// Returns the status of the drive, if addresses failed.
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
