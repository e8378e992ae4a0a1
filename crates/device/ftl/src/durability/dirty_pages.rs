//! [`DirtyPages`]: translation pages whose copies on flash are out of date.

use crate::check::{Subject, Violation, require_eq};
use crate::ids::{ToIndex, ToU32};

/// Pages that have changed, and those of them that the checkpoint under way writes; a bit for each.
///
/// Invariant: the checkpoint has at least as many pages as are still to be written.
#[derive(Clone, Debug)]
pub(super) struct DirtyPages {
    /// What a page says is not where its sectors are on the media.
    dirty: Box<[u64]>,
    /// The pages that the checkpoint under way writes, and how many there were.
    to_write: Box<[u64]>,
    to_write_count: u64,
}

impl DirtyPages {
    /// So many pages, all of them clean.
    pub(super) fn new(pages: u32) -> DirtyPages {
        let words = vec![0; pages.index().div_ceil(64)];
        DirtyPages { dirty: words.clone().into(), to_write: words.into(), to_write_count: 0 }
    }

    /// A page differs from its copy on flash.
    #[inline]
    pub(super) fn mark_dirty(&mut self, page: u32) {
        self.dirty[page.index() / 64] |= 1 << (page % 64);
    }

    /// Whether a page differs from its copy on flash, or will when what is in the write buffer is there.
    #[inline]
    pub(super) fn is_dirty(&self, page: u32) -> bool {
        let bits = self.dirty[page.index() / 64] | self.to_write[page.index() / 64];
        bits >> (page % 64) & 1 != 0
    }

    /// A page was made of what is true now.
    #[inline]
    pub(super) fn mark_clean(&mut self, page: u32) {
        self.dirty[page.index() / 64] &= !(1 << (page % 64));
        self.to_write[page.index() / 64] &= !(1 << (page % 64));
    }

    /// A checkpoint begins, which writes all dirty pages.
    pub(super) fn begin(&mut self) {
        std::mem::swap(&mut self.dirty, &mut self.to_write);
        self.dirty.fill(0);
        self.to_write_count = self.remaining();
    }

    /// The pages that the checkpoint has to write, written ones included.
    pub(super) fn to_write_count(&self) -> u64 {
        self.to_write_count
    }

    /// The first page from this one on that the checkpoint has still to write.
    pub(super) fn next_to_write(&self, from: u32) -> Option<u32> {
        let mut word = from.index() / 64;
        let mut bits = self.to_write.get(word)? & !0 << (from % 64);
        while bits == 0 {
            word += 1;
            bits = *self.to_write.get(word)?;
        }
        Some(word.to_u32() * 64 + bits.trailing_zeros())
    }

    fn remaining(&self) -> u64 {
        self.to_write.iter().map(|w| u64::from(w.count_ones())).sum()
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
        (self.to_write[0], self.to_write_count) = (1, 0);
    }
}
