//! Writeback of buffered data.
//!
//! Dirty pages that are contiguous in the file are written together, through a staging buffer, so
//! that they may change during the write. Blocks are allocated only now (delayed allocation), so
//! that data appended in small steps is contiguous. The file's extents change once the blocks are
//! written, and not before.

use block::Op as DeviceOp;
use clock::Nanos;
use nvme::Status;
use ring::SharedRegion;

use crate::extents::{BlockMapping, Extent};
use crate::parts::page_cache::ByteRange;
use crate::pipeline::page_lookup::bytes_within;
use crate::pipeline::{Core, EXTENT_RECORD_BYTES, STAGING_BUFFER_BLOCKS, TransferPurpose};
use crate::record::Record;
use crate::{BLOCK, Error, Ino};

/// Maximum number of urgent blocks that are written with FUA instead of a flush.
const URGENT_BLOCKS_MAX: usize = 16;

/// Blocks of a file in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteExtent {
    ino: Ino,
    extent: Extent,
    /// Whether the blocks are newly allocated; whether they were preallocated and unwritten.
    new: bool,
    unwritten: bool,
    staging_index: u32,
    /// Size of the file when they were sent.
    size: u64,
    durable: bool,
}

impl Core {
    /// Requests writeback of an inode's dirty pages; `urgent` if a request waits for them.
    pub(crate) fn request_writeback(&mut self, ino: Ino, urgent: bool) {
        let Some(node) = self.tree.find_mut(ino) else { return };
        if node.state.writeback_paused || node.state.is_in_place() {
            return;
        }
        node.state.urgent |= urgent;
        if !std::mem::replace(&mut node.state.in_writeback_queue, true) {
            self.writeback_queue.push_back(ino);
        }
    }

    /// Starts writeback of the oldest dirty pages, because pages are needed. Fails if none can be
    /// written.
    pub(crate) fn force_writeback(&mut self) -> Result<(), Error> {
        let held = |core: &Core, ino| core.tree.find(ino).is_none_or(|n| n.state.writeback_paused);
        let oldest = self.dirty_inodes.iter().map(|(_, ino)| *ino).find(|ino| !held(self, *ino));
        match oldest {
            Some(ino) => self.request_writeback(ino, false),
            None if self.transfers.is_idle() && self.page_cache.dirty > 0 => {
                return Err(Error::Io { status: self.last_error });
            }
            None => {}
        }
        Ok(())
    }

    /// Requests writeback of pages that are old or too many.
    pub(crate) fn expire_dirty(&mut self) {
        for _ in 0..=self.dirty_inodes.len() {
            let Some((since, ino)) = self.dirty_inodes.front().copied() else { return };
            let Some(node) = self.tree.find_mut(ino) else {
                self.dirty_inodes.pop_front();
                continue;
            };
            if node.state.is_in_place() {
                node.state.in_dirty_queue = false;
                self.dirty_inodes.pop_front();
                continue;
            }
            let old = since + self.options.dirty_expire <= self.now;
            if !old && self.page_cache.dirty <= self.page_cache.len() / 2 {
                break;
            }
            if old {
                // Requeue; after an error, this is the retry.
                node.state.writeback_paused = false;
                self.dirty_inodes.pop_front();
                self.dirty_inodes.push_back((self.now, ino));
                self.request_writeback(ino, false);
                continue;
            }
            if node.state.in_writeback_queue || node.state.writeback_paused {
                break;
            }
            self.request_writeback(ino, false);
        }
    }

    /// Returns when the oldest dirty data expires.
    pub(crate) fn dirty_deadline(&self) -> Nanos {
        let data = self.dirty_inodes.front().map(|(since, _)| *since + self.options.dirty_expire);
        data.unwrap_or(Nanos::MAX)
    }

    /// Writes queued inodes, as far as buffers permit.
    pub(crate) fn write_back(&mut self) {
        for _ in 0..self.writeback_queue.len() {
            let Some(ino) = self.writeback_queue.pop_front() else { return };
            if !self.write_inode(ino) {
                self.writeback_queue.push_back(ino);
                continue;
            }
            if let Some(node) = self.tree.find_mut(ino) {
                (node.state.in_writeback_queue, node.state.urgent) = (false, false);
            }
        }
    }

    /// Writes an inode's dirty pages; returns `false` if some remain that can be written later.
    fn write_inode(&mut self, ino: Ino) -> bool {
        let mut from = 0;
        loop {
            let Some(node) = self.tree.find(ino) else { return true };
            if node.state.writeback_paused {
                return true;
            }
            let frame =
                |block: &u32| node.state.pages.get(block).map(|id| self.page_cache.get(*id));
            let ready = |b: &u32| frame(b).is_some_and(|f| f.is_only_copy() && !f.writing);
            let dirty = node.state.dirty.range_from(from).copied().find(ready);
            // No request waits for data that is durable in the journal.
            let logged = node.state.journaled.range_from(from).copied().find(ready);
            let logged = logged.filter(|_| !node.state.urgent);
            let Some(first) = dirty.into_iter().chain(logged).min() else {
                // A page changed during its write must wait for that write.
                return !node.state.dirty.iter().any(|b| frame(b).is_some_and(|f| f.dirty));
            };
            if node.state.io_blocked
                || self.free_staging.is_empty()
                || !self.ensure_journal_space(EXTENT_RECORD_BYTES)
            {
                return false;
            }
            match self.write_extent(ino, first) {
                Some(end) => from = end,
                None => return false,
            }
        }
    }

    /// Writes an extent that starts with a block that is not in place; returns its end.
    pub(crate) fn write_extent(&mut self, ino: Ino, first: u32) -> Option<u32> {
        let node = self.tree.find(ino)?;
        let ready = |block: u32| {
            let id = node.state.pages.get(&block)?;
            let frame = self.page_cache.get(*id);
            (frame.is_only_copy() && !frame.writing).then_some(*id)
        };
        let mut count = 1;
        while count < STAGING_BUFFER_BLOCKS && ready(first + count).is_some() {
            count += 1;
        }
        let durable =
            self.volatile && node.state.urgent && node.state.dirty.len() <= URGENT_BLOCKS_MAX;
        let (size, goal) = (node.size, node.extents.goal(first));
        let place = node.extents.find(first);
        let (extent, new) = match place {
            BlockMapping::Extent(extent) => {
                (Extent { count: count.min(extent.count), ..extent }, false)
            }
            BlockMapping::Hole { count: hole } => {
                let (phys, count) = self.allocator.allocate(goal, count.min(hole))?;
                (Extent { logical: first, count, phys, written: true }, true)
            }
        };
        let unwritten = !extent.written;
        let stage = self.free_staging.pop()?;
        for i in 0..extent.count {
            let id = self.find_page(ino, first + i)?;
            let (from, offset) = self.page_cache.location(id, 0);
            let to = (stage * STAGING_BUFFER_BLOCKS + i) as usize * BLOCK;
            SharedRegion::copy(from, offset, &self.staging, to, BLOCK);
            let frame = self.page_cache.get_mut(id);
            frame.sent_seq = if frame.dirty { frame.seq } else { u64::MAX };
            (frame.dirty, frame.writing, frame.dirty_range) = (false, true, ByteRange::default());
            if std::mem::take(&mut frame.has_delalloc) {
                self.allocator.release_delalloc(1);
            }
        }
        let extent = Extent { written: true, ..extent };
        let run = WriteExtent { ino, extent, new, unwritten, staging_index: stage, size, durable };
        self.tree.find_mut(ino)?.state.io_in_flight += 1;
        self.record_bytes_in_flight += EXTENT_RECORD_BYTES;
        let at = self.staging_iova.offset(u64::from(stage * STAGING_BUFFER_BLOCKS) * BLOCK as u64);
        let blocks = (extent.phys, extent.count);
        self.transfers.submit_blocks(
            TransferPurpose::Writeback(run),
            DeviceOp::Write,
            blocks,
            at,
            durable,
        );
        self.stats.data_bytes += u64::from(extent.count) * BLOCK as u64;
        self.stats.data_commands += 1;
        self.made_progress = true;
        Some(extent.end())
    }

    pub(crate) fn on_extent_written(&mut self, run: WriteExtent, status: Status) {
        let WriteExtent { ino, extent, new, unwritten, staging_index: stage, size, durable } = run;
        self.free_staging.push(stage);
        self.record_bytes_in_flight -= EXTENT_RECORD_BYTES;
        let failed = !status.is_success();
        let mut logged = false;
        for block in extent.logical..extent.end() {
            logged |= self.on_page_written(ino, block, (new, failed), size);
        }
        if failed && new {
            // The blocks are free again, and promised again to the pages, which are dirty again.
            self.allocator.free(extent.phys, extent.count);
            let promised = self.allocator.reserve_delalloc(extent.count.into());
            debug_assert!(promised, "blocks that were just given back");
        }
        if !failed && self.volatile && !durable {
            self.write_seq += 1;
        }
        let writes = self.write_seq;
        let Some(node) = self.tree.find_mut(ino) else { return };
        node.state.io_in_flight -= 1;
        if failed {
            (node.state.writeback_paused, node.state.urgent) = (true, false);
            node.state.errors += 1;
            self.write_errors += 1;
            self.last_error = status;
            if logged && self.needs_journal_space() {
                self.abort(status);
            }
            return;
        }
        if self.volatile && !durable {
            node.state.unflushed_seq = writes;
        }
        let settled = node.recorded_size;
        self.update_recorded_size(ino);
        let grown = self.tree.find(ino).is_some_and(|n| n.recorded_size != settled);
        if new || unwritten {
            self.tree.map(ino, extent);
        }
        // This record supersedes journaled data of these blocks.
        if new || unwritten || logged {
            Record::Map { ino, extent }.encode(&mut self.txn.records);
        }
        if new || unwritten || logged || grown {
            self.add_inode_to_txn(ino, true);
        }
    }

    /// Returns whether the block has, or had, journaled data.
    fn on_page_written(
        &mut self,
        ino: Ino,
        block: u32,
        (new, failed): (bool, bool),
        size: u64,
    ) -> bool {
        let Some(id) = self.find_page(ino, block) else { return false };
        let frame = self.page_cache.get_mut(id);
        frame.writing = false;
        let logged = frame.journaled_txn > 0;
        if failed {
            frame.has_delalloc = new;
            // Unless the contents sent were journaled.
            if frame.sent_seq < u64::MAX {
                frame.dirty_range = ByteRange::ALL;
                if !std::mem::replace(&mut frame.dirty, true) {
                    frame.seq = frame.sent_seq;
                }
            }
            return logged;
        }
        frame.on_device_bytes = bytes_within(size, block);
        frame.journaled_txn = 0;
        let dirty = frame.dirty;
        self.page_cache.journaled -= usize::from(logged);
        self.page_cache.dirty -= usize::from(!dirty);
        if let Some(node) = self.tree.find_mut(ino) {
            node.state.journaled.remove(block);
            if !dirty {
                node.state.dirty.remove(block);
            }
        }
        logged
    }
}
