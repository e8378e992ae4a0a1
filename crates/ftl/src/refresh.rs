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
//! - A chunk that has [gone offline](Ftl::retire) is never used again. What of it is in the write
//!   buffer is [written again](crate::again) elsewhere, and no flush ends before; what can be read is
//!   moved; the rest becomes poison, sector by sector.
//! - Static wear levelling moves a line that was closed for as many closings as there are lines, one in
//!   [`LEVEL_TURN`] reclaimed ones at most, to the most worn of the free chunks. It does not mix with
//!   other data there, which would have it moved again and again.

use crate::collect::Collector;
use crate::ftl::GC;
use crate::lines::{LineState, Lines, NONE};
use crate::{Entry, Ftl};

/// Victims from one refresh to the next while space is wanted.
const TURN: u32 = 4;

/// Lines reclaimed from one look for cold lines on little worn chunks to the next.
const LEVEL_TURN: u64 = 8;

/// What has become of a chunk, for who looks after chunks that nobody writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkChange {
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
pub(crate) struct Refresher {
    /// The line being refreshed, until all of it is durable elsewhere.
    line: Option<u32>,
    /// It is being moved for the sake of wear.
    levels: bool,
    /// Other victims since the last one.
    since: u32,
    /// Lines reclaimed at which cold lines are looked for.
    level_at: u64,
}

impl Refresher {
    /// Whether a line is being refreshed.
    pub(crate) fn is_busy(&self) -> bool {
        self.line.is_some()
    }

    /// Whether it is this line that is being refreshed.
    pub(crate) fn is_of(&self, line: u32) -> bool {
        self.line == Some(line)
    }

    /// All of a line is durable elsewhere.
    pub(crate) fn moved(&mut self, line: u32) {
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
        match self.lines.line_of.get(chunk as usize) {
            Some(&line) if line != NONE => self.lines.want_refresh(line),
            _ => false,
        }
    }

    /// Learns that a chunk has gone offline: it cannot be programmed or erased any more, and perhaps
    /// not be read. What is written to it goes elsewhere from now on, what is still in the write buffer
    /// is written again, and its line is [refreshed](Ftl::refresh). [`kick`](Ftl::kick) afterwards.
    /// Returns whether that was news. Chunks of the journal are the journal's business, which finds out
    /// by itself.
    pub fn retire(&mut self, chunk: u32) -> bool {
        let Some(&c) = self.lines.chunks.get(chunk as usize) else { return false };
        let line = self.lines.line_of[chunk as usize];
        if c.offline || line == NONE && !self.lines.remove_free(chunk) {
            return false;
        }
        let c = &mut self.lines.chunks[chunk as usize];
        (c.bad, c.offline) = (true, true);
        self.stats.offline_chunks += 1;
        if line == NONE {
            self.stats.retired_chunks += 1;
            return true;
        }
        self.abandon(chunk);
        self.rescue(chunk);
        self.lines.close_if_done(line);
        self.lines.want_refresh(line);
        self.lines.emptied(chunk);
        self.note_loss(chunk);
        true
    }

    /// All that was found in a line is durable elsewhere: if it was swept while it was being written, that
    /// was it.
    pub(crate) fn swept_if_open(&mut self, line: u32) {
        let scanned = self.collector.scanning() != Some(line);
        let state = self.lines.lines[line as usize].state;
        if scanned && matches!(state, LineState::Open | LineState::Closed) {
            self.refresher.moved(line);
        }
    }

    /// Whether [`take_refresh`](Ftl::take_refresh) has anything to look at.
    #[inline]
    pub(crate) fn may_refresh(&self) -> bool {
        !self.lines.refresh.is_empty() || self.looks_for_cold()
    }

    /// Whether it is time to look for cold lines on little worn chunks.
    #[inline]
    fn looks_for_cold(&self) -> bool {
        self.config.static_wear > 0 && self.stats.lines_reclaimed >= self.refresher.level_at
    }

    /// Takes the next line to be refreshed as a victim, if it is its turn: `collects` says whether
    /// space is wanted, `room` how many sectors can be written.
    pub(crate) fn take_refresh(&mut self, collects: bool, room: u64) -> Option<u32> {
        let line = u64::from(self.layout.line_sectors) + u64::from(self.shape.unit);
        let patient = !collects || self.refresher.since >= TURN;
        let spare = self.limiter.share(self.free_sectors()) > 0.0 && room >= line;
        if self.refresher.is_busy() || self.ending.is_busy() || !patient || !spare {
            return None;
        }
        let (line, levels) = match self.lines.take_refresh() {
            Some(line) if self.end_line(line) => return None,
            Some(line) => {
                self.checkpoint.renew();
                (line, false)
            }
            // It may want a line of its own.
            None if room >= 2 * line => (self.take_cold()?, true),
            None => return None,
        };
        *(if levels { &mut self.stats.levelled_lines } else { &mut self.stats.refreshed_lines }) +=
            1;
        (self.refresher.line, self.refresher.levels) = (Some(line), levels);
        self.refresher.since = 0;
        Some(line)
    }

    /// Another victim was taken.
    pub(crate) fn took_victim(&mut self) {
        self.refresher.since = self.refresher.since.saturating_add(1);
    }

    /// Reads of garbage collection that may be under way: while a line is refreshed that nobody is in
    /// a hurry for, one, and nothing else of its ring.
    pub(crate) fn gc_window(&self, collector: &Collector) -> u32 {
        let refreshes = collector.scanning().is_some_and(|line| self.refresher.is_of(line));
        if refreshes && !self.limiter.collects(self.free_sectors()) {
            u32::from(!self.rings[GC].is_programming())
        } else {
            collector.window()
        }
    }

    /// Static wear levelling: of the lines that are cold and much less worn than the most worn chunk,
    /// the least worn, and of those the one that was closed first.
    fn take_cold(&mut self) -> Option<u32> {
        if !self.looks_for_cold() {
            return None;
        }
        self.refresher.level_at = self.stats.lines_reclaimed + LEVEL_TURN;
        self.lines.take_cold(self.config.static_wear, u64::from(self.layout.lines))
    }

    /// Whether all that is in a unit of garbage collection's ring comes from a line that is moved for
    /// the sake of wear.
    pub(crate) fn is_cold(&self, unit: u32) -> bool {
        let Refresher { line: Some(line), levels: true, .. } = self.refresher else { return false };
        let comes_from = |entry: &Entry| {
            entry.under != NONE
                && self.lines.line_of[self.shape.chunk_of(entry.under) as usize] == line
        };
        self.rings[GC].entries(unit).iter().all(|e| e.lba_plus_1 == 0 || comes_from(e))
    }

    /// From here on [`take_change`](Ftl::take_change) tells of chunks that are closed and emptied;
    /// those that are closed already come first.
    pub fn watch_chunks(&mut self) {
        self.lines.watch();
    }

    /// Writes what is on a chunk but not yet readable there, and so still in the write buffer, once more
    /// behind everything else: it cannot be looked after where it is. [`kick`](Ftl::kick) afterwards.
    pub fn renew(&mut self, chunk: u32) {
        let known = self.lines.line_of.get(chunk as usize).is_some_and(|line| *line != NONE);
        if known && !self.lines.chunks[chunk as usize].offline {
            self.rescue(chunk);
        }
    }

    /// Chunks that are being written, how many sectors of each can be read from there, and how many are
    /// written.
    pub fn open_chunks(&self) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        let members = self.open.iter().flatten().flat_map(|open| &open.members);
        members.map(|member| {
            let c = &self.lines.chunks[member.chunk as usize];
            let readable = c.readable(&self.shape);
            (member.chunk, readable - readable % self.shape.unit, c.persisted)
        })
    }

    /// What has become of a chunk, in order.
    #[inline]
    pub fn take_change(&mut self) -> Option<ChunkChange> {
        self.lines.changes.as_mut()?.pop_front()
    }
}

impl Lines {
    /// A line is to be refreshed. Returns whether that was news.
    fn want_refresh(&mut self, id: u32) -> bool {
        let line = &mut self.lines[id as usize];
        if line.hurt || line.refresh {
            return false;
        }
        match line.state {
            LineState::Open | LineState::Closed => {
                line.refresh = true;
                self.refresh.push_back(id);
            }
            LineState::Free | LineState::Victim | LineState::Draining => return false,
        }
        true
    }

    /// Takes the line that has waited longest to be refreshed: a victim, or one that is being written.
    fn take_refresh(&mut self) -> Option<u32> {
        // Some have been reclaimed meanwhile.
        while let Some(id) = self.refresh.pop_front() {
            let line = &mut self.lines[id as usize];
            if !std::mem::take(&mut line.refresh) {
                continue;
            }
            match line.state {
                // It will close by itself, and come again.
                LineState::Open if line.full => line.refresh = true,
                LineState::Open => return Some(id),
                LineState::Closed => {
                    self.take_out(id);
                    return Some(id);
                }
                LineState::Free | LineState::Victim | LineState::Draining => {}
            }
        }
        None
    }

    /// Takes a closed line that is cold, `age` closings old, and whose chunks have been erased more
    /// than `spread` times less than the most worn one.
    fn take_cold(&mut self, spread: u32, age: u64) -> Option<u32> {
        let cold = |l: &&(u32, &crate::lines::Line)| {
            l.1.state == LineState::Closed
                && l.1.valid > 0
                && !l.1.hurt
                && !l.1.refresh
                && self.closings - l.1.closed_at >= age
        };
        let closed = (0..).zip(&self.lines);
        let closed: Option<(u32, u64, u32)> =
            closed.filter(|l| cold(&l)).map(|(id, l)| (self.mean_wear(id), l.closed_at, id)).min();
        let (wear, _, id) = closed?;
        if self.most_worn.saturating_sub(wear) <= spread {
            return None;
        }
        self.take_out(id);
        Some(id)
    }

    fn watch(&mut self) {
        self.changes.get_or_insert_default();
        for id in 0..self.lines.len() {
            if self.lines[id].state == LineState::Closed {
                self.tell_closed(id as u32);
            }
        }
    }

    /// Tells that the chunks of a line take no more.
    pub(crate) fn tell_closed(&mut self, id: u32) {
        let Some(changes) = &mut self.changes else { return };
        for &chunk in &self.lines[id as usize].chunks {
            let c = &self.chunks[chunk as usize];
            if c.persisted > 0 && !c.offline {
                changes.push_back(ChunkChange::Closed { chunk, sectors: c.persisted });
            }
        }
    }

    /// What was in a line when it was scanned has been moved, although it was being written.
    pub(crate) fn swept(&mut self, id: u32) {
        for i in 0..self.lines[id as usize].chunks.len() {
            self.emptied(self.lines[id as usize].chunks[i]);
        }
        if self.lines[id as usize].state == LineState::Closed {
            self.tell_closed(id);
        }
    }

    /// A sector of a line has been moved elsewhere.
    pub(crate) fn moved_away(&mut self, id: u32) {
        let line = &mut self.lines[id as usize];
        line.valid -= 1;
        if line.state == LineState::Closed {
            self.lost_one(id);
        }
    }

    /// Tells that there is nothing in a chunk any more.
    pub(crate) fn emptied(&mut self, chunk: u32) {
        if let Some(changes) = &mut self.changes {
            changes.push_back(ChunkChange::Emptied { chunk });
        }
    }
}
