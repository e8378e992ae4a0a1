//! Deferral of garbage collection for host reads. The rules are in [`defer`](crate::gc::defer).

use nvme::{ChunkId, PuId};
use time::Nanos;

use crate::flash::OpKind;
use crate::ftl::GC;
use crate::gc::defer::VictimUnit;
use crate::{FlashBackend, Ftl, GcReadPriority, OpToken};

impl Ftl {
    #[inline]
    fn can_defer_gc(&self) -> bool {
        self.gc.read_priority() != GcReadPriority::Off
            && !self.gc.limiter().is_below_critical(self.free_sectors())
    }

    /// Returns whether garbage collection avoids a parallel unit because of host reads.
    #[inline]
    fn is_pu_avoided(&self, pu: PuId, flash: &impl FlashBackend) -> bool {
        match self.gc.read_priority() {
            GcReadPriority::Off => false,
            GcReadPriority::PerPu => flash.host_reads_in_flight(pu) > 0,
            GcReadPriority::Global => self.host_reads_in_flight() > 0,
        }
    }

    /// Updates, before relocated units are placed, the parallel units that garbage collection avoids:
    /// those with host reads in flight.
    pub(crate) fn update_avoided_pus(&mut self, flash: &impl FlashBackend) {
        if self.gc.read_priority() == GcReadPriority::Off {
            return;
        }
        self.gc.begin_placement();
        if self.buffer.ring(GC).ready().is_none() || !self.can_defer_gc() {
            return;
        }
        for pu in (0..self.env.geometry.pus).map(PuId) {
            let avoided = self.is_pu_avoided(pu, flash);
            self.gc.set_avoided(pu, avoided);
        }
    }

    /// Returns the next write unit of the oldest victim to scan: the first one on a parallel unit
    /// without host reads; `None` if there is none, or no victim.
    pub(crate) fn next_victim_unit(&mut self, flash: &impl FlashBackend) -> Option<VictimUnit> {
        self.gc.set_scan_deferred(false);
        let yields = self.can_defer_gc();
        if yields
            && self.gc.read_priority() == GcReadPriority::Global
            && self.host_reads_in_flight() > 0
        {
            self.gc.set_scan_deferred(true);
            return None;
        }
        let yields = yields && self.gc.read_priority() == GcReadPriority::PerPu;
        let geometry = &self.env.geometry;
        let quiet = |chunk| !yields || flash.host_reads_in_flight(geometry.pu_of(chunk)) == 0;
        self.gc.next_victim_unit(self.space.table(), quiet)
    }

    /// Returns whether the erase of a chunk is deferred. It is not if the chunk may be needed soon.
    fn should_defer_erase(&self, chunk: ChunkId, flash: &impl FlashBackend) -> bool {
        self.can_defer_gc()
            && self.space.free_chunks() >= 2 * self.env.plan.active_pus
            && self.is_pu_avoided(self.env.geometry.pu_of(chunk), flash)
    }

    /// Starts the erase of a chunk now, or as soon as its parallel unit has no host reads. The chunk
    /// counts as being erased from now on.
    pub(super) fn erase_or_defer(
        &mut self,
        now: Nanos,
        chunk: ChunkId,
        flash: &mut impl FlashBackend,
    ) {
        if self.should_defer_erase(chunk, flash) {
            self.gc.defer_erase(chunk);
        } else {
            flash.erase(now, OpToken::new(OpKind::Erase, chunk.get()), chunk);
        }
    }

    /// Starts the deferred erases that need not be deferred any more. Returns whether there was one.
    pub(super) fn run_deferred_erases(
        &mut self,
        now: Nanos,
        flash: &mut impl FlashBackend,
    ) -> bool {
        self.gc.set_scan_deferred(false);
        let mut moved = false;
        for i in (0..self.gc.deferred_erase_count()).rev() {
            let chunk = self.gc.deferred_erase(i);
            if !self.should_defer_erase(chunk, flash) {
                self.gc.remove_deferred_erase(i);
                flash.erase(now, OpToken::new(OpKind::Erase, chunk.get()), chunk);
                moved = true;
            }
        }
        moved
    }
}
