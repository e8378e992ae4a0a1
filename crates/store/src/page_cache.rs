//! [`Frames`]: blocks of files in memory. Their number is given once; clean ones go by CLOCK (second
//! chance) when another is needed.

use std::sync::Arc;

use ring::{AddressSpace, Iova, RegisterError, SharedRegion};

use crate::{BLOCK, Ino};

/// A frame's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageId(pub(crate) u32);

/// A block in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page {
    /// Whose it is.
    pub(crate) owner: Option<(Ino, u32)>,
    /// It is being read: what is in it means nothing yet.
    pub(crate) loading: bool,
    /// It was changed since it was last sent to the device.
    pub(crate) dirty: bool,
    /// It is on its way there.
    pub(crate) writing: bool,
    /// When it became dirty, by number; and that of what is on its way, if it was dirty.
    pub(crate) seq: u64,
    pub(crate) sent_seq: u64,
    /// A free block is promised to it.
    pub(crate) has_delalloc: bool,
    /// How much of the block, from its beginning, is on the device as a part of the file: as it is here,
    /// or as it was.
    pub(crate) on_device_bytes: u32,
    /// Where it was changed since it was last sent to the device, or to the journal.
    pub(crate) dirty_range: ByteRange,
    /// The first transaction with bytes of it that are not in place, or on their way there; 0 if there is none.
    pub(crate) journaled_txn: u64,
    referenced: bool,
}

/// Some bytes of a block: from, to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByteRange(pub(crate) usize, pub(crate) usize);

impl ByteRange {
    pub(crate) const ALL: ByteRange = ByteRange(0, BLOCK);

    /// The shortest one that has both.
    pub(crate) fn union(self, other: ByteRange) -> ByteRange {
        if self == ByteRange::default() {
            return other;
        }
        ByteRange(self.0.min(other.0), self.1.max(other.1))
    }
}

impl Page {
    /// Whether it is all that there is of some bytes, or of some bytes in place.
    pub(crate) fn is_only_copy(&self) -> bool {
        self.dirty || self.writing || self.journaled_txn > 0
    }

    /// Whether a change made up to `seq` is not at the device.
    pub(crate) fn is_unwritten(&self, seq: u64) -> bool {
        self.dirty && self.seq <= seq || self.writing && self.sent_seq <= seq
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct PageCache {
    pages: Vec<Page>,
    free: Vec<PageId>,
    hand: usize,
    region: Arc<SharedRegion>,
    iova: Iova,
    /// Frames that cannot go: dirty, on their way, or in place nowhere but in the journal.
    pub(crate) dirty: usize,
    /// Those of which the journal has bytes that are not in place.
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

    /// The frame at a place among all.
    pub(crate) fn by_index(&self, index: usize) -> &Page {
        &self.pages[index]
    }

    pub(crate) fn get_mut(&mut self, id: PageId) -> &mut Page {
        &mut self.pages[id.0 as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Page> {
        self.pages.iter()
    }

    /// Where a frame is, for the device.
    pub(crate) fn iova(&self, id: PageId) -> Iova {
        self.iova.offset(id.0 as u64 * BLOCK as u64)
    }

    /// Where a byte of a frame is, for copies.
    pub(crate) fn location(&self, id: PageId, offset: usize) -> (&SharedRegion, usize) {
        (&self.region, id.0 as usize * BLOCK + offset)
    }

    pub(crate) fn zero(&self, id: PageId, from: usize, to: usize) {
        if from < to {
            self.region.fill(id.0 as usize * BLOCK + from, to - from, 0);
        }
    }

    /// Somebody looked at it.
    pub(crate) fn touch(&mut self, id: PageId) {
        self.get_mut(id).referenced = true;
    }

    /// A frame for a block; what it held before is said, and is to be forgotten. `None` if none can go.
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

    /// A frame is nobody's any more.
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
