//! Refresh of lines for the health of the flash, and chunks that go offline. The rules are in
//! [`health`](crate::health).

use crate::ftl::GC;
use crate::ids::LineId;
use crate::space::line_refresh::ChunkEvent;
use crate::space::lines::{LineState, NONE};
use crate::{BufferEntry, Ftl};
use nvme::ChunkId;

impl Ftl {
    /// Asks for the data of the line that a chunk is in to be moved soon, and its chunks to be erased
    /// and used again: what is in the chunk is hard to read where it is. [`kick`](Ftl::kick)
    /// afterwards. Returns whether anything will be moved for it: not for a chunk that is in no line,
    /// is the journal's (which is mirrored), or is on its way already. A line that is being written is
    /// filled up with padding first, if there is room for that; else what is there is moved, and the line
    /// goes on being written.
    pub fn refresh(&mut self, chunk: ChunkId) -> bool {
        self.is_in_line(chunk) && self.space.request_refresh(self.space.line_of(chunk))
    }

    /// Whether a chunk exists and is in a line.
    fn is_in_line(&self, chunk: ChunkId) -> bool {
        chunk.get() < self.env.geometry.total_chunks() && self.space.line_of(chunk) != LineId::NONE
    }

    /// Learns that a chunk has gone offline: it cannot be programmed or erased any more, and perhaps
    /// not be read. What is written to it goes elsewhere from now on, what is still in the write buffer
    /// is written again, and its line is [refreshed](Ftl::refresh). [`kick`](Ftl::kick) afterwards.
    /// Returns whether that was news. Chunks of the journal are the journal's business, which finds out
    /// by itself.
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
        self.space.request_refresh(line);
        self.space.emit_emptied(chunk);
        self.record_uncorrectable(chunk);
        true
    }

    /// All that was found in a line is durable elsewhere: if it was swept while it was being written, that
    /// was it.
    pub(crate) fn sweep_done_if_open(&mut self, line: LineId) {
        let scanned = self.gc.current_victim() != Some(line);
        let state = self.space.line(line).state;
        if scanned && matches!(state, LineState::Open | LineState::Closed) {
            self.health.on_relocated(line);
        }
    }

    /// Whether [`take_refresh`](Ftl::pop_refresh_victim) has anything to look at.
    #[inline]
    pub(crate) fn can_refresh(&self) -> bool {
        self.space.table().has_refresh_queued()
            || self.health.is_wl_check_due(&self.env, self.stats.lines_reclaimed)
    }

    /// Takes the line that has waited longest to be refreshed: a victim, or one that is being written.
    fn pop_refresh(&mut self) -> Option<LineId> {
        let line = self.space.pop_refresh()?;
        if self.space.table().line(line).state == LineState::Closed {
            self.take_candidate(line);
        }
        Some(line)
    }

    /// Makes a closed line a victim, out of turn.
    fn take_candidate(&mut self, line: LineId) {
        self.gc.remove_candidate(self.space.table(), line);
        self.space.begin_victim(line);
    }

    /// Takes the next line to be refreshed as a victim, if it is its turn: `collects` says whether
    /// space is wanted, `room` how many sectors can be written.
    pub(crate) fn pop_refresh_victim(&mut self, collects: bool, room: u64) -> Option<LineId> {
        let line = u64::from(self.env.plan.line_sectors) + u64::from(self.env.geometry.ws_opt);
        let spare = self.gc.limiter().headroom(self.free_sectors()) > 0.0 && room >= line;
        if !self.health.is_turn(collects) || self.space.is_finishing() || !spare {
            return None;
        }
        let (line, levels) = match self.pop_refresh() {
            Some(line) if self.finish_line(line) => return None,
            Some(line) => {
                self.durability.record_host_change();
                (line, false)
            }
            // It may want a line of its own.
            None if room >= 2 * line => (self.pick_static_wl_line()?, true),
            None => return None,
        };
        *(if levels {
            &mut self.stats.wear_leveled_lines
        } else {
            &mut self.stats.refreshed_lines
        }) += 1;
        self.health.begin_refresh(line, levels);
        Some(line)
    }

    /// Returns how many GC reads may be in flight. While a line is refreshed without urgency: one,
    /// and only if nothing else of its ring is in flight.
    pub(crate) fn gc_queue_depth(&self) -> u32 {
        let victim = self.gc.current_victim();
        let refreshes = victim.is_some_and(|line| self.health.is_refreshing(line));
        if refreshes && !self.gc.limiter().needs_gc(self.free_sectors()) {
            u32::from(!self.buffer.ring(GC).is_programming())
        } else {
            self.gc.queue_depth()
        }
    }

    /// Static wear levelling: of the lines that are cold and much less worn than the most worn chunk,
    /// the least worn, and of those the one that was closed first.
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

    /// Whether all that is in a unit of garbage collection's ring comes from a line that is moved for
    /// the sake of wear.
    pub(crate) fn is_cold(&self, unit: u32) -> bool {
        let Some(line) = self.health.static_wl_line() else { return false };
        let comes_from = |entry: &BufferEntry| {
            entry.durable_copy != NONE
                && self.space.line_of(self.env.geometry.chunk_of(entry.durable_copy)) == line
        };
        self.buffer.ring(GC).entries(unit).iter().all(|e| e.lba_plus_1 == 0 || comes_from(e))
    }

    /// From here on [`pop_chunk_event`](Ftl::pop_chunk_event) tells of chunks that are closed and emptied;
    /// those that are closed already come first.
    pub fn subscribe_chunk_events(&mut self) {
        self.space.subscribe_chunk_events();
    }

    /// Writes what is on a chunk but not yet readable there, and so still in the write buffer, once more
    /// behind everything else: it cannot be looked after where it is. [`kick`](Ftl::kick) afterwards.
    pub fn rewrite_buffered(&mut self, chunk: ChunkId) {
        if self.is_in_line(chunk) && !self.space.chunk(chunk).offline {
            self.redispatch_unreadable(chunk);
        }
    }

    /// Chunks that are being written, how many sectors of each can be read from there, and how many are
    /// written.
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
