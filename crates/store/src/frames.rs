//! [`Frames`]: blocks of files in memory. Their number is given once; clean ones go by CLOCK (second
//! chance) when another is needed.

use std::sync::Arc;

use ring::{AddressSpace, Iova, Region, RegisterError};

use crate::{BLOCK, Ino};

/// A frame's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FrameId(pub(crate) u32);

/// A block in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frame {
    /// Whose it is.
    pub(crate) owner: Option<(Ino, u32)>,
    /// It is being read: what is in it means nothing yet.
    pub(crate) loading: bool,
    /// It was changed since it was last sent to the device.
    pub(crate) dirty: bool,
    /// It is on its way there.
    pub(crate) writing: bool,
    /// When it became dirty, by number; and that of what is on its way, if it was dirty.
    pub(crate) seq: u64,
    pub(crate) sent_seq: u64,
    /// A free block is promised to it.
    pub(crate) promised: bool,
    /// How much of the block, from its beginning, is on the device as a part of the file: as it is here,
    /// or as it was.
    pub(crate) on_device: u32,
    /// Where it was changed since it was last sent to the device, or to the journal.
    pub(crate) changed: Span,
    /// The first transaction with bytes of it that are not in place, or on their way there; 0 if there is none.
    pub(crate) logged: u64,
    used: bool,
}

/// Some bytes of a block: from, to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) usize, pub(crate) usize);

impl Span {
    pub(crate) const ALL: Span = Span(0, BLOCK);

    /// The shortest one that has both.
    pub(crate) fn and(self, other: Span) -> Span {
        if self == Span::default() {
            return other;
        }
        Span(self.0.min(other.0), self.1.max(other.1))
    }
}

impl Frame {
    /// Whether it is all that there is of some bytes, or of some bytes in place.
    pub(crate) fn is_needed(&self) -> bool {
        self.dirty || self.writing || self.logged > 0
    }

    /// Whether a change made up to `seq` is not at the device.
    pub(crate) fn behind(&self, seq: u64) -> bool {
        self.dirty && self.seq <= seq || self.writing && self.sent_seq <= seq
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Frames {
    frames: Vec<Frame>,
    free: Vec<FrameId>,
    hand: usize,
    region: Arc<Region>,
    at: Iova,
    /// Frames that cannot go: dirty, on their way, or in place nowhere but in the journal.
    pub(crate) dirty: usize,
    /// Those of which the journal has bytes that are not in place.
    pub(crate) logged: usize,
}

impl Frames {
    pub(crate) fn new(memory: &AddressSpace, count: u32) -> Result<Frames, RegisterError> {
        let (region, at) = memory.provide(count as usize * BLOCK)?;
        let frames = vec![Frame::default(); count as usize];
        let free = (0..count).rev().map(FrameId).collect();
        Ok(Frames { frames, free, hand: 0, region, at, dirty: 0, logged: 0 })
    }

    pub(crate) fn get(&self, id: FrameId) -> &Frame {
        &self.frames[id.0 as usize]
    }

    /// The frame at a place among all.
    pub(crate) fn at(&self, index: usize) -> &Frame {
        &self.frames[index]
    }

    pub(crate) fn get_mut(&mut self, id: FrameId) -> &mut Frame {
        &mut self.frames[id.0 as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Frame> {
        self.frames.iter()
    }

    /// Where a frame is, for the device.
    pub(crate) fn iova(&self, id: FrameId) -> Iova {
        self.at.offset(id.0 as u64 * BLOCK as u64)
    }

    /// Where a byte of a frame is, for copies.
    pub(crate) fn place(&self, id: FrameId, offset: usize) -> (&Region, usize) {
        (&self.region, id.0 as usize * BLOCK + offset)
    }

    pub(crate) fn zero(&self, id: FrameId, from: usize, to: usize) {
        if from < to {
            self.region.fill(id.0 as usize * BLOCK + from, to - from, 0);
        }
    }

    /// Somebody looked at it.
    pub(crate) fn touch(&mut self, id: FrameId) {
        self.get_mut(id).used = true;
    }

    /// A frame for a block; what it held before is said, and is to be forgotten. `None` if none can go.
    pub(crate) fn take(&mut self, owner: (Ino, u32)) -> Option<(FrameId, Option<(Ino, u32)>)> {
        let fresh = Frame { owner: Some(owner), used: true, ..Frame::default() };
        if let Some(id) = self.free.pop() {
            *self.get_mut(id) = fresh;
            return Some((id, None));
        }
        for _ in 0..2 * self.frames.len() {
            let at = self.hand;
            self.hand = (at + 1) % self.frames.len();
            let frame = &mut self.frames[at];
            if frame.is_needed() || frame.loading {
                continue;
            }
            if std::mem::take(&mut frame.used) {
                continue;
            }
            let before = std::mem::replace(frame, fresh).owner;
            return Some((FrameId(at as u32), before));
        }
        None
    }

    /// A frame is nobody's any more.
    pub(crate) fn free(&mut self, id: FrameId) {
        let frame = std::mem::take(self.get_mut(id));
        self.dirty -= usize::from(frame.is_needed());
        self.logged -= usize::from(frame.logged > 0);
        self.free.push(id);
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }
}
