//! [`JournalStats`]: counters of a journal; [`Lsn`]: a position in it.

/// A place in the order of everything that was given to a
/// [`Journal`](super::Journal). Positions of one journal value
/// can be compared; they are not kept over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// Counters since the journal was made or recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Records appended.
    pub records: u64,
    /// Bytes of records and snapshots given.
    pub bytes: u64,
    /// Frames programmed, every copy counted.
    pub frames: u64,
    /// Write units of padding programmed, so that snapshots can be read as they are.
    pub padding: u64,
    /// Generations completed.
    pub generations: u64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Chunks erased.
    pub erases: u64,
    /// Erases that failed.
    pub erase_failures: u64,
    /// Chunks that are not used any more; at power-on, the bad ones.
    pub retired_chunks: u64,
    /// Copies dropped because chunks ran short.
    pub copies_lost: u64,
}
