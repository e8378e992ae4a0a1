//! Reconciliation of translation pages after a recovery, and the rebuild of unreadable ones.

use crate::ReadAddress;
use nvme::PhysSector;
use time::Nanos;

use crate::flash::OpKind;
use crate::ids::{MapPageId, ToIndex};
use crate::mapping::cache::fetch::{BACKGROUND_FETCH_MAX, FetchOutcome, FetchReason};
use crate::mapping::p2l_reader::LineScanStep;
use crate::{FlashBackend, Ftl, Oob, OpToken, ReadDest};

/// Maximum number of fetches in flight for pages on failing chunks.
const AT_RISK_FETCH_MAX: u32 = 4;

impl Ftl {
    /// Fetches the pages that reads wait for, and continues reconciliation and rebuild.
    #[inline]
    pub(crate) fn start_fetches(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        self.mapping.is_cached() && self.start_fetches_now(now, flash)
    }

    fn start_fetches_now(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        if self.mapping.head_write_page().is_some() && self.pending_sectors(0).is_none() {
            self.mapping.set_head_write_page(None);
        }
        let mut moved = false;
        while let Some(read) = self.mapping.first_waiting_read() {
            if !self.step_read(now, read, FetchReason::ReadBlocking, flash) {
                break;
            }
            self.mapping.pop_waiting_read();
            moved = true;
        }
        self.mapping.unmap_scratch();
        moved |= self.step_reconcile(now, flash);
        self.step_rebuild(now, flash) | moved
    }

    /// Reconciles pages: one at a time, or many if free space or a checkpoint waits for it.
    fn step_reconcile(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        if !self.space.is_reconciling() {
            return false;
        }
        let hurries = self.gc.limiter().needs_gc(self.free_sectors())
            || self.durability.checkpoint().is_wanted();
        let most = if hurries { BACKGROUND_FETCH_MAX } else { 1 };
        let (mut moved, mut again) = (false, self.mapping.reconcile().is_in_round());
        while self.mapping.fetches_in_transfer() < most {
            let Some((page, demand)) = self.mapping.peek_reconcile() else {
                self.mapping.restart_reconcile();
                if std::mem::take(&mut again) {
                    continue;
                }
                break;
            };
            match self.request_page(now, page, demand, flash) {
                FetchOutcome::NoFrame => break,
                FetchOutcome::InFlight(_) => {}
                FetchOutcome::Resident => moved = true,
            }
            self.mapping.advance_reconcile(page);
        }
        if !self.mapping.reconcile().is_running() {
            self.finish_reconcile();
            return true;
        }
        moved
    }

    /// Ends the reconciliation: the valid sectors of all lines are known.
    fn finish_reconcile(&mut self) {
        self.mapping.finish_reconcile();
        self.space.finish_reconcile();
        for line in self.space.table().ids() {
            self.close_if_done(line);
        }
    }

    /// Continues the rebuild of pages, and puts rebuilt pages that no request waits for into frames.
    /// Returns whether a page was rebuilt or put into a frame.
    fn step_rebuild(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        self.mapping.page_rebuild().is_busy() && self.step_rebuild_now(now, flash)
    }

    #[cold]
    fn step_rebuild_now(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let mut moved = self.mapping.rebuild_from_p2l(&self.env, self.space.table());
        while self.mapping.page_rebuild().is_scanning() && self.scan_line(now, flash) {
            moved |= self.mapping.advance_rebuild(self.space.table());
        }
        moved |= self.mapping.complete_rebuilt();
        if let Some(page) = self.mapping.unclaimed_rebuilt_page() {
            moved |= self.request_page(now, page, FetchReason::ReconcileLoad, flash)
                == FetchOutcome::Resident;
            self.mapping.unmap_scratch();
        }
        self.load_at_risk_pages(now, flash) | moved
    }

    /// Fetches pages that are on failing chunks into frames, from which they are written elsewhere.
    fn load_at_risk_pages(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let (mut moved, mut from) = (false, MapPageId(0));
        while let Some(page) = self.mapping.next_page_at_risk(from) {
            if self.mapping.fetches_in_transfer() >= AT_RISK_FETCH_MAX {
                break;
            }
            match self.request_page(now, page, FetchReason::ReconcileLoad, flash) {
                FetchOutcome::Resident => {
                    // The page may have been in a frame already.
                    if self.mapping.drop_rebuild(page) {
                        self.durability.mark_dirty(page);
                    }
                    moved = true;
                }
                FetchOutcome::InFlight(_) => {}
                FetchOutcome::NoFrame => break,
            }
            self.mapping.unmap_scratch();
            from = page + 1;
        }
        moved
    }

    /// Reads the P2L of the next line of the scan. Returns whether the scan of that line has ended.
    fn scan_line(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let hurries =
            self.mapping.has_rebuild_waiters() || self.durability.checkpoint().is_wanted();
        let idle = self.host_reads_in_flight() == 0;
        loop {
            match self.mapping.step_line_scan(&self.env, self.space.table(), hurries, idle) {
                LineScanStep::Read { at, first_phys } => {
                    self.read_for_scan(now, at, first_phys, flash);
                }
                LineScanStep::Wait => return false,
                LineScanStep::Done | LineScanStep::Unreadable { .. } => return true,
            }
        }
    }

    fn read_for_scan(
        &mut self,
        now: Nanos,
        at: u32,
        first_phys: PhysSector,
        flash: &mut impl FlashBackend,
    ) {
        let (unit, first_slot) = (self.env.geometry.ws_opt, self.mapping.scan_slot(&self.env, at));
        let addresses = ReadAddress::unit(first_phys, first_slot);
        self.stats.rebuild_reads += u64::from(unit);
        let op = OpToken::new(OpKind::MapRead, self.mapping.scan_op(at));
        flash.read(now, op, &addresses[..unit.index()], ReadDest::Buffer);
    }

    /// Reports the end of a read of a scanned line. Call [`kick`](Ftl::kick) afterwards.
    pub(super) fn scan_read_done(&mut self, at: u32, failed: u64, flash: &mut impl FlashBackend) {
        let first_slot = self.mapping.scan_slot(&self.env, at);
        let Some(read) = self.mapping.scan_read_done(at, failed) else { return };
        let unit = self.env.geometry.ws_opt;
        let mut oobs = [None; 64];
        for i in (0..unit).filter(|i| failed >> i & 1 == 0) {
            let (phys, slot) = (read.first_phys + i, first_slot + i);
            if read.is_footer {
                flash.sync_slot(phys, slot);
                flash.read_slot(slot, self.mapping.scan_footer_bytes(&self.env, read, i));
            } else {
                let mut bytes = [0; Oob::BYTES];
                flash.read_slot_oob(phys, slot, &mut bytes);
                oobs[i.index()] = Oob::decode(&bytes);
            }
        }
        if !read.is_footer {
            self.mapping.import_scanned_oobs(&self.env, read, failed, &oobs[..unit.index()]);
        }
    }
}
