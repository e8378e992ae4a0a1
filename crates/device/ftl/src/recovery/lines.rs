//! [`RecoveredLines`]: lines after a power loss, as the journal describes them, with the current states of
//! their chunks.

use super::ScanObservations;
use super::oob_scan::QueuedChunk;
use crate::FlashGeometry;
use crate::check::{Subject, Violation, require};
use crate::durability::snapshot::{LineEntry, LineOpened, Snapshot};
use crate::ids::{ToIndex, WriteSeq};
use nvme::ChunkId;

/// The lines of a layer, and the chunks of its journal.
///
/// Invariant: a chunk is in one line, or the journal's.
#[derive(Debug)]
pub(super) struct RecoveredLines {
    /// Lines as recorded in the journal; without a journal, every chunk is a line.
    lines: Vec<LineEntry>,
    journal_chunks: Vec<ChunkId>,
}

impl RecoveredLines {
    /// Creates the state without lines.
    pub(super) fn new(journal_chunks: Vec<ChunkId>) -> RecoveredLines {
        RecoveredLines { lines: Vec::new(), journal_chunks }
    }

    /// The line with this index.
    pub(super) fn get(&self, index: usize) -> Option<&LineEntry> {
        self.lines.get(index)
    }

    /// Records whether the footer of the line with this index was read.
    pub(super) fn set_has_footer(&mut self, index: usize, has_footer: bool) {
        self.lines[index].has_footer = has_footer;
    }

    /// Whether a chunk is the journal's.
    pub(super) fn is_journal_chunk(&self, chunk: ChunkId) -> bool {
        self.journal_chunks.contains(&chunk)
    }

    /// Makes every written chunk a line of its own.
    pub(super) fn set_single_chunks(
        &mut self,
        geometry: &FlashGeometry,
        observations: &ScanObservations,
    ) {
        let chunks = self.written_chunks(geometry, observations);
        self.lines = chunks.map(|chunk| unknown_line(0, vec![chunk])).collect();
    }

    /// Returns the written chunks that are not the journal's.
    fn written_chunks(
        &self,
        geometry: &FlashGeometry,
        observations: &ScanObservations,
    ) -> impl Iterator<Item = ChunkId> {
        geometry.chunks().filter(|chunk| {
            let report = observations.chunk_reports[chunk.index()];
            !self.is_journal_chunk(*chunk) && report.written_sectors() > 0
        })
    }

    /// Forms lines of `width` written chunks, as wide as later lines: reclaiming a narrow line costs
    /// as much padding as a wide one, and frees less.
    pub(super) fn set_wide_lines(
        &mut self,
        geometry: &FlashGeometry,
        observations: &ScanObservations,
        width: u32,
    ) {
        let mut chunks: Vec<ChunkId> = self.written_chunks(geometry, observations).collect();
        // Open chunks become lines of their own.
        let is_open = |c: ChunkId| {
            matches!(observations.chunk_reports[c.index()], super::ChunkReport::Open(_))
        };
        let place = |c: ChunkId| (is_open(c), geometry.index_on_pu(c), geometry.pu_of(c));
        chunks.sort_unstable_by_key(|c| place(*c));
        let line = |chunks: &[ChunkId]| unknown_line(0, chunks.to_vec());
        self.lines = chunks.chunks(width.index()).map(line).collect();
    }

    /// Adds a closed line of one chunk, in which no unit is newer than the snapshot.
    pub(super) fn push_closed_chunk(&mut self, chunk: ChunkId) {
        let chunks = vec![chunk];
        self.lines.push(LineEntry {
            stream: 0,
            open: false,
            has_footer: false,
            max_seq: WriteSeq(0),
            chunks,
        });
    }

    /// Merges the snapshot's lines and those opened since: a chunk belongs to the line opened last.
    pub(super) fn merge(
        &mut self,
        geometry: &FlashGeometry,
        snapshot: Option<&Snapshot>,
        opened: Vec<LineOpened>,
    ) {
        let mut lines = snapshot.map(|s| s.lines.clone()).unwrap_or_default();
        lines.extend(opened.into_iter().map(|o| unknown_line(o.stream, o.chunks)));
        let mut taken = vec![false; geometry.total_chunks().index()];
        for line in lines.iter_mut().rev() {
            line.chunks.retain(|c| !std::mem::replace(&mut taken[c.index()], true));
        }
        lines.retain(|l| !l.chunks.is_empty());
        self.lines = lines;
    }

    /// Replaces the lines of one chunk each by lines that have these chunks.
    pub(super) fn replace_single_chunks(&mut self, mut lines: Vec<LineEntry>, is_taken: &[bool]) {
        self.lines.retain(|l| !is_taken[l.chunks[0].index()]);
        self.lines.append(&mut lines);
    }

    /// Lines in which a unit may have a sequence number from `base_seq` on.
    pub(super) fn newer_than(&self, base_seq: WriteSeq) -> impl Iterator<Item = &LineEntry> {
        self.lines.iter().filter(move |l| l.open || l.max_seq >= base_seq)
    }

    /// The written chunks of those lines.
    pub(super) fn chunks_newer_than(
        &self,
        base_seq: WriteSeq,
        observations: &ScanObservations,
    ) -> impl Iterator<Item = QueuedChunk> {
        let written = |chunk: &ChunkId| observations.chunk_reports[chunk.index()].written_sectors();
        let queued = move |&chunk| QueuedChunk { chunk, written: written(&chunk) };
        let chunks = self.newer_than(base_seq).flat_map(|line| &line.chunks);
        chunks.map(queued).filter(|queued| queued.written > 0)
    }

    /// The largest sequence number of the closed lines.
    pub(super) fn max_closed_seq(&self) -> Option<WriteSeq> {
        self.lines.iter().map(|l| l.max_seq).filter(|n| *n != WriteSeq::MAX).max()
    }

    /// The lines and the chunks of the journal.
    pub(super) fn into_parts(self) -> FoundLines {
        FoundLines { lines: self.lines, journal_chunks: self.journal_chunks }
    }

    /// Checks that a chunk is in one line, or the journal's.
    pub(super) fn check_invariants(&self) -> Result<(), Violation> {
        let mut owned: Vec<ChunkId> = self.lines.iter().flat_map(|l| &l.chunks).copied().collect();
        owned.extend_from_slice(&self.journal_chunks);
        owned.sort_unstable();
        for pair in owned.windows(2) {
            require!(
                pair[0] != pair[1],
                Recovery,
                "a chunk is in one line, or the journal's",
                Subject::Chunk(pair[0]),
                "one owner",
                "two"
            );
        }
        Ok(())
    }

    /// Breaks the invariant: puts a chunk of the journal into a line.
    #[cfg(test)]
    pub(super) fn break_owner(&mut self) {
        self.push_closed_chunk(self.journal_chunks[0]);
    }
}

/// A line that may hold units of any number.
pub(super) fn unknown_line(stream: u8, chunks: Vec<ChunkId>) -> LineEntry {
    LineEntry { stream, open: true, has_footer: false, max_seq: WriteSeq::MAX, chunks }
}

/// The lines on the media, and the chunks of the journal.
#[derive(Debug)]
pub(crate) struct FoundLines {
    pub(crate) lines: Vec<LineEntry>,
    pub(crate) journal_chunks: Vec<ChunkId>,
}
