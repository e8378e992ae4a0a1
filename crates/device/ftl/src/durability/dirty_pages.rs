//! [`DirtyPages`]: translation pages whose copies on flash are out of date.

use collections::BitSet;
use serde::{Deserialize, Serialize};

use crate::check::{Subject, Violation, require_eq};
use crate::ids::{MapPageId, ToIndex};

/// Changed pages, and those of them that the checkpoint in progress writes; one bit each.
///
/// Invariant: the checkpoint has at least as many pages as are still to be written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DirtyPages {
    /// Pages whose copy on flash differs from the map.
    dirty: BitSet,
    /// The pages that the checkpoint in progress writes, and their number when it began.
    to_write: BitSet,
    to_write_count: u64,
}

impl DirtyPages {
    /// Creates the state of `pages` clean pages.
    pub(super) fn new(pages: u32) -> DirtyPages {
        let clean = BitSet::new(pages.index());
        DirtyPages { dirty: clean.clone(), to_write: clean, to_write_count: 0 }
    }

    /// Records that a page differs from its copy on flash.
    #[inline]
    pub(super) fn mark_dirty(&mut self, page: MapPageId) {
        self.dirty.insert(page.index());
    }

    /// Whether a page differs from its copy on flash, or will when the buffered units are
    /// programmed.
    #[inline]
    pub(super) fn is_dirty(&self, page: MapPageId) -> bool {
        self.dirty.contains(page.index()) | self.to_write.contains(page.index())
    }

    /// Records that a page was encoded from the current entries.
    #[inline]
    pub(super) fn mark_clean(&mut self, page: MapPageId) {
        self.dirty.remove(page.index());
        self.to_write.remove(page.index());
    }

    /// Begins a checkpoint, which writes all dirty pages.
    pub(super) fn begin(&mut self) {
        std::mem::swap(&mut self.dirty, &mut self.to_write);
        self.dirty.clear();
        self.to_write_count = self.remaining();
    }

    /// Returns the number of pages of the checkpoint, written ones included.
    pub(super) fn to_write_count(&self) -> u64 {
        self.to_write_count
    }

    /// Returns the first page from this one on that the checkpoint has not written.
    pub(super) fn next_to_write(&self, from: MapPageId) -> Option<MapPageId> {
        self.to_write.next_at(from.index()).map(MapPageId::from_index)
    }

    fn remaining(&self) -> u64 {
        self.to_write.count() as u64
    }

    /// Checks the number of pages to write.
    pub(super) fn check_invariants(&self) -> Result<(), Violation> {
        let (remaining, count) = (self.remaining(), self.to_write_count);
        require_eq!(
            Durability,
            "pages of a checkpoint",
            Subject::Part,
            count.max(remaining),
            count
        );
        Ok(())
    }

    /// Breaks the count of pages to write.
    #[cfg(test)]
    pub(super) fn break_count(&mut self) {
        self.to_write.insert(0);
        self.to_write_count = 0;
    }
}
