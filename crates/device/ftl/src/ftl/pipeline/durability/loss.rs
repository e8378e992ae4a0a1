//! Losses: sectors without a readable copy. They must not read as older data after a power
//! cut.
//!
//! The out-of-band bytes of a sector are lost with it. Recovery could not know of the lost version,
//! and would take the one before it, or none. So when reads begin to fail, or a chunk goes offline,
//! and a unit there may be newer than the last checkpoint, the FTL begins a checkpoint at once: its
//! map pages name the latest versions, readable or not. Guarantee: no flush completes after that
//! before the checkpoint is durable, and before the units that could be [written
//! elsewhere](Ftl::chunk_offline) are durable. A flush speeds up both.
//!
//! If the drive keeps the map, there is nothing to do: it does not lose entries.

use nvme::{ChunkId, PuId, Status};

use crate::durability::barriers::DeferredFlush;
use crate::ids::{LOST_SECTOR, Lba, LineId, MapPageId, SlotId, WriteSeq};
use crate::space::lines::LineState;
use crate::{FlashBackend, Ftl, L2pEntry};

impl Ftl {
    /// A sector of a chunk cannot be read.
    #[cold]
    pub(crate) fn record_uncorrectable(&mut self, chunk: ChunkId) {
        let line = self.space.line_of(chunk);
        if self.durability.has_device_l2p() || line == LineId::NONE {
            return;
        }
        let mut pages =
            self.space.record_read_error(chunk) && self.mark_pages_on_chunk_dirty(chunk);
        let pu = self.env.geometry.pu_of(chunk);
        if self.health.record_read_error(pu) {
            // This may be the first sign of a failed die.
            pages |= self.mark_pages_on_pu_dirty(pu);
        }
        let l = self.space.line(line);
        let newest = if l.state == LineState::Open { WriteSeq::MAX } else { l.max_seq };
        if self.durability.checkpoint().would_lose(if pages { WriteSeq::MAX } else { newest }) {
            self.durability.record_loss();
            self.stats.loss_checkpoints += 1;
        }
    }

    /// Marks the resident translation pages whose media copy is on a chunk as dirty. Returns whether
    /// there are any.
    fn mark_pages_on_chunk_dirty(&mut self, chunk: ChunkId) -> bool {
        let first = self.env.geometry.first_sector_of(chunk);
        let mut any = false;
        for phys in first.run(self.space.chunk(chunk).write_pointer) {
            let page = self.mapping.lba_at(phys).and_then(|lba| self.env.plan.page_at_sector(lba));
            if let Some(page) = page
                && self.mapping.is_mapped_to(self.env.plan.page_sector(page), phys)
            {
                self.mark_resident_page_dirty(page);
                any = true;
            }
        }
        any | self.mark_pages_at_risk(chunk)
    }

    /// Requests that pages on a chunk that are in no frame be fetched and written elsewhere. Returns
    /// whether there are any.
    fn mark_pages_at_risk(&mut self, chunk: ChunkId) -> bool {
        let mut any = false;
        for page in self.env.plan.pages() {
            if self.mapping.is_page_resident(page) {
                continue;
            }
            if let L2pEntry::Flash(phys) = self.mapping.get(self.env.plan.page_sector(page))
                && self.env.geometry.chunk_of(phys) == chunk
            {
                self.mapping.mark_page_at_risk(page);
                any = true;
            }
        }
        any
    }

    /// Marks the map pages on a parallel unit as dirty. Returns whether there were any.
    fn mark_pages_on_pu_dirty(&mut self, pu: PuId) -> bool {
        let mut any = false;
        for page in self.env.plan.pages() {
            let (phys, _) = self.buffer.durable_copy_of(
                &self.env.geometry,
                self.mapping.get(self.env.plan.page_sector(page)),
            );
            if phys < LOST_SECTOR && self.env.geometry.pu_of(self.env.geometry.chunk_of(phys)) == pu
            {
                self.mark_resident_page_dirty(page);
                any = true;
            }
        }
        any
    }

    /// Marks a page as dirty if it is in a frame. A page that is not cannot be read now: the
    /// checkpoint records its location, so that recovery does not take the version before it.
    fn mark_resident_page_dirty(&mut self, page: MapPageId) {
        if self.mapping.is_page_resident(page) {
            self.durability.mark_dirty(page);
        }
    }

    /// Handles a failed host read of these sectors.
    ///
    /// If a sector's translation page has been evicted meanwhile, the sector's location is not known
    /// here. No checkpoint is needed for it: when the page was last written, all of its sectors were
    /// on the media, and a flush that begins now waits until the page is durable. The exception is a
    /// page that is not reconciled since the recovery: its newer copies may not be found again after
    /// the next one, so a checkpoint begins.
    #[cold]
    pub(crate) fn host_read_failed(&mut self, lba: Lba, sectors: u32) {
        let mut unknown = false;
        for lba in lba.run(sectors) {
            let page = self.env.pages.page_of(lba);
            if !self.mapping.is_page_resident(page) {
                unknown |= self.mapping.reconcile().is_pending(page);
            } else if let L2pEntry::Flash(phys) = self.mapping.get(lba) {
                self.record_uncorrectable(self.env.geometry.chunk_of(phys));
            }
        }
        if unknown && self.durability.checkpoint().would_lose(WriteSeq::MAX) {
            self.durability.record_loss();
            self.stats.loss_checkpoints += 1;
        }
    }

    /// Handles an unreadable sector that is to be relocated. If it is a translation page whose
    /// entries are in memory, the page is encoded into the slot instead. Returns whether it is.
    #[cold]
    pub(crate) fn restore_map_page(
        &mut self,
        lba: Lba,
        slot: SlotId,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let Some(page) = self.env.plan.page_at_sector(lba) else { return false };
        if !self.mapping.is_page_resident(page) {
            return false;
        }
        if flash.stores_data() {
            let mut bytes = self.mapping.take_page_buffer();
            self.encode_map_page(page, self.buffer.low_watermark(), &mut bytes);
            flash.write_slot(slot, &bytes);
            self.mapping.return_page_buffer(bytes);
        }
        true
    }

    /// Returns whether flushes must not complete yet.
    #[inline]
    pub(crate) fn must_defer_flushes(&self) -> bool {
        self.durability.checkpoint().has_undurable_loss() || self.buffer.defers_flushes()
    }

    /// Completes a flush, or defers it until the lost sectors are recorded, and the changes of the owner's
    /// state before it.
    #[inline]
    pub(crate) fn complete_flush(&mut self, flush: DeferredFlush) {
        if self.must_defer_flushes() || !self.durability.is_owner_state_durable(flush.owner_changes)
        {
            self.durability.defer_flush(flush);
        } else {
            self.complete(flush.tag, Status::SUCCESS);
        }
    }

    /// Completes the deferred flushes that nothing defers any more.
    pub(crate) fn complete_deferred(&mut self) {
        if self.must_defer_flushes() {
            return;
        }
        while let Some(flush) = self.durability.barriers().front_deferred()
            && self.durability.is_owner_state_durable(flush.owner_changes)
        {
            self.durability.pop_deferred();
            self.complete(flush.tag, Status::SUCCESS);
        }
    }

    /// Completes the deferred flushes with this status.
    pub(crate) fn complete_deferred_with(&mut self, status: Status) {
        while let Some(tag) = self.durability.pop_deferred() {
            self.complete(tag, status);
        }
    }
}
