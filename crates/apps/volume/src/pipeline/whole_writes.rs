//! Writes that a power cut must not tear, and the units in which files get their blocks.
//!
//! On a device with atomic writes, a write of whole blocks within an aligned unit of
//! [`atomic_blocks`](crate::device_io::DeviceTransfers::atomic_blocks) is kept whole: after a power
//! cut the file has all of it or nothing of it.
//!
//! # Why no write is torn
//!
//! The blocks that such writes changed together and that were not sent since are a *segment*. All
//! blocks of a segment change at once ([`Core::can_write_whole`] ensures that the write need not
//! wait between them), and leave the page cache at once: in one transaction of the journal
//! (`journal_data`, `journal_segment`), or in one request, which the device keeps whole. For one
//! request the blocks must be adjacent on the device. They are, because a file has either all blocks
//! of an aligned unit, at an aligned place and in order, or none.
//!
//! A request changes what a recovery finds at one of two points: when the data reaches the media, if
//! the block was part of the file before, or else when the transaction with its extent or the file's
//! new size is durable. And journaled data replaces the contents in place at a recovery until its end
//! is durable. [`Core::segment_state`] therefore permits a write in place only if
//!
//! - all blocks change at the same point and none has journaled data; the transactions that made
//!   them part of the file, or ended their journaled data, are durable, so that this is also how a
//!   recovery sees them; or
//! - the journal has all bytes of all blocks, durably: a recovery restores all of them.
//!
//! It journals other segments first, such as an overwrite of a file's last block and the next one.
//! Then the journal has all bytes. A write to blocks with journaled data that does not have all
//! bytes of the write waits until that data is in place.
//!
//! A page that was changed only in part since it was sent has other bytes of earlier writes. It is
//! written in place when these are durable, because the device may keep a later request without an
//! earlier one.
//!
//! A write that arrives while an earlier segment is being written in place changes the pages, not
//! what is sent. Its segment waits until that write has ended.
//!
//! A removal of blocks waits for the file's transfers. If it would leave a part of a segment on both
//! sides, it also waits until that segment is written. It counts as a change of the file's blocks,
//! so that the rest of a segment is written in place after the removal is durable. Blocks of a unit
//! that the file keeps without contents are reserved ([`InodeTxns::last_emptied`]): they are written
//! only when that is durable.
//!
//! [`InodeTxns::last_emptied`]: crate::inode_state::InodeTxns::last_emptied

use std::ops::Range;

use block::Limits;

use crate::device_io::AtomicWriteUnit;
use crate::metadata::extents::{BlockMapping, FileExtent};
use crate::metadata::tree::InodeNode;
use crate::on_media::layout::{VolumeLayout, device_unit_blocks};
use crate::on_media::record::{DATA_BYTES, INODE_BYTES};
use crate::parts::page_cache::{ByteRange, Page};
use crate::parts::requests::ActiveRequest;
use crate::parts::staging::STAGING_BUFFER_BLOCKS;
use crate::pipeline::Core;
use crate::{BLOCK, Error, Ino};

/// Whether a segment can be written in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentState {
    /// It can.
    Ready,
    /// It can when some writes in flight have ended, or a barrier is durable.
    Busy,
    /// It can when this transaction is durable.
    Uncommitted { txn: u64 },
    /// It can when this write in place is durable.
    Unflushed { write_seq: u64 },
    /// It must be journaled first.
    Mixed,
}

/// When a write in place changes what a recovery finds in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangePoint {
    /// When the data is on the media.
    Write,
    /// When a transaction is durable that follows the write.
    Commit,
    /// Never before the end of the block's journaled data, which has the whole block.
    Journal,
    /// Different parts of it change at different points.
    Several,
}

/// Returns the largest power of two that is at most `limit`; 0 for 0.
fn power_of_two_within(limit: u32) -> u32 {
    if limit == 0 { 0 } else { 1 << limit.ilog2() }
}

/// Returns the aligned writes that a volume keeps whole on a device: limited by the volume's units,
/// by the device, by the journal, and by the page cache, because a write needs all its pages at
/// once.
pub(super) fn atomic_unit(layout: &VolumeLayout, limits: &Limits, pages: u32) -> AtomicWriteUnit {
    let blocks = layout.unit_blocks.min(device_unit_blocks(limits));
    let blocks = blocks.min(layout.journal_unit_blocks()).min(power_of_two_within(pages / 4));
    AtomicWriteUnit::new(blocks, limits)
}

impl Core {
    /// Returns the maximum bytes of an aligned write that is kept whole; 0 for none.
    pub(crate) fn atomic_bytes_max(&self) -> u32 {
        self.transfers.atomic_blocks() * BLOCK as u32
    }

    /// Returns the blocks of a block's unit.
    pub(super) fn unit_of(&self, block: u32) -> Range<u32> {
        let layout = self.superblock().layout;
        let start = layout.unit_start(block);
        start..start + layout.unit_blocks
    }

    /// Returns the blocks of a unit.
    pub(super) fn unit_blocks(&self) -> u32 {
        self.superblock().layout.unit_blocks
    }

    fn any_page_of_unit(&self, ino: Ino, block: u32, holds: impl Fn(&Page) -> bool) -> bool {
        let Some(node) = self.tree.find(ino) else { return false };
        let mut pages = self.unit_of(block).filter_map(|b| node.state.pages.get(b));
        pages.any(|id| holds(self.page_cache.get(id)))
    }

    /// Returns whether a free unit is promised to pages of a block's unit.
    pub(super) fn has_delalloc_unit(&self, ino: Ino, block: u32) -> bool {
        self.any_page_of_unit(ino, block, |page| page.has_delalloc)
    }

    /// Returns whether the first write of a unit is in flight: the file has no block of the unit yet.
    pub(super) fn is_unit_new_in_flight(&self, ino: Ino, block: u32) -> bool {
        self.any_page_of_unit(ino, block, |page| page.writing)
    }

    /// Returns the blocks that are promised to pages of a file.
    pub(super) fn delalloc_blocks(&self, node: &InodeNode) -> u64 {
        let layout = self.superblock().layout;
        let is_counted = |id| self.page_cache.get(id).has_delalloc;
        let pages = node.state.pages.iter().filter(|(_, id)| is_counted(*id));
        let mut units: Vec<u32> = pages.map(|(block, _)| layout.unit_start(block)).collect();
        units.dedup();
        units.len() as u64 * u64::from(layout.unit_blocks)
    }

    /// Ends the promises of free units to pages of blocks `from..to`.
    pub(super) fn end_delalloc(&mut self, ino: Ino, from: u32, to: u32) {
        let unit = self.unit_blocks();
        let mut at = self.unit_of(from).start;
        while at < to {
            let Some(node) = self.tree.find(ino) else { return };
            let mut was_promised = false;
            for id in (at..at + unit).filter_map(|b| node.state.pages.get(b)) {
                was_promised |= self.page_cache.get(id).has_delalloc;
                self.page_cache.set_delalloc(id, false);
            }
            if was_promised {
                self.allocator.release_delalloc(unit.into());
            }
            at += unit;
        }
    }

    /// Promises free units to the pages of blocks `from..to`, whole units that were allocated and
    /// are free again.
    pub(super) fn restore_delalloc(&mut self, ino: Ino, from: u32, to: u32) {
        let blocks = to - from;
        let is_promised = self.allocator.reserve_delalloc(blocks.into());
        assert!(is_promised, "allocator: {blocks} blocks were freed, and cannot be promised");
        let Some(node) = self.tree.find(ino) else { return };
        for id in (from..to).filter_map(|b| node.state.pages.get(b)) {
            if self.page_cache.get(id).is_only_copy() {
                self.page_cache.set_delalloc(id, true);
            }
        }
    }

    /// Returns the number of blocks from `at` on, of a write that ends at `end`, that are kept whole
    /// together; 0 if the write changes only a part of the first one.
    pub(super) fn whole_blocks(&self, at: u64, end: u64) -> u32 {
        let unit = u64::from(self.transfers.atomic_blocks()) * BLOCK as u64;
        if unit == 0 || !at.is_multiple_of(BLOCK as u64) {
            return 0;
        }
        let unit_end = (at / unit + 1) * unit;
        ((end.min(unit_end) - at) / BLOCK as u64) as u32
    }

    /// Returns whether `count` whole blocks from `first` on can be changed now, without a wait
    /// between them.
    pub(super) fn can_write_whole(
        &mut self,
        active: &mut ActiveRequest,
        ino: Ino,
        first: u32,
        count: u32,
    ) -> Result<bool, Error> {
        let node = self.tree.get(ino)?;
        let (mut fresh, mut journaled, mut complete) = (0, None, 0);
        for block in first..first + count {
            let page = node.state.pages.get(block).map(|id| self.page_cache.get(id));
            if page.is_some_and(|page| page.loading) {
                // The caller's look-up of the page fails if the read does.
                active.awaited_block = Some(block);
                return Ok(false);
            }
            fresh += usize::from(page.is_none_or(|page| !page.is_only_copy()));
            if page.is_some_and(|page| page.journaled_txn > 0) {
                journaled = journaled.or(Some(block));
            }
            complete += u32::from(page.is_some_and(|page| page.is_journaled_whole));
        }
        if let Some(block) = journaled.filter(|_| complete < count) {
            if node.state.writeback.is_paused() {
                return Err(Error::Io { status: self.writeback.last_error() });
            }
            self.write_in_place(ino, block);
            return Ok(false);
        }
        if fresh > 0 && !self.can_dirty(fresh)? {
            return Ok(false);
        }
        if !self.page_cache.can_allocate(fresh) {
            self.force_writeback()?;
            return Ok(false);
        }
        Ok(self.can_change_blocks(ino, first..first + count))
    }

    /// Returns whether segments or units have more than one block.
    pub(super) fn has_segments(&self) -> bool {
        self.transfers.atomic_blocks() > 0 || self.unit_blocks() > 1
    }

    /// Returns the end of the segments from `first` on that can be written in place together, in one
    /// staging buffer. The first one can.
    pub(super) fn ready_segments_end(&self, ino: Ino, first: u32) -> u32 {
        let mut end = self.segment(ino, first).end;
        loop {
            let page = self.find_page(ino, end).map(|id| self.page_cache.get(id));
            if !page.is_some_and(|page| page.is_only_copy() && !page.writing) {
                return end;
            }
            let next = self.segment(ino, end);
            let fits = next.end - first <= STAGING_BUFFER_BLOCKS;
            if !fits || self.segment_state(ino, &next) != SegmentState::Ready {
                return end;
            }
            end = next.end;
        }
    }

    /// Returns the segment of a block whose page is the only copy of some bytes.
    pub(super) fn segment(&self, ino: Ino, block: u32) -> Range<u32> {
        let whole = |block: u32| {
            let id = self.find_page(ino, block)?;
            Some(self.page_cache.get(id).whole).filter(|whole| whole.is_part)
        };
        let (mut first, mut end) = (block, block + 1);
        let mut here = whole(block);
        while here.is_some_and(|whole| whole.joins_next) {
            here = whole(end);
            end += u32::from(here.is_some());
        }
        while whole(first).is_some()
            && let Some(before) = first.checked_sub(1)
            && whole(before).is_some_and(|whole| whole.joins_next)
        {
            first = before;
        }
        first..end
    }

    /// Returns whether a segment can be written in place.
    pub(super) fn segment_state(&self, ino: Ino, segment: &Range<u32>) -> SegmentState {
        let node = self.tree.existing(ino);
        let mut points = None;
        for block in segment.clone() {
            let id = self.find_page(ino, block).expect("pages: a changed block is cached");
            let page = self.page_cache.get(id);
            let mapping = node.extents.find(block);
            let is_hole = matches!(mapping, BlockMapping::Hole { .. });
            let is_permitted = self.barriers.ordered.permits_in_place(page.order.last_epoch);
            if page.writing || !is_permitted || is_hole && self.is_unit_new_in_flight(ino, block) {
                return SegmentState::Busy;
            }
            if !page.whole.is_part {
                return self.single_state(node, page);
            }
            let here = change_point(page, mapping);
            let same = points.is_none_or(|points| points == here);
            points = Some(if same { here } else { ChangePoint::Several });
        }
        let txn = match points {
            None | Some(ChangePoint::Several) => return SegmentState::Mixed,
            Some(ChangePoint::Commit) => node.state.txns.last_emptied(),
            Some(ChangePoint::Write | ChangePoint::Journal) => node.state.txns.last(true),
        };
        if txn <= self.log.durable_txn() {
            SegmentState::Ready
        } else {
            SegmentState::Uncommitted { txn }
        }
    }

    /// Returns whether blocks `from..to` can be removed from a file. Not from the middle of a segment:
    /// its rest would be two segments. It is written first.
    pub(super) fn can_split_segments(
        &mut self,
        ino: Ino,
        from: u32,
        to: u32,
    ) -> Result<bool, Error> {
        let segment = self.segment(ino, from);
        if segment.start >= from || segment.end <= to {
            return Ok(true);
        }
        if self.tree.get(ino)?.state.writeback.is_paused() {
            return Err(Error::Io { status: self.writeback.last_error() });
        }
        self.barriers.ordered.request_all();
        self.request_writeback(ino, false);
        Ok(false)
    }

    /// Returns the state of a page that is a segment of its own. It may have other bytes of whole
    /// writes: it follows them.
    fn single_state(&self, node: &InodeNode, page: &Page) -> SegmentState {
        let txn = page.last_journaled_txn;
        if page.journaled_txn > 0 && txn > self.log.durable_txn() {
            return SegmentState::Uncommitted { txn };
        }
        let write_seq = node.state.txns.unflushed_whole_seq();
        if self.barriers.is_flushed(write_seq) {
            SegmentState::Ready
        } else {
            SegmentState::Unflushed { write_seq }
        }
    }

    /// Writes the segment of a block in place if that is possible now; otherwise does what it waits
    /// for. Returns the end of what was written.
    pub(super) fn write_in_place(&mut self, ino: Ino, block: u32) -> Option<u32> {
        let is_held = self.tree.find(ino).is_none_or(|n| n.state.writeback.is_paused());
        if is_held || self.staging.is_exhausted() {
            return None;
        }
        let segment = self.segment(ino, block);
        match self.segment_state(ino, &segment) {
            SegmentState::Ready => return self.write_extent(ino, segment.start),
            SegmentState::Busy => {}
            SegmentState::Uncommitted { txn } => {
                self.log.require_durable(txn);
            }
            SegmentState::Unflushed { write_seq } => {
                self.barriers.require_flushed(write_seq);
            }
            SegmentState::Mixed => self.journal_segment(ino, &segment),
        }
        None
    }

    /// Journals a segment in the running transaction, if there is space for it.
    fn journal_segment(&mut self, ino: Ino, segment: &Range<u32>) {
        let node = self.tree.existing(ino);
        // Data beyond the recorded size would not be part of the file.
        if node.recorded_size < u64::from(segment.start) * BLOCK as u64 {
            return;
        }
        let pages = segment.clone().filter_map(|block| self.find_page(ino, block));
        let fresh = pages.filter(|id| self.page_cache.get(*id).journaled_txn == 0).count();
        let journaled = self.page_cache.journaled_len();
        if journaled > 0 && journaled + fresh > self.journaled_blocks_max() {
            // Requests that wait for data that cannot be written get the error themselves.
            let _ = self.force_writeback();
            return;
        }
        let bytes = segment.len() * (DATA_BYTES + BLOCK) + INODE_BYTES;
        if !self.log.ensure_space(bytes, fresh as u64, journaled) {
            return;
        }
        for block in segment.clone() {
            self.journal_block(ino, block, ByteRange::ALL);
        }
        self.stats.whole_writes_journaled += 1;
        self.update_recorded_size(ino);
        self.add_written_inode(ino, true);
        self.log.request_commit();
        self.made_progress = true;
    }
}

fn change_point(page: &Page, mapping: BlockMapping) -> ChangePoint {
    let is_written = matches!(mapping, BlockMapping::Extent(FileExtent { written: true, .. }));
    match (page.journaled_txn > 0, is_written, page.on_device_bytes as usize) {
        (true, ..) if page.is_journaled_whole => ChangePoint::Journal,
        (true, ..) => ChangePoint::Several,
        (false, true, BLOCK) => ChangePoint::Write,
        (false, true, 1..) => ChangePoint::Several,
        (false, ..) => ChangePoint::Commit,
    }
}
