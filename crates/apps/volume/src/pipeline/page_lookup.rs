//! Pages of files: lookup, loading, changing and invalidating.
//!
//! Invariant: in a page, bytes beyond the end of the file are zero. On the device they may not be,
//! because a block is written before the size that covers it is durable. Bytes that become part of
//! a file by growth are therefore zeroed on the device first ([`Core::zero_tail`]).

use mem::{Iova, SharedRegion};
use nvme::Status;

use crate::metadata::extents::{BlockMapping, FileExtent};
use crate::on_media::layout::BlockRun;
use crate::parts::page_cache::{ByteRange, FileBlock, PageId};
use crate::parts::requests::ActiveRequest;
use crate::parts::writeback_queue::AgedInode;
use crate::pipeline::{Core, TransferPurpose};
use crate::recovery::replay::CompleteBlock;
use crate::{BLOCK, Error, Ino};

/// Result of a lookup for a change: the page, or wait for it.
pub(super) enum LookupResult {
    Ready(PageId),
    Wait,
}

/// Returns the number of bytes of a block within a file of this size.
pub(crate) fn bytes_within(size: u64, block: u32) -> u32 {
    size.saturating_sub(u64::from(block) * BLOCK as u64).min(BLOCK as u64) as u32
}

impl Core {
    /// Returns the page of a block, if it is cached.
    pub(super) fn find_page(&self, ino: Ino, block: u32) -> Option<PageId> {
        self.tree.find(ino)?.state.pages.get(block)
    }

    /// Allocates a page for an uncached block.
    fn allocate_page(&mut self, ino: Ino, block: u32) -> Option<PageId> {
        let allocated = self.page_cache.allocate(FileBlock { ino, block })?;
        if let Some(evicted) = allocated.evicted {
            self.tree.existing_mut(evicted.ino).state.pages.remove(evicted.block);
        }
        self.tree.existing_mut(ino).state.pages.insert(block, allocated.id);
        Some(allocated.id)
    }

    /// Starts to read a block into a page; returns `None` if no page is available.
    pub(super) fn load_page(&mut self, ino: Ino, block: u32, phys: u32) -> Option<PageId> {
        let page = self.allocate_page(ino, block)?;
        self.page_cache.begin_load(page);
        self.tree.existing_mut(ino).state.io.begin();
        let at = FileBlock { ino, block };
        let blocks = BlockRun { first_block: phys, blocks: 1 };
        let iova = self.page_cache.iova(page);
        self.read_blocks(TransferPurpose::Load { at, page }, blocks, iova);
        Some(page)
    }

    pub(super) fn on_page_loaded(&mut self, at: FileBlock, page: PageId, status: Status) {
        let FileBlock { ino, block } = at;
        let node = self.tree.existing_mut(ino);
        node.state.io.end();
        if status.is_success() {
            self.page_cache.end_load(page, bytes_within(node.size, block));
            return;
        }
        node.state.pages.remove(block);
        self.page_cache.free(page);
        self.requests.fail_waiters(ino, block, status);
    }

    /// Pins a block that is only in the journal, on a read-only volume.
    pub(crate) fn pin_journaled_block(&mut self, whole: &CompleteBlock) {
        let CompleteBlock { ino, block, ref bytes } = *whole;
        let id = self.allocate_page(ino, block).expect("pages: one for each journaled block");
        let (region, at) = self.page_cache.location(id, 0);
        region.write(at, bytes);
        let mapping = self.tree.existing(ino).extents.find(block);
        self.page_cache.pin_journaled(id, matches!(mapping, BlockMapping::Hole { .. }));
    }

    /// Returns the page of a block that a request will change; `whole` if all its contents are
    /// replaced. A request with reserved blocks releases the needed part first, and then allocates
    /// like any other.
    pub(super) fn page_for_write(
        &mut self,
        active: &mut ActiveRequest,
        ino: Ino,
        block: u32,
        whole: bool,
    ) -> Result<LookupResult, Error> {
        let own = active.reserved_blocks.min(1);
        let with_unit = own * u64::from(self.unit_blocks());
        self.allocator.unreserve(with_unit);
        active.reserved_blocks -= own;
        let found = self.find_page_for_write(active, ino, block, whole);
        if own > 0 && !matches!(found, Ok(LookupResult::Ready(_))) {
            // No other request can have taken them meanwhile.
            active.reserved_blocks += u64::from(self.allocator.reserve(with_unit));
        }
        found
    }

    fn find_page_for_write(
        &mut self,
        active: &mut ActiveRequest,
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
            let is_clean = !state.is_only_copy();
            if is_clean && !self.can_dirty(1)? || !self.can_change_blocks(ino, block..block + 1) {
                return Ok(LookupResult::Wait);
            }
            self.page_cache.touch(frame);
            return Ok(LookupResult::Ready(frame));
        }
        if !self.can_dirty(1)? || !self.can_change_blocks(ino, block..block + 1) {
            return Ok(LookupResult::Wait);
        }
        let node = self.tree.get(ino)?;
        let place = node.extents.find(block);
        let beyond = u64::from(block) * BLOCK as u64 >= node.size;
        if let BlockMapping::Extent(FileExtent { phys, written: true, .. }) = place
            && !whole
            && !beyond
        {
            active.awaited_block = Some(block);
            if self.load_page(ino, block, phys).is_none() {
                self.force_writeback()?;
            }
            return Ok(LookupResult::Wait);
        }
        // Existing contents, including zeros of a hole, are part of the file already.
        let on_device = bytes_within(node.size, block);
        let hole = matches!(place, BlockMapping::Hole { .. });
        let unit = self.unit_blocks();
        // The file has the block when the write of the unit's first blocks ends.
        let is_allocated = unit > 1 && hole && self.is_unit_new_in_flight(ino, block);
        let hole = hole && !is_allocated;
        let is_new = hole && !(unit > 1 && self.has_delalloc_unit(ino, block));
        if is_new && !self.allocator.reserve_delalloc(unit.into()) {
            return if self.has_pending_frees() {
                Ok(LookupResult::Wait)
            } else {
                Err(Error::NoSpace)
            };
        }
        let Some(frame) = self.allocate_page(ino, block) else {
            if is_new {
                self.allocator.release_delalloc(unit.into());
            }
            self.force_writeback()?;
            return Ok(LookupResult::Wait);
        };
        self.page_cache.set_fresh(frame, hole, on_device);
        if matches!(place, BlockMapping::Extent(FileExtent { written: true, .. })) {
            // The block on the device does not have the file's contents.
            self.page_cache.extend_dirty_range(frame);
        }
        if !whole {
            self.page_cache.zero(frame, 0, BLOCK);
        }
        Ok(LookupResult::Ready(frame))
    }

    /// Returns whether this many more pages may become dirty. If not, starts writeback or a
    /// checkpoint.
    pub(super) fn can_dirty(&mut self, pages: usize) -> Result<bool, Error> {
        let full = self.page_cache.dirty_len() + pages > self.page_cache.len() / 4 * 3;
        if !full && self.has_metadata_space(2 * pages * crate::on_media::record::EXTENT_BYTES) {
            return Ok(true);
        }
        if self.page_cache.dirty_len() == 0 {
            return Err(Error::NoMetadataSpace);
        }
        self.force_writeback()?;
        Ok(false)
    }

    /// Marks bytes of a page as changed.
    pub(super) fn mark_dirty(&mut self, ino: Ino, block: u32, id: PageId, span: ByteRange) {
        self.page_cache.mark_dirty(id, span);
        let state = &mut self.tree.existing_mut(ino).state;
        state.pages.mark_dirty(block);
        if self.barriers.ordered.is_idle() {
            self.writeback.record_event();
        }
        if state.writeback.begin_aging() {
            self.writeback.push_youngest(AgedInode { since: self.now, ino });
        }
    }

    /// Advances a file's recorded size to its first byte that is not on the device.
    pub(super) fn update_recorded_size(&mut self, ino: Ino) {
        let node = self.tree.existing_mut(ino);
        while node.recorded_size < node.size {
            let block = (node.recorded_size / BLOCK as u64) as u32;
            let Some(&dirty) = node.state.pages.dirty().range_from(block).next() else {
                node.recorded_size = node.size;
                return;
            };
            let begin = u64::from(dirty) * BLOCK as u64;
            let frame = node.state.pages.get(dirty);
            let there = frame.map_or(0, |id| self.page_cache.get(id).on_device_bytes);
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

    /// Before a file grows: zeroes the rest of its last block on the device, before the new size is
    /// recorded. Returns `false` while that is in progress.
    pub(super) fn zero_tail(
        &mut self,
        active: &mut ActiveRequest,
        ino: Ino,
    ) -> Result<bool, Error> {
        let node = self.tree.get(ino)?;
        if active.zeroed > 0 || node.size.is_multiple_of(BLOCK as u64) {
            return Ok(true);
        }
        let block = (node.size / BLOCK as u64) as u32;
        let written = matches!(
            node.extents.find(block),
            BlockMapping::Extent(FileExtent { written: true, .. })
        );
        if !written && node.state.pages.get(block).is_none() {
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

    /// Invalidates the pages of blocks `from..to`, which have no I/O in flight. Returns whether any
    /// has journaled data.
    pub(super) fn invalidate(&mut self, ino: Ino, from: u32, to: u32) -> bool {
        let node = self.tree.existing_mut(ino);
        assert!(
            node.state.io.is_idle(),
            "inodes: blocks of {ino} are invalidated with {} transfers in flight",
            node.state.io.in_flight()
        );
        let mut logged = false;
        while let Some(id) = self.tree.existing_mut(ino).state.pages.pop_range(from, to) {
            let page = *self.page_cache.get(id);
            logged |= page.journaled_txn > 0;
            let owner = page.owner.filter(|_| page.has_delalloc);
            if owner.is_some_and(|at| !self.has_delalloc_unit(ino, at.block)) {
                self.allocator.release_delalloc(self.unit_blocks().into());
            }
            self.page_cache.free(id);
        }
        self.made_progress = true;
        logged
    }

    /// Copies from a request's data to a page.
    pub(super) fn copy_in(
        &self,
        frame: PageId,
        offset: usize,
        from: Iova,
        len: usize,
    ) -> Result<(), Error> {
        let there = self.requests.resolve(from, len as u64)?;
        let (region, at) = self.page_cache.location(frame, offset);
        SharedRegion::copy(there.region, there.offset, region, at, len);
        Ok(())
    }

    /// Copies from a page to a request's data.
    pub(super) fn copy_out(
        &self,
        frame: PageId,
        offset: usize,
        to: Iova,
        len: usize,
    ) -> Result<(), Error> {
        let there = self.requests.resolve(to, len as u64)?;
        let (region, at) = self.page_cache.location(frame, offset);
        SharedRegion::copy(region, at, there.region, there.offset, len);
        Ok(())
    }
}
