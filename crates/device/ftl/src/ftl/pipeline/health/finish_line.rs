//! Finishing a line: an open line that is to be relocated is padded and closed first.
//!
//! A chunk is as old as its first unit, and has been read since that was written: retention and
//! disturb affect units written into it later, too. An open line that is refreshed is therefore
//! filled with padding, closed, and then relocated as any other \[Retention15\]. Chunks are not left
//! partly written because paired pages must be programmed [LightNVM17 §4.2.3].
//!
//! Guarantees:
//! - Units in the write buffer that wait for their paired page there are re-dispatched first, so
//!   that they never depend on the old chunk. The line is closed, and so erased, only when all of
//!   them are on the media.
//! - A line is finished only if there is space for a whole line besides the rest of this one, and
//!   no chunk of it is offline. Otherwise its data is relocated, and the line stays open.
//! - One write unit of padding is in flight at a time, and one line is finished at a time. Until
//!   the line is full, recovery treats it as open.

use crate::ids::LineId;
use time::Nanos;

use crate::space::placement::FinishStep;
use crate::{FlashBackend, Ftl};

impl Ftl {
    /// Finishes an open line that is to be refreshed, if there is space for that. The refresh is
    /// requested again when the line closes.
    pub(super) fn finish_line(&mut self, line: LineId) -> bool {
        let recorded = self.durability.journal().durable();
        let Some(open) = self.space.finish_candidate(line, recorded) else { return false };
        let unit = u64::from(self.env.geometry.ws_opt);
        let given_up = u64::from(open.free_units) * unit;
        let free = self.free_sectors().saturating_sub(given_up);
        let spare = self.gc.limiter().headroom(free) > 0.0;
        let enough =
            self.relocation_budget() >= given_up + u64::from(self.env.plan.line_sectors) + unit;
        // With a failed die every open line has a bad chunk there: not every such line is
        // finished. A line whose data is being relocated must first become a victim; one opened
        // just now has no data.
        if open.has_bad_chunk
            || self.space.line(line).gate().relocations_in_flight() > 0
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

    /// Pads the line that is being finished. Returns whether a program was started.
    #[inline]
    pub(crate) fn step_finish_line(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        self.space.is_finishing() && self.pad_finishing_line(now, flash)
    }

    #[inline(never)]
    fn pad_finishing_line(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
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
