//! Reads: from pages, directly from the device, or, for unaligned data, through a staging buffer.
//! Holes read as zeros.

use nvme::Status;
use ring::{Iova, SharedRegion};

use crate::extents::{BlockMapping, Extent};
use crate::pipeline::{
    ActiveOp, Core, OpState, OpStep, STAGING_BUFFER_BLOCKS, StepResult, TransferPurpose,
};
use crate::{BLOCK, Buffer, Error, Ino, OpResult};

/// Alignment of a data address for direct reads.
const DATA_ALIGNMENT: u64 = 512;

impl Core {
    pub(crate) fn read(
        &mut self,
        slot: u32,
        active: &mut ActiveOp,
        ino: Ino,
        offset: u64,
        data: Buffer,
    ) -> StepResult {
        if active.state == OpState::Start {
            let node = self.tree.file(ino)?;
            let end = offset.saturating_add(data.len.into()).min(node.size);
            if end <= offset {
                return Ok(OpStep::Done(OpResult::Bytes { offset, len: 0 }));
            }
            self.resolve_buffer(data.iova, data.len.into())?;
            self.pin_inode(active, ino)?;
            active.state = OpState::Read { next: offset, end, pending: 0 };
        }
        let OpState::Read { mut next, end, mut pending } = active.state else {
            return Err(Error::Invalid("a read that is none"));
        };
        let gate = self.tree.get(ino)?.state.io_blocked;
        while active.failed.is_none() && next < end && !gate {
            let to = data.iova.offset(next - offset);
            active.awaited_block = None;
            let Some((bytes, at_device)) = self.read_segment(slot, active, ino, (next, end), to)?
            else {
                break;
            };
            pending += u32::from(at_device);
            next += bytes;
        }
        active.state = OpState::Read { next, end, pending };
        match active.failed {
            _ if pending > 0 => Ok(OpStep::Wait),
            Some(status) => Err(Error::Io { status }),
            None if next < end => Ok(OpStep::Wait),
            None => Ok(OpStep::Done(OpResult::Bytes { offset, len: (end - offset) as u32 })),
        }
    }

    /// Reads a segment starting at `next`. Returns its length and whether it comes from the device,
    /// or `None` if the request must wait.
    fn read_segment(
        &mut self,
        slot: u32,
        active: &mut ActiveOp,
        ino: Ino,
        (next, end): (u64, u64),
        to: Iova,
    ) -> Result<Option<(u64, bool)>, Error> {
        let (block, within) = ((next / BLOCK as u64) as u32, next % BLOCK as u64);
        let here = (BLOCK as u64 - within).min(end - next);
        if let Some(frame) = self.find_page(ino, block) {
            if self.page_cache.get(frame).loading {
                active.awaited_block = Some(block);
                return Ok(None);
            }
            self.page_cache.touch(frame);
            self.copy_out(frame, within as usize, to, here as usize)?;
            return Ok(Some((here, false)));
        }
        let node = self.tree.get(ino)?;
        let extent = match node.extents.find(block) {
            BlockMapping::Extent(extent @ Extent { written: true, .. }) => extent,
            _ => {
                let there = self.resolve_buffer(to, here)?;
                there.region.fill(there.offset, here as usize, 0);
                return Ok(Some((here, false)));
            }
        };
        // Limited to contiguous blocks that are not cached.
        let last = ((end - 1) / BLOCK as u64) as u32;
        let cached = node.state.pages.range(block..).next().map_or(u32::MAX, |(b, _)| *b);
        let count = extent.count.min(cached - block).min(last - block + 1);
        let bytes = (u64::from(count) * BLOCK as u64 - within).min(end - next);
        let aligned = within == 0 && to.0.is_multiple_of(DATA_ALIGNMENT);
        let whole = bytes / BLOCK as u64;
        if aligned && whole > 0 {
            self.begin_io(ino);
            self.read_blocks(
                TransferPurpose::Direct { slot, ino },
                (extent.phys, whole as u32),
                to,
            );
            return Ok(Some((whole * BLOCK as u64, true)));
        }
        if count == 1 && self.load_page(ino, block, extent.phys).is_some() {
            active.awaited_block = Some(block);
            return Ok(None);
        }
        let Some(stage) = self.free_staging.pop() else { return Ok(None) };
        let count = count.min(STAGING_BUFFER_BLOCKS);
        let bytes = (u64::from(count) * BLOCK as u64 - within).min(end - next);
        let (from, len) = (within as usize, bytes as usize);
        let what = TransferPurpose::Staged { slot, ino, staging_index: stage, from, to, len };
        self.begin_io(ino);
        let at = self.staging_iova.offset(u64::from(stage * STAGING_BUFFER_BLOCKS) * BLOCK as u64);
        self.read_blocks(what, (extent.phys, count), at);
        Ok(Some((bytes, true)))
    }

    fn begin_io(&mut self, ino: Ino) {
        if let Some(node) = self.tree.find_mut(ino) {
            node.state.io_in_flight += 1;
        }
    }

    pub(crate) fn copy_from_staging(
        &self,
        stage: u32,
        from: usize,
        to: Iova,
        len: usize,
    ) -> Result<(), Error> {
        let there = self.resolve_buffer(to, len as u64)?;
        let at = (stage * STAGING_BUFFER_BLOCKS) as usize * BLOCK + from;
        SharedRegion::copy(&self.staging, at, there.region, there.offset, len);
        Ok(())
    }

    pub(crate) fn on_read_complete(&mut self, slot: u32, ino: Ino, status: Status) {
        if let Some(node) = self.tree.find_mut(ino) {
            node.state.io_in_flight -= 1;
        }
        if let Some(active) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            if let OpState::Read { pending, .. } = &mut active.state {
                *pending -= 1;
            }
            if !status.is_success() {
                active.failed.get_or_insert(status);
            }
        }
    }
}
