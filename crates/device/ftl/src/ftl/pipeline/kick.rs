//! [`Ftl::kick`]: the stages of the pipeline, in their order.
//!
//! The order is part of the FTL's behavior. Pages are written before host data is admitted, which would
//! take every slot of the host ring; the host's units are dispatched before garbage collection's.

use time::Nanos;

use crate::{FlashBackend, Ftl};

impl Ftl {
    /// Advances requests as far as possible. Call it after a batch of requests and after operations
    /// are reported.
    ///
    /// If requests do not complete, [`explain_stall`](Ftl::explain_stall) names what they wait for.
    pub fn kick(&mut self, now: Nanos, flash: &mut impl FlashBackend) {
        while self.run_stages(now, flash) || self.break_pair_deadlock(now, flash) {}
        let free = self.free_sectors();
        self.gc.observe(now, free);
        if self.fail_if_full() {
            self.kick(now, flash);
        }
    }

    /// Runs every stage once. Returns whether one of them made progress, after which others may.
    fn run_stages(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let was_deferring = self.gc.is_deferring();
        let mut moved = self.complete_fetches(now, flash);
        moved |= self.write_due_pages(flash);
        moved |= self.admit_pending(now, flash);
        self.pad_for_barriers(now, flash);
        moved |= self.dispatch_ready(now, flash);
        moved |= self.collect_garbage(now, flash);
        moved |= self.step_finish_line(now, flash);
        moved |= self.step_checkpoint(now, flash);
        moved |= self.start_fetches(now, flash);
        // While garbage collection defers work, host writes need no credits.
        moved || self.gc.is_deferring() && !was_deferring
    }

    /// Completes barriers, and pads the partly filled units if host requests or a line wait for them.
    fn pad_for_barriers(&mut self, now: Nanos, flash: &mut impl FlashBackend) {
        if self.needs_padding() {
            self.complete_barriers(now, flash);
            if !self.mapping.is_named() || !self.will_fill_unit() {
                self.pad_open_host_units(flash);
            }
        } else if self.env.config.hot_stream {
            self.pad_late_unit(flash);
        }
    }

    /// Runs garbage collection, but not before the valid sectors of all lines are known.
    fn collect_garbage(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        !self.mapping.reconcile().is_running() && self.step_gc(now, flash)
    }
}
