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

use clock::Nanos;

use crate::space::placement::FinishStep;
use crate::{FlashBackend, Ftl};

impl Ftl {
    /// Ends an open line that is to be refreshed, if that can be afforded. It will ask for that again when
    /// it is closed.
    pub(super) fn finish_line(&mut self, line: u32) -> bool {
        let recorded = self.durability.journal().durable();
        let Some(open) = self.space.finish_candidate(line, recorded) else { return false };
        let unit = u64::from(self.env.geometry.ws_opt);
        let given_up = u64::from(open.free_units) * unit;
        let free = self.free_sectors().saturating_sub(given_up);
        let spare = self.gc.limiter().headroom(free) > 0.0;
        let enough =
            self.relocation_budget() >= given_up + u64::from(self.env.plan.line_sectors) + unit;
        // If a die has gone, every line that is opened has a chunk there: not all of them are given up.
        // A line from which data is being relocated is relocated before it can be a victim. One that was
        // opened just now has nothing in it.
        if open.has_bad_chunk
            || self.space.line(line).relocations_in_flight > 0
            || self.gc.is_scanned(line)
            || !open.takes_units
            || !spare
            || !enough
        {
            return false;
        }
        for chunk in self.space.begin_finish(open) {
            if !self.space.chunk(chunk).offline {
                self.redispatch_unreadable(chunk);
            }
        }
        self.stats.finished_lines += 1;
        true
    }

    /// Pads the line that is being finished. Returns whether there was something to do.
    pub(crate) fn step_finish_line(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        match self.space.step_finish(&self.env) {
            FinishStep::Wait => false,
            FinishStep::Pad(at) => {
                self.pad_unit(now, at, flash);
                true
            }
            FinishStep::Full if self.buffer.redispatch().has_in_flight() => false,
            FinishStep::Full => {
                if let Some(line) = self.space.end_finish() {
                    self.close_if_done(line);
                }
                true
            }
        }
    }
}
