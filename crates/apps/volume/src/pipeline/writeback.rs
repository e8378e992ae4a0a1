//! Writeback of buffered data.
//!
//! Dirty pages that are contiguous in the file are written together, through a staging buffer, so
//! that they may change during the write. Blocks are allocated only now (delayed allocation), so
//! that data appended in small steps is contiguous. The file's extents change once the blocks are
//! written, and not before.

use mem::SharedRegion;
use nvme::Status;
use time::Nanos;

use crate::metadata::extents::{BlockMapping, FileExtent};
use crate::on_media::record::MetadataRecord;
use crate::parts::page_cache::Page;
use crate::parts::staging::{STAGING_BUFFER_BLOCKS, StagingIndex};
use crate::parts::writeback_queue::AgedInode;
use crate::pipeline::page_lookup::bytes_within;
use crate::pipeline::{Core, TransferPurpose};
use crate::{BLOCK, Error, Ino};

/// Maximum number of urgent blocks that are written with FUA instead of a flush.
const URGENT_BLOCKS_MAX: usize = 16;

/// Blocks of a file in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteExtent {
    pub(super) ino: Ino,
    pub(super) extent: FileExtent,
    /// The blocks that were allocated for it: whole units. They are not part of the file yet.
    pub(super) allocated: Option<FileExtent>,
    /// Whether some blocks were preallocated and unwritten.
    unwritten: bool,
    pub(super) staging: StagingIndex,
    /// Size of the file when they were sent.
    size: u64,
    /// Epoch of their last change (`parts::barrier_order`).
    epoch: u64,
    durable: bool,
    /// Whether they have parts of writes to be kept whole.
    is_whole: bool,
}

impl Core {
    /// Requests writeback of an inode's dirty pages; `urgent` if a request waits for them.
    pub(super) fn request_writeback(&mut self, ino: Ino, urgent: bool) {
        let Some(node) = self.tree.find_mut(ino) else { return };
        if node.state.writeback.is_paused() || node.state.pages.is_in_place() {
            return;
        }
        if urgent {
            // Pages of later epochs wait for the barriers.
            self.barriers.ordered.request_all();
        }
        if node.state.writeback.request(urgent) {
            self.writeback.push_due(ino);
        }
    }

    /// Starts writeback of the oldest dirty pages, because a request waits for pages or journal
    /// space. Fails if none can be written.
    pub(super) fn force_writeback(&mut self) -> Result<(), Error> {
        self.barriers.ordered.request_all();
        self.write_back_oldest()
    }

    /// Starts writeback of the oldest dirty pages. Fails if none can be written.
    pub(super) fn write_back_oldest(&mut self) -> Result<(), Error> {
        let held =
            |core: &Core, ino| core.tree.find(ino).is_none_or(|n| n.state.writeback.is_paused());
        let oldest = self.writeback.by_age().find(|ino| !held(self, *ino));
        match oldest {
            Some(ino) => self.request_writeback(ino, false),
            None if self.transfers.is_idle() && self.page_cache.dirty_len() > 0 => {
                return Err(Error::Io { status: self.writeback.last_error() });
            }
            None => {}
        }
        Ok(())
    }

    /// Requests writeback of pages that are old or too many.
    pub(super) fn expire_dirty(&mut self) {
        for _ in 0..=self.writeback.by_age_len() {
            let Some(AgedInode { since, ino }) = self.writeback.oldest() else { return };
            let Some(node) = self.tree.find_mut(ino) else {
                self.writeback.pop_oldest();
                continue;
            };
            if node.state.pages.is_in_place() {
                node.state.writeback.end_aging();
                self.writeback.pop_oldest();
                continue;
            }
            let old = since + self.options.dirty_expire <= self.now;
            if !old && self.page_cache.dirty_len() <= self.page_cache.len() / 2 {
                break;
            }
            if old {
                // Requeue; after an error, this is the retry.
                node.state.writeback.resume();
                self.writeback.record_event();
                self.writeback.pop_oldest();
                self.writeback.push_youngest(AgedInode { since: self.now, ino });
                self.request_writeback(ino, false);
                continue;
            }
            if node.state.writeback.is_due() || node.state.writeback.is_paused() {
                break;
            }
            self.request_writeback(ino, false);
        }
    }

    /// Returns when the oldest dirty data expires.
    pub(super) fn dirty_deadline(&self) -> Nanos {
        let oldest = self.writeback.oldest();
        oldest.map_or(Nanos::MAX, |oldest| oldest.since + self.options.dirty_expire)
    }

    /// Writes queued inodes, as far as buffers permit.
    pub(super) fn write_back(&mut self) {
        for _ in 0..self.writeback.due_len() {
            let Some(ino) = self.writeback.pop_due() else { return };
            if !self.write_inode(ino) {
                self.writeback.push_due(ino);
                continue;
            }
            if let Some(node) = self.tree.find_mut(ino) {
                node.state.writeback.end();
            }
        }
    }

    /// Writes an inode's dirty pages; returns `false` if some remain that can be written later.
    fn write_inode(&mut self, ino: Ino) -> bool {
        let (mut from, mut is_complete, events) = (0, true, self.writeback.events());
        // A search for pages would be repeated with each completion until a buffer is free.
        if self.staging.is_exhausted() {
            return false;
        }
        loop {
            let Some(node) = self.tree.find(ino) else { return true };
            if node.state.writeback.is_paused() {
                return true;
            }
            let pages = &node.state.pages;
            let frame = |block: &u32| pages.get(*block).map(|id| self.page_cache.get(id));
            let permits = |f: &Page| self.barriers.ordered.permits_in_place(f.order.last_epoch);
            let ready =
                |b: &u32| frame(b).is_some_and(|f| f.is_only_copy() && !f.writing && permits(f));
            let searches = !(is_complete && node.state.writeback.was_searched(events));
            let is_urgent = node.state.writeback.is_urgent();
            let mut dirty = pages.dirty().range_from(from).copied();
            let dirty = searches.then(|| dirty.find(ready)).flatten();
            // No request waits for data that is durable in the journal.
            let mut journaled = pages.journaled().range_from(from).copied();
            let journaled = (searches && !is_urgent).then(|| journaled.find(ready)).flatten();
            let Some(first) = dirty.into_iter().chain(journaled).min() else {
                // A page changed during its write must wait for that write.
                let is_dirty = pages.dirty().iter().any(|b| frame(b).is_some_and(|f| f.dirty));
                if is_complete && searches && !is_urgent {
                    self.tree.existing_mut(ino).state.writeback.end_search(events);
                }
                return is_complete && !is_dirty;
            };
            if node.state.io.is_blocked()
                || self.staging.is_exhausted()
                || !self.ensure_writeback_space()
            {
                return false;
            }
            if self.has_segments() {
                let end = self.segment(ino, first).end;
                let written_to = self.write_in_place(ino, first);
                is_complete &= written_to.is_some();
                from = written_to.unwrap_or(end);
                continue;
            }
            match self.write_extent(ino, first) {
                Some(end) => from = end,
                None => return false,
            }
        }
    }

    /// Writes an extent that starts with a block that is not in place, from a free staging buffer.
    /// Returns its end, or `None` if no block of the volume is free.
    pub(super) fn write_extent(&mut self, ino: Ino, first: u32) -> Option<u32> {
        let node = self.tree.existing(ino);
        let is_ready = |block: u32| {
            let page = node.state.pages.get(block).map(|id| self.page_cache.get(id));
            page.is_some_and(|page| {
                let is_permitted = self.barriers.ordered.permits_in_place(page.order.last_epoch);
                let is_permitted = is_permitted || self.is_new_block(node, block, page);
                page.is_only_copy() && !page.writing && is_permitted
            })
        };
        let mut count = 1;
        if self.has_segments() {
            count = self.ready_segments_end(ino, first) - first;
        } else {
            while count < STAGING_BUFFER_BLOCKS && is_ready(first + count) {
                count += 1;
            }
        }
        let durable = self.barriers.is_volatile()
            && node.state.writeback.is_urgent()
            && node.state.pages.dirty().len() <= URGENT_BLOCKS_MAX;
        let size = node.size;
        let (extent, allocated) = match node.extents.find(first) {
            BlockMapping::Extent(_) if self.has_segments() => {
                (node.extents.contiguous(first, first + count)?, None)
            }
            BlockMapping::Extent(extent) => {
                (FileExtent { count: count.min(extent.count), ..extent }, None)
            }
            BlockMapping::Hole { count: hole } => {
                let layout = self.superblock().layout;
                let end = first + count.min(hole);
                let logical = layout.unit_start(first);
                let goal = node.extents.goal(logical);
                let run = self.allocator.allocate(goal, layout.unit_end(end) - logical)?;
                let (phys, count) = (run.first_block, run.blocks);
                let units = FileExtent { logical, count, phys, written: true };
                (units.clip(first, end), Some(units))
            }
        };
        let unwritten = !extent.written;
        if self.unit_blocks() > 1 {
            self.end_delalloc(ino, extent.logical, extent.end());
        }
        let staging = self.staging.take().expect("staging: a write begins with a free buffer");
        let (mut is_whole, mut epoch) = (false, 0);
        for i in 0..extent.count {
            let id =
                self.find_page(ino, first + i).expect("pages: blocks to be written are cached");
            epoch = epoch.max(self.page_cache.get(id).order.last_epoch);
            is_whole |= self.page_cache.get(id).whole.is_part;
            let (from, offset) = self.page_cache.location(id, 0);
            let to = self.staging.block_offset(staging, i);
            SharedRegion::copy(from, offset, self.staging.region(), to, BLOCK);
            if self.page_cache.begin_write(id) {
                self.allocator.release_delalloc(1);
            }
        }
        let extent = FileExtent { written: true, ..extent };
        let run = WriteExtent {
            ino,
            extent,
            allocated,
            unwritten,
            staging,
            size,
            epoch,
            durable,
            is_whole,
        };
        self.tree.existing_mut(ino).state.io.begin();
        self.log.begin_extent();
        let (purpose, iova) = (TransferPurpose::Writeback(run), self.staging.iova(staging));
        self.transfers.submit_data(purpose, extent.run(), iova, durable);
        self.stats.data_bytes += u64::from(extent.count) * BLOCK as u64;
        self.stats.data_commands += 1;
        self.made_progress = true;
        Some(extent.end())
    }

    pub(super) fn on_extent_written(&mut self, run: WriteExtent, status: Status) {
        self.staging.release(run.staging);
        self.log.end_extent();
        self.tree.existing_mut(run.ino).state.io.end();
        if status.is_success() {
            self.on_extent_in_place(&run);
        } else {
            self.on_extent_failed(&run, status);
        }
    }

    fn on_extent_failed(&mut self, run: &WriteExtent, status: Status) {
        let WriteExtent { ino, extent, allocated, .. } = *run;
        let (mut was_journaled, mut was_only_copy) = (false, false);
        for block in extent.logical..extent.end() {
            let id = self.find_page(ino, block).expect("pages: blocks being written are cached");
            was_only_copy |= self.page_cache.get(id).is_sending();
            was_journaled |= self.page_cache.fail_write(id).was_journaled;
        }
        if let Some(units) = allocated {
            // The blocks are free again, and promised again to the pages, which are dirty again.
            self.allocator.free(units.run());
            self.restore_delalloc(ino, units.logical, units.end());
        }
        self.tree.existing_mut(ino).state.writeback.record_error();
        self.writeback.record_error(status);
        // Changes after a pending barrier must not become durable without these blocks.
        let fails_barrier = was_only_copy && self.barriers.ordered.is_pending();
        if fails_barrier || was_journaled && self.must_be_in_place() {
            self.abort(status);
        }
    }

    fn on_extent_in_place(&mut self, run: &WriteExtent) {
        let WriteExtent {
            ino, extent, allocated, unwritten, size, epoch, durable, is_whole, ..
        } = *run;
        let new = allocated.is_some();
        self.barriers.ordered.record_contents(epoch);
        let mut was_journaled = false;
        for block in extent.logical..extent.end() {
            let id = self.find_page(ino, block).expect("pages: blocks being written are cached");
            let written = self.page_cache.end_write(id, bytes_within(size, block));
            self.tree.existing_mut(ino).state.pages.mark_written(block, written.is_dirty);
            was_journaled |= written.was_journaled;
        }
        if self.barriers.is_volatile() && !durable {
            let write_seq = self.barriers.record_write();
            self.tree.existing_mut(ino).state.txns.record_write(write_seq, is_whole);
        }
        let recorded_size = self.tree.existing(ino).recorded_size;
        self.update_recorded_size(ino);
        let has_grown = self.tree.existing(ino).recorded_size != recorded_size;
        if let Some(units) = allocated.filter(|units| *units != extent) {
            // The rest of its units becomes part of the file, without contents.
            let extent = FileExtent { written: false, ..units };
            self.tree.map(ino, extent);
            self.log.record(&MetadataRecord::Map { ino, extent });
        }
        if new || unwritten {
            self.tree.map(ino, extent);
        }
        // This record supersedes journaled data of these blocks.
        if new || unwritten || was_journaled {
            self.log.record(&MetadataRecord::Map { ino, extent });
        }
        if new || unwritten || was_journaled || has_grown {
            self.add_written_inode(ino, true);
        }
    }
}
