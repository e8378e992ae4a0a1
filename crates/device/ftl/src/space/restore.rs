//! Chunks and lines as a recovery found them.

use crate::ids::LineId;
use crate::space::Space;
use crate::space::lines::LineState;
use nvme::ChunkId;

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
    pub(crate) max_seq: u64,
}

impl Space {
    /// Records whether the valid sectors of lines are still to be counted.
    pub(crate) fn set_reconciling(&mut self, reconciling: bool) {
        self.lines.reconciling = reconciling;
    }

    /// Makes a line of chunks, and returns its id.
    pub(crate) fn restore_line(&mut self, chunks: impl IntoIterator<Item = ChunkId>) -> LineId {
        let members: Vec<ChunkId> = chunks.into_iter().collect();
        self.lines.insert(&members, LineState::Open)
    }

    /// Records whether a chunk is bad.
    pub(crate) fn restore_bad(&mut self, chunk: ChunkId, bad: bool) {
        self.lines.chunks.state_mut(chunk).bad = bad;
    }

    /// Records up to where a chunk of a line is written, and its condition.
    pub(crate) fn restore_chunk(&mut self, chunk: ChunkId, written: u32, condition: FoundChunk) {
        let line = self.lines.line_of(chunk);
        let c = self.lines.chunks.state_mut(chunk);
        let l = &mut self.lines.lines[line.index()];
        c.write_pointer = written;
        match condition {
            FoundChunk::Good => {}
            FoundChunk::ProgramFailed => (c.bad, l.degraded) = (true, true),
            // The data is already lost, so the relocation is not urgent.
            FoundChunk::Gone => (c.bad, c.offline, l.refresh_requested) = (true, true, true),
        }
    }

    /// Records the contents of a line that takes no more units.
    pub(crate) fn restore_contents(&mut self, line: LineId, contents: RestoredLine) {
        let l = &mut self.lines.lines[line.index()];
        l.fully_mapped = true;
        l.valid_sectors = contents.valid_sectors;
        l.stream = contents.stream;
        l.max_seq = contents.max_seq;
    }

    /// Records the contents of a line of the host's stream that takes more units.
    pub(crate) fn restore_open(&mut self, line: LineId, valid_sectors: u32, max_seq: u64) {
        let l = &mut self.lines.lines[line.index()];
        (l.valid_sectors, l.max_seq) = (valid_sectors, max_seq);
    }

    /// Marks a line as one whose footer is on the media.
    pub(crate) fn restore_footer(&mut self, line: LineId) {
        self.lines.mark_footer_valid(line);
    }
}
