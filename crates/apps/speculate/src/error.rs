//! [`SpeculateError`], and the operation that failed first.

use user_io::{Buffer, IoError, Op};

/// The first operation of a handle that failed. All later ones depend on it, and are not executed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("a speculated {op:?} of {sectors} sectors at {lba} has failed: {error}")]
pub struct FailedOperation {
    /// The operation: a write or a flush.
    pub op: Op,
    /// Its first sector.
    pub lba: u64,
    /// Its sectors.
    pub sectors: u32,
    /// The reason.
    pub error: IoError,
}

/// Why an operation was not executed, or is not known to be.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpeculateError {
    /// An earlier operation, or this one, has failed.
    #[error(transparent)]
    Failed(#[from] FailedOperation),
    /// The request is invalid: nothing was changed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The ticket is not one of this handle.
    #[error("the ticket is not one of this handle")]
    ForeignTicket,
}

/// A write that was not executed, with its buffer.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RefusedWrite {
    /// The buffer; `None` if the handle does not have it.
    pub buffer: Option<Buffer>,
    /// The reason.
    pub error: SpeculateError,
}
