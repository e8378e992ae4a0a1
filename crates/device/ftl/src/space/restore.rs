//! Chunks and lines as a recovery found them.

use crate::ids::WriteSeq;

/// The condition of a chunk after power-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundChunk {
    Good,
    /// A program failed: the line is reclaimed first, and the chunk retired.
    ProgramFailed,
    /// It cannot be read: the line is reclaimed as a refresh, and the chunk retired.
    Gone,
}

/// The contents of a line after power-on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestoredLine {
    pub(crate) valid_sectors: u32,
    pub(crate) stream: u8,
    pub(crate) max_seq: WriteSeq,
}
