//! [`JournalError`]: errors of a journal.

use nvme::ChunkId;
use serde::{Deserialize, Serialize};

/// No chunks are left for a snapshot.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct WornOut {
    /// Chunks reserved.
    pub(super) reserved: u32,
    /// Good ones.
    pub(super) good: u32,
    /// Frames of the snapshot.
    pub(super) frames: u32,
}

impl From<WornOut> for JournalError {
    fn from(WornOut { reserved, good, frames }: WornOut) -> JournalError {
        JournalError::WornOut { reserved, good, frames }
    }
}

/// Reasons why a journal cannot be created, read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// A value of the flash or of the configuration is invalid for a journal.
    #[error("{what} is {value}, but {allowed}")]
    InvalidParameter {
        /// Name of the value.
        what: &'static str,
        /// The invalid value.
        value: u64,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// A chunk that was given does not exist, or was given twice.
    #[error("{chunk} was reserved {times} times on flash of {chunks} chunks")]
    Chunk {
        /// Its number.
        chunk: ChunkId,
        /// Number of times that it was reserved.
        times: u32,
        /// Chunks of the flash.
        chunks: u32,
    },
    /// A write pointer is outside of its chunk or inside a write unit.
    #[error(
        "{chunk} is written up to sector {sectors}, which is no multiple of its write unit of \
         {unit} or behind its {limit} sectors"
    )]
    WritePointer {
        /// The chunk.
        chunk: ChunkId,
        /// The write pointer, in sectors.
        sectors: u32,
        /// Sectors of a write unit.
        unit: u32,
        /// Sectors of a chunk.
        limit: u32,
    },
    /// Too few chunks for one generation and the snapshot of the next.
    #[error(
        "{good} good chunks are reserved, but one copy of the journal needs {needed} and two need \
         {mirrored}"
    )]
    TooFewChunks {
        /// Good chunks.
        good: u32,
        /// Least number.
        needed: u32,
        /// Least number with a mirror.
        mirrored: u32,
    },
    /// A snapshot is larger than the configuration announced.
    #[error("a snapshot of {bytes} bytes is larger than the {max} that the journal was made for")]
    SnapshotTooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A record is larger than the capacity of an empty generation.
    #[error("a record of {bytes} bytes fits no generation, which holds {max} at most")]
    RecordTooLarge {
        /// Its size.
        bytes: u64,
        /// The current limit.
        max: u64,
    },
    /// The generation has no capacity for a record, or cannot be continued: a snapshot must come
    /// first.
    #[error(
        "a record needs {frames} more frames where there is room for {available}: a snapshot is due"
    )]
    SnapshotNeeded {
        /// Frames that the record needs.
        frames: u64,
        /// Frames available.
        available: u64,
    },
    /// The last snapshot is not durable yet.
    #[error("the snapshot of generation {generation} is still being written")]
    SnapshotInProgress {
        /// Its generation.
        generation: u64,
    },
    /// No chunks are left for a snapshot.
    #[error("of {reserved} chunks {good} are good, and a snapshot of {frames} frames fits nowhere")]
    WornOut {
        /// Chunks reserved.
        reserved: u32,
        /// Good ones.
        good: u32,
        /// Frames of the snapshot.
        frames: u32,
    },
    /// The chunks hold data, but no frames of a journal.
    #[error("{chunk} holds data, but no chunk holds frames of a journal")]
    NotAJournal {
        /// The first such chunk.
        chunk: ChunkId,
    },
    /// The chunks hold another owner's journal.
    #[error("{chunk} holds the journal of owner {found:#010x}, wanted is {wanted:#010x}")]
    Foreign {
        /// The first such chunk.
        chunk: ChunkId,
        /// Its owner.
        found: u32,
        /// The expected owner.
        wanted: u32,
    },
    /// The chunks hold a journal of another version.
    #[error("{chunk} holds a journal of version {found}, known is version {known}")]
    Version {
        /// The first such chunk.
        chunk: ChunkId,
        /// Version found.
        found: u16,
        /// Version known.
        known: u16,
    },
}
