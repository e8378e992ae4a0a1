//! [`Compaction`]: chunks that are being compacted or evacuated, and the progress of each.

use std::collections::VecDeque;
use std::ops::Range;

use super::check::{KvPart, KvSubject, KvViolation, PartCheck};
use super::chunks::{KvChunkRole, KvChunks, RecordSpan};
use super::format::key::Key;

/// The next step of a compactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompactionPhase {
    Idle,
    /// The next records are to be read.
    ReadNext,
    /// Their reads are in flight.
    Reading,
    /// They are in memory.
    Relocating,
    /// Some headers were unreadable; their keys are determined from the index entries that refer to
    /// this chunk.
    FindMissing,
    /// All records are relocated; reads of buffered units may be in flight.
    Finishing,
}

/// A chunk to be compacted.
#[derive(Debug)]
pub(crate) struct CompactionJob {
    pub(crate) chunk: u32,
    /// Whether a program failed, so that the chunk is retired afterwards.
    pub(crate) failing: bool,
    /// Number of bytes of the chunk that are on flash.
    pub(crate) durable_bytes: u32,
    pub(crate) records: Vec<RecordSpan>,
}

/// One chunk at a time that is being compacted.
#[derive(Debug)]
pub(crate) struct Compactor {
    phase: CompactionPhase,
    job: CompactionJob,
    /// End of a batch that cannot be relocated as one.
    broken_batch_end: u32,
    /// Indexes of the records that are in memory or being read.
    window: Range<usize>,
    /// Keys of the value records, which count as older records until the chunk is erased.
    superseded_keys: Vec<Key>,
    /// Whether a header was unreadable, and the keys that the unreadable headers must belong to.
    header_unreadable: bool,
    missing_keys: Vec<Key>,
    /// Whether it waits for a free chunk.
    out_of_chunks: bool,
}

impl Compactor {
    fn new(phase: CompactionPhase, job: CompactionJob) -> Compactor {
        Compactor {
            phase,
            job,
            broken_batch_end: 0,
            window: 0..0,
            superseded_keys: Vec::new(),
            header_unreadable: false,
            missing_keys: Vec::new(),
            out_of_chunks: false,
        }
    }

    fn idle() -> Compactor {
        let job = CompactionJob {
            chunk: 0,
            failing: false,
            durable_bytes: u32::MAX,
            records: Vec::new(),
        };
        Compactor::new(CompactionPhase::Idle, job)
    }

    /// Returns the next step.
    pub(crate) fn phase(&self) -> CompactionPhase {
        self.phase
    }

    /// Returns the chunk.
    pub(crate) fn chunk(&self) -> u32 {
        self.job.chunk
    }

    /// Returns whether the chunk is retired afterwards, because a program failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.job.failing
    }

    /// Starts to compact a chunk.
    pub(crate) fn start(&mut self, job: CompactionJob) {
        *self = Compactor::new(CompactionPhase::ReadNext, job);
    }

    /// Returns the sectors of the next records, as many as fit in `sectors_max`, which are to be
    /// read; `None` if all records are relocated.
    pub(crate) fn next_window(
        &mut self,
        sector_bytes: u32,
        sectors_max: u32,
    ) -> Option<Range<u32>> {
        let Some(first) = self.job.records.get(self.window.start) else {
            self.phase = match self.header_unreadable {
                true => CompactionPhase::FindMissing,
                false => CompactionPhase::Finishing,
            };
            return None;
        };
        let first = first.offset / sector_bytes;
        let mut end = first;
        while let Some(record) = self.job.records.get(self.window.end) {
            let last = (record.end() - 1) / sector_bytes + 1;
            if last - first > sectors_max {
                break;
            }
            (end, self.window.end) = (last, self.window.end + 1);
        }
        self.phase = CompactionPhase::Reading;
        Some(first..end)
    }

    /// Handles the completion of the read of the window.
    pub(crate) fn on_window_read(&mut self) {
        self.phase = CompactionPhase::Relocating;
    }

    /// Returns the next record of the window; `None` at its end.
    pub(crate) fn next_record(&mut self) -> Option<RecordSpan> {
        if self.window.is_empty() {
            self.phase = CompactionPhase::ReadNext;
            return None;
        }
        Some(self.job.records[self.window.start])
    }

    /// Ends the handling of `count` records.
    pub(crate) fn advance(&mut self, count: usize) {
        self.window.start += count;
    }

    /// Returns whether a batch that ends at an offset is to be relocated as a batch: part of it is
    /// not on flash.
    pub(crate) fn relocates_batch(&self, end: u32) -> bool {
        end > self.job.durable_bytes && end > self.broken_batch_end
    }

    /// Returns the next records up to an offset, which may be outside the window.
    pub(crate) fn records_until(&self, end: u32) -> &[RecordSpan] {
        let records = &self.job.records[self.window.start..];
        &records[..records.iter().take_while(|r| r.offset < end).count()]
    }

    /// Returns the number of records of the window.
    pub(crate) fn window_len(&self) -> usize {
        self.window.len()
    }

    /// Reads the window again, from the next record on.
    pub(crate) fn read_again(&mut self) {
        (self.window.end, self.phase) = (self.window.start, CompactionPhase::ReadNext);
    }

    /// Records that the batch that ends at `end` cannot be relocated as one: part of it is lost.
    pub(crate) fn break_batch(&mut self, end: u32) {
        self.broken_batch_end = end;
    }

    /// Records the key of a value record that is not current.
    pub(crate) fn add_superseded(&mut self, key: Key) {
        self.superseded_keys.push(key);
    }

    /// Records that a header is unreadable.
    pub(crate) fn add_unreadable_header(&mut self) {
        self.header_unreadable = true;
    }

    /// Sets the keys whose records were unreadable. Without any the compactor finishes.
    pub(crate) fn set_missing_keys(&mut self, keys: Vec<Key>) {
        self.missing_keys = keys;
    }

    /// Returns the next key whose record was unreadable.
    pub(crate) fn missing_key(&self) -> Option<&Key> {
        self.missing_keys.last()
    }

    /// Ends the handling of the next missing key.
    pub(crate) fn pop_missing_key(&mut self) {
        self.missing_keys.pop();
    }

    /// Ends the search for missing keys.
    pub(crate) fn end_search(&mut self) {
        self.phase = CompactionPhase::Finishing;
    }

    /// Ends the compaction. Returns the keys of the value records in the chunk.
    pub(crate) fn finish(&mut self) -> Vec<Key> {
        self.phase = CompactionPhase::Idle;
        std::mem::take(&mut self.superseded_keys)
    }

    /// Sets whether it waits for a free chunk.
    pub(crate) fn set_out_of_chunks(&mut self, is_out: bool) {
        self.out_of_chunks = is_out;
    }

    /// Returns whether it waits for a free chunk.
    pub(crate) fn is_out_of_chunks(&self) -> bool {
        self.out_of_chunks
    }
}

/// All compactors, and the failed chunks that wait for one.
#[derive(Debug)]
pub(crate) struct Compaction {
    compactors: Vec<Compactor>,
    /// Chunks to be evacuated because a program failed.
    failing_chunks: VecDeque<u32>,
}

impl Compaction {
    /// Creates `count` compactors.
    pub(crate) fn new(count: u32) -> Compaction {
        let compactors = (0..count).map(|_| Compactor::idle()).collect();
        Compaction { compactors, failing_chunks: VecDeque::new() }
    }

    /// Returns the number of compactors.
    pub(crate) fn len(&self) -> usize {
        self.compactors.len()
    }

    /// Returns a compactor.
    pub(crate) fn get(&self, i: usize) -> &Compactor {
        &self.compactors[i]
    }

    /// Returns a compactor, to advance it.
    pub(crate) fn get_mut(&mut self, i: usize) -> &mut Compactor {
        &mut self.compactors[i]
    }

    /// Adds a chunk to be evacuated because a program failed.
    pub(crate) fn add_failing(&mut self, chunk: u32) {
        self.failing_chunks.push_back(chunk);
    }

    /// Removes and returns the next chunk to be evacuated.
    pub(crate) fn pop_failing(&mut self) -> Option<u32> {
        self.failing_chunks.pop_front()
    }

    /// Returns whether a failed chunk cannot be evacuated because no chunk is free.
    pub(crate) fn is_blocked_on_failed_chunk(&self) -> bool {
        let is_blocked =
            |c: &Compactor| c.job.failing && c.out_of_chunks && c.phase != CompactionPhase::Idle;
        !self.failing_chunks.is_empty() || self.compactors.iter().any(is_blocked)
    }

    /// Compares the compactors with the roles of the chunks; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self, chunks: &KvChunks) -> Result<(), KvViolation> {
        let check = PartCheck(KvPart::Compaction);
        let (mut compacting, mut failing) = (Vec::new(), Vec::from(self.failing_chunks.clone()));
        for c in self.compactors.iter().filter(|c| c.phase != CompactionPhase::Idle) {
            if c.job.failing { &mut failing } else { &mut compacting }.push(c.job.chunk);
            let records = c.job.records.len();
            check.require(
                c.window.start <= c.window.end && c.window.end <= records,
                "the window is within the records",
                KvSubject::Chunk(c.job.chunk),
                format_args!("ascending, at most {records}"),
                &c.window,
            )?;
        }
        for (role, mut found) in
            [(KvChunkRole::Compacting, compacting), (KvChunkRole::Failing, failing)]
        {
            let expected: Vec<u32> =
                chunks.iter().filter(|(_, c)| c.role() == role).map(|(chunk, _)| chunk).collect();
            found.sort_unstable();
            let invariant = match role {
                KvChunkRole::Failing => "a failed chunk is queued or being evacuated",
                _ => "a chunk that is compacted has one compactor",
            };
            check.equal(invariant, KvSubject::Part, expected, found)?;
        }
        Ok(())
    }

    /// Queues a chunk that did not fail.
    #[cfg(test)]
    pub(crate) fn break_failing(&mut self) {
        self.failing_chunks.push_back(0);
    }
}
