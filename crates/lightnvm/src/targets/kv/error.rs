//! [`KvOpenError`]: why a drive cannot be opened; [`KvError`]: why a request failed.

use nvme::{Address, Status};

use super::key::KeyLengthError;
use crate::vector::MemoryError;

/// Why a drive cannot be opened as a key-value target.
#[derive(Debug, thiserror::Error)]
pub enum KvOpenError {
    /// The drive manages its flash itself.
    #[error("drive {serial} is not open-channel: its flash cannot be given to keys and values")]
    NotOpenChannel {
        /// The drive.
        serial: String,
    },
    /// The drive keeps no contents.
    #[error("the drive keeps no data: values would be lost; use data = \"memory\" or \"file\"")]
    DataNotStored,
    /// The drive's shape does not fit.
    #[error("{what} is {value}, but kv needs {allowed}")]
    Shape {
        /// What it is about.
        what: &'static str,
        /// What the drive says.
        value: u64,
        /// What would do.
        allowed: String,
    },
    /// An option has a value that makes no sense.
    #[error("{what} is {value}; allowed: {allowed}")]
    Config {
        /// The option.
        what: &'static str,
        /// Its value.
        value: f64,
        /// What would do.
        allowed: String,
    },
    /// Nothing is left for values.
    #[error(
        "{chunks} good chunks: {overhead} are held (open chunks and room for cleaning), so that nothing \
         is left for values"
    )]
    TooSmall {
        /// Good chunks.
        chunks: u32,
        /// Chunks held.
        overhead: u32,
    },
    /// Not as many chunk descriptors as chunks.
    #[error("{given} chunk descriptors for a drive of {chunks} chunks")]
    ChunkCount {
        /// Descriptors given.
        given: usize,
        /// Chunks of the drive.
        chunks: u64,
    },
    /// The drive says something of a chunk that cannot be.
    #[error("chunk {chunk}: {what}")]
    Chunk {
        /// Its first sector.
        chunk: Address,
        /// What cannot be.
        what: String,
    },
    /// What is on the drive was not written by kv.
    #[error(
        "sector {first} was not written by kv: reset the target's chunks if what is there is not \
         needed"
    )]
    ForeignData {
        /// The first such sector.
        first: Address,
    },
    /// No memory for buffers.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The drive refused a command of the recovery.
    #[error("recovery: {command} at {address} failed: {status}")]
    Command {
        /// The command.
        command: &'static str,
        /// Its first address.
        address: Address,
        /// The drive's answer.
        status: Status,
    },
    /// The drive did not answer.
    #[error("recovery: {outstanding} commands were not answered within {polls} polls")]
    Timeout {
        /// Commands outstanding.
        outstanding: u16,
        /// How often the drive was polled in vain.
        polls: u64,
    },
}

/// Why a request failed. Nothing has changed then, except where it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// The key is too short or too long.
    #[error(transparent)]
    KeyLength(#[from] KeyLengthError),
    /// The value is too large.
    #[error("a value of {bytes} bytes: at most {bytes_max} fit")]
    ValueTooLarge {
        /// Its bytes.
        bytes: u64,
        /// Bytes at most.
        bytes_max: u64,
    },
    /// The batch is too large to be written in one piece.
    #[error("a batch of {bytes} bytes, keys and headers included: at most {bytes_max} fit")]
    BatchTooLarge {
        /// Its bytes.
        bytes: u64,
        /// Bytes at most.
        bytes_max: u64,
    },
    /// The key does not exist.
    #[error("the key does not exist")]
    NotFound,
    /// The place for the value is too small; nothing was put there.
    #[error("the value has {bytes} bytes, more than there is room for")]
    BufferTooSmall {
        /// Its bytes.
        bytes: u64,
    },
    /// A place is not registered memory.
    #[error("the place of a value is not registered memory")]
    NotRegistered,
    /// The values fill what there is.
    #[error("full: delete something first")]
    Full,
    /// Too many chunks have gone bad: reads go on.
    #[error("read-only: too many chunks of the drive have gone bad")]
    ReadOnly,
    /// The value cannot be read.
    #[error("the value cannot be read: {status}")]
    Media {
        /// What the drive said.
        status: Status,
    },
    /// The value is not what was written.
    #[error("the value is damaged: its CRC-32C is wrong")]
    ChecksumMismatch,
    /// What was to be durable could not be written, because there is no chunk left to write it to.
    #[error("not durable: there is no chunk left to write to")]
    NotDurable,
    /// The target was given up while the request was outstanding.
    #[error("the target was closed")]
    Closed,
    /// The drive did not answer.
    #[error("the drive does not answer")]
    Timeout,
    /// There is no memory to pass the value through.
    #[error("no memory to pass the value through")]
    NoMemory,
}
