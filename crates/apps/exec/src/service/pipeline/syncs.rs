//! Syncs of a program that speculates: each is covered by a barrier of the volume.
//!
//! **Order.** The service counts the acknowledged syncs, then collects posted writes, then executes
//! those in ticket order. So every change that was requested before a sync has completed before its
//! barrier, and every change that was requested after it starts after the barrier. One barrier covers
//! all syncs without a change between them.

use block::BlockDevice;
use volume::OpResult;

use crate::Service;

impl<D: BlockDevice> Service<D> {
    /// Issues a barrier that covers the syncs up to this number, unless one does. Returns whether one
    /// does now; it cannot be issued while a posted write, which was requested before the syncs, is
    /// in flight.
    pub(crate) fn cover_syncs(&mut self, sync: u64) -> bool {
        let is_due = |service: &Service<D>| {
            service.durability.speculation.as_ref().is_some_and(|spec| spec.is_due(sync))
        };
        if !is_due(self) {
            return true;
        }
        if self.calls.pending.has_posted_write(None) {
            self.poll_volume();
            if self.calls.pending.has_posted_write(None) {
                return false;
            }
        }
        let barrier = self.volume.barrier(self.clock.now);
        if let Some(speculation) = &mut self.durability.speculation {
            speculation.cover(sync, barrier.ok());
        }
        while let Some(id) =
            self.durability.speculation.as_mut().and_then(|spec| spec.next_covered_call())
        {
            self.on_op_complete(id, barrier.map(|_| OpResult::Done));
        }
        true
    }

    /// Has the barriers become durable for which outputs wait.
    pub(crate) fn request_syncs(&mut self) {
        let wanted = self.durability.speculation.as_mut().and_then(|spec| spec.take_wanted());
        if let Some(barrier) = wanted {
            self.volume.request_barrier(barrier);
        }
    }

    /// Covers the syncs that were counted, if the writes posted before them have completed. Returns
    /// whether it issued a barrier.
    pub(crate) fn cover_due_syncs(&mut self) -> bool {
        let due = self.durability.speculation.as_ref().and_then(|spec| spec.due());
        due.is_some_and(|sync| self.has_started_posted() && self.cover_syncs(sync))
    }

    /// Returns whether a counted sync is not covered.
    pub(crate) fn has_due_syncs(&self) -> bool {
        self.durability.speculation.as_ref().is_some_and(|spec| spec.due().is_some())
    }
}
