//! [`DeviceOps`]: the commands in flight between the cache and its device.

use block::{Op, Payload, Request, Segment};

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
        io: u32,
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
}

/// Commands, each with a segment table.
#[derive(Debug)]
pub(super) struct DeviceOps {
    ops: Vec<DeviceOp>,
    free: Vec<u32>,
    tables: Buffer,
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
        };
        DeviceOps { ops: vec![nothing; count as usize], free: (0..count).rev().collect(), tables }
    }

    /// Returns the number of free command slots.
    pub(super) fn available(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of commands in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.ops.len() - self.free.len()
    }

    pub(super) fn get(&self, op: u32) -> &DeviceOp {
        &self.ops[op as usize]
    }

    /// Adds a command for a bypass request. Returns `None` if no slot is free.
    pub(super) fn push_bypass(&mut self, io: u32, request: Request) -> Option<u32> {
        let op = self.free.pop()?;
        let slot = &mut self.ops[op as usize];
        (slot.purpose, slot.count) = (OpPurpose::Bypass { io }, 0);
        slot.request = Request { tag: op.into(), ..request };
        Some(op)
    }

    /// Adds a command for contiguous blocks. Each element of `pieces` is a frame, its memory and
    /// its length in bytes; `request` has no payload yet. Returns `None` if no slot is free.
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

    /// Releases the slot of a completed command.
    pub(super) fn release(&mut self, op: u32) -> DeviceOp {
        self.free.push(op);
        self.ops[op as usize]
    }
}

/// Returns a request without payload for a range of sectors.
pub(super) fn request_without_data(op: Op, lba: u64, sectors: u32, fua: bool) -> Request {
    Request { op, fua, ..Request::read(lba, sectors, Payload::BitBucket, 0) }
}
