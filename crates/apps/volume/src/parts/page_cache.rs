//! [`PageCache`]: file blocks in memory. Its size is fixed; clean pages are evicted by CLOCK (second chance).

use std::collections::BTreeSet;
use std::sync::Arc;

use collections::{ClockFrame, ClockFrames};
use mem::{AddressSpace, Iova, RegisterError, SharedRegion};

use crate::invariants::{VolumeViolation, require, require_eq};
use crate::{BLOCK, Ino};

/// Index of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageId(u32);

/// A block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileBlock {
    pub(crate) ino: Ino,
    pub(crate) block: u32,
}

impl std::fmt::Display for FileBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, block {}", self.ino, self.block)
    }
}

/// A block in memory. Only [`PageCache`] changes it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page {
    /// The file and block.
    pub(crate) owner: Option<FileBlock>,
    /// The page is being read; its contents are not valid yet.
    pub(crate) loading: bool,
    /// Changed since it was last sent to the device.
    pub(crate) dirty: bool,
    /// Being written to the device.
    pub(crate) writing: bool,
    /// Sequence numbers of its changes.
    seq: ChangeSeq,
    /// Its contents and ordered barriers.
    pub(crate) order: PageOrder,
    /// A free block is promised to it, or a free unit to it and other pages of the unit.
    pub(crate) has_delalloc: bool,
    /// Bytes from the start of the block that are on the device as part of the file, with current
    /// or older contents.
    pub(crate) on_device_bytes: u32,
    /// Range changed since it was last sent to the device or the journal.
    pub(crate) dirty_range: ByteRange,
    /// The first transaction with bytes of it that are neither in place nor being written; 0 for
    /// none.
    pub(crate) journaled_txn: u64,
    /// The last such transaction.
    pub(crate) last_journaled_txn: u64,
    /// The journaled bytes include the whole block.
    pub(crate) is_journaled_whole: bool,
    /// Its changes that must reach the device together with those of other pages.
    pub(crate) whole: WholeWrite,
    /// Those being written.
    sent_whole: WholeWrite,
    referenced: bool,
}

/// Sequence numbers of a page's changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ChangeSeq {
    /// The change that made it dirty.
    dirty: u64,
    /// The contents being written; `u64::MAX` if they are journaled.
    sent: u64,
}

/// The barriers that cover a page's contents ([`BarrierOrder`]).
///
/// [`BarrierOrder`]: crate::parts::barrier_order::BarrierOrder
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageOrder {
    /// Epoch of the oldest change that was not sent to the device or the journal.
    pub(crate) first_epoch: u64,
    /// Epoch of the newest contents.
    pub(crate) last_epoch: u64,
    pub(crate) side: BarrierSide,
}

/// When a dirty page changed last, while a barrier is pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BarrierSide {
    /// The page is not dirty, or no barrier is pending.
    #[default]
    None,
    /// Before the oldest pending barrier.
    Before,
    /// After it.
    After,
}

/// Numbers of dirty pages before and after the oldest pending barrier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BarrierPages {
    /// Epoch of changes made now.
    epoch: u64,
    /// A barrier is pending, and the pages are counted.
    is_counting: bool,
    pub(crate) before: usize,
    pub(crate) after: usize,
}

impl BarrierPages {
    /// Records that a page is dirty on another side, or clean.
    fn move_to(&mut self, order: &mut PageOrder, side: BarrierSide) {
        match order.side {
            BarrierSide::None => {}
            BarrierSide::Before => self.before -= 1,
            BarrierSide::After => self.after -= 1,
        }
        match side {
            BarrierSide::None => {}
            BarrierSide::Before => self.before += 1,
            BarrierSide::After => self.after += 1,
        }
        order.side = side;
    }
}

/// Part of a page in a write that must be kept whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WholeWrite {
    /// The page has changes of such a write.
    pub(crate) is_part: bool,
    /// A write changed both this page and the one of the file's next block.
    pub(crate) joins_next: bool,
}

impl WholeWrite {
    fn union(self, other: WholeWrite) -> WholeWrite {
        WholeWrite {
            is_part: self.is_part || other.is_part,
            joins_next: self.joins_next || other.joins_next,
        }
    }
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
        self.is_unsent(seq) || self.writing && self.seq.sent <= seq
    }

    /// Returns whether a change up to `seq` is not even being written.
    pub(crate) fn is_unsent(&self, seq: u64) -> bool {
        self.dirty && self.seq.dirty <= seq
    }

    /// Returns whether contents that are not journaled are being written.
    pub(crate) fn is_sending(&self) -> bool {
        self.writing && self.seq.sent < u64::MAX
    }
}

impl ClockFrame for Page {
    fn is_evictable(&self) -> bool {
        !self.is_only_copy() && !self.loading
    }

    fn take_referenced(&mut self) -> bool {
        std::mem::take(&mut self.referenced)
    }
}

/// A page allocated to a block, and the evicted block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocatedPage {
    pub(crate) id: PageId,
    pub(crate) evicted: Option<FileBlock>,
}

/// State of a page whose write in place has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenPage {
    /// The block has, or had, journaled data.
    pub(crate) was_journaled: bool,
    /// The page changed during the write.
    pub(crate) is_dirty: bool,
}

/// The pages with journaled bytes that are not in place. Allocates nothing.
#[derive(Debug)]
struct JournaledPages {
    ids: Vec<PageId>,
    /// By page: its position in `ids`, if it is there.
    positions: Vec<u32>,
    /// Position of the page with which the next search for pages to be written begins. It may be
    /// past the end.
    next: usize,
}

impl JournaledPages {
    fn new(pages: u32) -> JournaledPages {
        JournaledPages {
            ids: Vec::with_capacity(pages as usize),
            positions: vec![0; pages as usize],
            next: 0,
        }
    }

    fn insert(&mut self, id: PageId) {
        self.positions[id.0 as usize] = self.ids.len() as u32;
        self.ids.push(id);
    }

    fn remove(&mut self, id: PageId) {
        let at = self.positions[id.0 as usize];
        self.ids.swap_remove(at as usize);
        if let Some(moved) = self.ids.get(at as usize) {
            self.positions[moved.0 as usize] = at;
        }
    }
}

/// All pages.
#[derive(Debug)]
pub(crate) struct PageCache {
    pages: ClockFrames<Page>,
    region: Arc<SharedRegion>,
    iova: Iova,
    /// Sequence number of the last page that became dirty.
    dirty_seq: u64,
    /// Pages that cannot be evicted: dirty, being written, or with journaled bytes that are not in
    /// place.
    unevictable: usize,
    journaled: JournaledPages,
    /// Pages that are being read.
    loading: usize,
    barrier: BarrierPages,
}

impl PageCache {
    pub(crate) fn new(memory: &AddressSpace, count: u32) -> Result<PageCache, RegisterError> {
        let (region, iova) = memory.allocate_registered(count as usize * BLOCK)?;
        Ok(PageCache {
            pages: ClockFrames::new(vec![Page::default(); count as usize], 0),
            region,
            iova,
            dirty_seq: 0,
            unevictable: 0,
            journaled: JournaledPages::new(count),
            loading: 0,
            barrier: BarrierPages { epoch: 1, is_counting: false, before: 0, after: 0 },
        })
    }

    /// Returns whether this many blocks without a page that cannot be evicted can get one now.
    pub(crate) fn can_allocate(&self, count: usize) -> bool {
        self.unevictable + self.loading + count <= self.len()
    }

    /// Records that a change of a page is part of a write that must be kept whole; `joins_next` if
    /// the write also changes the page of the file's next block.
    pub(crate) fn mark_whole(&mut self, id: PageId, joins_next: bool) {
        let page = self.get_mut(id);
        page.whole = page.whole.union(WholeWrite { is_part: true, joins_next });
    }

    pub(crate) fn set_delalloc(&mut self, id: PageId, has_delalloc: bool) {
        self.get_mut(id).has_delalloc = has_delalloc;
    }

    pub(crate) fn get(&self, id: PageId) -> &Page {
        &self.pages[id.0]
    }

    fn get_mut(&mut self, id: PageId) -> &mut Page {
        &mut self.pages[id.0]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Page> {
        self.pages.iter()
    }

    /// Returns the number of pages that differ from the device.
    pub(crate) fn dirty_len(&self) -> usize {
        self.unevictable
    }

    /// Returns the number of pages with journaled bytes that are not in place.
    pub(crate) fn journaled_len(&self) -> usize {
        self.journaled.ids.len()
    }

    /// Returns the next one of them, in a cycle: the same one until
    /// [`skip_journaled`](PageCache::skip_journaled).
    pub(crate) fn next_journaled(&self) -> Option<&Page> {
        let JournaledPages { ids, next, .. } = &self.journaled;
        let id = ids.get(*next).or(ids.first())?;
        Some(self.get(*id))
    }

    /// Goes on to the one after [`next_journaled`](PageCache::next_journaled).
    pub(crate) fn skip_journaled(&mut self) {
        let JournaledPages { ids, next, .. } = &mut self.journaled;
        *next = if *next < ids.len() { *next + 1 } else { 1 };
    }

    /// Returns the sequence number of the last page that became dirty.
    pub(crate) fn dirty_seq(&self) -> u64 {
        self.dirty_seq
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

    /// Allocates a page for a block. Returns `None` if no page is evictable.
    pub(crate) fn allocate(&mut self, owner: FileBlock) -> Option<AllocatedPage> {
        let fresh = Page { owner: Some(owner), referenced: true, ..Page::default() };
        let free = self.pages.take_free();
        let id = free.or_else(|| self.pages.pick_victim(2 * self.pages.len(), |_| true))?;
        let evicted = std::mem::replace(&mut self.pages[id], fresh).owner;
        Some(AllocatedPage { id: PageId(id), evicted })
    }

    /// Frees a page.
    pub(crate) fn free(&mut self, id: PageId) {
        self.leave_barrier(id);
        let frame = std::mem::take(self.get_mut(id));
        assert!(frame.owner.is_some(), "pages: {id:?} is freed twice");
        self.unevictable -= usize::from(frame.is_only_copy());
        if frame.journaled_txn > 0 {
            self.journaled.remove(id);
        }
        self.loading -= usize::from(frame.loading);
        self.pages.release(id.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len() as usize
    }

    /// Begins to read a block into its page.
    pub(crate) fn begin_load(&mut self, id: PageId) {
        self.get_mut(id).loading = true;
        self.loading += 1;
    }

    /// Ends the read of a block; its first `file_bytes` bytes are part of the file.
    pub(crate) fn end_load(&mut self, id: PageId, file_bytes: u32) {
        assert!(self.get(id).loading, "pages: {id:?} was read, and was not being read");
        self.get_mut(id).loading = false;
        self.loading -= 1;
        self.zero(id, file_bytes as usize, BLOCK);
        self.get_mut(id).on_device_bytes = file_bytes;
    }

    /// Initializes a page without reading its block: whether a free block is promised to it, and
    /// its bytes on the device.
    pub(crate) fn set_fresh(&mut self, id: PageId, has_delalloc: bool, on_device_bytes: u32) {
        let page = self.get_mut(id);
        (page.has_delalloc, page.on_device_bytes) = (has_delalloc, on_device_bytes);
    }

    /// Makes the next write of a page include the whole block.
    pub(crate) fn extend_dirty_range(&mut self, id: PageId) {
        self.get_mut(id).dirty_range = ByteRange::ALL;
    }

    /// Limits the bytes on the device, after a truncation that zeroed the rest of the page.
    pub(crate) fn limit_on_device_bytes(&mut self, id: PageId, bytes: u32) {
        let page = self.get_mut(id);
        page.on_device_bytes = page.on_device_bytes.min(bytes);
        self.record_epoch(id);
    }

    /// Records a change.
    pub(crate) fn mark_dirty(&mut self, id: PageId, span: ByteRange) {
        let page = &mut self.pages[id.0];
        page.dirty_range = page.dirty_range.union(span);
        if !page.dirty {
            self.unevictable += usize::from(!page.is_only_copy());
            page.dirty = true;
            self.dirty_seq += 1;
            page.seq.dirty = self.dirty_seq;
            (page.order.first_epoch, page.order.side) = (self.barrier.epoch, BarrierSide::None);
        }
        self.record_epoch(id);
    }

    /// Records that the contents of a page have a change made now.
    fn record_epoch(&mut self, id: PageId) {
        let page = &mut self.pages[id.0];
        page.order.last_epoch = self.barrier.epoch;
        if self.barrier.is_counting && page.dirty {
            self.barrier.move_to(&mut page.order, BarrierSide::After);
        }
    }

    /// Records that a page is sent to the device or the journal, or freed.
    fn leave_barrier(&mut self, id: PageId) {
        let page = &mut self.pages[id.0];
        if self.barrier.is_counting && page.dirty {
            self.barrier.move_to(&mut page.order, BarrierSide::None);
        }
    }

    /// Sets the epoch of changes made from now on.
    pub(crate) fn set_epoch(&mut self, epoch: u64) {
        self.barrier.epoch = epoch;
    }

    /// Starts to count pages before and after a barrier; there are none yet.
    pub(crate) fn begin_counting(&mut self) {
        self.barrier.is_counting = true;
        (self.barrier.before, self.barrier.after) = (0, 0);
    }

    /// Counts a page that was dirty when the barrier was acknowledged.
    pub(crate) fn count_before(&mut self, id: PageId) {
        let page = &mut self.pages[id.0];
        // A side that an earlier barrier left is meaningless.
        page.order.side = BarrierSide::None;
        if page.dirty {
            self.barrier.move_to(&mut page.order, BarrierSide::Before);
        }
    }

    /// Ends the counting: no barrier is pending.
    pub(crate) fn end_counting(&mut self) {
        self.barrier.is_counting = false;
        (self.barrier.before, self.barrier.after) = (0, 0);
    }

    /// Returns whether pages are counted.
    pub(crate) fn is_counting(&self) -> bool {
        self.barrier.is_counting
    }

    /// Returns the numbers of dirty pages before and after the oldest pending barrier.
    pub(crate) fn barrier_pages(&self) -> BarrierPages {
        self.barrier
    }

    /// Records that the changes of a page are in a transaction, with the bytes of `span`;
    /// `file_bytes` of the block are part of the file.
    pub(crate) fn mark_journaled(
        &mut self,
        id: PageId,
        txn: u64,
        span: ByteRange,
        file_bytes: u32,
    ) {
        self.leave_barrier(id);
        let page = &mut self.pages[id.0];
        assert!(page.dirty, "pages: {id:?} without changes is journaled");
        (page.dirty, page.dirty_range) = (false, ByteRange::default());
        page.whole = WholeWrite::default();
        page.is_journaled_whole |= span == ByteRange::ALL;
        page.last_journaled_txn = txn;
        page.on_device_bytes = file_bytes;
        let is_new = page.journaled_txn == 0;
        // A transaction with the whole block supersedes earlier ones.
        if is_new || span == ByteRange::ALL {
            page.journaled_txn = txn;
        }
        if is_new {
            self.journaled.insert(id);
        }
    }

    /// Keeps a page whose contents are only in the journal, on a read-only volume.
    pub(crate) fn pin_journaled(&mut self, id: PageId, is_hole: bool) {
        let page = self.get_mut(id);
        (page.journaled_txn, page.has_delalloc) = (1, is_hole);
        self.journaled.insert(id);
        self.unevictable += 1;
    }

    /// Begins the write of a page in place. Returns whether a free block was promised to it.
    pub(crate) fn begin_write(&mut self, id: PageId) -> bool {
        self.leave_barrier(id);
        let page = self.get_mut(id);
        assert!(
            page.is_only_copy() && !page.writing,
            "pages: {id:?} is written, and is clean or being written"
        );
        page.seq.sent = if page.dirty { page.seq.dirty } else { u64::MAX };
        (page.dirty, page.writing, page.dirty_range) = (false, true, ByteRange::default());
        page.sent_whole = std::mem::take(&mut page.whole);
        std::mem::take(&mut page.has_delalloc)
    }

    /// Ends the write of a page in place; `file_bytes` of the block are part of the file.
    pub(crate) fn end_write(&mut self, id: PageId, file_bytes: u32) -> WrittenPage {
        let page = self.end_writing(id);
        let was_journaled = page.journaled_txn > 0;
        page.on_device_bytes = file_bytes;
        (page.journaled_txn, page.is_journaled_whole) = (0, false);
        let is_dirty = page.dirty;
        if was_journaled {
            self.journaled.remove(id);
        }
        self.unevictable -= usize::from(!is_dirty);
        WrittenPage { was_journaled, is_dirty }
    }

    /// Ends a failed write.
    pub(crate) fn fail_write(&mut self, id: PageId) -> WrittenPage {
        self.end_writing(id);
        let page = &mut self.pages[id.0];
        // Unless the contents sent were journaled.
        if page.seq.sent < u64::MAX {
            page.whole = page.whole.union(page.sent_whole);
            page.dirty_range = ByteRange::ALL;
            page.order.first_epoch = 0;
            if !std::mem::replace(&mut page.dirty, true) {
                (page.seq.dirty, page.order.side) = (page.seq.sent, BarrierSide::None);
                if self.barrier.is_counting {
                    self.barrier.move_to(&mut page.order, BarrierSide::Before);
                }
            }
        }
        WrittenPage { was_journaled: page.journaled_txn > 0, is_dirty: page.dirty }
    }

    fn end_writing(&mut self, id: PageId) -> &mut Page {
        let page = self.get_mut(id);
        assert!(page.writing, "pages: {id:?} was written, and was not being written");
        page.writing = false;
        page
    }

    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        let unevictable = self.pages.iter().filter(|page| page.is_only_copy()).count();
        require_eq!(
            Pages,
            "the count of pages that differ from the device",
            "all pages",
            unevictable,
            self.unevictable
        );
        let journaled = self.pages.iter().filter(|page| page.journaled_txn > 0).count();
        let listed =
            self.journaled.ids.iter().filter(|id| self.get(**id).journaled_txn > 0).count();
        require_eq!(
            Pages,
            "the journaled pages are listed",
            "all pages",
            (journaled, journaled),
            (listed, self.journaled.ids.len())
        );
        let listed = self.pages.free_indices();
        let free: BTreeSet<u32> = listed.iter().copied().collect();
        require_eq!(Pages, "a free page is free once", "all pages", free.len(), listed.len());
        if self.barrier.is_counting {
            let count =
                |side| self.pages.iter().filter(|p| p.dirty && p.order.side == side).count();
            require_eq!(
                Pages,
                "the counts of dirty pages before and after a barrier",
                "all pages",
                (0, count(BarrierSide::Before), count(BarrierSide::After)),
                (count(BarrierSide::None), self.barrier.before, self.barrier.after)
            );
        }
        let loading = self.pages.iter().filter(|page| page.loading).count();
        require_eq!(Pages, "the count of pages being read", "all pages", loading, self.loading);
        for (index, page) in (0..).zip(self.pages.iter()) {
            let subject = format_args!("page {index}");
            let is_free = free.contains(&index);
            require_eq!(
                Pages,
                "a page is free or has a block",
                subject,
                is_free,
                page.owner.is_none()
            );
            require!(
                !(page.loading && page.is_only_copy()),
                Pages,
                "a page that is being read has no changes",
                subject,
                "no changes",
                page
            );
            require!(
                page.dirty || !page.whole.is_part,
                Pages,
                "a page with a part of a write to be kept whole has changes",
                subject,
                "changes",
                page
            );
            require!(
                page.seq.dirty <= self.dirty_seq,
                Pages,
                "a change has a sequence number",
                subject,
                self.dirty_seq,
                page.seq.dirty
            );
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_count(&mut self) {
        self.journaled.ids.push(PageId(0));
    }
}
