//! Journaled data: small file data that has to wait for a transaction anyway is written to the
//! journal with it, so that a sync is one durable write.
//!
//! The blocks are written in place later, many at a time: when they are old, or when pages or
//! journal space are needed. Until then their pages stay in memory, dirty or not. A write in place
//! of newer data adds a record of its extent, which supersedes the journaled data of these blocks
//! (`docs/format/volume.md`, *Data in the journal*).

use crate::metadata::extents::{BlockMapping, FileExtent};
use crate::metadata::tree::InodeNode;
use crate::on_media::record::{DATA_BYTES, INODE_BYTES, MetadataRecord};
use crate::parts::page_cache::{ByteRange, FileBlock, Page};
use crate::pipeline::Core;
use crate::pipeline::page_lookup::bytes_within;
use crate::{BLOCK, Ino};

/// Maximum number of blocks whose data one sync journals.
const SYNC_JOURNALED_BLOCKS_MAX: usize = 4;

/// Decision about the dirty blocks that a sync waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalDecision {
    /// They are in the running transaction.
    Journaled,
    /// They will be journaled, but something prevents it now.
    Deferred,
    /// They must be written in place.
    InPlace,
}

/// Blocks to be journaled.
#[derive(Debug, Default)]
struct JournalBatch {
    blocks: [(u32, ByteRange); SYNC_JOURNALED_BLOCKS_MAX],
    count: usize,
    /// Bytes of the records.
    bytes: usize,
    /// Blocks without earlier journaled data.
    fresh: usize,
    /// Some blocks are being written in place with older contents, or follow new blocks that are.
    writing: bool,
    /// Without a transaction they could not be read, or would be read with older contents.
    needed: bool,
}

impl Core {
    /// Returns the maximum number of blocks with journaled data; each keeps a sector of the journal
    /// free.
    pub(super) fn journaled_blocks_max(&self) -> usize {
        (self.page_cache.len() / 4).min((self.log.ring().sectors() / 4) as usize)
    }

    /// Journals a file's dirty data in the running transaction, if it is small and must wait for
    /// one.
    pub(super) fn journal_data(&mut self, ino: Ino, data_only: bool) -> JournalDecision {
        let Some(node) = self.tree.find(ino) else { return JournalDecision::InPlace };
        if node.state.writeback.is_due() && node.state.writeback.is_urgent() {
            return JournalDecision::InPlace;
        }
        let Some(batch) = self.collect_batch(node) else { return JournalDecision::InPlace };
        let txn = node.state.txns.last(data_only);
        let needed = batch.needed || txn > self.log.durable_txn() || node.recorded_size < node.size;
        let all = self.page_cache.journaled_len() + batch.fresh;
        if needed && all > self.journaled_blocks_max() / 2 {
            // Requests that wait for data that cannot be written get the error themselves.
            let _ = self.force_writeback();
        }
        if !needed
            || all > self.journaled_blocks_max()
            || batch.bytes > self.log.txn_bytes_max() / 2
        {
            return JournalDecision::InPlace;
        }
        let bytes = batch.bytes + INODE_BYTES;
        if batch.writing || !self.ensure_change_space(bytes, batch.fresh as u64) {
            return JournalDecision::Deferred;
        }
        for (block, span) in &batch.blocks[..batch.count] {
            self.journal_block(ino, *block, *span);
        }
        self.update_recorded_size(ino);
        self.add_written_inode(ino, true);
        self.made_progress = true;
        JournalDecision::Journaled
    }

    /// Collects a file's dirty blocks; returns `None` if there are too many.
    fn collect_batch(&self, node: &InodeNode) -> Option<JournalBatch> {
        let mut batch = JournalBatch::default();
        let mut is_behind_new = false;
        for block in node.state.pages.dirty().iter().copied() {
            let frame = self.page_cache.get(node.state.pages.get(block)?);
            if !frame.dirty {
                // The recorded size ends here until the write in flight has ended. Data beyond it
                // would not be part of the file.
                is_behind_new |= frame.on_device_bytes < bytes_within(node.size, block);
                continue;
            }
            let span = self.journaled_range(frame, bytes_within(node.size, block) as usize)?;
            *batch.blocks.get_mut(batch.count)? = (block, span);
            batch.count += 1;
            batch.bytes += DATA_BYTES + (span.1 - span.0);
            batch.fresh += usize::from(frame.journaled_txn == 0);
            batch.writing |= frame.writing || is_behind_new;
            let there = matches!(
                node.extents.find(block),
                BlockMapping::Extent(FileExtent { written: true, .. })
            );
            batch.needed |= frame.journaled_txn > 0 || !there;
        }
        Some(batch)
    }

    /// Returns the bytes of a block to be journaled; the block belongs to its file up to `end`.
    /// Whole sectors, so that no sector ever mixes old and new contents. Zeros beyond the end are
    /// included, because a request in flight may have zeroed them before it makes the file larger.
    pub(super) fn journaled_range(&self, frame: &Page, end: usize) -> Option<ByteRange> {
        let sector = self.log.ring().sector_bytes() as usize;
        let ByteRange(from, to) = frame.dirty_range;
        let last = end.checked_sub(1)?;
        let sectors_end = to.next_multiple_of(sector);
        let to = if to > end { sectors_end } else { sectors_end.min(end) };
        Some(ByteRange(from.min(last) / sector * sector, to)).filter(|span| span.0 < span.1)
    }

    pub(super) fn journal_block(&mut self, ino: Ino, block: u32, span: ByteRange) {
        let id = self.find_page(ino, block).expect("pages: a block to be journaled is cached");
        let mut bytes = [0; BLOCK];
        let bytes = &mut bytes[span.0..span.1];
        let (region, at) = self.page_cache.location(id, span.0);
        region.read(at, bytes);
        let offset = u64::from(block) * BLOCK as u64 + span.0 as u64;
        self.log.record(&MetadataRecord::Data { ino, offset, bytes });
        self.stats.journaled_blocks += 1;
        self.stats.journaled_bytes += bytes.len() as u64;
        let node = self.tree.existing_mut(ino);
        let file_bytes = bytes_within(node.size, block);
        self.barriers.ordered.record_contents(self.page_cache.get(id).order.last_epoch);
        self.page_cache.mark_journaled(id, self.log.running_txn(), span, file_bytes);
        self.writeback.record_event();
        node.state.pages.mark_journaled(block);
    }

    /// Writes blocks in place that were journaled before transaction `below`, as far as buffers
    /// permit. Returns whether none remain. Does not wait for requests that wait for the journal,
    /// because journal space is kept for these records, nor for requests that will remove the
    /// blocks.
    pub(super) fn write_journaled_in_place(&mut self, below: u64) -> bool {
        if self.writeback.was_searched() {
            return false;
        }
        let (mut all, mut is_complete) = (true, !self.has_segments());
        let mut needs_barrier = false;
        for _ in 0..self.page_cache.journaled_len() {
            let Some(page) = self.page_cache.next_journaled() else { break };
            let is_due = page.journaled_txn < below;
            // The search goes on here when a buffer is free.
            if is_due && self.staging.is_exhausted() {
                return false;
            }
            all &= !is_due;
            let is_permitted = self.barriers.ordered.permits_in_place(page.order.last_epoch);
            needs_barrier |= is_due && !is_permitted;
            let owner = page.owner.filter(|_| is_due && is_permitted && !page.writing);
            self.page_cache.skip_journaled();
            let Some(FileBlock { ino, block }) = owner else { continue };
            if self.tree.find(ino).is_none_or(|n| n.state.writeback.is_paused()) {
                continue;
            }
            if self.has_segments() {
                self.write_in_place(ino, block);
            } else {
                is_complete &= self.write_extent(ino, block).is_some();
            }
        }
        if needs_barrier && self.must_be_in_place() {
            self.barriers.ordered.request_all();
        }
        if is_complete && !all {
            self.writeback.end_search();
        }
        all
    }
}
