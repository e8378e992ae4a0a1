//! Blocks of files in memory: finding, loading, changing and forgetting them.
//!
//! In a frame, whatever is beyond the end of its file is zeros. On the device it need not be: a block is
//! written before the size that covers it is durable. So what becomes part of a file by growing is made
//! zeros on the device first ([`Core::zero_tail`]).

use nvme::Status;
use ring::{Iova, Region};

use crate::core::{Active, Core, What};
use crate::extents::{Extent, Place};
use crate::frames::{FrameId, Span};
use crate::replay::Whole;
use crate::{BLOCK, Error, Ino};

/// A block for a change: there, or to be waited for.
pub(crate) enum Found {
    There(FrameId),
    Wait,
}

/// How many bytes of a block belong to a file of this size.
pub(crate) fn bytes_within(size: u64, block: u32) -> u32 {
    size.saturating_sub(u64::from(block) * BLOCK as u64).min(BLOCK as u64) as u32
}

impl Core {
    /// The frame of a block, if there is one.
    pub(crate) fn cached(&self, ino: Ino, block: u32) -> Option<FrameId> {
        self.tree.find(ino)?.live.frames.get(&block).copied()
    }

    /// A frame for a block that has none.
    fn new_frame(&mut self, ino: Ino, block: u32) -> Option<FrameId> {
        let (id, before) = self.frames.take((ino, block))?;
        if let Some((owner, was)) = before
            && let Some(node) = self.tree.find_mut(owner)
        {
            node.live.frames.remove(&was);
        }
        self.tree.find_mut(ino)?.live.frames.insert(block, id);
        Some(id)
    }

    /// Begins to read a block into a frame; `None` if there is no frame now.
    pub(crate) fn load(&mut self, ino: Ino, block: u32, phys: u32) -> Option<FrameId> {
        let frame = self.new_frame(ino, block)?;
        self.frames.get_mut(frame).loading = true;
        if let Some(node) = self.tree.find_mut(ino) {
            node.live.io += 1;
        }
        let at = self.frames.iova(frame);
        self.read_blocks(What::Load { ino, block, frame }, (phys, 1), at);
        Some(frame)
    }

    pub(crate) fn loaded(&mut self, ino: Ino, block: u32, frame: FrameId, status: Status) {
        self.frames.get_mut(frame).loading = false;
        let Some(node) = self.tree.find_mut(ino) else { return };
        node.live.io -= 1;
        let end = bytes_within(node.size, block);
        if status.is_success() {
            self.frames.zero(frame, end as usize, BLOCK);
            self.frames.get_mut(frame).on_device = end;
            return;
        }
        node.live.frames.remove(&block);
        self.frames.free(frame);
        for active in self.slots.iter_mut().flatten() {
            if active.holds == Some(ino) && active.loads == Some(block) {
                active.failed.get_or_insert(status);
            }
        }
    }

    /// A block that is in the journal, and nowhere else, of a volume that is only read: it stays.
    pub(crate) fn keep(&mut self, whole: &Whole) {
        let Whole { ino, block, ref bytes } = *whole;
        let Some(id) = self.new_frame(ino, block) else { return };
        let (region, at) = self.frames.place(id, 0);
        region.write(at, bytes);
        let hole = self.tree.find(ino).map(|n| n.extents.find(block));
        let frame = self.frames.get_mut(id);
        (frame.logged, frame.promised) = (1, matches!(hole, Some(Place::Hole { .. })));
        self.frames.logged += 1;
        self.frames.dirty += 1;
    }

    /// A block that a request is to change; `whole` if nothing of what it holds stays. One that has room of its own
    /// gives some of it to everybody, and takes what it needs as everybody does.
    pub(crate) fn block_for_change(
        &mut self,
        active: &mut Active,
        ino: Ino,
        block: u32,
        whole: bool,
    ) -> Result<Found, Error> {
        let own = active.room.min(1);
        self.space.unreserve(own);
        active.room -= own;
        let found = self.find_for_change(active, ino, block, whole);
        if own > 0 && !matches!(found, Ok(Found::There(_))) {
            // Nobody took it meanwhile.
            active.room += u64::from(self.space.reserve(own));
        }
        found
    }

    fn find_for_change(
        &mut self,
        active: &mut Active,
        ino: Ino,
        block: u32,
        whole: bool,
    ) -> Result<Found, Error> {
        if let Some(status) = active.failed {
            return Err(Error::Io { status });
        }
        active.loads = None;
        if let Some(frame) = self.cached(ino, block) {
            let state = *self.frames.get(frame);
            if state.loading {
                active.loads = Some(block);
                return Ok(Found::Wait);
            }
            if !state.is_needed() && !self.may_dirty()? {
                return Ok(Found::Wait);
            }
            self.frames.touch(frame);
            return Ok(Found::There(frame));
        }
        if !self.may_dirty()? {
            return Ok(Found::Wait);
        }
        let node = self.tree.get(ino)?;
        let place = node.extents.find(block);
        let beyond = u64::from(block) * BLOCK as u64 >= node.size;
        if let Place::At(Extent { phys, written: true, .. }) = place
            && !whole
            && !beyond
        {
            active.loads = Some(block);
            if self.load(ino, block, phys).is_none() {
                self.press()?;
            }
            return Ok(Found::Wait);
        }
        // What is there, zeros of a hole included, is a part of the file already.
        let on_device = bytes_within(node.size, block);
        let hole = matches!(place, Place::Hole { .. });
        if hole && !self.space.promise(1) {
            return if self.frees_coming() { Ok(Found::Wait) } else { Err(Error::NoSpace) };
        }
        let Some(frame) = self.new_frame(ino, block) else {
            if hole {
                self.space.release(1);
            }
            self.press()?;
            return Ok(Found::Wait);
        };
        let state = self.frames.get_mut(frame);
        (state.promised, state.on_device) = (hole, on_device);
        if matches!(place, Place::At(Extent { written: true, .. })) {
            // What the block holds is not what the file has here.
            state.changed = Span::ALL;
        }
        if !whole {
            self.frames.zero(frame, 0, BLOCK);
        }
        Ok(Found::There(frame))
    }

    /// Whether another frame may become dirty. If not, it is seen to.
    fn may_dirty(&mut self) -> Result<bool, Error> {
        let full = self.frames.dirty + 1 > self.frames.len() / 4 * 3;
        if !full && self.has_metadata_room(2 * crate::record::EXTENT_BYTES) {
            return Ok(true);
        }
        if self.frames.dirty == 0 {
            return Err(Error::NoMetadataSpace);
        }
        self.press()?;
        Ok(false)
    }

    /// Some bytes of a block were changed in memory.
    pub(crate) fn dirtied(&mut self, ino: Ino, block: u32, id: FrameId, span: Span) {
        let frame = self.frames.get_mut(id);
        frame.changed = frame.changed.and(span);
        if !frame.dirty {
            let counted = frame.is_needed();
            frame.dirty = true;
            self.seq += 1;
            frame.seq = self.seq;
            self.frames.dirty += usize::from(!counted);
        }
        let now = self.now;
        let Some(node) = self.tree.find_mut(ino) else { return };
        node.live.dirty.insert(block);
        if !std::mem::replace(&mut node.live.listed, true) {
            self.aging.push_back((now, ino));
        }
    }

    /// Moves a file's recorded size up to where the first byte is that is not on the device.
    pub(crate) fn settle(&mut self, ino: Ino) {
        let Some(node) = self.tree.find_mut(ino) else { return };
        while node.settled < node.size {
            let block = (node.settled / BLOCK as u64) as u32;
            let Some(&dirty) = node.live.dirty.from(block).next() else {
                node.settled = node.size;
                return;
            };
            let begin = u64::from(dirty) * BLOCK as u64;
            let frame = node.live.frames.get(&dirty);
            let there = frame.map_or(0, |id| self.frames.get(*id).on_device);
            let to = (begin + u64::from(there)).min(node.size);
            if to <= node.settled.max(begin.min(node.size)) {
                node.settled = node.settled.max(begin.min(node.size));
                return;
            }
            node.settled = to;
            if (there as usize) < BLOCK {
                return;
            }
        }
    }

    /// Before a file grows: what its last block holds behind the end becomes zeros on the device, before
    /// the new size is recorded. `false` while that waits.
    pub(crate) fn zero_tail(&mut self, active: &mut Active, ino: Ino) -> Result<bool, Error> {
        let node = self.tree.get(ino)?;
        if active.zeroed > 0 || node.size.is_multiple_of(BLOCK as u64) {
            return Ok(true);
        }
        let block = (node.size / BLOCK as u64) as u32;
        let written = matches!(node.extents.find(block), Place::At(Extent { written: true, .. }));
        if !written && !node.live.frames.contains_key(&block) {
            return Ok(true);
        }
        let end = (node.size % BLOCK as u64) as usize;
        match self.block_for_change(active, ino, block, false)? {
            Found::There(frame) => {
                self.dirtied(ino, block, frame, Span(end, BLOCK));
                active.zeroed = 1;
                Ok(true)
            }
            Found::Wait => Ok(false),
        }
    }

    /// Forgets frames of blocks from `from` on, to `to`. None of them is at the device. Returns whether
    /// the journal has data of any.
    pub(crate) fn forget(&mut self, ino: Ino, from: u32, to: u32) -> bool {
        let Some(node) = self.tree.find_mut(ino) else { return false };
        let mut logged = false;
        while let Some((&block, &id)) = node.live.frames.range(from..to).next() {
            node.live.frames.remove(&block);
            node.live.dirty.remove(block);
            node.live.logged.remove(block);
            logged |= self.frames.get(id).logged > 0;
            if self.frames.get(id).promised {
                self.space.release(1);
            }
            self.frames.free(id);
        }
        self.moved = true;
        logged
    }

    /// Where registered memory is.
    pub(crate) fn find(&self, at: Iova, len: u64) -> Result<ring::Buffer<'_>, Error> {
        self.memory.find(at, len).map_err(|_| Error::BadAddress)
    }

    /// Copies from the data of a request to a frame.
    pub(crate) fn copy_in(
        &self,
        frame: FrameId,
        offset: usize,
        from: Iova,
        len: usize,
    ) -> Result<(), Error> {
        let there = self.find(from, len as u64)?;
        let (region, at) = self.frames.place(frame, offset);
        Region::copy(there.region, there.offset, region, at, len);
        Ok(())
    }

    /// Copies from a frame to the data of a request.
    pub(crate) fn copy_out(
        &self,
        frame: FrameId,
        offset: usize,
        to: Iova,
        len: usize,
    ) -> Result<(), Error> {
        let there = self.find(to, len as u64)?;
        let (region, at) = self.frames.place(frame, offset);
        Region::copy(region, at, there.region, there.offset, len);
        Ok(())
    }
}
