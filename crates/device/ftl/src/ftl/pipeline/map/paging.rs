//! Requests for translation pages, and their eviction. The rules are in
//! [`map_cache`](crate::mapping::cache::map_cache).

use nvme::PhysSector;
use time::Nanos;

use crate::buffer::WriteBuffer;
use crate::buffer::unit_id::UnitId;
use crate::ftl::HOST;
use crate::gc::defer::VictimUnit;
use crate::ids::{FrameId, Lba, LineId, MapPageId, ToIndex};
use crate::mapping::cache::fetch::{FetchOutcome, FetchReason};
use crate::{BufferEntry, FlashBackend, Ftl, MapCacheStats};

/// Maximum number of pages prefetched for queued requests.
const PREFETCH_PAGES_MAX: u32 = 8;

impl Ftl {
    /// Returns the statistics of the map cache.
    pub fn map_cache(&self) -> MapCacheStats {
        self.mapping.cache_stats(&self.env)
    }

    /// Returns the number of a read's sectors from `lba` on that can be looked up now, at least one.
    ///
    /// # Errors
    /// The fetch that brings the page of the first one, if there is room for it.
    #[inline]
    pub(crate) fn resident_run(
        &mut self,
        now: Nanos,
        lba: Lba,
        sectors: u32,
        demand: FetchReason,
        flash: &mut impl FlashBackend,
    ) -> Result<u32, Option<u32>> {
        let Some(run) = self.mapping.run_in_page(lba, sectors) else { return Ok(sectors) };
        let page = self.env.pages.page_of(lba);
        if demand == FetchReason::ReadFast {
            self.count_page_use(page);
        }
        match self.request_page(now, page, demand, flash) {
            FetchOutcome::Resident => Ok(run),
            FetchOutcome::InFlight(fetch) => Err(Some(fetch)),
            FetchOutcome::NoFrame => Err(None),
        }
    }

    /// Counts one use of a page by a request.
    fn count_page_use(&mut self, page: MapPageId) {
        let resident = self.mapping.is_page_resident(page);
        self.stats.map_hits += u64::from(resident);
        self.stats.map_misses += u64::from(!resident);
    }

    /// Returns the number of sectors from `lba` on that can be written or trimmed now, for which the
    /// write buffer has `room`. If it is 0, their page is being fetched, or waits for a frame.
    pub(crate) fn prepare_modify(
        &mut self,
        now: Nanos,
        lba: Lba,
        sectors: u32,
        room: impl Fn(&WriteBuffer) -> u32,
        flash: &mut impl FlashBackend,
    ) -> u32 {
        let Some(run) = self.mapping.run_in_page(lba, sectors) else { return sectors };
        let page = self.env.pages.page_of(lba);
        let waited = self.mapping.head_write_page() == Some(page);
        if !waited {
            self.count_page_use(page);
            self.mapping.set_head_write_page(Some(page));
        }
        if self.request_page(now, page, FetchReason::Modify, flash) != FetchOutcome::Resident {
            // Once per awaited page: a prefetched page may have to be evicted again.
            if !waited {
                self.prefetch_queued_pages(now, lba + run, lba + sectors, flash);
            }
            return 0;
        }
        // The eviction of a page may have taken the last slots.
        let run = run.min(room(&self.buffer));
        if run == 0 {
            self.mapping.pin_head_page(0);
        } else {
            self.mapping.set_head_write_page(None);
        }
        run
    }

    /// Returns whether an atomic write can be admitted as a whole, as far as the map is concerned: the
    /// translation pages of all of its sectors are pinned in their frames. If not, they are being
    /// fetched, or wait for frames. It waits for them one by one, and keeps those that it has: the
    /// smallest cache has a frame for each.
    pub(crate) fn prepare_whole_write(
        &mut self,
        now: Nanos,
        lba: Lba,
        sectors: u32,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let end = lba + sectors;
        let last = lba + sectors.saturating_sub(1);
        let (first, last) = (self.env.pages.page_of(lba), self.env.pages.page_of(last));
        let is_new = self.mapping.want_whole_write(first, last);
        if is_new {
            (first.get()..=last.get()).for_each(|page| self.count_page_use(MapPageId(page)));
        }
        let (mut ready, mut from) = (true, 0);
        while let Some((index, page)) = self.mapping.unpinned_head_page(from) {
            if self.request_page(now, page, FetchReason::Modify, flash) == FetchOutcome::Resident {
                self.mapping.pin_head_page(index);
            } else {
                ready = false;
            }
            from = index + 1;
        }
        if !ready && is_new {
            self.prefetch_queued_pages(now, end, end, flash);
        }
        ready
    }

    /// Returns whether garbage collection can scan a write unit of a line now: the translation pages
    /// of its sectors are in frames. If not, they are being fetched, and are pinned when they
    /// arrive.
    #[inline]
    pub(crate) fn prepare_gc_unit(
        &mut self,
        now: Nanos,
        line: LineId,
        unit: VictimUnit,
        flash: &mut impl FlashBackend,
    ) -> bool {
        !self.mapping.is_cached() || self.pin_gc_pages(now, line, unit, flash)
    }

    fn pin_gc_pages(
        &mut self,
        now: Nanos,
        line: LineId,
        unit: VictimUnit,
        flash: &mut impl FlashBackend,
    ) -> bool {
        // Looked up each time: an open line may have been reclaimed and opened again meanwhile.
        let sectors = self.sectors_of_unit(line, unit.at);
        let pages: Vec<MapPageId> =
            sectors.filter_map(|phys| self.page_of_p2l(line, phys)).collect();
        let first_time = self.mapping.want_gc_pages(pages.into_iter());
        let (mut ready, mut from) = (true, 0);
        while let Some((index, page)) = self.mapping.unpinned_gc_page(from) {
            if self.request_page(now, page, FetchReason::Modify, flash) == FetchOutcome::Resident {
                self.mapping.pin_gc_page(index);
            } else {
                ready = false;
            }
            from = index + 1;
        }
        self.mapping.settle_gc_pages(ready);
        if !ready && first_time {
            for ahead in 0..2 {
                let Some(at) = self.gc.peek_unit(self.space.table(), ahead) else {
                    break;
                };
                for phys in self.sectors_of_unit(line, at) {
                    if let Some(page) = self.page_of_p2l(line, phys) {
                        self.prefetch_page(now, page, flash);
                    }
                }
            }
        }
        ready
    }

    /// Returns the translation page of the host sector that was written at a physical sector of a
    /// victim.
    fn page_of_p2l(&self, line: LineId, phys: PhysSector) -> Option<MapPageId> {
        self.mapping.page_of(self.p2l_lookup(line, phys)?)
    }

    /// Prefetches a page, if enough frames can be evicted.
    fn prefetch_page(&mut self, now: Nanos, page: MapPageId, flash: &mut impl FlashBackend) {
        if self.mapping.can_prefetch(page) {
            self.request_page(now, page, FetchReason::Prefetch, flash);
        }
    }

    /// Prefetches the pages that the first request will need up to `end`, and those of the requests
    /// behind it.
    fn prefetch_queued_pages(
        &mut self,
        now: Nanos,
        first: Lba,
        end: Lba,
        flash: &mut impl FlashBackend,
    ) {
        let (mut at, mut end, mut left) = (first, end, PREFETCH_PAGES_MAX);
        for i in 0..PREFETCH_PAGES_MAX.index() {
            while at < end && left > 0 {
                let Some(run) = self.mapping.run_in_page(at, end - at) else { return };
                self.prefetch_page(now, self.env.pages.page_of(at), flash);
                (at, left) = (at + run, left - 1);
            }
            let Some(next) = self.pending_sectors(i) else { return };
            (at, end) = next;
        }
    }

    /// Allocates a pinned frame for a page; without `writes` only a free frame or one with a clean
    /// page.
    pub(crate) fn allocate_frame(
        &mut self,
        page: MapPageId,
        writes: bool,
        flash: &mut impl FlashBackend,
    ) -> Option<FrameId> {
        if let Some(frame) = self.mapping.take_free_frame(page) {
            return Some(frame);
        }
        let any = writes && self.buffer.ring(HOST).free() > 0;
        let durability = &self.durability;
        let clean = |page: MapPageId| durability.is_page_clean(page);
        let old = self.mapping.choose_eviction(writes, any, clean)?;
        if !clean(old) {
            self.write_map_page(old, flash);
            self.stats.map_page_writes += 1;
        }
        let taken = self.mapping.replace_page(old, page);
        if self.buffer.ring(HOST).free_in_unit() > 0 {
            self.write_next_dirty_pages(flash);
        }
        taken
    }

    /// Fills a unit that begins with a dirty page with the dirty pages that would be evicted next:
    /// units hold either pages or data.
    fn write_next_dirty_pages(&mut self, flash: &mut impl FlashBackend) {
        let page = |entry: &BufferEntry| entry.lba_plus_1 > self.env.plan.logical;
        if !self.buffer.ring(HOST).open_entries().iter().all(page) {
            return;
        }
        for _ in 0..self.buffer.ring(HOST).free_in_unit() {
            let durability = &self.durability;
            let steps = 4 * self.env.geometry.ws_opt;
            let dirty = |page| durability.checkpoint().is_dirty(page);
            let Some(page) = self.mapping.choose_dirty(steps, dirty) else { return };
            self.write_map_page(page, flash);
            self.stats.map_page_writes += 1;
        }
    }

    /// Returns whether a unit of the host ring holds translation pages of a map cache only.
    #[inline]
    pub(crate) fn holds_only_map_pages(&self, unit: UnitId) -> bool {
        let page = |entry: &BufferEntry| entry.lba_plus_1 > self.env.plan.logical;
        self.env.plan.map_cache.write_reserve > 0
            && self.buffer.ring(HOST).entries(unit).iter().all(page)
    }
}
