//! [`Reconcile`]: after a recovery that leaves the map's pages where they are, what they say: how many
//! sectors of each line are valid, which logical sector is where, and what was lost.
//!
//! A page is counted when it is first looked at for good, be it because a request needs it or because
//! its turn has come; one that says the same as when it was written needs no frame for that. Copies
//! that were found in units which its page does not know of wait here until then, and change it. Until
//! every page is counted
//!
//! * the counts of valid sectors are too low, so that no line is closed and none reclaimed;
//! * no checkpoint begins, so that copies that no page knows of are found again after the next power
//!   cut.
//!
//! Nothing else waits: reads and writes are served from the start. Without need one page is read at a
//! time, and only when nothing else is; when space gets short, many.

use std::collections::BTreeSet;

use clock::Nanos;

use crate::mapping::cache::fetch::{BACKGROUND_FETCH_MAX, FetchOutcome, FetchReason};
use crate::mapping::cache::frames::Frames;
use crate::mapping::translation_page::{PageEntry, TranslationPage};
use crate::recovery::{NewestCopies, ScanObservations};
use crate::{FlashBackend, FlashGeometry, Ftl};

/// Pages that have not been looked at since the recovery, and copies newer than what they say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reconcile {
    /// One bit per page; how many are set; where to go on.
    pending: Box<[u64]>,
    remaining: u32,
    next: u32,
    /// Pages that could not be read when they were only looked at, or that say what does not hold.
    frame_needed: BTreeSet<u32>,
    copies: NewestCopies,
    /// Everything on the media was looked at; and what was found there.
    full_scan: bool,
    observations: ScanObservations,
}

impl Reconcile {
    /// These of `pages` pages are to be counted.
    pub(crate) fn new(
        pages: u32,
        to_count: impl Iterator<Item = u32>,
        copies: NewestCopies,
        full_scan: bool,
        observations: ScanObservations,
    ) -> Reconcile {
        let mut uncounted = vec![0u64; (pages as usize).div_ceil(64)];
        for page in to_count {
            uncounted[page as usize / 64] |= 1 << (page % 64);
        }
        let remaining = uncounted.iter().map(|w| w.count_ones()).sum();
        Reconcile {
            pending: uncounted.into(),
            remaining,
            next: 0,
            frame_needed: BTreeSet::new(),
            copies,
            full_scan,
            observations,
        }
    }

    /// Whether some page has not been counted.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.remaining > 0
    }

    /// Whether a page has not been counted.
    #[inline]
    pub(crate) fn is_pending(&self, page: u32) -> bool {
        self.remaining > 0 && self.pending[page as usize / 64] >> (page % 64) & 1 != 0
    }

    /// Whether all that there is of a page that has not been counted was found by the recovery.
    #[inline]
    pub(crate) fn recovery_is_complete_for(&self, page: u32) -> bool {
        self.full_scan && self.is_pending(page)
    }

    /// Sectors of the pages that have not been counted.
    pub(crate) fn pending_sectors_max(&self, shape: &FlashGeometry) -> u64 {
        u64::from(self.remaining) * u64::from(TranslationPage::entries_per_page(shape))
    }

    /// A page that was only looked at cannot be read, or does not say what holds.
    pub(crate) fn mark_frame_needed(&mut self, page: u32) {
        if self.is_pending(page) {
            self.frame_needed.insert(page);
        }
    }

    /// A page has been counted.
    pub(crate) fn mark_done(&mut self, page: u32) {
        self.remaining -= u32::from(self.is_pending(page));
        self.pending[page as usize / 64] &= !(1 << (page % 64));
        self.frame_needed.remove(&page);
    }

    /// Whether copies wait for a page.
    pub(crate) fn has_copies(&self, page: u32, frames: &Frames) -> bool {
        let (first, count) = frames.page_range(page);
        self.copies.any_in(first..first + count)
    }

    /// The next page that is not counted, from `self.next` on.
    fn next_page(&self) -> Option<u32> {
        let mut word = self.next as usize / 64;
        let mut bits = self.pending.get(word)? & !0 << (self.next % 64);
        while bits == 0 {
            word += 1;
            bits = *self.pending.get(word)?;
        }
        Some(word as u32 * 64 + bits.trailing_zeros())
    }
}

impl Ftl {
    /// What holds of a sector of a page that is not counted, and whether the page says something else;
    /// with `take` for good.
    ///
    /// A page says what holds if no copy was found in a unit numbered from its `low` on; one that was
    /// lost has none, and says nothing. When everything was read it takes back what was trimmed, and
    /// knows of what could not be read; what else it says was found. What is not where it says has a
    /// newer copy that cannot be read: it is lost (see `recover::lost`).
    pub(crate) fn merge_newer_copy(
        &mut self,
        lba: u32,
        mapped: &mut PageEntry,
        low: Option<u64>,
        take: bool,
    ) -> bool {
        let (c, shape) = (&mut self.mapping.reconcile, &self.env.geometry);
        let copy = c.copies.get(lba);
        if take && copy.is_some() {
            c.copies.remove(lba);
        }
        let newer = copy.is_some_and(|c| low.is_none_or(|low| c.sequence >= low));
        let stale = |psn| c.observations.is_stale(shape, lba, psn);
        if !newer && low.is_some() && mapped.psn.is_some_and(stale) {
            *mapped = PageEntry { psn: None, poison: true };
            if take {
                self.stats.map_sectors_lost += 1;
                self.durability.checkpoint.record_loss();
            }
            return true;
        }
        let readable = |psn| !c.observations.is_unreadable(shape, psn);
        let known = !c.full_scan || low.is_some() && !mapped.psn.is_some_and(readable);
        if !newer && known {
            return false;
        }
        let before = *mapped;
        *mapped = match copy {
            Some(copy) => PageEntry { psn: Some(copy.psn), poison: copy.poison },
            None => PageEntry { psn: None, poison: false },
        };
        if !newer && low.is_some() && take {
            self.stats.map_mismatches += u64::from(before.psn != mapped.psn);
        }
        *mapped != before
    }

    /// A sector is where a page that is being counted says.
    pub(crate) fn count_valid(&mut self, lba: u32, psn: u32, poison: bool) {
        let line = self.space.lines.line_of[self.env.geometry.chunk_of(psn) as usize];
        // Of no line is what is in a bad chunk: reads of it fail.
        if let Some(line) = self.space.lines.lines.get_mut(line as usize) {
            line.valid_sectors += 1;
        }
        self.mapping.p2l.set(psn, Some(lba), poison);
    }

    /// Counts pages, as long as nobody else reads any, or as fast as it goes when that is waited for.
    pub(crate) fn step_reconcile(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        if !self.space.lines.reconciling {
            return false;
        }
        let hurries =
            self.gc.limiter.needs_gc(self.free_sectors()) || self.durability.checkpoint.is_wanted();
        let most = if hurries { BACKGROUND_FETCH_MAX } else { 1 };
        let (mut moved, mut again) = (false, self.mapping.reconcile.next > 0);
        while self.mapping.fetches.in_transfer() < most {
            let Some(page) = self.mapping.reconcile.next_page() else {
                self.mapping.reconcile.next = 0;
                if std::mem::take(&mut again) {
                    continue;
                }
                break;
            };
            let changed = self.mapping.reconcile.frame_needed.contains(&page)
                || self
                    .mapping
                    .l2p
                    .frames
                    .as_ref()
                    .is_some_and(|f| self.mapping.reconcile.has_copies(page, f));
            let demand =
                if changed { FetchReason::ReconcileLoad } else { FetchReason::ReconcileView };
            match self.request_page(now, page, demand, flash) {
                FetchOutcome::NoFrame => break,
                FetchOutcome::InFlight(_) => {}
                FetchOutcome::Resident => moved = true,
            }
            self.unmap_scratch();
            self.mapping.reconcile.next = page + 1;
        }
        if !self.mapping.reconcile.is_running() {
            self.finish_reconcile();
            return true;
        }
        moved
    }

    /// Every page is counted: lines are what they are.
    fn finish_reconcile(&mut self) {
        self.mapping.reconcile = Reconcile::default();
        self.space.lines.reconciling = false;
        for line in 0..self.space.lines.lines.len() as u32 {
            self.space.lines.close_if_done(line);
        }
        self.space.programs.unblock();
    }
}
