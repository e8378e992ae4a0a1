//! [`Ops`]: what the cache has asked of its device.

use block::{Op, Payload, Request, Segment};

use crate::Buffer;

/// Units of one command at most.
pub(super) const OP_FRAMES_MAX: usize = 32;

/// What a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpPurpose {
    /// To fill frames.
    Fill,
    /// To write them.
    Write,
    /// For a request that goes past the frames.
    Bypass {
        /// The request.
        io: u32,
    },
}

/// A command to the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceOp {
    pub(super) purpose: OpPurpose,
    /// First unit.
    pub(super) first_block: u64,
    pub(super) frames: [u32; OP_FRAMES_MAX],
    pub(super) count: u8,
    pub(super) request: Request,
}

/// Commands, and a table of segments for each.
#[derive(Debug)]
pub(super) struct DeviceOps {
    ops: Vec<DeviceOp>,
    free: Vec<u32>,
    tables: Buffer,
}

impl DeviceOps {
    /// Bytes of tables for `count` commands.
    pub(super) const fn table_bytes(count: u32) -> usize {
        count as usize * OP_FRAMES_MAX * Segment::BYTES
    }

    /// Places for `count` commands.
    pub(super) fn new(count: u32, tables: Buffer) -> DeviceOps {
        let nothing = DeviceOp {
            purpose: OpPurpose::Fill,
            first_block: 0,
            frames: [0; OP_FRAMES_MAX],
            count: 0,
            request: Request::flush(0),
        };
        DeviceOps { ops: vec![nothing; count as usize], free: (0..count).rev().collect(), tables }
    }

    /// Commands that can be made now.
    pub(super) fn available(&self) -> usize {
        self.free.len()
    }

    /// Commands under way.
    pub(super) fn in_flight(&self) -> usize {
        self.ops.len() - self.free.len()
    }

    pub(super) fn get(&self, op: u32) -> &DeviceOp {
        &self.ops[op as usize]
    }

    /// A command for a request that goes past the frames; `None` without a place.
    pub(super) fn push_bypass(&mut self, io: u32, request: Request) -> Option<u32> {
        let op = self.free.pop()?;
        let slot = &mut self.ops[op as usize];
        (slot.purpose, slot.count) = (OpPurpose::Bypass { io }, 0);
        slot.request = Request { tag: op.into(), ..request };
        Some(op)
    }

    /// A command for neighbouring units, each of `pieces` being a frame, where its memory is, and
    /// how many bytes; `None` without a place. `request` is without data.
    pub(super) fn push_blocks(
        &mut self,
        what: OpPurpose,
        unit: u64,
        request: Request,
        pieces: impl ExactSizeIterator<Item = (u32, ring::Iova, u32)>,
    ) -> Option<u32> {
        let op = self.free.pop()?;
        let table = op as usize * OP_FRAMES_MAX * Segment::BYTES;
        let slot = &mut self.ops[op as usize];
        let count = pieces.len();
        (slot.purpose, slot.first_block, slot.count) = (what, unit, count as u8);
        let mut data = Payload::BitBucket;
        for (i, (frame, at, bytes)) in pieces.enumerate() {
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
        Some(op)
    }

    /// A command has ended.
    pub(super) fn release(&mut self, op: u32) -> DeviceOp {
        self.free.push(op);
        self.ops[op as usize]
    }
}

/// A request without data for a run of sectors.
pub(super) fn request_without_data(op: Op, lba: u64, sectors: u32, fua: bool) -> Request {
    Request { op, fua, ..Request::read(lba, sectors, Payload::BitBucket, 0) }
}
