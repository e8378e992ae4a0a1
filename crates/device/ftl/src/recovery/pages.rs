//! [`PageLoader`]: reads the translation pages: the locations of all sectors without a newer copy.

use nvme::PhysSector;

use super::op::RecoveryOpPurpose;
use super::{NewestCopies, OPS_PER_BATCH_MAX, RecoveryOp, ScanObservations};
use crate::check::{Subject, Violation, require};
use crate::durability::snapshot::Snapshot;
use crate::env::Env;
use crate::ids::{LOST_SECTOR, MapPageId};

/// A translation page and the physical sector of its latest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageLocation {
    pub(crate) phys: PhysSector,
    pub(crate) page: MapPageId,
}

/// Finds the latest versions of the translation pages, and reads them.
///
/// Invariants: pages are in ascending order; a lost page is not read.
#[derive(Debug, Default)]
pub(super) struct PageLoader {
    queue: Vec<PageLocation>,
    /// The index in the queue of the next page to read.
    next: usize,
    /// Pages whose latest version is lost.
    lost: Vec<MapPageId>,
}

impl PageLoader {
    /// Finds the pages among the copies that were read, and those that the snapshot names. Without a
    /// snapshot, copies alone show the pages.
    pub(super) fn find(
        &mut self,
        env: &Env,
        snapshot: Option<&Snapshot>,
        copies: &NewestCopies,
        observations: &ScanObservations,
    ) {
        *self = PageLoader::default();
        let named = snapshot.map_or(&[][..], |s| &s.pages);
        for page in env.plan.pages() {
            let newest = copies.get(env.plan.page_sector(page)).map(|c| c.phys);
            let base = named.get(page.index()).and_then(|word| word.checked_sub(1).map(PhysSector));
            // A copy is erased when a newer one is on the media: if that is not found, it is lost.
            let stale = |phys| {
                phys == LOST_SECTOR
                    || observations.is_stale(&env.geometry, env.plan.page_sector(page), phys)
            };
            match newest.or(base) {
                Some(phys) if newest.is_none() && stale(phys) => self.lost.push(page),
                Some(phys) => self.queue.push(PageLocation { phys, page }),
                None => {}
            }
        }
    }

    /// Whether the latest version of a page is lost.
    pub(super) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Clears the lost pages, so that pages are searched again.
    pub(super) fn forget_lost(&mut self) {
        self.lost.clear();
    }

    /// The pages that were found.
    pub(super) fn found(&self) -> &[PageLocation] {
        &self.queue
    }

    /// The pages that were found, and those whose latest versions are lost.
    pub(super) fn into_found(self) -> FoundPages {
        FoundPages { pages: self.queue, lost: self.lost }
    }

    /// Adds the operations that read pages.
    pub(super) fn read_ops(&mut self, ops: &mut Vec<RecoveryOp>) {
        while ops.len() < OPS_PER_BATCH_MAX {
            let Some(&PageLocation { phys, page }) = self.queue.get(self.next) else { break };
            ops.push(RecoveryOp::read(RecoveryOpPurpose::Page { page }, phys, 1, true));
            self.next += 1;
        }
    }

    /// Checks the order of the pages, and that no lost one is read.
    pub(super) fn check_invariants(&self) -> Result<(), Violation> {
        let is_ascending = self.queue.is_sorted_by(|a, b| a.page < b.page);
        require!(
            is_ascending,
            Recovery,
            "translation pages are in order",
            Subject::Part,
            "ascending",
            "not"
        );
        for &page in &self.lost {
            require!(
                self.queue.binary_search_by_key(&page, |found| found.page).is_err(),
                Recovery,
                "a lost page is not read",
                Subject::Page(page),
                "lost",
                "found"
            );
        }
        Ok(())
    }

    /// Breaks an invariant: finds a lost page, or a page twice.
    #[cfg(test)]
    pub(super) fn break_pages(&mut self, is_lost: bool) {
        self.queue.push(PageLocation { phys: PhysSector(0), page: MapPageId(0) });
        if is_lost {
            self.lost.push(MapPageId(0));
        } else {
            self.queue.push(PageLocation { phys: PhysSector(1), page: MapPageId(0) });
        }
    }
}

/// The translation pages on the media.
#[derive(Debug)]
pub(super) struct FoundPages {
    pub(super) pages: Vec<PageLocation>,
    pub(super) lost: Vec<MapPageId>,
}
