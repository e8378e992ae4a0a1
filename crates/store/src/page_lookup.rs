//! Blocks of files in memory: finding, loading, changing and forgetting them.
//!
//! In a frame, whatever is beyond the end of its file is zeros. On the device it need not be: a block is
//! written before the size that covers it is durable. So what becomes part of a file by growing is made
//! zeros on the device first ([`Core::zero_tail`]).

use nvme::Status;
use ring::{Iova, SharedRegion};

use crate::core::{ActiveOp, Core, TransferPurpose};
use crate::extents::{BlockMapping, Extent};
use crate::page_cache::{ByteRange, PageId};
use crate::replay::CompleteBlock;
use crate::{BLOCK, Error, Ino};

/// A block for a change: there, or to be waited for.
pub(crate) enum LookupResult {
    Ready(PageId),
    Wait,
}

/// How many bytes of a block belong to a file of this size.
pub(crate) fn bytes_within(size: u64, block: u32) -> u32 {
    size.saturating_sub(u64::from(block) * BLOCK as u64).min(BLOCK as u64) as u32
}

impl Core {
    /// The frame of a block, if there is one.
    pub(crate) fn find_page(&self, ino: Ino, block: u32) -> Option<PageId> {
        self.tree.find(ino)?.state.pages.get(&block).copied()
    }

    /// A frame for a block that has none.
    fn allocate_page(&mut self, ino: Ino, block: u32) -> Option<PageId> {
        let (id, before) = self.page_cache.allocate((ino, block))?;
        if let Some((owner, was)) = before
            && let Some(node) = self.tree.find_mut(owner)
        {
            node.state.pages.remove(&was);
        }
        self.tree.find_mut(ino)?.state.pages.insert(block, id);
        Some(id)
    }

    /// Begins to read a block into a frame; `None` if there is no frame now.
    pub(crate) fn load_page(&mut self, ino: Ino, block: u32, phys: u32) -> Option<PageId> {
        let frame = self.allocate_page(ino, block)?;
        self.page_cache.get_mut(frame).loading = true;
        if let Some(node) = self.tree.find_mut(ino) {
            node.state.io_in_flight += 1;
        }
        let at = self.page_cache.iova(frame);
        self.read_blocks(TransferPurpose::Load { ino, block, page: frame }, (phys, 1), at);
        Some(frame)
    }

    pub(crate) fn on_page_loaded(&mut self, ino: Ino, block: u32, frame: PageId, status: Status) {
        self.page_cache.get_mut(frame).loading = false;
        let Some(node) = self.tree.find_mut(ino) else { return };
        node.state.io_in_flight -= 1;
        let end = bytes_within(node.size, block);
        if status.is_success() {
            self.page_cache.zero(frame, end as usize, BLOCK);
            self.page_cache.get_mut(frame).on_device_bytes = end;
            return;
        }
        node.state.pages.remove(&block);
        self.page_cache.free(frame);
        for active in self.slots.iter_mut().flatten() {
            if active.pinned_inode == Some(ino) && active.awaited_block == Some(block) {
                active.failed.get_or_insert(status);
            }
        }
    }

    /// A block that is in the journal, and nowhere else, of a volume that is only read: it stays.
    pub(crate) fn pin_journaled_block(&mut self, whole: &CompleteBlock) {
        let CompleteBlock { ino, block, ref bytes } = *whole;
        let Some(id) = self.allocate_page(ino, block) else { return };
        let (region, at) = self.page_cache.location(id, 0);
        region.write(at, bytes);
        let hole = self.tree.find(ino).map(|n| n.extents.find(block));
        let frame = self.page_cache.get_mut(id);
        (frame.journaled_txn, frame.has_delalloc) =
            (1, matches!(hole, Some(BlockMapping::Hole { .. })));
        self.page_cache.journaled += 1;
        self.page_cache.dirty += 1;
    }

    /// A block that a request is to change; `whole` if nothing of what it holds stays. One that has room of its own
    /// gives some of it to everybody, and takes what it needs as everybody does.
    pub(crate) fn page_for_write(
        &mut self,
        active: &mut ActiveOp,
        ino: Ino,
        block: u32,
        whole: bool,
    ) -> Result<LookupResult, Error> {
        let own = active.reserved_blocks.min(1);
        self.allocator.unreserve(own);
        active.reserved_blocks -= own;
        let found = self.find_page_for_write(active, ino, block, whole);
        if own > 0 && !matches!(found, Ok(LookupResult::Ready(_))) {
            // Nobody took it meanwhile.
            active.reserved_blocks += u64::from(self.allocator.reserve(own));
        }
        found
    }

    fn find_page_for_write(
        &mut self,
        active: &mut ActiveOp,
        ino: Ino,
        block: u32,
        whole: bool,
    ) -> Result<LookupResult, Error> {
        if let Some(status) = active.failed {
            return Err(Error::Io { status });
        }
        active.awaited_block = None;
        if let Some(frame) = self.find_page(ino, block) {
            let state = *self.page_cache.get(frame);
            if state.loading {
                active.awaited_block = Some(block);
                return Ok(LookupResult::Wait);
            }
            if !state.is_only_copy() && !self.can_dirty()? {
                return Ok(LookupResult::Wait);
            }
            self.page_cache.touch(frame);
            return Ok(LookupResult::Ready(frame));
        }
        if !self.can_dirty()? {
            return Ok(LookupResult::Wait);
        }
        let node = self.tree.get(ino)?;
        let place = node.extents.find(block);
        let beyond = u64::from(block) * BLOCK as u64 >= node.size;
        if let BlockMapping::Extent(Extent { phys, written: true, .. }) = place
            && !whole
            && !beyond
        {
            active.awaited_block = Some(block);
            if self.load_page(ino, block, phys).is_none() {
                self.force_writeback()?;
            }
            return Ok(LookupResult::Wait);
        }
        // What is there, zeros of a hole included, is a part of the file already.
        let on_device = bytes_within(node.size, block);
        let hole = matches!(place, BlockMapping::Hole { .. });
        if hole && !self.allocator.reserve_delalloc(1) {
            return if self.has_pending_frees() {
                Ok(LookupResult::Wait)
            } else {
                Err(Error::NoSpace)
            };
        }
        let Some(frame) = self.allocate_page(ino, block) else {
            if hole {
                self.allocator.release_delalloc(1);
            }
            self.force_writeback()?;
            return Ok(LookupResult::Wait);
        };
        let state = self.page_cache.get_mut(frame);
        (state.has_delalloc, state.on_device_bytes) = (hole, on_device);
        if matches!(place, BlockMapping::Extent(Extent { written: true, .. })) {
            // What the block holds is not what the file has here.
            state.dirty_range = ByteRange::ALL;
        }
        if !whole {
            self.page_cache.zero(frame, 0, BLOCK);
        }
        Ok(LookupResult::Ready(frame))
    }

    /// Whether another frame may become dirty. If not, it is seen to.
    fn can_dirty(&mut self) -> Result<bool, Error> {
        let full = self.page_cache.dirty + 1 > self.page_cache.len() / 4 * 3;
        if !full && self.has_metadata_space(2 * crate::record::EXTENT_BYTES) {
            return Ok(true);
        }
        if self.page_cache.dirty == 0 {
            return Err(Error::NoMetadataSpace);
        }
        self.force_writeback()?;
        Ok(false)
    }

    /// Some bytes of a block were changed in memory.
    pub(crate) fn mark_dirty(&mut self, ino: Ino, block: u32, id: PageId, span: ByteRange) {
        let frame = self.page_cache.get_mut(id);
        frame.dirty_range = frame.dirty_range.union(span);
        if !frame.dirty {
            let counted = frame.is_only_copy();
            frame.dirty = true;
            self.dirty_seq += 1;
            frame.seq = self.dirty_seq;
            self.page_cache.dirty += usize::from(!counted);
        }
        let now = self.now;
        let Some(node) = self.tree.find_mut(ino) else { return };
        node.state.dirty.insert(block);
        if !std::mem::replace(&mut node.state.in_dirty_queue, true) {
            self.dirty_inodes.push_back((now, ino));
        }
    }

    /// Moves a file's recorded size up to where the first byte is that is not on the device.
    pub(crate) fn update_recorded_size(&mut self, ino: Ino) {
        let Some(node) = self.tree.find_mut(ino) else { return };
        while node.recorded_size < node.size {
            let block = (node.recorded_size / BLOCK as u64) as u32;
            let Some(&dirty) = node.state.dirty.range_from(block).next() else {
                node.recorded_size = node.size;
                return;
            };
            let begin = u64::from(dirty) * BLOCK as u64;
            let frame = node.state.pages.get(&dirty);
            let there = frame.map_or(0, |id| self.page_cache.get(*id).on_device_bytes);
            let to = (begin + u64::from(there)).min(node.size);
            if to <= node.recorded_size.max(begin.min(node.size)) {
                node.recorded_size = node.recorded_size.max(begin.min(node.size));
                return;
            }
            node.recorded_size = to;
            if (there as usize) < BLOCK {
                return;
            }
        }
    }

    /// Before a file grows: what its last block holds behind the end becomes zeros on the device, before
    /// the new size is recorded. `false` while that waits.
    pub(crate) fn zero_tail(&mut self, active: &mut ActiveOp, ino: Ino) -> Result<bool, Error> {
        let node = self.tree.get(ino)?;
        if active.zeroed > 0 || node.size.is_multiple_of(BLOCK as u64) {
            return Ok(true);
        }
        let block = (node.size / BLOCK as u64) as u32;
        let written =
            matches!(node.extents.find(block), BlockMapping::Extent(Extent { written: true, .. }));
        if !written && !node.state.pages.contains_key(&block) {
            return Ok(true);
        }
        let end = (node.size % BLOCK as u64) as usize;
        match self.page_for_write(active, ino, block, false)? {
            LookupResult::Ready(frame) => {
                self.mark_dirty(ino, block, frame, ByteRange(end, BLOCK));
                active.zeroed = 1;
                Ok(true)
            }
            LookupResult::Wait => Ok(false),
        }
    }

    /// Forgets frames of blocks from `from` on, to `to`. None of them is at the device. Returns whether
    /// the journal has data of any.
    pub(crate) fn invalidate(&mut self, ino: Ino, from: u32, to: u32) -> bool {
        let Some(node) = self.tree.find_mut(ino) else { return false };
        let mut logged = false;
        while let Some((&block, &id)) = node.state.pages.range(from..to).next() {
            node.state.pages.remove(&block);
            node.state.dirty.remove(block);
            node.state.journaled.remove(block);
            logged |= self.page_cache.get(id).journaled_txn > 0;
            if self.page_cache.get(id).has_delalloc {
                self.allocator.release_delalloc(1);
            }
            self.page_cache.free(id);
        }
        self.made_progress = true;
        logged
    }

    /// Where registered memory is.
    pub(crate) fn resolve_buffer(&self, at: Iova, len: u64) -> Result<ring::IovaSlice<'_>, Error> {
        self.memory.find(at, len).map_err(|_| Error::BadAddress)
    }

    /// Copies from the data of a request to a frame.
    pub(crate) fn copy_in(
        &self,
        frame: PageId,
        offset: usize,
        from: Iova,
        len: usize,
    ) -> Result<(), Error> {
        let there = self.resolve_buffer(from, len as u64)?;
        let (region, at) = self.page_cache.location(frame, offset);
        SharedRegion::copy(there.region, there.offset, region, at, len);
        Ok(())
    }

    /// Copies from a frame to the data of a request.
    pub(crate) fn copy_out(
        &self,
        frame: PageId,
        offset: usize,
        to: Iova,
        len: usize,
    ) -> Result<(), Error> {
        let there = self.resolve_buffer(to, len as u64)?;
        let (region, at) = self.page_cache.location(frame, offset);
        SharedRegion::copy(region, at, there.region, there.offset, len);
        Ok(())
    }
}
