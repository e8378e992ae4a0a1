//! Refresh of lines for the health of the flash, and chunks that go offline. The rules are in
//! [`health`](crate::health).

use crate::buffer::unit_id::UnitId;
use crate::ftl::GC;
use crate::ids::{LineId, NO_SECTOR};
use crate::space::line_refresh::ChunkEvent;
use crate::space::lines::LineState;
use crate::{BufferEntry, ChosenLine, Ftl, RelocationStream};
use nvme::ChunkId;

impl Ftl {
    /// Requests that the line of a chunk be relocated soon and its chunks be erased and used again,
    /// because the chunk's data is hard to read. Call [`kick`](Ftl::kick) afterwards. Returns
    /// whether the line will be relocated: not for a chunk that is in no line, is the journal's
    /// (which is mirrored), or is being relocated already. An open line is finished with padding
    /// first if there is room for that; otherwise its data is relocated and the line stays open.
    pub fn refresh(&mut self, chunk: ChunkId) -> bool {
        self.is_in_line(chunk)
            && self.space.request_refresh(ChosenLine::new(self.space.line_of(chunk)))
    }

    /// Requests that a line be relocated soon and its chunks be erased, although no space is needed: as
    /// [`refresh`](Ftl::refresh) does, and as gently. Call [`kick`](Ftl::kick) afterwards. Returns
    /// whether it will be: not if it is none of [`victim_lines`](Ftl::victim_lines), or is to be
    /// refreshed already. A relocation to [`RelocationStream::Cold`] goes to
    /// [`RelocationStream::Gc`] if there is no space for another line.
    pub fn relocate(&mut self, chosen: ChosenLine) -> bool {
        self.victim_lines().get(chosen.line).is_some() && self.space.request_refresh(chosen)
    }

    /// Returns whether a line is being refreshed or relocated, or is to be.
    pub fn is_relocating(&self) -> bool {
        self.space.table().has_refresh_queued() || self.health.is_refreshing_any()
    }

    /// Returns whether a chunk exists and is in a line.
    pub fn is_in_line(&self, chunk: ChunkId) -> bool {
        chunk.get() < self.env.geometry.total_chunks() && self.space.line_of(chunk) != LineId::NONE
    }

    /// Reports that a chunk went offline: it cannot be programmed or erased any more, and perhaps
    /// not read. Later write units go elsewhere, units still in the write buffer are programmed
    /// again, and the chunk's line is [refreshed](Ftl::refresh). Call [`kick`](Ftl::kick)
    /// afterwards. Returns whether the FTL did not know it yet. A chunk of the journal is ignored:
    /// the journal detects failures itself.
    pub fn chunk_offline(&mut self, chunk: ChunkId) -> bool {
        if !self.space.chunk_offline(chunk) {
            return false;
        }
        let line = self.space.line_of(chunk);
        self.stats.offline_chunks += 1;
        tracing::warn!(chunk = chunk.get(), "chunk went offline");
        if line == LineId::NONE {
            self.stats.retired_chunks += 1;
            return true;
        }
        self.space.close_open_chunk(&self.env, chunk);
        self.redispatch_unreadable(chunk);
        self.close_if_done(line);
        self.space.request_refresh(ChosenLine::new(line));
        self.space.emit_emptied(chunk);
        self.record_uncorrectable(chunk);
        true
    }

    /// Ends the refresh of a line that was open when it was relocated: all data found in it is
    /// durable elsewhere.
    pub(crate) fn sweep_done_if_open(&mut self, line: LineId) {
        let scanned = self.gc.current_victim() != Some(line);
        let state = self.space.line(line).state;
        if scanned && matches!(state, LineState::Open | LineState::Closed) {
            self.health.on_relocated(line);
        }
    }

    /// Returns whether [`pop_refresh_victim`](Ftl::pop_refresh_victim) may find a line.
    #[inline]
    pub(crate) fn can_refresh(&self) -> bool {
        self.space.table().has_refresh_queued()
            || self.health.is_wl_check_due(&self.env, self.stats.lines_reclaimed)
    }

    /// Removes and returns the line that has waited longest to be refreshed: a closed or an open
    /// one.
    fn pop_refresh(&mut self) -> Option<ChosenLine> {
        let chosen = self.space.pop_refresh()?;
        if self.space.table().line(chosen.line).state == LineState::Closed {
            self.take_candidate(chosen.line);
        }
        Some(chosen)
    }

    /// Makes a closed line a victim, whatever the victim policy says.
    fn take_candidate(&mut self, line: LineId) {
        self.gc.remove_candidate(self.space.table(), line);
        self.space.begin_victim(line);
    }

    /// Makes the next line to be refreshed a victim, if its time has come: `collects` says whether
    /// free space is below the target, `room` how many sectors can be written.
    pub(crate) fn pop_refresh_victim(&mut self, collects: bool, room: u64) -> Option<ChosenLine> {
        let line = u64::from(self.env.plan.line_sectors) + u64::from(self.env.geometry.ws_opt);
        let spare = self.gc.limiter().headroom(self.free_sectors()) > 0.0 && room >= line;
        if !self.health.is_turn(collects) || self.space.is_finishing() || !spare {
            return None;
        }
        let (chosen, levels) = match self.pop_refresh() {
            Some(chosen) if self.finish_line(chosen.line) => return None,
            Some(chosen) => {
                self.durability.record_host_change();
                (chosen, chosen.stream == RelocationStream::Cold && room >= 2 * line)
            }
            // Cold data may need a new line.
            None if room >= 2 * line => (ChosenLine::new(self.pick_static_wl_line()?), true),
            None => return None,
        };
        *(if levels {
            &mut self.stats.wear_leveled_lines
        } else {
            &mut self.stats.refreshed_lines
        }) += 1;
        self.health.begin_refresh(chosen.line, levels);
        Some(chosen)
    }

    /// Returns how many GC reads may be in flight. For a line whose choice bounds the units in flight:
    /// what its ring's programs in flight leave of them. While a line is refreshed without urgency, one
    /// is the bound of a choice without any.
    pub(crate) fn gc_queue_depth(&self) -> u32 {
        let depth = self.gc.queue_depth();
        let Some(scan) = self.gc.current_scan() else { return depth };
        let free = self.free_sectors();
        let refreshes =
            || self.health.is_refreshing(scan.line) && !self.gc.limiter().needs_gc(free);
        let bound = match scan.units_in_flight {
            Some(bound) => self.gc.limiter().urgent_units(bound.max(1), free),
            None if refreshes() => 1,
            None => return depth,
        };
        let left = bound.saturating_sub(self.buffer.ring(GC).programming_units());
        depth.min(u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// Chooses a line for static wear leveling: of the cold lines with much less wear than the most
    /// worn chunk, the least worn one; of those the one closed first.
    fn pick_static_wl_line(&mut self) -> Option<LineId> {
        if !self.health.is_wl_check_due(&self.env, self.stats.lines_reclaimed) {
            return None;
        }
        self.health.defer_wl_check(self.stats.lines_reclaimed);
        let line = self
            .space
            .table()
            .cold_line(self.env.config.static_wear_leveling, u64::from(self.env.plan.lines))?;
        self.take_candidate(line);
        Some(line)
    }

    /// Returns whether all sectors of a unit of the GC ring come from a line that is relocated for
    /// static wear leveling.
    pub(crate) fn is_cold(&self, unit: UnitId) -> bool {
        let Some(line) = self.health.static_wl_line() else { return false };
        let comes_from = |entry: &BufferEntry| {
            entry.durable_copy != NO_SECTOR
                && self.space.line_of(self.env.geometry.chunk_of(entry.durable_copy)) == line
        };
        self.buffer.ring(GC).entries(unit).iter().all(|e| e.lba_plus_1 == 0 || comes_from(e))
    }

    /// Starts the reports of [`pop_chunk_event`](Ftl::pop_chunk_event) on closed and emptied chunks.
    /// Chunks closed so far are reported first.
    pub fn subscribe_chunk_events(&mut self) {
        self.space.subscribe_chunk_events();
    }

    /// Programs the units again that are on a chunk but not readable there yet, and so still in the
    /// write buffer: a scrub cannot check them on the media. Call [`kick`](Ftl::kick) afterwards.
    pub fn rewrite_buffered(&mut self, chunk: ChunkId) {
        if self.is_in_line(chunk) && !self.space.chunk(chunk).offline {
            self.redispatch_unreadable(chunk);
        }
    }

    /// Returns the open chunks, each with the number of sectors readable from the media and the
    /// number of written ones.
    pub fn open_chunks(&self) -> impl Iterator<Item = (ChunkId, u32, u32)> + '_ {
        self.space.open_members().map(|member| {
            let c = self.space.chunk(member.chunk);
            let readable = c.readable_end(&self.env.geometry);
            (member.chunk, readable - readable % self.env.geometry.ws_opt, c.write_pointer)
        })
    }

    /// Returns the next change of a chunk, in order.
    #[inline]
    pub fn pop_chunk_event(&mut self) -> Option<ChunkEvent> {
        self.space.pop_chunk_event()
    }
}
