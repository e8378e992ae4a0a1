//! Refresh: lines whose data is moved although nobody needs their space: because it is hard to read
//! where it is, because a chunk has gone offline, or so that a little worn chunk takes its share of the
//! erases (LightNVM paper section 4.1 leaves the health of the flash to the host; section 4.2.3).
//!
//! Guarantees:
//! - One line at a time, after those with a failed program, and only with room for all of it above
//!   what is the users' and garbage collection's: a refresh never makes anybody wait for space.
//! - While no space is wanted, one write unit is on its way at a time: at most one parallel unit's
//!   worth of programs. While space is wanted, one victim in [`TURN`] at most.
//! - A line that is being written is closed first ([`ending`](crate::ending)).
//! - A chunk that has [gone offline](Ftl::chunk_offline) is never used again. What of it is in the write
//!   buffer is [written again](crate::again) elsewhere, and no flush ends before; what can be read is
//!   moved; the rest becomes poison, sector by sector.
//! - Static wear levelling moves a line that was closed for as many closings as there are lines, one in
//!   [`LINES_PER_WL_CHECK`] reclaimed ones at most, to the most worn of the free chunks. It does not mix with
//!   other data there, which would have it moved again and again.

use crate::ftl::GC;
use crate::gc::Gc;
use crate::space::lines::{LineState, LineTable, NONE};
use crate::{BufferEntry, Ftl};

/// Victims from one refresh to the next while space is wanted.
const VICTIMS_PER_REFRESH: u32 = 4;

/// Lines reclaimed from one look for cold lines on little worn chunks to the next.
const LINES_PER_WL_CHECK: u64 = 8;

/// What has become of a chunk, for who looks after chunks that nobody writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkEvent {
    /// It takes no more writes; so many of its sectors are written.
    Closed {
        /// The chunk.
        chunk: u32,
        /// Sectors from its first one on.
        sectors: u32,
    },
    /// There is nothing in it any more that anybody wants, or it is gone.
    Emptied {
        /// The chunk.
        chunk: u32,
    },
}

/// The state of refreshing.
#[derive(Clone, Debug, Default)]
pub(crate) struct RefreshState {
    /// The line being refreshed, until all of it is durable elsewhere.
    line: Option<u32>,
    /// It is being moved for the sake of wear.
    is_static_wl: bool,
    /// Other victims since the last one.
    victims_since: u32,
    /// Lines reclaimed at which cold lines are looked for.
    wl_check_at: u64,
}

impl RefreshState {
    /// The line being refreshed.
    pub(crate) fn line(&self) -> Option<u32> {
        self.line
    }

    /// Whether a line is being refreshed.
    pub(crate) fn is_busy(&self) -> bool {
        self.line.is_some()
    }

    /// Whether it is this line that is being refreshed.
    pub(crate) fn is_refreshing(&self, line: u32) -> bool {
        self.line == Some(line)
    }

    /// All of a line is durable elsewhere.
    pub(crate) fn on_relocated(&mut self, line: u32) {
        self.line = self.line.filter(|l| *l != line);
    }
}

impl Ftl {
    /// Asks for the data of the line that a chunk is in to be moved soon, and its chunks to be erased
    /// and used again: what is in the chunk is hard to read where it is. [`kick`](Ftl::kick)
    /// afterwards. Returns whether anything will be moved for it: not for a chunk that is in no line,
    /// is the journal's (which is mirrored), or is on its way already. A line that is being written is
    /// filled up with padding first, if there is room for that; else what is there is moved, and the line
    /// goes on being written.
    pub fn refresh(&mut self, chunk: u32) -> bool {
        match self.space.lines.line_of.get(chunk as usize) {
            Some(&line) if line != NONE => self.space.lines.request_refresh(line),
            _ => false,
        }
    }

    /// Learns that a chunk has gone offline: it cannot be programmed or erased any more, and perhaps
    /// not be read. What is written to it goes elsewhere from now on, what is still in the write buffer
    /// is written again, and its line is [refreshed](Ftl::refresh). [`kick`](Ftl::kick) afterwards.
    /// Returns whether that was news. Chunks of the journal are the journal's business, which finds out
    /// by itself.
    pub fn chunk_offline(&mut self, chunk: u32) -> bool {
        let Some(&c) = self.space.lines.chunks.get(chunk as usize) else { return false };
        let line = self.space.lines.line_of[chunk as usize];
        if c.offline || line == NONE && !self.space.lines.remove_free(chunk) {
            return false;
        }
        let c = &mut self.space.lines.chunks[chunk as usize];
        (c.bad, c.offline) = (true, true);
        self.stats.offline_chunks += 1;
        if line == NONE {
            self.stats.retired_chunks += 1;
            return true;
        }
        self.close_open_chunk(chunk);
        self.redispatch_unreadable(chunk);
        self.space.lines.close_if_done(line);
        self.space.lines.request_refresh(line);
        self.space.lines.emit_emptied(chunk);
        self.note_uncorrectable(chunk);
        true
    }

    /// All that was found in a line is durable elsewhere: if it was swept while it was being written, that
    /// was it.
    pub(crate) fn sweep_done_if_open(&mut self, line: u32) {
        let scanned = self.gc.current_victim() != Some(line);
        let state = self.space.lines.lines[line as usize].state;
        if scanned && matches!(state, LineState::Open | LineState::Closed) {
            self.health.refresh.on_relocated(line);
        }
    }

    /// Whether [`take_refresh`](Ftl::pop_refresh_victim) has anything to look at.
    #[inline]
    pub(crate) fn can_refresh(&self) -> bool {
        !self.space.lines.refresh_queue.is_empty() || self.is_wl_check_due()
    }

    /// Whether it is time to look for cold lines on little worn chunks.
    #[inline]
    fn is_wl_check_due(&self) -> bool {
        self.env.config.static_wear_leveling > 0
            && self.stats.lines_reclaimed >= self.health.refresh.wl_check_at
    }

    /// Takes the next line to be refreshed as a victim, if it is its turn: `collects` says whether
    /// space is wanted, `room` how many sectors can be written.
    pub(crate) fn pop_refresh_victim(&mut self, collects: bool, room: u64) -> Option<u32> {
        let line = u64::from(self.env.plan.line_sectors) + u64::from(self.env.geometry.ws_opt);
        let patient = !collects || self.health.refresh.victims_since >= VICTIMS_PER_REFRESH;
        let spare = self.gc.limiter.headroom(self.free_sectors()) > 0.0 && room >= line;
        if self.health.refresh.is_busy() || self.space.finisher.is_busy() || !patient || !spare {
            return None;
        }
        let (line, levels) = match self.space.lines.pop_refresh() {
            Some(line) if self.finish_line(line) => return None,
            Some(line) => {
                self.durability.checkpoint.note_host_change();
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
        (self.health.refresh.line, self.health.refresh.is_static_wl) = (Some(line), levels);
        self.health.refresh.victims_since = 0;
        Some(line)
    }

    /// Another victim was taken.
    pub(crate) fn count_victim(&mut self) {
        self.health.refresh.victims_since = self.health.refresh.victims_since.saturating_add(1);
    }

    /// Reads of garbage collection that may be under way: while a line is refreshed that nobody is in
    /// a hurry for, one, and nothing else of its ring.
    pub(crate) fn gc_queue_depth(&self, collector: &Gc) -> u32 {
        let refreshes =
            collector.current_victim().is_some_and(|line| self.health.refresh.is_refreshing(line));
        if refreshes && !self.gc.limiter.needs_gc(self.free_sectors()) {
            u32::from(!self.buffer.rings[GC].is_programming())
        } else {
            collector.queue_depth()
        }
    }

    /// Static wear levelling: of the lines that are cold and much less worn than the most worn chunk,
    /// the least worn, and of those the one that was closed first.
    fn pick_static_wl_line(&mut self) -> Option<u32> {
        if !self.is_wl_check_due() {
            return None;
        }
        self.health.refresh.wl_check_at = self.stats.lines_reclaimed + LINES_PER_WL_CHECK;
        self.space
            .lines
            .pop_cold_line(self.env.config.static_wear_leveling, u64::from(self.env.plan.lines))
    }

    /// Whether all that is in a unit of garbage collection's ring comes from a line that is moved for
    /// the sake of wear.
    pub(crate) fn is_cold(&self, unit: u32) -> bool {
        let RefreshState { line: Some(line), is_static_wl: true, .. } = self.health.refresh else {
            return false;
        };
        let comes_from = |entry: &BufferEntry| {
            entry.durable_copy != NONE
                && self.space.lines.line_of[self.env.geometry.chunk_of(entry.durable_copy) as usize]
                    == line
        };
        self.buffer.rings[GC].entries(unit).iter().all(|e| e.lba_plus_1 == 0 || comes_from(e))
    }

    /// From here on [`pop_chunk_event`](Ftl::pop_chunk_event) tells of chunks that are closed and emptied;
    /// those that are closed already come first.
    pub fn subscribe_chunk_events(&mut self) {
        self.space.lines.subscribe_chunk_events();
    }

    /// Writes what is on a chunk but not yet readable there, and so still in the write buffer, once more
    /// behind everything else: it cannot be looked after where it is. [`kick`](Ftl::kick) afterwards.
    pub fn rewrite_buffered(&mut self, chunk: u32) {
        let known = self.space.lines.line_of.get(chunk as usize).is_some_and(|line| *line != NONE);
        if known && !self.space.lines.chunks[chunk as usize].offline {
            self.redispatch_unreadable(chunk);
        }
    }

    /// Chunks that are being written, how many sectors of each can be read from there, and how many are
    /// written.
    pub fn open_chunks(&self) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        let members = self.space.open_lines.iter().flatten().flat_map(|open| &open.members);
        members.map(|member| {
            let c = &self.space.lines.chunks[member.chunk as usize];
            let readable = c.readable_end(&self.env.geometry);
            (member.chunk, readable - readable % self.env.geometry.ws_opt, c.write_pointer)
        })
    }

    /// What has become of a chunk, in order.
    #[inline]
    pub fn pop_chunk_event(&mut self) -> Option<ChunkEvent> {
        self.space.lines.chunk_events.as_mut()?.pop_front()
    }
}

impl LineTable {
    /// A line is to be refreshed. Returns whether that was news.
    fn request_refresh(&mut self, id: u32) -> bool {
        let line = &mut self.lines[id as usize];
        if line.degraded || line.refresh_requested {
            return false;
        }
        match line.state {
            LineState::Open | LineState::Closed => {
                line.refresh_requested = true;
                self.refresh_queue.push_back(id);
            }
            LineState::Free | LineState::Victim | LineState::Draining => return false,
        }
        true
    }

    /// Takes the line that has waited longest to be refreshed: a victim, or one that is being written.
    fn pop_refresh(&mut self) -> Option<u32> {
        // Some have been reclaimed meanwhile.
        while let Some(id) = self.refresh_queue.pop_front() {
            let line = &mut self.lines[id as usize];
            if !std::mem::take(&mut line.refresh_requested) {
                continue;
            }
            match line.state {
                // It will close by itself, and come again.
                LineState::Open if line.fully_mapped => line.refresh_requested = true,
                LineState::Open => return Some(id),
                LineState::Closed => {
                    self.remove_from_candidates(id);
                    return Some(id);
                }
                LineState::Free | LineState::Victim | LineState::Draining => {}
            }
        }
        None
    }

    /// Takes a closed line that is cold, `age` closings old, and whose chunks have been erased more
    /// than `spread` times less than the most worn one.
    fn pop_cold_line(&mut self, spread: u32, age: u64) -> Option<u32> {
        let cold = |l: &&(u32, &crate::space::lines::Line)| {
            l.1.state == LineState::Closed
                && l.1.valid_sectors > 0
                && !l.1.degraded
                && !l.1.refresh_requested
                && self.closed_total - l.1.close_index >= age
        };
        let closed = (0..).zip(&self.lines);
        let closed: Option<(u32, u64, u32)> = closed
            .filter(|l| cold(&l))
            .map(|(id, l)| (self.mean_wear(id), l.close_index, id))
            .min();
        let (wear, _, id) = closed?;
        if self.wear_max.saturating_sub(wear) <= spread {
            return None;
        }
        self.remove_from_candidates(id);
        Some(id)
    }

    fn subscribe_chunk_events(&mut self) {
        self.chunk_events.get_or_insert_default();
        for id in 0..self.lines.len() {
            if self.lines[id].state == LineState::Closed {
                self.emit_closed(id as u32);
            }
        }
    }

    /// Tells that the chunks of a line take no more.
    pub(crate) fn emit_closed(&mut self, id: u32) {
        let Some(changes) = &mut self.chunk_events else { return };
        for &chunk in &self.lines[id as usize].chunks {
            let c = &self.chunks[chunk as usize];
            if c.write_pointer > 0 && !c.offline {
                changes.push_back(ChunkEvent::Closed { chunk, sectors: c.write_pointer });
            }
        }
    }

    /// What was in a line when it was scanned has been moved, although it was being written.
    pub(crate) fn emit_swept(&mut self, id: u32) {
        for i in 0..self.lines[id as usize].chunks.len() {
            self.emit_emptied(self.lines[id as usize].chunks[i]);
        }
        if self.lines[id as usize].state == LineState::Closed {
            self.emit_closed(id);
        }
    }

    /// A sector of a line has been moved elsewhere.
    pub(crate) fn relocated_one(&mut self, id: u32) {
        let line = &mut self.lines[id as usize];
        line.valid_sectors -= 1;
        if line.state == LineState::Closed {
            self.dec_valid(id);
        }
    }

    /// Tells that there is nothing in a chunk any more.
    pub(crate) fn emit_emptied(&mut self, chunk: u32) {
        if let Some(changes) = &mut self.chunk_events {
            changes.push_back(ChunkEvent::Emptied { chunk });
        }
    }
}
