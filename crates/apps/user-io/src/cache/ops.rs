//! [`DeviceOps`]: the commands in flight between the cache and its device.

use std::collections::VecDeque;

use block::{Op, Payload, Request, Segment};
use collections::Slab;
use mem::Iova;

use super::frames::BlockFrame;
use super::invariants::{CacheViolation, require_eq};
use super::requests::CacheRequestId;
use crate::Buffer;

/// Maximum number of blocks in one command.
pub(super) const OP_FRAMES_MAX: usize = 32;

/// Purpose of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpPurpose {
    /// Fills frames.
    Fill,
    /// Writes frames.
    Write,
    /// Executes a bypass request.
    Bypass {
        /// The request.
        request: CacheRequestId,
    },
}

/// A command to the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceOp {
    pub(super) purpose: OpPurpose,
    /// First block.
    pub(super) first_block: u64,
    pub(super) frames: [u32; OP_FRAMES_MAX],
    pub(super) count: u8,
    pub(super) request: Request,
    is_in_flight: bool,
}

impl DeviceOp {
    /// Returns its blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockFrame> + '_ {
        let frames = &self.frames[..usize::from(self.count)];
        (self.first_block..).zip(frames).map(|(block, frame)| BlockFrame { block, frame: *frame })
    }
}

/// The memory of a frame, for a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSegment {
    pub(super) frame: u32,
    pub(super) iova: Iova,
    pub(super) bytes: u32,
}

/// Commands, each with a segment table.
#[derive(Debug)]
pub(super) struct DeviceOps {
    ops: Slab<DeviceOp>,
    tables: Buffer,
    /// Frames to be filled and their blocks, in the order of the requests.
    to_fill: VecDeque<BlockFrame>,
    /// Commands that the device has not accepted yet.
    to_send: VecDeque<u32>,
}

impl DeviceOps {
    /// Returns the bytes of the segment tables of `count` commands.
    pub(super) const fn table_bytes(count: u32) -> usize {
        count as usize * OP_FRAMES_MAX * Segment::BYTES
    }

    /// Creates the slots of `count` commands.
    pub(super) fn new(count: u32, tables: Buffer) -> DeviceOps {
        let nothing = DeviceOp {
            purpose: OpPurpose::Fill,
            first_block: 0,
            frames: [0; OP_FRAMES_MAX],
            count: 0,
            request: Request::flush(0),
            is_in_flight: false,
        };
        DeviceOps {
            ops: Slab::with_free(vec![nothing; count as usize]),
            tables,
            to_fill: VecDeque::new(),
            to_send: VecDeque::new(),
        }
    }

    /// Returns the number of free command slots.
    pub(super) fn available(&self) -> usize {
        self.ops.free_len()
    }

    /// Returns whether no command is in flight and no frame is to be filled.
    pub(super) fn is_idle(&self) -> bool {
        self.ops.in_use() == 0 && self.to_fill.is_empty()
    }

    /// Queues a frame to be filled.
    pub(super) fn push_fill(&mut self, block: BlockFrame) {
        self.to_fill.push_back(block);
    }

    /// Takes the next frame to be filled.
    pub(super) fn pop_fill(&mut self) -> Option<BlockFrame> {
        self.to_fill.pop_front()
    }

    /// Takes the next frame to be filled if it is that of `block`.
    pub(super) fn pop_fill_of(&mut self, block: u64) -> Option<BlockFrame> {
        let is_next = self.to_fill.front().is_some_and(|next| next.block == block);
        if is_next { self.to_fill.pop_front() } else { None }
    }

    /// Returns the next request that the device has not accepted yet.
    pub(super) fn next_to_send(&self) -> Option<Request> {
        self.to_send.front().map(|op| self.ops[*op].request)
    }

    /// Records that the device accepted the request.
    pub(super) fn pop_to_send(&mut self) {
        self.to_send.pop_front();
    }

    /// Returns the commands in flight.
    pub(super) fn iter(&self) -> impl Iterator<Item = &DeviceOp> {
        self.ops.iter().filter(|op| op.is_in_flight)
    }

    /// Returns the frames to be filled.
    pub(super) fn to_fill(&self) -> impl Iterator<Item = &BlockFrame> {
        self.to_fill.iter()
    }

    fn take_slot(&mut self) -> Option<u32> {
        let op = self.ops.take()?;
        self.ops[op].is_in_flight = true;
        self.to_send.push_back(op);
        Some(op)
    }

    /// Adds a command for a bypass request or a flush. Returns `false` if no slot is free.
    #[must_use]
    pub(super) fn push_bypass(&mut self, id: CacheRequestId, request: Request) -> bool {
        let Some(op) = self.take_slot() else { return false };
        let slot = &mut self.ops[op];
        (slot.purpose, slot.count) = (OpPurpose::Bypass { request: id }, 0);
        slot.request = Request { tag: op.into(), ..request };
        true
    }

    /// Adds a command for contiguous blocks; `request` has no payload yet.
    ///
    /// # Panics
    /// If no slot is free.
    pub(super) fn push_blocks(
        &mut self,
        what: OpPurpose,
        unit: u64,
        request: Request,
        segments: impl ExactSizeIterator<Item = FrameSegment>,
    ) {
        let op = self.take_slot().expect("commands: blocks are transferred with a free slot");
        let table = op as usize * OP_FRAMES_MAX * Segment::BYTES;
        let slot = &mut self.ops[op];
        let count = segments.len();
        (slot.purpose, slot.first_block, slot.count) = (what, unit, count as u8);
        let mut data = Payload::BitBucket;
        for (i, FrameSegment { frame, iova: at, bytes }) in segments.enumerate() {
            slot.frames[i] = frame;
            data = Payload::Contiguous(at);
            let segment = Segment { at: Some(at), bytes };
            for (j, word) in segment.encode().iter().enumerate() {
                self.tables.write(table + i * Segment::BYTES + 8 * j, &word.to_le_bytes());
            }
        }
        if count > 1 {
            let table = self.tables.iova().offset(table as u64);
            data = Payload::Scattered { table, segments: count as u16 };
        }
        slot.request = Request { data, tag: op.into(), ..request };
    }

    /// Releases the slot of a completed command.
    ///
    /// # Panics
    /// If no command in flight has this tag.
    pub(super) fn release(&mut self, tag: u64) -> DeviceOp {
        let slot = u32::try_from(tag).ok().and_then(|index| self.ops.get_mut(index));
        let Some(op) = slot.filter(|op| op.is_in_flight) else {
            panic!("commands: a completion has tag {tag}, and no command in flight has it");
        };
        op.is_in_flight = false;
        let op = *op;
        self.ops.release(tag as u32);
        op
    }

    pub(super) fn check_invariants(&self) -> Result<(), CacheViolation> {
        require_eq!(
            Commands,
            "a slot is free or in flight",
            "all slots",
            self.ops.len(),
            self.ops.free_len() + self.iter().count()
        );
        for op in &self.to_send {
            let subject = format_args!("slot {op}");
            let is_in_flight = self.ops[*op].is_in_flight;
            require_eq!(Commands, "a queued command is in flight", subject, true, is_in_flight);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn break_free(&mut self) {
        self.ops.take();
    }
}

/// Returns a request without payload for a range of sectors.
pub(super) fn request_without_data(op: Op, lba: u64, sectors: u32, fua: bool) -> Request {
    Request { op, fua, ..Request::read(lba, sectors, Payload::BitBucket, 0) }
}
