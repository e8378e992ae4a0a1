//! Ending: a line that is to be moved and is still being written is closed first.
//!
//! A chunk is as old as what was written first into it, and has been read since then: what is put into
//! one that is hard to read is hard to read from the start. An open line that is refreshed is
//! therefore filled up with padding, closed, and then moved as any other. (Cai et al., "Data retention in MLC NAND flash memory",
//! HPCA 2015, for what ages; LightNVM paper section 4.2.3 for why chunks are not left as they are: the
//! paired pages of what is in them must be programmed.)
//!
//! Guarantees:
//! - What waits in the write buffer for its pair there is redispatched elsewhere first, so
//!   that it never depends on the old chunk; the line is closed, and so erased, only when all of that is on the
//!   media.
//! - Only with room for a line besides what is given up of this one, and with no chunk of it gone; else
//!   what is in it is moved, and it goes on being written.
//! - One write unit of padding is under way at a time, and one line is ended at a time. Until it is full
//!   the line is an open one to whoever recovers it.

use crate::ftl::{HOST, STREAM_COUNT};
use crate::space::open_line::{Member, NO_RETAINED_UNIT, OpenLine, PlacementBudget};
use crate::{FlashBackend, Ftl};
use clock::Nanos;

impl Ftl {
    /// Ends an open line that is to be refreshed, if that can be afforded. It will ask for that again when
    /// it is closed.
    pub(crate) fn finish_line(&mut self, line: u32) -> bool {
        let is_it = |open: &OpenLine| open.line == line;
        let found = (0..STREAM_COUNT)
            .find_map(|s| Some((s, self.space.open_lines[s].iter().position(is_it)?)));
        let Some((stream, at)) = found.filter(|_| !self.space.finishing.is_some()) else {
            return false;
        };
        let open = &self.space.open_lines[stream][at];
        let unit = u64::from(self.env.geometry.ws_opt);
        let given_up = u64::from(open.free_units) * unit;
        let spare = self.gc.limiter().headroom(self.free_sectors().saturating_sub(given_up)) > 0.0;
        let enough =
            self.relocation_budget() >= given_up + u64::from(self.env.plan.line_sectors) + unit;
        // If a die has gone every line that is opened has a chunk there: they are not all given up for that.
        let hurt = |m: &Member| self.space.lines.chunks[m.chunk as usize].bad;
        if open.members.iter().any(hurt) {
            return false;
        }
        // What is being moved out of it is moved before it can be a victim.
        let l = &self.space.lines.lines[line as usize];
        if l.relocations_in_flight > 0 || self.gc.is_scanned(line) {
            return false;
        }
        // One that was opened just now has nothing in it.
        if open.header_due
            || open.recorded_lsn > self.durability.journal().durable()
            || !spare
            || !enough
        {
            return false;
        }
        let open = self.space.open_lines[stream].remove(at);
        for member in &open.members {
            if !self.space.lines.chunks[member.chunk as usize].offline {
                self.redispatch_unreadable(member.chunk);
            }
        }
        self.stats.finished_lines += 1;
        self.space.finishing = Some(open);
        true
    }

    /// Pads the line that is being ended, one write unit at a time, the chunk that is least written first.
    /// Returns whether there was something to do.
    pub(crate) fn step_finish_line(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let Some(open) = &mut self.space.finishing else { return false };
        let line = open.line;
        if open.free_units == 0 {
            if self.buffer.redispatch().has_in_flight() {
                return false;
            }
            let l = &mut self.space.lines.lines[line as usize];
            l.fully_mapped = true;
            l.refresh_requested |= !l.degraded;
            self.space.finishing = None;
            self.close_if_done(line);
            return true;
        }
        if !self.space.programs.pads().is_empty() {
            return false;
        }
        let busy = &self.space.programs;
        let takes = |m: &&Member| m.next < m.end && busy.has_slot(m.pu);
        let takes = open.members.iter().filter(takes);
        let Some(chunk) = takes.min_by_key(|m| m.next).map(|m| m.chunk) else { return false };
        let padding = PlacementBudget { ring: HOST, unit: NO_RETAINED_UNIT, units_to_spare: 0 };
        let Some(sector) = open.allocate_on(&self.env.geometry, padding, chunk) else {
            return false;
        };
        self.pad_unit(now, line, chunk, sector, flash);
        true
    }
}
