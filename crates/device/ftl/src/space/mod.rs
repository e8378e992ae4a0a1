//! Chunks and lines: free and open ones, and the metadata of lines.

pub(crate) mod active_pus;
mod check;
pub(crate) mod chunk;
pub(crate) mod erase_gate;
pub(crate) mod free_chunks;
pub(crate) mod line_meta;
pub(crate) mod line_meta_writer;
pub(crate) mod line_refresh;
pub(crate) mod lines;
pub(crate) mod open_line;
pub(crate) mod placement;
pub(crate) mod programs;
pub(crate) mod restore;

use crate::env::Env;
use crate::ftl::STREAM_COUNT;
use crate::ids::{LineId, ToU32, WriteSeq};
use crate::mapping::p2l::WrittenSector;
use crate::{ChosenLine, ChunkEvent};
use chunk::ChunkState;
use line_meta::LineIdentity;
use line_meta_writer::LineMetaWriter;
use lines::{CandidateChange, ClosedLine, Line, LineState, LineTable};
use nvme::{ChunkId, PhysSector};
use open_line::OpenLine;
use placement::Placement;
use programs::{PadWrite, ProgramsInFlight};
use restore::{FoundChunk, RestoredLine};
use serde::{Deserialize, Serialize};

/// Chunks, lines, and where write units go.
///
/// Invariants: a chunk is free, in one line, the journal's, or bad; programs in flight are counted by parallel
/// unit and by line; a line that takes write units is open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Space {
    lines: LineTable,
    /// Open lines by stream: the host's (and all data without hot/cold separation), relocated data,
    /// cold data that static wear leveling relocates, translation pages, hot data of the host.
    open_lines: [Vec<OpenLine>; STREAM_COUNT],
    /// Write units that can still be placed on open lines.
    open_units: u32,
    /// Number of parallel units of a line that a stream writes at a time.
    active_pus: u32,
    programs: ProgramsInFlight,
    line_meta_writer: LineMetaWriter,
    /// The line that is padded until it is full, so that it can be relocated.
    finishing: Option<OpenLine>,
}

/// Result of the start of a chunk's erase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkErase {
    Erasing,
    Retired,
}

impl Space {
    /// Creates the state without chunks.
    pub(crate) fn new(env: &Env) -> Space {
        Space {
            lines: LineTable::new(env.geometry, &env.plan, &env.config),
            open_lines: Default::default(),
            open_units: 0,
            active_pus: env.plan.active_pus,
            programs: ProgramsInFlight::new(&env.geometry),
            line_meta_writer: LineMetaWriter::new(&env.plan),
            finishing: None,
        }
    }

    /// The table of lines and chunks, read-only.
    #[inline]
    pub(crate) fn table(&self) -> &LineTable {
        &self.lines
    }

    /// A line.
    #[inline]
    pub(crate) fn line(&self, id: LineId) -> &Line {
        self.lines.line(id)
    }

    /// The line that a chunk is in, or [`LineId::NONE`].
    #[inline]
    pub(crate) fn line_of(&self, chunk: ChunkId) -> LineId {
        self.lines.line_of(chunk)
    }

    /// The state of a chunk.
    #[inline]
    pub(crate) fn chunk(&self, chunk: ChunkId) -> &ChunkState {
        self.lines.chunk(chunk)
    }

    /// Programs in flight, to be read.
    #[inline]
    pub(crate) fn programs(&self) -> &ProgramsInFlight {
        &self.programs
    }

    /// Chunks that a line can be opened on.
    #[inline]
    pub(crate) fn free_chunks(&self) -> u32 {
        self.lines.free_chunks()
    }

    /// Chunks that are being erased.
    #[inline]
    pub(crate) fn erasing(&self) -> u32 {
        self.lines.erasing
    }

    /// Returns the data capacity of this many chunks, however they form lines, and of the open
    /// lines.
    #[inline]
    pub(crate) fn writable_sectors(&self, env: &Env, chunks: u32) -> u64 {
        let unit = u64::from(env.geometry.ws_opt);
        let meta = match env.plan.line_metadata_units {
            0 => 0,
            units => u64::from(chunks / env.plan.active_pus * units) * unit,
        };
        u64::from(chunks) * u64::from(env.geometry.sectors_per_chunk) - meta
            + u64::from(self.open_units) * unit
    }

    /// Write units that can still be placed on open lines.
    pub(crate) fn open_units(&self) -> u32 {
        self.open_units
    }

    /// Counts the write units that can still be placed on open lines, line by line.
    pub(crate) fn count_open_units(&self) -> u32 {
        self.open_lines.iter().flatten().map(|open| open.free_units).sum()
    }

    /// Sets the number of parallel units that a stream is written to at a time.
    pub(crate) fn set_active_pus(&mut self, count: u32) {
        self.active_pus = count;
        self.programs.unblock();
    }

    /// Parallel units that a stream is written to at a time.
    pub(crate) fn active_pus(&self) -> u32 {
        self.active_pus
    }

    /// Returns the number of lines opened ahead of need: each is behind another line of its stream
    /// that still takes write units.
    pub(crate) fn lines_ahead(&self) -> u32 {
        self.open_lines.iter().map(|open| open.len().saturating_sub(1).to_u32()).sum()
    }

    /// Lets all streams search for locations again.
    pub(crate) fn unblock(&mut self) {
        self.programs.unblock();
    }

    /// Records whether a stream need not look for a location before something completes.
    #[inline]
    pub(crate) fn set_blocked(&mut self, stream: usize, blocked: bool) {
        self.programs.set_blocked(stream, blocked);
    }

    /// Records that the program of a unit with these contents starts.
    #[inline]
    pub(crate) fn program_started(
        &mut self,
        env: &Env,
        at: Placement,
        sequence: WriteSeq,
        written: impl Iterator<Item = WrittenSector>,
    ) {
        self.lines.record_unit(at.line, at.chunk, at.sector, sequence, written);
        self.programs.start(env.geometry.pu_of(at.chunk));
    }

    /// Records other contents of a unit whose program has started.
    pub(crate) fn record_contents(
        &mut self,
        chunk: ChunkId,
        sector: u32,
        sequence: WriteSeq,
        written: impl Iterator<Item = WrittenSector>,
    ) {
        self.lines.record_contents(self.lines.line_of(chunk), chunk, sector, sequence, written);
    }

    /// Records that a program of padding starts.
    pub(crate) fn pad_started(&mut self, env: &Env, at: Placement) {
        self.programs.add_pad(PadWrite { chunk: at.chunk, sector: at.sector });
        self.lines.hold_open(at.line);
        self.programs.start(env.geometry.pu_of(at.chunk));
    }

    /// Removes the padding of a chunk, whose program has ended, and returns its first sector.
    pub(crate) fn take_pad(&mut self, chunk: ChunkId) -> u32 {
        self.programs.take_pad(chunk)
    }

    /// Records that a program on a chunk ended. Returns its line.
    #[inline]
    pub(crate) fn program_ended(&mut self, env: &Env, chunk: ChunkId) -> LineId {
        let line = self.lines.line_of(chunk);
        self.lines.program_ended(line);
        self.programs.complete(env.geometry.pu_of(chunk));
        line
    }

    /// Records that the write unit ending at this sector of a chunk is programmed.
    #[inline]
    pub(crate) fn on_programmed(&mut self, chunk: ChunkId, end: u32) {
        self.lines.chunks.state_mut(chunk).on_programmed(end);
    }

    /// Records a failed program: the chunk takes no more units, and its line is reclaimed next.
    pub(crate) fn program_failed(&mut self, env: &Env, chunk: ChunkId) {
        self.lines.chunks.state_mut(chunk).bad = true;
        self.close_open_chunk(env, chunk);
        let line = self.lines.line_of(chunk);
        self.lines.lines[line.index()].degraded = true;
    }

    /// Counts the chunks that are bad.
    pub(crate) fn bad_chunks(&self) -> u32 {
        self.lines.chunks.bad_count()
    }

    /// Records that a chunk is offline; `false` if that was known, or it is in no line and not free.
    pub(crate) fn chunk_offline(&mut self, chunk: ChunkId) -> bool {
        let Some(&c) = self.lines.chunks.get(chunk) else { return false };
        let is_free = self.lines.line_of(chunk) == LineId::NONE;
        if c.offline || is_free && !self.lines.remove_free(chunk) {
            return false;
        }
        let c = self.lines.chunks.state_mut(chunk);
        (c.bad, c.offline) = (true, true);
        true
    }

    /// Records a read error of a chunk. Returns whether it is the first one.
    pub(crate) fn record_read_error(&mut self, chunk: ChunkId) -> bool {
        !std::mem::replace(&mut self.lines.chunks.state_mut(chunk).had_read_error, true)
    }

    /// Removes a failed unit from the P2L table of its line.
    pub(crate) fn erase_unit(&mut self, chunk: ChunkId, sector: u32) {
        self.lines.erase_unit(chunk, sector);
    }

    /// Keeps a line open for a redispatched unit, until the unit is [released](Space::release_hold).
    pub(crate) fn hold_open(&mut self, line: LineId) {
        self.lines.hold_open(line);
    }

    /// Records that the redispatched unit of a line is durable elsewhere.
    pub(crate) fn release_hold(&mut self, line: LineId) {
        self.lines.program_ended(line);
    }

    /// Records that a sector of a line is needed until what supersedes it is durable: the host's rings
    /// up to this position, or a trim.
    #[inline]
    pub(crate) fn wait_before_erase(&mut self, line: LineId, after: Option<u64>) {
        self.lines.wait_before_erase(line, after);
    }

    /// Records that a sector is not valid any more: because of a copy that ends at position `after`
    /// of the host's rings, or a trim. Returns the change for garbage collection.
    #[inline]
    pub(crate) fn invalidate(
        &mut self,
        phys: PhysSector,
        after: Option<u64>,
    ) -> Option<CandidateChange> {
        self.lines.invalidate(phys, after)
    }

    /// Records that a sector of a line was relocated. Returns the change for garbage collection.
    pub(crate) fn relocated_one(&mut self, line: LineId) -> Option<CandidateChange> {
        self.lines.relocated_one(line)
    }

    /// Records that a sector of a line is valid.
    #[inline]
    pub(crate) fn count_valid(&mut self, line: LineId) {
        self.lines.count_valid(line);
    }

    /// Records that `sectors` sectors of a line are valid; some may have been counted before.
    /// Returns the number before, and the line, if it is closed.
    pub(crate) fn inc_valid(&mut self, line: LineId, sectors: u32) -> Option<(ClosedLine, u32)> {
        self.lines.inc_valid(line, sectors)
    }

    /// Closes a line if no further sector will be mapped into it and no operation on it is in
    /// flight.
    pub(crate) fn close_if_done(&mut self, line: LineId) -> Option<ClosedLine> {
        self.lines.close_if_done(line)
    }

    /// Returns whether valid sectors of lines are still being counted.
    pub(crate) fn is_reconciling(&self) -> bool {
        self.lines.reconciling
    }

    /// Records that the valid sectors of all lines are counted.
    pub(crate) fn finish_reconcile(&mut self) {
        self.lines.reconciling = false;
        self.programs.unblock();
    }

    /// Makes a closed line a victim.
    pub(crate) fn begin_victim(&mut self, line: LineId) {
        self.lines.begin_victim(line);
    }

    /// Records that all valid sectors of a victim are read.
    pub(crate) fn begin_drain(&mut self, line: LineId) {
        let line = &mut self.lines.lines[line.index()];
        line.state = LineState::Draining;
        line.p2l = None;
    }

    /// Records that the data of a line that is not a victim has been relocated.
    pub(crate) fn emit_swept(&mut self, line: LineId) {
        self.lines.emit_swept(line);
    }

    /// Counts sectors of a line that are being relocated.
    pub(crate) fn relocations_started(&mut self, line: LineId, count: u32) {
        self.lines.lines[line.index()].gate.relocations_started(count);
    }

    /// Records that a relocated sector of a line is durable. Returns the number of those that are
    /// not.
    pub(crate) fn relocation_durable(&mut self, line: LineId) -> u32 {
        self.lines.lines[line.index()].gate.relocation_durable()
    }

    /// Records that the footer of a line cannot be read.
    pub(crate) fn drop_footer(&mut self, line: LineId) {
        self.lines.drop_footer(line);
    }

    /// Starts the erase of a chunk of a drained line, or retires the chunk if it is bad. With `erases_bad`,
    /// a bad chunk that is not offline is erased, and retired then.
    pub(crate) fn begin_chunk_erase(
        &mut self,
        line: LineId,
        chunk: ChunkId,
        erases_bad: bool,
    ) -> ChunkErase {
        self.lines.emit_emptied(chunk);
        let state = self.lines.chunk(chunk);
        if state.bad && (state.offline || !erases_bad) {
            self.lines.chunks.leave(chunk);
            return ChunkErase::Retired;
        }
        self.lines.lines[line.index()].gate.erase_started();
        self.lines.erasing += 1;
        ChunkErase::Erasing
    }

    /// Frees a line if none of its chunks is being erased.
    pub(crate) fn release_if_erased(&mut self, line: LineId) {
        if self.lines.line(line).gate.erasing() == 0 {
            self.lines.release(line);
        }
    }

    /// Records the end of a chunk's erase; `false` if the chunk is retired.
    ///
    /// # Panics
    /// If the chunk is not being erased.
    pub(crate) fn erase_done(&mut self, chunk: ChunkId, ok: bool) -> bool {
        let line = self.lines.line_of(chunk);
        let erasing = self.lines.get(line).map_or(0, |l| l.gate.erasing());
        assert!(erasing > 0, "{chunk} is not being erased");
        self.lines.erasing -= 1;
        self.programs.unblock();
        self.lines.chunks.record_erase(chunk);
        let state = self.lines.chunk(chunk);
        let is_good = ok && !state.offline && !state.bad;
        if is_good {
            self.lines.add_free(chunk);
        } else {
            self.lines.chunks.leave(chunk);
            self.lines.chunks.state_mut(chunk).bad = true;
        }
        self.lines.lines[line.index()].gate.erase_done();
        self.release_if_erased(line);
        is_good
    }

    /// Requests the refresh of a line. Returns whether it was not requested before.
    pub(crate) fn request_refresh(&mut self, chosen: ChosenLine) -> bool {
        self.lines.request_refresh(chosen)
    }

    /// Removes and returns the line that has waited longest to be refreshed.
    pub(crate) fn pop_refresh(&mut self) -> Option<ChosenLine> {
        self.lines.pop_refresh()
    }

    /// Imports the number of erases of each chunk.
    pub(crate) fn import_wear(&mut self, erases: impl Fn(ChunkId) -> u32) {
        self.lines.import_wear(erases);
    }

    /// Adds a chunk that is erased, or a bad one.
    pub(crate) fn add_chunk(&mut self, chunk: ChunkId, is_good: bool) {
        if is_good {
            self.lines.add_free(chunk);
        } else {
            self.lines.chunks.state_mut(chunk).bad = true;
        }
    }

    /// Starts the reports of closed and emptied chunks; the ones closed so far come first.
    pub(crate) fn subscribe_chunk_events(&mut self) {
        self.lines.subscribe_chunk_events();
    }

    /// Removes and returns the next report of a chunk.
    #[inline]
    pub(crate) fn pop_chunk_event(&mut self) -> Option<ChunkEvent> {
        self.lines.chunk_events.as_mut()?.pop_front()
    }

    /// Reports a chunk as emptied.
    pub(crate) fn emit_emptied(&mut self, chunk: ChunkId) {
        self.lines.emit_emptied(chunk);
    }

    /// The identity of a line in its metadata.
    pub(crate) fn identity_of(&self, env: &Env, line: LineId) -> LineIdentity {
        let l = self.lines.line(line);
        LineIdentity {
            owner: env.plan.journal.config.owner,
            stream: l.stream,
            open_seq: l.open_seq,
        }
    }

    /// The metadata writes of lines, read-only.
    pub(crate) fn metadata(&self) -> &LineMetaWriter {
        &self.line_meta_writer
    }

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
    pub(crate) fn restore_open(&mut self, line: LineId, valid_sectors: u32, max_seq: WriteSeq) {
        let l = &mut self.lines.lines[line.index()];
        (l.valid_sectors, l.max_seq) = (valid_sectors, max_seq);
    }

    /// Marks a line as one whose footer is on the media.
    pub(crate) fn restore_footer(&mut self, line: LineId) {
        self.lines.mark_footer_valid(line);
    }
}
