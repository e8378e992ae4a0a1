//! [`JournalStats`]: counters of a journal; [`Lsn`]: a position in it.

use serde::{Deserialize, Serialize};

/// A position in the order of everything given to a [`Journal`](super::Journal). Positions of the same
/// journal value are comparable; they are not kept across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lsn(pub u64);

/// Counters since the journal was created or recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalStats {
    /// Records appended.
    pub records: u64,
    /// Bytes of records and snapshots given.
    pub bytes: u64,
    /// Frames programmed, every copy counted.
    pub frames: u64,
    /// Write units of padding programmed to make snapshots readable.
    pub padding: u64,
    /// Generations completed.
    pub generations: u64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Chunks erased.
    pub erases: u64,
    /// Erases that failed.
    pub erase_failures: u64,
    /// Retired chunks, those that were bad at power-on included.
    pub retired_chunks: u64,
    /// Copies dropped because chunks ran short.
    pub copies_lost: u64,
}
