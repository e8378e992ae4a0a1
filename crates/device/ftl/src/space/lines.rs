//! Lines: the unit of reclamation, one chunk on each active parallel unit.

use std::collections::VecDeque;

use nvme::{ChunkId, PhysSector};
use serde::{Deserialize, Serialize};

use crate::ftl::{GC_COLD, MAP_PAGES};
use crate::ids::{LineId, ToIndex, ToU32, WriteSeq};
use crate::mapping::p2l::WrittenSector;
use crate::space::chunk::{ChunkState, ChunkTable};
use crate::space::erase_gate::EraseGate;
use crate::space::free_chunks::FreeChunks;
use crate::space::line_meta::P2lTable;
use crate::space::open_line::{OpenLine, WritableChunk};
use crate::{CapacityPlan, ChosenLine, ChunkEvent, FlashGeometry, FtlConfig, P2lLocation};

/// State of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LineState {
    /// Not in use.
    Free,
    /// Being written, or with programs in flight.
    Open,
    /// Fully written: the victim policy knows it.
    Closed,
    /// Its valid sectors are being found and read.
    Victim,
    /// All valid sectors have been read; some are not durable elsewhere yet.
    Draining,
}

/// State of a line's footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Footer {
    /// It has none, and gets none.
    Absent,
    /// Its last write units are reserved for the footer.
    Reserved,
    /// The last write units are being written, with the footer or with padding.
    Writing,
    /// It is on the media.
    Valid,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) state: LineState,
    /// Sectors that a logical sector points at.
    pub(crate) valid_sectors: u32,
    /// Sectors it holds when full.
    pub(crate) sectors: u32,
    /// Program operations outstanding.
    pub(crate) programs_in_flight: u32,
    /// Whether nothing more will be mapped into it.
    pub(crate) fully_mapped: bool,
    /// Whether a chunk of it failed: it is reclaimed first.
    pub(crate) degraded: bool,
    /// Whether its data is to be relocated although no space is needed.
    pub(crate) refresh_requested: bool,
    /// Number of lines closed before it.
    pub(crate) close_index: u64,
    /// The writes and trims that must be durable before the line is erased.
    pub(super) gate: EraseGate,
    /// Stream that it belongs to.
    pub(crate) stream: u8,
    /// The largest sequence number of a unit in it.
    pub(crate) max_seq: WriteSeq,
    /// Sequence number of the next write unit when it was opened.
    pub(crate) open_seq: WriteSeq,
    pub(crate) footer: Footer,
    /// Table of its contents. Present while the line is open, if it gets a footer or there is no
    /// reverse map in memory; and while it is reclaimed, if there is none.
    pub(crate) p2l: Option<Box<P2lTable>>,
    pub(crate) chunks: Vec<ChunkId>,
}

impl Line {
    /// Records that a sector is obsolete, but still the durable version until position `after` of
    /// the host's rings, or a trim, is durable.
    #[inline]
    pub(crate) fn gate(&self) -> &EraseGate {
        &self.gate
    }

    /// The erase gate of the line, for a test that breaks it.
    #[cfg(test)]
    pub(crate) fn break_gate(&mut self) -> &mut EraseGate {
        &mut self.gate
    }

    /// Records that a sector is not valid any more. Returns the change for garbage collection.
    #[inline]
    fn remove_valid(&mut self, id: LineId) -> Option<CandidateChange> {
        self.valid_sectors -= 1;
        let is_candidate = self.state == LineState::Closed && !self.degraded;
        is_candidate.then(|| CandidateChange {
            line: id,
            valid_sectors: self.valid_sectors,
            weight: self.victim_weight(),
        })
    }

    /// Returns the number of valid sectors for the victim policy. Sectors of map pages count four
    /// times: they are soon rewritten, so waiting is cheaper than relocating them.
    fn victim_weight(&self) -> u32 {
        if usize::from(self.stream) != MAP_PAGES {
            return self.valid_sectors;
        }
        self.valid_sectors
            .saturating_mul(4)
            .min(self.sectors.saturating_sub(1))
            .max(self.valid_sectors)
    }
}

/// A closed line, as reported to garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClosedLine {
    pub(crate) line: LineId,
    /// A chunk of it failed.
    pub(crate) degraded: bool,
    pub(crate) valid_sectors: u32,
    /// Valid sectors as reported to the victim policy.
    pub(crate) weight: u32,
    pub(crate) sectors: u32,
    /// Erases of its chunks, on average.
    pub(crate) wear: u32,
    /// Number of lines closed before it.
    pub(crate) at: u64,
}

/// A closed line has fewer valid sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CandidateChange {
    pub(crate) line: LineId,
    pub(crate) valid_sectors: u32,
    /// Valid sectors as reported to the victim policy.
    pub(crate) weight: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LineTable {
    pub(super) geometry: FlashGeometry,
    active: u32,
    pub(super) lines: Vec<Line>,
    pub(super) free_lines: Vec<LineId>,
    pub(super) chunks: ChunkTable,
    pub(super) free: FreeChunks,
    pub(super) erasing: u32,
    /// Whether the valid sectors of lines are still being counted: no line is closed before that
    /// ends.
    pub(super) reconciling: bool,
    /// Write units of metadata in a full line; 0 if lines have none.
    pub(super) metadata_units: u32,
    /// Whether every line keeps a P2L table while it is written, and whether that of a closed line
    /// is read from the media when needed.
    keep_p2l: bool,
    pub(super) reload_p2l: bool,
    /// Full lines that wait for their footer to be written.
    pub(super) footer_due: VecDeque<LineId>,
    pub(super) closed_total: u64,
    /// Lines to be refreshed; some may have been reclaimed meanwhile.
    pub(super) refresh_queue: VecDeque<ChosenLine>,
    /// Changes of chunks, if a component has subscribed to them.
    pub(super) chunk_events: Option<VecDeque<ChunkEvent>>,
}

impl LineTable {
    pub(crate) fn new(
        geometry: FlashGeometry,
        layout: &CapacityPlan,
        config: &FtlConfig,
    ) -> LineTable {
        LineTable {
            geometry,
            active: layout.active_pus,
            lines: Vec::with_capacity(layout.lines.index() + 8),
            free_lines: Vec::new(),
            chunks: ChunkTable::new(geometry.total_chunks()),
            free: FreeChunks::new(geometry, config.dynamic_wear_leveling),
            erasing: 0,
            reconciling: false,
            closed_total: 0,
            metadata_units: layout.line_metadata_units,
            keep_p2l: config.p2l_location == P2lLocation::Media,
            reload_p2l: false,
            footer_due: VecDeque::new(),
            refresh_queue: VecDeque::new(),
            chunk_events: None,
        }
    }

    /// The table of chunks, for tests that break an invariant.
    #[cfg(test)]
    pub(crate) fn break_chunks(&mut self) -> &mut ChunkTable {
        &mut self.chunks
    }

    /// Breaks the count of chunks being erased.
    #[cfg(test)]
    pub(crate) fn break_erasing(&mut self) {
        self.erasing += 1;
    }

    /// The free chunks, for tests that break an invariant.
    #[cfg(test)]
    pub(crate) fn break_free(&mut self) -> &mut FreeChunks {
        &mut self.free
    }

    /// Lines, used or not.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The ids of all lines, used or not.
    pub(crate) fn ids(&self) -> impl Iterator<Item = LineId> + use<> {
        LineId::all().take(self.lines.len())
    }

    /// A line.
    #[inline]
    pub(crate) fn line(&self, id: LineId) -> &Line {
        &self.lines[id.index()]
    }

    /// A line; none for [`LineId::NONE`].
    #[inline]
    pub(crate) fn get(&self, id: LineId) -> Option<&Line> {
        self.lines.get(id.index())
    }

    /// The line that a chunk is in, or [`LineId::NONE`].
    #[inline]
    pub(crate) fn line_of(&self, chunk: ChunkId) -> LineId {
        self.chunks.line_of(chunk)
    }

    /// The state of a chunk.
    #[inline]
    pub(crate) fn chunk(&self, chunk: ChunkId) -> &ChunkState {
        self.chunks.state(chunk)
    }

    /// Whether lines are queued to be refreshed.
    #[inline]
    pub(crate) fn has_refresh_queued(&self) -> bool {
        !self.refresh_queue.is_empty()
    }

    /// Returns how often a chunk has been erased, as far as known; 0 for a chunk that does not
    /// exist.
    pub(crate) fn erases(&self, chunk: ChunkId) -> u32 {
        self.chunks.get(chunk).map_or(0, |c| c.erases)
    }

    /// Lines, used or not, by their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LineId, &Line)> {
        LineId::all().zip(&self.lines)
    }

    /// Whether a line is queued to be refreshed.
    pub(crate) fn is_refresh_queued(&self, id: LineId) -> bool {
        self.refresh_queue.iter().any(|chosen| chosen.line == id)
    }

    /// Closed lines.
    pub(crate) fn closed(&self) -> impl Iterator<Item = LineId> {
        LineId::all().take(self.lines.len()).filter(|id| self.line(*id).state == LineState::Closed)
    }

    /// The closed lines in the order of their closing.
    pub(crate) fn closed_in_order(&self) -> Vec<ClosedLine> {
        let close_index = |id: LineId| self.line(id).close_index;
        let mut closed: Vec<LineId> = self.closed().collect();
        closed.sort_by_key(|id| close_index(*id));
        closed.into_iter().map(|id| self.closed_line(id, close_index(id))).collect()
    }

    /// Free chunks.
    pub(crate) fn free_list(&self) -> impl Iterator<Item = ChunkId> {
        self.free.iter()
    }

    /// Chunks that can be opened now.
    pub(crate) fn free_chunks(&self) -> u32 {
        self.free.count()
    }

    /// Adds an erased chunk to the free ones.
    pub(crate) fn add_free(&mut self, chunk: ChunkId) {
        self.chunks.reset(chunk);
        self.free.add(chunk, &self.chunks);
    }

    /// Removes a chunk from the free ones. Returns whether it was free.
    pub(crate) fn remove_free(&mut self, chunk: ChunkId) -> bool {
        self.free.remove(chunk)
    }

    /// Imports the number of erases of each chunk.
    pub(crate) fn import_wear(&mut self, erases: impl Fn(ChunkId) -> u32) {
        self.chunks.import_wear(erases);
        self.free.sort(&self.chunks);
    }

    /// Returns the mean number of erases of a line's chunks.
    pub(crate) fn mean_wear(&self, line: LineId) -> u32 {
        self.chunks.mean_wear(&self.lines[line.index()].chunks)
    }

    /// Makes a line of chunks.
    pub(crate) fn insert(&mut self, members: &[ChunkId], state: LineState) -> LineId {
        let id = self.free_lines.pop().unwrap_or_else(|| {
            self.lines.push(Line {
                state: LineState::Free,
                valid_sectors: 0,
                sectors: 0,
                programs_in_flight: 0,
                fully_mapped: false,
                degraded: false,
                refresh_requested: false,
                close_index: 0,
                gate: EraseGate::default(),
                stream: 0,
                max_seq: WriteSeq(0),
                open_seq: WriteSeq(0),
                footer: Footer::Absent,
                p2l: None,
                chunks: Vec::new(),
            });
            LineId::from_index(self.lines.len() - 1)
        });
        let line = &mut self.lines[id.index()];
        line.state = state;
        line.valid_sectors = 0;
        line.sectors = members.len().to_u32() * self.geometry.sectors_per_chunk;
        line.fully_mapped = state != LineState::Open;
        line.degraded = false;
        line.refresh_requested = false;
        line.gate = EraseGate::default();
        line.max_seq = WriteSeq(0);
        line.open_seq = WriteSeq(0);
        line.footer = Footer::Absent;
        line.p2l = None;
        line.chunks.clear();
        line.chunks.extend_from_slice(members);
        for (place, &chunk) in (0..).zip(members) {
            self.chunks.join(chunk, id, place);
        }
        id
    }

    /// Opens a line of a stream on the next parallel units in striping order that have a free chunk;
    /// for cold data on their most worn chunks. `opening` is the sequence number of the next write
    /// unit. Only a line of full width has metadata, because the capacity is computed for that
    /// width.
    pub(crate) fn open(&mut self, stream: u8, opening: WriteSeq) -> Option<OpenLine> {
        let is_cold = usize::from(stream) == GC_COLD;
        let members = self.free.take_stripe(self.active, is_cold, &self.chunks);
        if members.is_empty() {
            return None;
        }
        let line = self.insert(&members, LineState::Open);
        let count = members.len().to_u32();
        let with_meta = self.metadata_units > 0 && count == self.active;
        let l = &mut self.lines[line.index()];
        (l.stream, l.open_seq) = (stream, opening);
        if with_meta || self.keep_p2l {
            l.p2l = Some(Box::new(P2lTable::new(&self.geometry, count, opening)));
        }
        let members = members.into_iter().map(|chunk| WritableChunk { chunk, next: 0 });
        let mut open = OpenLine::new(&self.geometry, line, members);
        if with_meta {
            let l = &mut self.lines[line.index()];
            l.footer = Footer::Reserved;
            l.sectors -= self.metadata_units * self.geometry.ws_opt;
            open.reserve_metadata(&self.geometry, self.metadata_units);
        }
        Some(open)
    }

    /// Marks a line as one whose last metadata is on the media.
    pub(crate) fn mark_footer_valid(&mut self, id: LineId) {
        let line = &mut self.lines[id.index()];
        line.footer = Footer::Valid;
        line.sectors = line.sectors.saturating_sub(self.metadata_units * self.geometry.ws_opt);
    }

    /// Records that the program of a unit with these contents starts.
    #[inline]
    pub(crate) fn record_unit(
        &mut self,
        line: LineId,
        chunk: ChunkId,
        sector: u32,
        sequence: WriteSeq,
        written: impl Iterator<Item = WrittenSector>,
    ) {
        self.record_contents(line, chunk, sector, sequence, written);
        let l = &mut self.lines[line.index()];
        l.programs_in_flight += 1;
        l.max_seq = l.max_seq.max(sequence);
    }

    /// Records the contents of a unit in the P2L table of its line.
    #[inline]
    pub(crate) fn record_contents(
        &mut self,
        line: LineId,
        chunk: ChunkId,
        sector: u32,
        sequence: WriteSeq,
        written: impl Iterator<Item = WrittenSector>,
    ) {
        if let Some(list) = &mut self.lines[line.index()].p2l {
            list.record(self.chunks.state(chunk).member_index, sector, sequence, written);
        }
    }

    /// Removes a failed unit from the P2L table of its line.
    pub(crate) fn erase_unit(&mut self, chunk: ChunkId, sector: u32) {
        let line = self.line_of(chunk);
        if let Some(list) = &mut self.lines[line.index()].p2l {
            list.erase_unit(self.chunks.state(chunk).member_index, sector);
        }
    }

    /// Keeps a line open until [`program_ended`](LineTable::program_ended), as a program in flight does.
    #[inline]
    pub(crate) fn hold_open(&mut self, line: LineId) {
        self.lines[line.index()].programs_in_flight += 1;
    }

    /// Records that a program in flight in a line ended.
    #[inline]
    pub(crate) fn program_ended(&mut self, line: LineId) {
        self.lines[line.index()].programs_in_flight -= 1;
    }

    /// Records that a sector of a line is superseded, but needed until that is durable: up to
    /// position `after` of the host's rings, or a trim.
    #[inline]
    pub(crate) fn wait_before_erase(&mut self, line: LineId, after: Option<u64>) {
        self.lines[line.index()].gate.wait_for(after);
    }

    /// Records that a line has no footer that can be read.
    pub(crate) fn drop_footer(&mut self, id: LineId) {
        self.lines[id.index()].footer = Footer::Absent;
    }

    /// Drops the P2L table of a closed line if it can be read back or is not needed.
    fn drop_p2l(&mut self, id: LineId) {
        let line = &mut self.lines[id.index()];
        // A line with a failed chunk is reclaimed at once.
        if !self.keep_p2l || self.reload_p2l && !line.degraded {
            line.p2l = None;
        }
    }

    /// Closes a line if no further sector will be mapped into it and no program is in flight.
    /// Returns the line for garbage collection.
    pub(crate) fn close_if_done(&mut self, id: LineId) -> Option<ClosedLine> {
        let line = &mut self.lines[id.index()];
        if line.state != LineState::Open || !line.fully_mapped || line.programs_in_flight > 0 {
            return None;
        }
        match line.footer {
            Footer::Reserved => {
                line.footer = Footer::Writing;
                self.footer_due.push_back(id);
                return None;
            }
            Footer::Writing => return None,
            Footer::Absent | Footer::Valid => {}
        }
        if self.reconciling {
            return None;
        }
        line.state = LineState::Closed;
        line.close_index = self.closed_total;
        // Some may have been counted twice (see `inc_valid`).
        line.valid_sectors = line.valid_sectors.min(line.sectors);
        if line.refresh_requested {
            self.refresh_queue.push_back(ChosenLine::new(id));
        }
        self.emit_closed(id);
        self.drop_p2l(id);
        let line = &self.lines[id.index()];
        self.closed_total += u64::from(!line.degraded && line.valid_sectors > 0);
        Some(self.closed_line(id, self.closed_total))
    }

    /// The facts of a closed line for garbage collection.
    pub(crate) fn closed_line(&self, id: LineId, at: u64) -> ClosedLine {
        let line = &self.lines[id.index()];
        ClosedLine {
            line: id,
            degraded: line.degraded,
            valid_sectors: line.valid_sectors,
            weight: line.victim_weight(),
            sectors: line.sectors,
            wear: self.mean_wear(id),
            at,
        }
    }

    /// Lines that were closed with valid sectors.
    pub(crate) fn closed_total(&self) -> u64 {
        self.closed_total
    }

    /// Records that a sector of the line is not valid any more: because of a copy that ends at
    /// position `after` of the host's rings, or a trim.
    #[inline]
    #[must_use]
    pub(crate) fn invalidate(
        &mut self,
        phys: PhysSector,
        after: Option<u64>,
    ) -> Option<CandidateChange> {
        let id = self.line_of(self.geometry.chunk_of(phys));
        // Sectors of a bad chunk may be in no line.
        let line = self.lines.get_mut(id.index())?;
        line.gate.wait_for(after);
        line.remove_valid(id)
    }

    /// Records that a sector of a line was relocated.
    #[must_use]
    pub(crate) fn relocated_one(&mut self, id: LineId) -> Option<CandidateChange> {
        self.lines[id.index()].remove_valid(id)
    }

    /// Records that a sector is valid, while pages are reconciled. It is in no line if its chunk is
    /// bad.
    #[inline]
    pub(crate) fn count_valid(&mut self, id: LineId) {
        if let Some(line) = self.lines.get_mut(id.index()) {
            line.valid_sectors += 1;
        }
    }

    /// Records that `sectors` sectors of a line are valid; some may have been counted before.
    /// Returns the number before, and the line, if it is closed.
    pub(crate) fn inc_valid(&mut self, id: LineId, sectors: u32) -> Option<(ClosedLine, u32)> {
        let line = self.lines.get_mut(id.index())?;
        let before = line.valid_sectors;
        line.valid_sectors = before.saturating_add(sectors).min(line.sectors.max(before));
        if line.state != LineState::Closed || line.degraded {
            return None;
        }
        let at = line.close_index;
        Some((self.closed_line(id, at), before))
    }

    /// Makes a closed line a victim.
    pub(crate) fn begin_victim(&mut self, id: LineId) {
        self.lines[id.index()].state = LineState::Victim;
    }

    /// Frees the chunks of a line that was opened and is not used.
    pub(crate) fn cancel_open(&mut self, id: LineId) {
        let chunks = std::mem::take(&mut self.lines[id.index()].chunks);
        for chunk in chunks.into_iter().rev() {
            self.chunks.leave(chunk);
            self.free.add_first(chunk, &self.chunks);
        }
        self.release(id);
    }

    /// Frees a line whose chunks are being erased.
    pub(crate) fn release(&mut self, id: LineId) {
        let line = &mut self.lines[id.index()];
        assert!(
            line.programs_in_flight == 0 && line.gate.is_idle(),
            "line {id} is freed with {} programs and {:?}",
            line.programs_in_flight,
            line.gate
        );
        line.state = LineState::Free;
        line.p2l = None;
        line.chunks.clear();
        self.free_lines.push(id);
    }
}
