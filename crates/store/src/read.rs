//! Reading: from frames, straight from the device, or, where the data is not aligned, past a staging
//! buffer; holes are zeros.

use nvme::Status;
use ring::{Iova, Region};

use crate::core::{Active, Core, Progress, STAGE_BLOCKS, Step, Stepped, What};
use crate::extents::{Extent, Place};
use crate::{BLOCK, Buffer, Error, Ino, Outcome};

/// What the address of data must be a multiple of, for the device to put it there.
const ALIGNED: u64 = 512;

impl Core {
    pub(crate) fn read(
        &mut self,
        slot: u32,
        active: &mut Active,
        ino: Ino,
        offset: u64,
        data: Buffer,
    ) -> Stepped {
        if active.progress == Progress::Start {
            let node = self.tree.file(ino)?;
            let end = offset.saturating_add(data.len.into()).min(node.size);
            if end <= offset {
                return Ok(Step::Done(Outcome::Bytes { offset, len: 0 }));
            }
            self.find(data.at, data.len.into())?;
            self.hold(active, ino)?;
            active.progress = Progress::Read { next: offset, end, pending: 0 };
        }
        let Progress::Read { mut next, end, mut pending } = active.progress else {
            return Err(Error::Invalid("a read that is none"));
        };
        let gate = self.tree.get(ino)?.live.gate;
        while active.failed.is_none() && next < end && !gate {
            let to = data.at.offset(next - offset);
            active.loads = None;
            let Some((bytes, at_device)) = self.piece_of(slot, active, ino, (next, end), to)?
            else {
                break;
            };
            pending += u32::from(at_device);
            next += bytes;
        }
        active.progress = Progress::Read { next, end, pending };
        match active.failed {
            _ if pending > 0 => Ok(Step::Wait),
            Some(status) => Err(Error::Io { status }),
            None if next < end => Ok(Step::Wait),
            None => Ok(Step::Done(Outcome::Bytes { offset, len: (end - offset) as u32 })),
        }
    }

    /// Some bytes from `next` on: how many, and whether they come from the device. `None` if it waits.
    fn piece_of(
        &mut self,
        slot: u32,
        active: &mut Active,
        ino: Ino,
        (next, end): (u64, u64),
        to: Iova,
    ) -> Result<Option<(u64, bool)>, Error> {
        let (block, within) = ((next / BLOCK as u64) as u32, next % BLOCK as u64);
        let here = (BLOCK as u64 - within).min(end - next);
        if let Some(frame) = self.cached(ino, block) {
            if self.frames.get(frame).loading {
                active.loads = Some(block);
                return Ok(None);
            }
            self.frames.touch(frame);
            self.copy_out(frame, within as usize, to, here as usize)?;
            return Ok(Some((here, false)));
        }
        let node = self.tree.get(ino)?;
        let extent = match node.extents.find(block) {
            Place::At(extent @ Extent { written: true, .. }) => extent,
            _ => {
                let there = self.find(to, here)?;
                there.region.fill(there.offset, here as usize, 0);
                return Ok(Some((here, false)));
            }
        };
        // As far as it is in one piece and not in memory.
        let last = ((end - 1) / BLOCK as u64) as u32;
        let cached = node.live.frames.range(block..).next().map_or(u32::MAX, |(b, _)| *b);
        let count = extent.count.min(cached - block).min(last - block + 1);
        let bytes = (u64::from(count) * BLOCK as u64 - within).min(end - next);
        let aligned = within == 0 && to.0.is_multiple_of(ALIGNED);
        let whole = bytes / BLOCK as u64;
        if aligned && whole > 0 {
            self.begin_io(ino);
            self.read_blocks(What::Direct { slot, ino }, (extent.phys, whole as u32), to);
            return Ok(Some((whole * BLOCK as u64, true)));
        }
        if count == 1 && self.load(ino, block, extent.phys).is_some() {
            active.loads = Some(block);
            return Ok(None);
        }
        let Some(stage) = self.free_stages.pop() else { return Ok(None) };
        let count = count.min(STAGE_BLOCKS);
        let bytes = (u64::from(count) * BLOCK as u64 - within).min(end - next);
        let (from, len) = (within as usize, bytes as usize);
        let what = What::Staged { slot, ino, stage, from, to, len };
        self.begin_io(ino);
        let at = self.stages_at.offset(u64::from(stage * STAGE_BLOCKS) * BLOCK as u64);
        self.read_blocks(what, (extent.phys, count), at);
        Ok(Some((bytes, true)))
    }

    fn begin_io(&mut self, ino: Ino) {
        if let Some(node) = self.tree.find_mut(ino) {
            node.live.io += 1;
        }
    }

    pub(crate) fn copy_out_of_stage(
        &self,
        stage: u32,
        from: usize,
        to: Iova,
        len: usize,
    ) -> Result<(), Error> {
        let there = self.find(to, len as u64)?;
        let at = (stage * STAGE_BLOCKS) as usize * BLOCK + from;
        Region::copy(&self.stages, at, there.region, there.offset, len);
        Ok(())
    }

    pub(crate) fn read_ended(&mut self, slot: u32, ino: Ino, status: Status) {
        if let Some(node) = self.tree.find_mut(ino) {
            node.live.io -= 1;
        }
        if let Some(active) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            if let Progress::Read { pending, .. } = &mut active.progress {
                *pending -= 1;
            }
            if !status.is_success() {
                active.failed.get_or_insert(status);
            }
        }
    }
}
