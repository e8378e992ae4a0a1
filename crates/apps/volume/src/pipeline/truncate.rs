//! Operations that change a file's blocks: truncate, allocate, punch hole.
//!
//! Blocks are removed only while no I/O of the file is in flight. Otherwise an earlier transfer
//! could read or overwrite data of their next owner.

use crate::metadata::extents::{BlockMapping, FileExtent};
use crate::on_media::record::{EXTENT_BYTES, INODE_BYTES, MetadataRecord, TO_EOF};
use crate::parts::page_cache::ByteRange;
use crate::parts::requests::{ActiveRequest, OpSlot, OpState};
use crate::pipeline::page_lookup::LookupResult;
use crate::pipeline::{Core, OpStep, StepResult};
use crate::{BLOCK, Error, Ino, OpResult};

/// Returns the first block that begins at or after a byte.
fn next_block_boundary(byte: u64) -> u32 {
    byte.div_ceil(BLOCK as u64) as u32
}

/// A range of a file, as requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSpan {
    /// First byte.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) len: u64,
}

impl Core {
    /// Blocks new I/O of a file, and returns whether none is in flight.
    fn quiesce(&mut self, ino: Ino) -> Result<bool, Error> {
        Ok(self.tree.get_mut(ino)?.state.io.quiesce())
    }

    /// Removes blocks `from..to` of a file. They become free once that is durable.
    pub(super) fn unmap_blocks(&mut self, ino: Ino, from: u32, to: u32) {
        let logged = self.invalidate(ino, from, to);
        let (from, to) = self.empty_parts_of_units(ino, from, to, logged);
        if from >= to {
            return;
        }
        let count = if to == TO_EOF { TO_EOF } else { to - from };
        let mut unmapped = false;
        self.tree.unmap(ino, from, count, |blocks| {
            self.log.free_when_durable(blocks);
            unmapped = true;
        });
        if unmapped || logged {
            self.log.record(&MetadataRecord::Unmap { ino, logical: from, count });
            self.add_inode_to_txn(ino, true);
        }
    }

    /// Makes the blocks of `from..to` that are only a part of their unit read as zeros; the file
    /// keeps them. Returns the others. `logged` if the journal may have data of them.
    fn empty_parts_of_units(&mut self, ino: Ino, from: u32, to: u32, logged: bool) -> (u32, u32) {
        let layout = self.superblock().layout;
        let inner_from = layout.unit_end(from);
        let inner_to = if to == TO_EOF { TO_EOF } else { layout.unit_start(to).max(inner_from) };
        for (from, to) in [(from, inner_from.min(to)), (inner_to, to)] {
            if from >= to {
                continue;
            }
            let kept = self.tree.existing(ino).extents.contiguous(from, to);
            if kept.is_none() && !logged {
                continue;
            }
            self.log.record(&MetadataRecord::Unmap { ino, logical: from, count: to - from });
            // A unit is contiguous on the volume.
            if let Some(kept) = kept {
                let extent = FileExtent { written: false, ..kept };
                self.log.record(&MetadataRecord::Map { ino, extent });
                self.tree.map(ino, extent);
            }
            let txn = self.log.running_txn();
            self.tree.existing_mut(ino).state.txns.record_emptied(txn);
            self.add_inode_to_txn(ino, true);
        }
        (inner_from, inner_to)
    }

    /// Returns the maximum bytes of a file.
    pub(super) fn file_bytes_max(&self) -> u64 {
        u64::from(self.superblock().layout.file_blocks_max()) * BLOCK as u64
    }

    pub(super) fn truncate(
        &mut self,
        slot: OpSlot,
        active: &mut ActiveRequest,
        ino: Ino,
        size: u64,
    ) -> StepResult {
        if active.state == OpState::Start {
            if size > self.file_bytes_max() {
                return Err(Error::TooLarge);
            }
            if !self.begin_change(slot, active, ino)? {
                return Ok(OpStep::Wait);
            }
            active.state = OpState::Changing;
        }
        if !self.ensure_journal_space(4 * INODE_BYTES) {
            return Ok(OpStep::Wait);
        }
        let old = self.tree.get(ino)?.size;
        if size < old {
            // The file keeps the last unit, which then has a part without contents.
            let last = next_block_boundary(size);
            if self.unit_of(last).start != last && !self.has_metadata_space(EXTENT_BYTES) {
                return Err(Error::NoMetadataSpace);
            }
            // The page of the new last block changes if it is buffered.
            let (block, within) = ((size / BLOCK as u64) as u32, (size % BLOCK as u64) as usize);
            let page = self.find_page(ino, block).filter(|_| within > 0);
            let is_dirty = page.is_some_and(|id| self.page_cache.get(id).dirty);
            if is_dirty && !self.can_change_blocks(ino, block..block + 1) || !self.quiesce(ino)? {
                return Ok(OpStep::Wait);
            }
            self.unmap_blocks(ino, next_block_boundary(size), TO_EOF);
            if let Some(frame) = self.find_page(ino, block).filter(|_| within > 0) {
                self.page_cache.zero(frame, within, BLOCK);
                self.page_cache.limit_on_device_bytes(frame, within as u32);
            }
        } else if size > old && !self.zero_tail(active, ino)? {
            return Ok(OpStep::Wait);
        }
        let node = self.tree.get_mut(ino)?;
        node.size = size;
        node.recorded_size = node.recorded_size.min(size);
        (node.times.modify, node.times.change) = (active.time, active.time);
        self.update_recorded_size(ino);
        self.add_inode_to_txn(ino, size != old);
        Ok(OpStep::Done(OpResult::Done))
    }

    pub(super) fn punch(
        &mut self,
        slot: OpSlot,
        active: &mut ActiveRequest,
        ino: Ino,
        span: FileSpan,
    ) -> StepResult {
        let FileSpan { offset, len } = span;
        if active.state == OpState::Start {
            if len == 0 {
                return Err(Error::Invalid("a range of no bytes"));
            }
            if !self.begin_change(slot, active, ino)? {
                return Ok(OpStep::Wait);
            }
            // A hole in the middle of an extent splits it in two; blocks that a unit keeps are
            // extents, too.
            let extents = if self.unit_blocks() > 1 { 4 } else { 1 };
            if !self.has_metadata_space(extents * EXTENT_BYTES) {
                return Err(Error::NoMetadataSpace);
            }
            active.state = OpState::Changing;
        }
        if !self.ensure_journal_space(4 * INODE_BYTES) {
            return Ok(OpStep::Wait);
        }
        let size = self.tree.get(ino)?.size;
        let end = offset.saturating_add(len).min(self.file_bytes_max());
        let seen = end.min(size);
        let (first, last) = (next_block_boundary(offset), (end / BLOCK as u64) as u32);
        for (from, to) in unaligned_parts(offset, seen).skip(active.zeroed) {
            let block = (from / BLOCK as u64) as u32;
            let begin = u64::from(block) * BLOCK as u64;
            if !self.zero_part(
                active,
                ino,
                block,
                ByteRange((from - begin) as usize, (to - begin) as usize),
            )? {
                return Ok(OpStep::Wait);
            }
            active.zeroed += 1;
        }
        // The last block is removed as a whole if the range covers all of its bytes within the
        // file.
        let last = if end >= size { last.max(next_block_boundary(seen)) } else { last };
        if first < last {
            if !self.can_split_segments(ino, first, last)? || !self.quiesce(ino)? {
                return Ok(OpStep::Wait);
            }
            self.unmap_blocks(ino, first, last);
        }
        self.update_recorded_size(ino);
        let node = self.tree.get_mut(ino)?;
        (node.times.modify, node.times.change) = (active.time, active.time);
        self.add_inode_to_txn(ino, true);
        Ok(OpStep::Done(OpResult::Done))
    }

    /// Zeroes a part of a block; returns `false` while it must wait.
    fn zero_part(
        &mut self,
        active: &mut ActiveRequest,
        ino: Ino,
        block: u32,
        span: ByteRange,
    ) -> Result<bool, Error> {
        let node = self.tree.get(ino)?;
        let written = matches!(
            node.extents.find(block),
            BlockMapping::Extent(FileExtent { written: true, .. })
        );
        if !written && node.state.pages.get(block).is_none() {
            return Ok(true);
        }
        match self.page_for_write(active, ino, block, false)? {
            LookupResult::Ready(frame) => {
                self.page_cache.zero(frame, span.0, span.1);
                self.mark_dirty(ino, block, frame, span);
                Ok(true)
            }
            LookupResult::Wait => Ok(false),
        }
    }

    pub(super) fn allocate(
        &mut self,
        slot: OpSlot,
        active: &mut ActiveRequest,
        ino: Ino,
        span: FileSpan,
        keep_size: bool,
    ) -> StepResult {
        let FileSpan { offset, len } = span;
        if active.state == OpState::Start {
            let max = self.file_bytes_max();
            let end = offset.checked_add(len).filter(|end| *end <= max);
            let end = end.ok_or(Error::TooLarge)?;
            if len == 0 {
                return Err(Error::Invalid("a range of no bytes"));
            }
            if !self.begin_change(slot, active, ino)? {
                return Ok(OpStep::Wait);
            }
            let layout = self.superblock().layout;
            let first = layout.unit_start((offset / BLOCK as u64) as u32);
            let end = layout.unit_end(next_block_boundary(end));
            let need = self.count_holes(ino, first, end)?;
            if !self.allocator.reserve_delalloc(need) {
                return if self.has_pending_frees() {
                    Ok(OpStep::Wait)
                } else {
                    Err(Error::NoSpace)
                };
            }
            active.state = OpState::Allocate { next: first, delalloc_blocks: need };
        }
        let OpState::Allocate { mut next, delalloc_blocks: mut promised } = active.state else {
            unreachable!("requests: an allocation in state {:?}", active.state);
        };
        let end = offset + len;
        let end_block = self.superblock().layout.unit_end(next_block_boundary(end));
        let result = self.step_allocate(active, ino, &mut next, end_block, &mut promised);
        active.state = OpState::Allocate { next, delalloc_blocks: promised };
        match result {
            Ok(true) => {}
            Ok(false) => return Ok(OpStep::Wait),
            Err(error) => {
                self.allocator.release_delalloc(promised);
                return Err(error);
            }
        }
        if !keep_size && end > self.tree.get(ino)?.size {
            match self.zero_tail(active, ino) {
                Ok(true) => {}
                Ok(false) => return Ok(OpStep::Wait),
                Err(error) => {
                    self.allocator.release_delalloc(promised);
                    return Err(error);
                }
            }
            self.tree.get_mut(ino)?.size = end;
            self.update_recorded_size(ino);
        }
        self.allocator.release_delalloc(promised);
        let node = self.tree.get_mut(ino)?;
        node.times.change = active.time;
        self.add_inode_to_txn(ino, true);
        Ok(OpStep::Done(OpResult::Done))
    }

    /// Returns the number of unallocated blocks in a range.
    fn count_holes(&self, ino: Ino, mut at: u32, end: u32) -> Result<u64, Error> {
        let node = self.tree.get(ino)?;
        let mut holes = 0;
        for extent in node.extents.range_from(at).take_while(|e| e.logical < end) {
            holes += u64::from(extent.logical.saturating_sub(at));
            at = extent.end();
        }
        Ok(holes + u64::from(end.saturating_sub(at)))
    }

    fn step_allocate(
        &mut self,
        active: &mut ActiveRequest,
        ino: Ino,
        next: &mut u32,
        end: u32,
        promised: &mut u64,
    ) -> Result<bool, Error> {
        while *next < end {
            if !self.ensure_journal_space(2 * INODE_BYTES + EXTENT_BYTES) {
                return Ok(false);
            }
            if !self.has_metadata_space(EXTENT_BYTES) {
                return Err(Error::NoMetadataSpace);
            }
            let node = self.tree.get(ino)?;
            let count = match node.extents.find(*next) {
                BlockMapping::Extent(extent) => {
                    *next = extent.end();
                    continue;
                }
                BlockMapping::Hole { count } => count.min(end - *next),
            };
            // An extent in flight has blocks that are not mapped yet.
            if !node.state.io.is_idle() {
                return Ok(false);
            }
            let goal = node.extents.goal(*next);
            let Some(run) = self.allocator.allocate(goal, count) else {
                return Err(Error::NoSpace);
            };
            self.allocator.release_delalloc(run.blocks.into());
            *promised = promised.saturating_sub(run.blocks.into());
            let (phys, count) = (run.first_block, run.blocks);
            let extent = FileExtent { logical: *next, count, phys, written: false };
            self.tree.map(ino, extent);
            self.log.record(&MetadataRecord::Map { ino, extent });
            self.add_inode_to_txn(ino, true);
            self.tree.get_mut(ino)?.times.change = active.time;
            *next += count;
        }
        Ok(true)
    }
}

/// Returns the parts of a range that are not whole blocks.
fn unaligned_parts(from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
    let block = BLOCK as u64;
    let head_end = from.next_multiple_of(block).min(to);
    let tail = (to / block * block).max(head_end);
    [(from, head_end), (tail, to)].into_iter().filter(|(a, b)| a < b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_parts_are_what_remains_of_whole_blocks() {
        let parts = |from, to| unaligned_parts(from, to).collect::<Vec<_>>();
        assert_eq!(parts(0, 8192), []);
        assert_eq!(parts(10, 20), [(10, 20)]);
        assert_eq!(parts(10, 4096), [(10, 4096)]);
        assert_eq!(parts(10, 9000), [(10, 4096), (8192, 9000)]);
        assert_eq!(parts(4096, 4100), [(4096, 4100)]);
        assert_eq!(parts(50, 20), []);
    }
}
