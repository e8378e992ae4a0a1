//! Reads: from pages, directly from the device, or, for unaligned data, through a staging buffer.
//! Holes read as zeros.

use mem::{Iova, SharedRegion};
use nvme::Status;

use crate::metadata::extents::{BlockMapping, FileExtent};
use crate::on_media::layout::BlockRun;
use crate::parts::requests::{ActiveRequest, OpSlot, OpState};
use crate::parts::staging::STAGING_BUFFER_BLOCKS;
use crate::pipeline::{Core, OpStep, StagedRead, StepResult, TransferPurpose};
use crate::{BLOCK, Error, Ino, OpResult, RequestBuffer};

/// Alignment of a data address for direct reads.
const DATA_ALIGNMENT: u64 = 512;

impl Core {
    pub(super) fn read(
        &mut self,
        slot: OpSlot,
        active: &mut ActiveRequest,
        ino: Ino,
        offset: u64,
        data: RequestBuffer,
    ) -> StepResult {
        if active.state == OpState::Start {
            let node = self.tree.file(ino)?;
            let end = offset.saturating_add(data.len.into()).min(node.size);
            if end <= offset {
                return Ok(OpStep::Done(OpResult::Bytes { offset, len: 0 }));
            }
            self.requests.resolve(data.iova, data.len.into())?;
            self.pin_inode(active, ino)?;
            active.state = OpState::Read { next: offset, end, pending: 0 };
        }
        let OpState::Read { mut next, end, mut pending } = active.state else {
            unreachable!("requests: a read in state {:?}", active.state);
        };
        let gate = self.tree.get(ino)?.state.io.is_blocked();
        while active.failed.is_none() && next < end && !gate {
            let to = data.iova.offset(next - offset);
            active.awaited_block = None;
            let Some((bytes, at_device)) = self.read_segment(slot, active, ino, next, end, to)?
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
        slot: OpSlot,
        active: &mut ActiveRequest,
        ino: Ino,
        next: u64,
        end: u64,
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
            BlockMapping::Extent(extent @ FileExtent { written: true, .. }) => extent,
            _ => {
                let there = self.requests.resolve(to, here)?;
                there.region.fill(there.offset, here as usize, 0);
                return Ok(Some((here, false)));
            }
        };
        // Limited to contiguous blocks that are not cached.
        let last = ((end - 1) / BLOCK as u64) as u32;
        let cached = node.state.pages.next_cached(block).unwrap_or(u32::MAX);
        let count = extent.count.min(cached - block).min(last - block + 1);
        let bytes = (u64::from(count) * BLOCK as u64 - within).min(end - next);
        let aligned = within == 0 && to.0.is_multiple_of(DATA_ALIGNMENT);
        let whole = bytes / BLOCK as u64;
        if aligned && whole > 0 {
            self.tree.existing_mut(ino).state.io.begin();
            let blocks = BlockRun { first_block: extent.phys, blocks: whole as u32 };
            self.read_blocks(TransferPurpose::Direct { slot, ino }, blocks, to);
            return Ok(Some((whole * BLOCK as u64, true)));
        }
        if count == 1 && self.load_page(ino, block, extent.phys).is_some() {
            active.awaited_block = Some(block);
            return Ok(None);
        }
        let Some(staging) = self.staging.take() else { return Ok(None) };
        let count = count.min(STAGING_BUFFER_BLOCKS);
        let bytes = (u64::from(count) * BLOCK as u64 - within).min(end - next);
        let (offset, len) = (within as usize, bytes as usize);
        let read = StagedRead { slot, ino, staging, offset, to, len };
        self.tree.existing_mut(ino).state.io.begin();
        let blocks = BlockRun { first_block: extent.phys, blocks: count };
        self.read_blocks(TransferPurpose::Staged(read), blocks, self.staging.iova(staging));
        Ok(Some((bytes, true)))
    }

    /// Copies the data of a staged read to its request.
    pub(super) fn on_staged_read(&mut self, read: &StagedRead, mut status: Status) {
        if status.is_success() && self.copy_from_staging(read).is_err() {
            status = Status::DATA_TRANSFER_ERROR;
        }
        self.staging.release(read.staging);
        self.on_read_complete(read.slot, read.ino, status);
    }

    fn copy_from_staging(&self, read: &StagedRead) -> Result<(), Error> {
        let there = self.requests.resolve(read.to, read.len as u64)?;
        let from = self.staging.block_offset(read.staging, 0) + read.offset;
        SharedRegion::copy(self.staging.region(), from, there.region, there.offset, read.len);
        Ok(())
    }

    pub(super) fn on_read_complete(&mut self, slot: OpSlot, ino: Ino, status: Status) {
        self.tree.existing_mut(ino).state.io.end();
        self.requests.end_read(slot, status);
    }
}
