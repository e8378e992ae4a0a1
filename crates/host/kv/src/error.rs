//! [`KvOpenError`]: reasons why a drive cannot be opened; [`KvError`]: reasons why a request
//! failed.

use nvme::{Address, Status};

use super::format::key::KeyLengthError;
use ocssd::vector::MemoryError;

/// Why a drive cannot be opened as a key-value target.
#[derive(Debug, thiserror::Error)]
pub enum KvOpenError {
    /// The drive manages its own flash.
    #[error(
        "drive {serial} is not open-channel, it manages its own flash: kv needs an open-channel drive"
    )]
    NotOpenChannel {
        /// Serial number of the drive.
        serial: String,
    },
    /// The drive does not store contents.
    #[error(
        "the drive stores no contents, values would be lost: use data = \"memory\" or \"file\""
    )]
    DataNotStored,
    /// The drive's geometry is not supported.
    #[error("{what} is {value}, but kv needs {allowed}")]
    Shape {
        /// Name of the parameter.
        what: &'static str,
        /// Value that the drive reports.
        value: u64,
        /// Allowed values.
        allowed: String,
    },
    /// An option has an invalid value.
    #[error("{what} is {value}; allowed: {allowed}")]
    Config {
        /// The option.
        what: &'static str,
        /// Its value.
        value: f64,
        /// Allowed values.
        allowed: String,
    },
    /// No capacity remains for values.
    #[error(
        "{chunks} good chunks, of which {overhead} are overhead (open chunks and the reserve for \
         compaction), leave no capacity for values"
    )]
    TooSmall {
        /// Number of good chunks.
        chunks: u32,
        /// Number of chunks needed as overhead.
        overhead: u32,
    },
    /// The number of chunk descriptors differs from the number of chunks.
    #[error("{given} chunk descriptors for a drive of {chunks} chunks")]
    ChunkCount {
        /// Number of descriptors given.
        given: usize,
        /// Number of chunks of the drive.
        chunks: u64,
    },
    /// A chunk descriptor is inconsistent.
    #[error("chunk {chunk}: {what}")]
    Chunk {
        /// First sector of the chunk.
        chunk: Address,
        /// The inconsistency.
        what: String,
    },
    /// The data on the drive was not written by kv.
    #[error(
        "sector {first} was not written by kv: reset the target's chunks if what is there is not \
         needed"
    )]
    ForeignData {
        /// Address of the first such sector.
        first: Address,
    },
    /// Memory for buffers cannot be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The drive failed a command of recovery.
    #[error("recovery: {command} at {address} failed: {status}")]
    Command {
        /// Name of the command.
        command: &'static str,
        /// First address of the command.
        address: Address,
        /// Status of the command.
        status: Status,
    },
    /// The drive did not complete commands of recovery.
    #[error("recovery: {outstanding} commands did not complete within {polls} polls")]
    Timeout {
        /// Number of outstanding commands.
        outstanding: u16,
        /// Number of polls without a completion.
        polls: u64,
    },
}

/// Why a request failed. Unless stated otherwise, nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// The key is too short or too long.
    #[error(transparent)]
    KeyLength(#[from] KeyLengthError),
    /// The value is too large.
    #[error("the value has {bytes} bytes, but at most {bytes_max} are supported")]
    ValueTooLarge {
        /// Size of the value in bytes.
        bytes: u64,
        /// Maximum size in bytes.
        bytes_max: u64,
    },
    /// The batch is too large to be written contiguously.
    #[error("the batch has {bytes} bytes with keys and headers, but at most {bytes_max} fit")]
    BatchTooLarge {
        /// Size of the batch in bytes.
        bytes: u64,
        /// Maximum size in bytes.
        bytes_max: u64,
    },
    /// The key does not exist.
    #[error("the key does not exist")]
    NotFound,
    /// The buffer for the value is too small; nothing was copied.
    #[error("the value has {bytes} bytes, more than the buffer")]
    BufferTooSmall {
        /// Size of the value in bytes.
        bytes: u64,
    },
    /// A buffer is not in registered memory.
    #[error("the buffer of a value is not in registered memory")]
    NotRegistered,
    /// The capacity is exhausted.
    #[error("the store is full: delete keys first")]
    Full,
    /// Too many chunks became bad; reads are still possible.
    #[error("the store is read-only: too many chunks of the drive became bad")]
    ReadOnly,
    /// The value is uncorrectable.
    #[error("the value cannot be read: {status}")]
    Media {
        /// Status of the drive.
        status: Status,
    },
    /// The value differs from what was written.
    #[error("the value is damaged: its CRC-32C is wrong")]
    ChecksumMismatch,
    /// The change could not be made durable, because no chunk is left to write it to.
    #[error("the change is not durable: no chunk is left to write it to")]
    NotDurable,
    /// The target was closed while the request was outstanding.
    #[error("the target was closed")]
    Closed,
    /// The drive did not complete the request.
    #[error("the drive did not complete the request in time")]
    Timeout,
    /// There is no memory to copy the value through.
    #[error("no memory to copy the value through")]
    NoMemory,
}
