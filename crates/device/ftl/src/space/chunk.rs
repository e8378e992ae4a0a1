//! [`ChunkState`]: write pointer, readable sectors and condition of a chunk. [`ChunkTable`]: all chunks,
//! and the lines that they are in.

use crate::FlashGeometry;
use crate::check::{Subject, Violation, require, require_eq};
use crate::ids::{LineId, ToIndex, ToU32};
use nvme::ChunkId;
use serde::{Deserialize, Serialize};

/// The state of a chunk, beside its line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ChunkState {
    /// End of the programmed sectors. The media programs a chunk in order, so all sectors before it
    /// are programmed, whether or not that was reported.
    pub(crate) write_pointer: u32,
    /// Whether a program failed or the chunk is bad: it is retired instead of erased.
    pub(crate) bad: bool,
    /// Whether the chunk is offline: it cannot be programmed any more, and perhaps not read.
    pub(crate) offline: bool,
    /// Whether a sector of it could not be read.
    pub(crate) had_read_error: bool,
    /// Number of known erases.
    pub(crate) erases: u32,
    /// Its index among the chunks of its line.
    pub(crate) member_index: u32,
}

impl ChunkState {
    /// Creates the state of an empty chunk.
    pub(crate) fn free(erases: u32) -> ChunkState {
        ChunkState {
            write_pointer: 0,
            bad: false,
            offline: false,
            had_read_error: false,
            erases,
            member_index: 0,
        }
    }

    /// Records that the write unit ending at this sector is programmed, and with it all earlier
    /// ones.
    #[inline]
    pub(crate) fn on_programmed(&mut self, end: u32) {
        self.write_pointer = self.write_pointer.max(end);
    }

    /// Returns the end of the readable sectors. Sectors behind it wait for their paired page, which
    /// is programmed later, or never if the chunk is not written further. The end may be inside a
    /// write unit.
    #[inline]
    pub(crate) fn readable_end(&self, shape: &FlashGeometry) -> u32 {
        let whole = self.write_pointer == shape.sectors_per_chunk || self.bad;
        self.write_pointer.saturating_sub(if whole { 0 } else { shape.mw_cunits })
    }
}

/// The state of every chunk, and the line that it is in.
///
/// Invariant: the maximum of the erases is that of the most worn chunk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChunkTable {
    states: Vec<ChunkState>,
    line_of: Vec<LineId>,
    /// Erases of the most worn chunk.
    wear_max: u32,
}

impl ChunkTable {
    /// Creates a table of chunks that are in no line and were never erased.
    pub(super) fn new(total: u32) -> ChunkTable {
        let total = total.index();
        let states = vec![ChunkState::free(0); total];
        ChunkTable { states, line_of: vec![LineId::NONE; total], wear_max: 0 }
    }

    /// The state of a chunk; none if there is no such chunk.
    #[inline]
    pub(crate) fn get(&self, chunk: ChunkId) -> Option<&ChunkState> {
        self.states.get(chunk.index())
    }

    /// The state of a chunk.
    #[inline]
    pub(crate) fn state(&self, chunk: ChunkId) -> &ChunkState {
        &self.states[chunk.index()]
    }

    /// Mutable access to the state of a chunk.
    #[inline]
    pub(super) fn state_mut(&mut self, chunk: ChunkId) -> &mut ChunkState {
        &mut self.states[chunk.index()]
    }

    /// The number of bad chunks.
    pub(super) fn bad_count(&self) -> u32 {
        self.states.iter().filter(|chunk| chunk.bad).count().to_u32()
    }

    /// The line that a chunk is in, or [`LineId::NONE`].
    #[inline]
    pub(crate) fn line_of(&self, chunk: ChunkId) -> LineId {
        self.line_of[chunk.index()]
    }

    /// The line of each chunk, or [`LineId::NONE`].
    pub(super) fn lines(&self) -> impl Iterator<Item = (ChunkId, LineId)> {
        (0..).map(ChunkId).zip(self.line_of.iter().copied())
    }

    /// Puts a chunk into a line, as the member with this index.
    pub(super) fn join(&mut self, chunk: ChunkId, line: LineId, member_index: u32) {
        self.line_of[chunk.index()] = line;
        self.states[chunk.index()].member_index = member_index;
    }

    /// Takes a chunk out of its line.
    pub(super) fn leave(&mut self, chunk: ChunkId) {
        self.line_of[chunk.index()] = LineId::NONE;
    }

    /// Resets an erased chunk: it is empty and in no line.
    pub(super) fn reset(&mut self, chunk: ChunkId) {
        self.leave(chunk);
        let state = self.state_mut(chunk);
        *state = ChunkState::free(state.erases);
    }

    /// Counts an erase of a chunk.
    pub(super) fn record_erase(&mut self, chunk: ChunkId) {
        let erases = &mut self.states[chunk.index()].erases;
        *erases = erases.saturating_add(1);
        self.wear_max = self.wear_max.max(*erases);
    }

    /// Imports the number of erases of each chunk.
    pub(super) fn import_wear(&mut self, erases: impl Fn(ChunkId) -> u32) {
        for (number, chunk) in (0..).map(ChunkId).zip(&mut self.states) {
            chunk.erases = erases(number);
        }
        self.wear_max = self.most_worn();
    }

    /// Erases of the most worn chunk.
    pub(super) fn wear_max(&self) -> u32 {
        self.wear_max
    }

    fn most_worn(&self) -> u32 {
        self.states.iter().map(|c| c.erases).max().unwrap_or(0)
    }

    /// The erases of chunks, on average.
    pub(super) fn mean_wear(&self, chunks: &[ChunkId]) -> u32 {
        let sum: u64 = chunks.iter().map(|c| u64::from(self.state(*c).erases)).sum();
        (sum / (chunks.len() as u64).max(1)).to_u32()
    }

    /// Checks the maximum of the erases.
    pub(super) fn check_invariants(&self) -> Result<(), Violation> {
        let (worn, known) = (self.most_worn(), self.wear_max);
        require_eq!(Space, "erases of the most worn chunk", Subject::Part, worn, known);
        Ok(())
    }

    /// Checks a chunk that is free.
    pub(super) fn check_free(&self, chunk: ChunkId) -> Result<(), Violation> {
        let (subject, c) = (Subject::Chunk(chunk), self.state(chunk));
        require_eq!(
            Space,
            "a free chunk is in no line",
            subject,
            LineId::NONE,
            self.line_of(chunk)
        );
        require_eq!(Space, "a free chunk is empty", subject, 0, c.write_pointer);
        require!(!c.bad && !c.offline, Space, "a free chunk is good", subject, "good", "bad");
        Ok(())
    }

    /// Breaks the line of a chunk.
    #[cfg(test)]
    pub(crate) fn break_line_of(&mut self, chunk: ChunkId, line: LineId) {
        self.line_of[chunk.index()] = line;
    }

    /// The state of a chunk, for tests that break an invariant.
    #[cfg(test)]
    pub(crate) fn break_state(&mut self, chunk: ChunkId) -> &mut ChunkState {
        self.state_mut(chunk)
    }

    /// Breaks the maximum of the erases.
    #[cfg(test)]
    pub(crate) fn break_wear(&mut self) {
        self.wear_max += 1;
    }
}
