//! Fetches of translation pages, from flash or from the write buffer, into their frames.

use crate::ReadAddress;
use nvme::PhysSector;

use crate::ids::MapPageId;
use time::Nanos;

use crate::flash::OpKind;
use crate::mapping::cache::fetch::{
    CompletedFetch, FETCH_MAX, FetchOutcome, FetchReason, PageSource, READ_ATTEMPTS,
};
use crate::mapping::cache::install::{InstallView, PageInstalled};
use crate::{FlashBackend, Ftl, OpToken, ReadDest};

impl Ftl {
    /// Starts the fetch of a translation page.
    pub(crate) fn request_page(
        &mut self,
        now: Nanos,
        page: MapPageId,
        demand: FetchReason,
        flash: &mut impl FlashBackend,
    ) -> FetchOutcome {
        if self.mapping.touch_page(page) {
            return FetchOutcome::Resident;
        }
        self.mapping.unmap_scratch();
        if let Some(fetch) = self.mapping.fetch_of(page) {
            let needs_frame = matches!(demand, FetchReason::Modify | FetchReason::ReconcileLoad);
            if needs_frame && self.mapping.is_view(fetch) {
                let Some(frame) = self.allocate_frame(page, true, flash) else {
                    return FetchOutcome::NoFrame;
                };
                self.mapping.set_fetch_frame(fetch, frame);
            }
            return FetchOutcome::InFlight(fetch);
        }
        let source = self.mapping.source_of(&self.env, &self.buffer, page);
        let idle = self.mapping.idle_fetch(demand);
        let needs_fetch = match source {
            PageSource::OnFlash(_) => true,
            PageSource::Lost => self.mapping.can_rebuild(page, flash.stores_data()),
            PageSource::Unwritten | PageSource::Buffered(_) | PageSource::Rebuilt => false,
        };
        if needs_fetch && idle.is_none() {
            return FetchOutcome::NoFrame;
        }
        let frame = match demand {
            FetchReason::ReadFast | FetchReason::Prefetch => {
                self.allocate_frame(page, false, flash)
            }
            FetchReason::ReadBlocking | FetchReason::Modify | FetchReason::ReconcileLoad => {
                self.allocate_frame(page, true, flash)
            }
            FetchReason::ReconcileView => None,
        };
        if frame.is_none()
            && !matches!(demand, FetchReason::ReadBlocking | FetchReason::ReconcileView)
        {
            return FetchOutcome::NoFrame;
        }
        if let (true, Some(fetch)) = (needs_fetch, idle) {
            self.mapping.begin_fetch(fetch, page, frame);
            match source {
                PageSource::OnFlash(phys) => self.read_page(now, fetch, phys, flash),
                _ => self.wait_for_rebuild(fetch, flash),
            }
            return FetchOutcome::InFlight(fetch);
        }
        let bytes = self.page_bytes(source, flash);
        let view = InstallView {
            lines: self.space.table(),
            bytes: &bytes,
            next_seq: self.buffer.next_seq(),
        };
        let installed = self.mapping.install_page(&self.env, view, page, frame, source);
        self.mapping.return_read_buffer(bytes);
        self.page_installed(page, &installed);
        FetchOutcome::Resident
    }

    /// Returns the bytes of a page that is in a slot, in a buffer of the map that the caller gives
    /// back.
    fn page_bytes(&mut self, source: PageSource, flash: &mut impl FlashBackend) -> Vec<u8> {
        let mut bytes = self.mapping.take_read_buffer();
        if let PageSource::Buffered(slot) = source {
            flash.read_slot(slot, &mut bytes);
        }
        bytes
    }

    /// Tells the other parts the changes that a page brings when it is put into a frame or looked at
    /// once.
    fn page_installed(&mut self, page: MapPageId, installed: &PageInstalled) {
        for &phys in &installed.valid {
            let line = self.space.line_of(self.env.geometry.chunk_of(phys));
            self.space.count_valid(line);
        }
        self.stats.map_sectors_lost += installed.lost_sectors;
        self.stats.map_mismatches += installed.mismatches;
        (0..installed.lost_sectors).for_each(|_| self.durability.record_loss());
        if installed.is_dirty {
            self.durability.mark_dirty(page);
        }
        self.stats.map_pages_lost += u64::from(installed.is_lost);
        self.stats.pages_rebuilt += u64::from(installed.is_rebuilt);
        for (&line, &sectors) in &installed.recounted {
            if let Some((closed, before)) = self.space.inc_valid(line, sectors) {
                self.gc.on_more_valid(closed, before);
            }
            self.gc.restart_scans_of(line);
        }
    }

    /// Queues the rebuild of an unreadable page that a fetch needs.
    fn wait_for_rebuild(&mut self, fetch: u32, flash: &impl FlashBackend) {
        let (env, lines, buffer) = (&self.env, self.space.table(), &self.buffer);
        self.mapping.wait_for_rebuild(env, lines, buffer, fetch, flash.stores_data());
    }

    fn read_page(
        &mut self,
        now: Nanos,
        fetch: u32,
        phys: PhysSector,
        flash: &mut impl FlashBackend,
    ) {
        let read = self.mapping.begin_page_read(fetch, phys);
        self.stats.map_page_reads += 1;
        let op = OpToken::new(OpKind::MapRead, fetch);
        flash.read(now, op, &[ReadAddress::to_slot(read.phys, read.slot)], ReadDest::Buffer);
    }

    /// Reports the end of a read of a translation page. Call [`kick`](Ftl::kick) afterwards.
    pub(crate) fn map_read_done(&mut self, index: u32, failed: u64, flash: &mut impl FlashBackend) {
        if let Some(at) = index.checked_sub(FETCH_MAX) {
            return self.scan_read_done(at, failed, flash);
        }
        let read = self.mapping.page_read_done(index, failed != 0);
        if failed == 0 {
            flash.sync_slot(read.phys, read.slot);
        }
    }

    /// Puts the fetched pages into their frames, and resumes the reads that wait for them.
    pub(crate) fn complete_fetches(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        if !self.mapping.has_completed_fetches() {
            return false;
        }
        for index in 0..FETCH_MAX {
            let Some(fetch) = self.mapping.take_completed(index) else { continue };
            let CompletedFetch { page, failed, phys: read_at, attempts, slot } = fetch;
            let read = if failed { PageSource::Lost } else { PageSource::Buffered(slot) };
            if !self.complete_fetch(index, page, read, false, flash) {
                let rebuilt = self.mapping.page_rebuild().is_rebuilt(page);
                self.stats.map_read_errors += u64::from(!rebuilt);
                // The page may have been written elsewhere meanwhile.
                let source = match self.mapping.source_of(&self.env, &self.buffer, page) {
                    PageSource::OnFlash(phys)
                        if !rebuilt && (attempts < READ_ATTEMPTS || phys != read_at) =>
                    {
                        self.read_page(now, index, phys, flash);
                        continue;
                    }
                    PageSource::OnFlash(_) if rebuilt => PageSource::Rebuilt,
                    PageSource::OnFlash(_) | PageSource::Lost
                        if self.mapping.can_rebuild(page, flash.stores_data()) =>
                    {
                        self.wait_for_rebuild(index, flash);
                        continue;
                    }
                    PageSource::OnFlash(_) => PageSource::Lost,
                    source => source,
                };
                self.complete_fetch(index, page, source, true, flash);
            }
            self.resume_waiting_reads(now, index, page, flash);
        }
        true
    }

    /// Completes a fetch with the page at `source`. Returns `false` if the page is lost and is to be
    /// rebuilt.
    fn complete_fetch(
        &mut self,
        index: u32,
        page: MapPageId,
        source: PageSource,
        gives_up: bool,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let bytes = self.page_bytes(source, flash);
        let view = InstallView {
            lines: self.space.table(),
            bytes: &bytes,
            next_seq: self.buffer.next_seq(),
        };
        let installed = self.mapping.complete_fetch(&self.env, view, index, source, gives_up);
        self.mapping.return_read_buffer(bytes);
        if let Some(installed) = &installed {
            self.page_installed(page, installed);
        }
        installed.is_some()
    }

    /// Resumes the reads that waited for a page, while the page is in memory.
    fn resume_waiting_reads(
        &mut self,
        now: Nanos,
        index: u32,
        page: MapPageId,
        flash: &mut impl FlashBackend,
    ) {
        let is_shown = self.mapping.shows(page);
        let mut next = self.mapping.first_waiter(index);
        while let Some(read) = next {
            next = self.requests.reads().next_waiter(read);
            if is_shown {
                self.mapping.map_scratch(page);
            }
            if !self.step_read(now, read, FetchReason::Prefetch, flash) {
                self.mapping.add_waiting_read(read);
            }
        }
        self.mapping.unmap_scratch();
    }
}
