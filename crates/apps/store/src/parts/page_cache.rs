//! [`PageCache`]: file blocks in memory. Its size is fixed; clean pages are evicted by CLOCK (second chance).

use std::sync::Arc;

use ring::{AddressSpace, Iova, RegisterError, SharedRegion};

use crate::{BLOCK, Ino};

/// Index of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageId(pub(crate) u32);

/// A block in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page {
    /// The file and block.
    pub(crate) owner: Option<(Ino, u32)>,
    /// The page is being read; its contents are not valid yet.
    pub(crate) loading: bool,
    /// Changed since it was last sent to the device.
    pub(crate) dirty: bool,
    /// Being written to the device.
    pub(crate) writing: bool,
    /// Sequence number of the change that made it dirty; and that of the contents being written.
    pub(crate) seq: u64,
    pub(crate) sent_seq: u64,
    /// A free block is promised to it.
    pub(crate) has_delalloc: bool,
    /// Bytes from the start of the block that are on the device as part of the file, with current
    /// or older contents.
    pub(crate) on_device_bytes: u32,
    /// Range changed since it was last sent to the device or the journal.
    pub(crate) dirty_range: ByteRange,
    /// The first transaction with bytes of it that are neither in place nor being written; 0 for
    /// none.
    pub(crate) journaled_txn: u64,
    referenced: bool,
}

/// A byte range of a block: begin and end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByteRange(pub(crate) usize, pub(crate) usize);

impl ByteRange {
    pub(crate) const ALL: ByteRange = ByteRange(0, BLOCK);

    /// Returns the smallest range that contains both.
    pub(crate) fn union(self, other: ByteRange) -> ByteRange {
        if self == ByteRange::default() {
            return other;
        }
        ByteRange(self.0.min(other.0), self.1.max(other.1))
    }
}

impl Page {
    /// Returns whether the page is the only copy of some bytes, or their only copy outside the
    /// journal.
    pub(crate) fn is_only_copy(&self) -> bool {
        self.dirty || self.writing || self.journaled_txn > 0
    }

    /// Returns whether a change up to `seq` is not on the device.
    pub(crate) fn is_unwritten(&self, seq: u64) -> bool {
        self.dirty && self.seq <= seq || self.writing && self.sent_seq <= seq
    }
}

/// All pages.
#[derive(Debug)]
pub(crate) struct PageCache {
    pages: Vec<Page>,
    free: Vec<PageId>,
    hand: usize,
    region: Arc<SharedRegion>,
    iova: Iova,
    /// Pages that cannot be evicted: dirty, being written, or with journaled bytes that are not in
    /// place.
    pub(crate) dirty: usize,
    /// Pages with journaled bytes that are not in place.
    pub(crate) journaled: usize,
}

impl PageCache {
    pub(crate) fn new(memory: &AddressSpace, count: u32) -> Result<PageCache, RegisterError> {
        let (region, at) = memory.allocate_registered(count as usize * BLOCK)?;
        let frames = vec![Page::default(); count as usize];
        let free = (0..count).rev().map(PageId).collect();
        Ok(PageCache { pages: frames, free, hand: 0, region, iova: at, dirty: 0, journaled: 0 })
    }

    pub(crate) fn get(&self, id: PageId) -> &Page {
        &self.pages[id.0 as usize]
    }

    /// Returns the page with an index.
    pub(crate) fn by_index(&self, index: usize) -> &Page {
        &self.pages[index]
    }

    pub(crate) fn get_mut(&mut self, id: PageId) -> &mut Page {
        &mut self.pages[id.0 as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Page> {
        self.pages.iter()
    }

    /// Returns the device address of a page.
    pub(crate) fn iova(&self, id: PageId) -> Iova {
        self.iova.offset(id.0 as u64 * BLOCK as u64)
    }

    /// Returns the location of a byte of a page, for copies.
    pub(crate) fn location(&self, id: PageId, offset: usize) -> (&SharedRegion, usize) {
        (&self.region, id.0 as usize * BLOCK + offset)
    }

    pub(crate) fn zero(&self, id: PageId, from: usize, to: usize) {
        if from < to {
            self.region.fill(id.0 as usize * BLOCK + from, to - from, 0);
        }
    }

    /// Records a use of a page.
    pub(crate) fn touch(&mut self, id: PageId) {
        self.get_mut(id).referenced = true;
    }

    /// Allocates a page for a block; the second value is the evicted block. Returns `None` if no
    /// page is evictable.
    pub(crate) fn allocate(&mut self, owner: (Ino, u32)) -> Option<(PageId, Option<(Ino, u32)>)> {
        let fresh = Page { owner: Some(owner), referenced: true, ..Page::default() };
        if let Some(id) = self.free.pop() {
            *self.get_mut(id) = fresh;
            return Some((id, None));
        }
        for _ in 0..2 * self.pages.len() {
            let at = self.hand;
            self.hand = (at + 1) % self.pages.len();
            let frame = &mut self.pages[at];
            if frame.is_only_copy() || frame.loading {
                continue;
            }
            if std::mem::take(&mut frame.referenced) {
                continue;
            }
            let before = std::mem::replace(frame, fresh).owner;
            return Some((PageId(at as u32), before));
        }
        None
    }

    /// Frees a page.
    pub(crate) fn free(&mut self, id: PageId) {
        let frame = std::mem::take(self.get_mut(id));
        self.dirty -= usize::from(frame.is_only_copy());
        self.journaled -= usize::from(frame.journaled_txn > 0);
        self.free.push(id);
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }
}
