//! [`DirtyPages`]: translation pages whose copies on flash are out of date.

use collections::BitSet;

use crate::check::{Subject, Violation, require_eq};
use crate::ids::{ToIndex, ToU32};

/// Pages that have changed, and those of them that the checkpoint under way writes; a bit for each.
///
/// Invariant: the checkpoint has at least as many pages as are still to be written.
#[derive(Clone, Debug)]
pub(super) struct DirtyPages {
    /// Pages whose copy on flash differs from the map.
    dirty: BitSet,
    /// The pages that the checkpoint under way writes, and how many there were.
    to_write: BitSet,
    to_write_count: u64,
}

impl DirtyPages {
    /// So many pages, all of them clean.
    pub(super) fn new(pages: u32) -> DirtyPages {
        let clean = BitSet::new(pages.index());
        DirtyPages { dirty: clean.clone(), to_write: clean, to_write_count: 0 }
    }

    /// A page differs from its copy on flash.
    #[inline]
    pub(super) fn mark_dirty(&mut self, page: u32) {
        self.dirty.insert(page.index());
    }

    /// Whether a page differs from its copy on flash, or will when what is in the write buffer is there.
    #[inline]
    pub(super) fn is_dirty(&self, page: u32) -> bool {
        self.dirty.contains(page.index()) | self.to_write.contains(page.index())
    }

    /// A page was made of what is true now.
    #[inline]
    pub(super) fn mark_clean(&mut self, page: u32) {
        self.dirty.remove(page.index());
        self.to_write.remove(page.index());
    }

    /// A checkpoint begins, which writes all dirty pages.
    pub(super) fn begin(&mut self) {
        std::mem::swap(&mut self.dirty, &mut self.to_write);
        self.dirty.clear();
        self.to_write_count = self.remaining();
    }

    /// The pages that the checkpoint has to write, written ones included.
    pub(super) fn to_write_count(&self) -> u64 {
        self.to_write_count
    }

    /// The first page from this one on that the checkpoint has still to write.
    pub(super) fn next_to_write(&self, from: u32) -> Option<u32> {
        self.to_write.next_at(from.index()).map(|page| page.to_u32())
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

    /// Counts no page of the checkpoint, with one to be written.
    #[cfg(test)]
    pub(super) fn break_count(&mut self) {
        self.to_write.insert(0);
        self.to_write_count = 0;
    }
}
