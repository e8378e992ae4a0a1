//! [`Reconcile`]: reads the map pages after a recovery that left them on the media: the count of
//! valid sectors of each line, the P2L, and the lost sectors.
//!
//! A page is reconciled when a request first needs it, or in the background; a page without newer
//! copies needs no frame for that. Copies that recovery found in units that the page does not cover
//! wait here, and are merged into it then. Until every page is reconciled
//!
//! * the counts of valid sectors are too low, so that no line is closed and none reclaimed;
//! * no checkpoint begins, so that the next recovery finds the unmerged copies again.
//!
//! All else goes on: reads and writes are served from the start. In the background one page is read at a
//! time, and only while no other operation is in flight; when space gets short, many are.

use std::collections::BTreeSet;

use collections::BitSet;
use serde::{Deserialize, Serialize};

use crate::FlashGeometry;
use crate::ids::{Lba, MapPageId, ToIndex, ToU32, WriteSeq};
use crate::mapping::cache::fetch::FetchReason;
use crate::mapping::cache::frames::Frames;
use crate::mapping::cache::install::PageInstalled;
use crate::mapping::translation_page::{PageEntry, TranslationPage};
use crate::recovery::{CopyRef, NewestCopies, ScanObservations};

/// Pages that have not been reconciled since the recovery, and copies newer than their entries.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reconcile {
    /// One bit per page; the number of set bits; the next page.
    pending: BitSet,
    remaining: u32,
    next: MapPageId,
    /// Pages that need a frame: they could not be read without one, or contradict the copies.
    frame_needed: BTreeSet<MapPageId>,
    copies: NewestCopies,
    /// Whether all of the media was scanned; and the observations of that scan.
    full_scan: bool,
    observations: ScanObservations,
}

impl Reconcile {
    /// Creates the state in which these of `pages` pages are to be reconciled.
    pub(crate) fn new(
        pages: u32,
        to_count: impl Iterator<Item = MapPageId>,
        copies: NewestCopies,
        full_scan: bool,
        observations: ScanObservations,
    ) -> Reconcile {
        let mut uncounted = BitSet::new(pages.index());
        for page in to_count {
            uncounted.insert(page.index());
        }
        let remaining = uncounted.count().to_u32();
        Reconcile {
            pending: uncounted,
            remaining,
            next: MapPageId(0),
            frame_needed: BTreeSet::new(),
            copies,
            full_scan,
            observations,
        }
    }

    /// Returns whether a page is not reconciled.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.remaining > 0
    }

    /// Returns whether this page is not reconciled.
    #[inline]
    pub(crate) fn is_pending(&self, page: MapPageId) -> bool {
        self.remaining > 0 && self.pending.contains(page.index())
    }

    /// Returns whether the recovery found all copies of the sectors of a page that is not
    /// reconciled.
    #[inline]
    pub(crate) fn recovery_is_complete_for(&self, page: MapPageId) -> bool {
        self.full_scan && self.is_pending(page)
    }

    /// Returns the number of sectors of the pages that are not reconciled.
    pub(crate) fn pending_sectors_max(&self, shape: &FlashGeometry) -> u64 {
        u64::from(self.remaining) * u64::from(TranslationPage::entries_per_page(shape))
    }

    /// Records that a page needs a frame: it cannot be read without one, or contradicts the copies.
    pub(crate) fn mark_frame_needed(&mut self, page: MapPageId) {
        if self.is_pending(page) {
            self.frame_needed.insert(page);
        }
    }

    /// Records that a page is reconciled.
    pub(crate) fn mark_done(&mut self, page: MapPageId) {
        self.remaining -= u32::from(self.is_pending(page));
        self.pending.remove(page.index());
        self.frame_needed.remove(&page);
    }

    /// Whether copies wait for a page.
    pub(crate) fn has_copies(&self, page: MapPageId, frames: &Frames) -> bool {
        self.copies.any_in(frames.page_range(page))
    }

    /// Returns the next page that is not reconciled, from `self.next` on.
    fn next_page(&self) -> Option<MapPageId> {
        self.pending.next_at(self.next.index()).map(MapPageId::from_index)
    }

    /// Returns whether a round over the pages is in progress.
    pub(crate) fn is_in_round(&self) -> bool {
        self.next > MapPageId(0)
    }

    /// Begins the next round.
    pub(super) fn restart(&mut self) {
        self.next = MapPageId(0);
    }

    /// Continues behind a page.
    pub(super) fn advance(&mut self, page: MapPageId) {
        self.next = page + 1;
    }

    /// Returns the next page of this round, and the reason of its fetch: a page that changed since
    /// it was written needs a frame.
    pub(super) fn peek(&self, frames: Option<&Frames>) -> Option<(MapPageId, FetchReason)> {
        let page = self.next_page()?;
        let changed = self.frame_needed.contains(&page)
            || frames.is_some_and(|frames| self.has_copies(page, frames));
        let reason = if changed { FetchReason::ReconcileLoad } else { FetchReason::ReconcileView };
        Some((page, reason))
    }

    /// Returns the location of a sector of a page that is not reconciled. `low` is the page's base
    /// sequence number; `None` if the page is lost.
    ///
    /// A page's entry is valid if no copy of the sector was found in a unit with the page's base
    /// sequence number or a larger one; a lost page has no entries. After a full scan, a page's
    /// trims and its unreadable sectors count; all other copies were found. A sector that is not
    /// where its page says has a newer copy that cannot be read: it is lost (see `recovery::lost`).
    fn merge(
        &self,
        geometry: &FlashGeometry,
        lba: Lba,
        mapped: PageEntry,
        low: Option<WriteSeq>,
    ) -> Merged {
        let copy: Option<CopyRef> = self.copies.get(lba);
        let newer = copy.is_some_and(|c| low.is_none_or(|low| c.sequence >= low));
        let stale = |phys| self.observations.is_stale(geometry, lba, phys);
        if !newer && low.is_some() && mapped.phys.is_some_and(stale) {
            return Merged::Lost;
        }
        let readable = |phys| !self.observations.is_unreadable(geometry, phys);
        let known = !self.full_scan || low.is_some() && !mapped.phys.is_some_and(readable);
        if !newer && known {
            return Merged::AsWritten;
        }
        let entry = match copy {
            Some(copy) => PageEntry { phys: Some(copy.phys), poison: copy.poison },
            None => PageEntry { phys: None, poison: false },
        };
        Merged::Found { entry, contradicts: !newer && low.is_some() && mapped.phys != entry.phys }
    }

    /// Returns whether the merged state of a sector differs from the page's entry.
    pub(super) fn would_change(
        &self,
        geometry: &FlashGeometry,
        lba: Lba,
        mapped: PageEntry,
        low: Option<WriteSeq>,
    ) -> bool {
        match self.merge(geometry, lba, mapped, low) {
            Merged::AsWritten => false,
            Merged::Lost => true,
            Merged::Found { entry, .. } => entry != mapped,
        }
    }

    /// Returns the state of a sector, for a lookup.
    pub(super) fn merged(
        &self,
        geometry: &FlashGeometry,
        lba: Lba,
        mapped: PageEntry,
        low: Option<WriteSeq>,
    ) -> PageEntry {
        match self.merge(geometry, lba, mapped, low) {
            Merged::AsWritten => mapped,
            Merged::Lost => LOST_ENTRY,
            Merged::Found { entry, .. } => entry,
        }
    }

    /// Takes the state of a sector of a page that is being reconciled. Returns whether the page's
    /// entry differs.
    pub(super) fn take_newer(
        &mut self,
        geometry: &FlashGeometry,
        lba: Lba,
        mapped: &mut PageEntry,
        low: Option<WriteSeq>,
        installed: &mut PageInstalled,
    ) -> bool {
        let merged = self.merge(geometry, lba, *mapped, low);
        self.copies.remove(lba);
        match merged {
            Merged::AsWritten => false,
            Merged::Lost => {
                installed.lost_sectors += 1;
                *mapped = LOST_ENTRY;
                true
            }
            Merged::Found { entry, contradicts } => {
                installed.mismatches += u64::from(contradicts);
                std::mem::replace(mapped, entry) != entry
            }
        }
    }
}

/// A sector whose latest version is lost.
const LOST_ENTRY: PageEntry = PageEntry { phys: None, poison: true };

/// The state of a sector, compared with what its page says.
enum Merged {
    AsWritten,
    Lost,
    Found {
        entry: PageEntry,
        /// Whether the page, which covers all copies, names another location.
        contradicts: bool,
    },
}
