//! [`Ops`]: what the cache has asked of its device.

use block::{Op, Payload, Request, Segment};

use crate::Buffer;

/// Units of one command at most.
pub(super) const RUN: usize = 32;

/// What a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// To fill frames.
    Fill,
    /// To write them.
    Write,
    /// For a request that goes past the frames.
    Pass {
        /// The request.
        io: u32,
    },
}

/// A command to the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceOp {
    pub(super) what: For,
    /// First unit.
    pub(super) unit: u64,
    pub(super) frames: [u32; RUN],
    pub(super) count: u8,
    pub(super) request: Request,
}

/// Commands, and a table of segments for each.
#[derive(Debug)]
pub(super) struct Ops {
    ops: Vec<DeviceOp>,
    free: Vec<u32>,
    tables: Buffer,
}

impl Ops {
    /// Bytes of tables for `count` commands.
    pub(super) const fn table_bytes(count: u32) -> usize {
        count as usize * RUN * Segment::BYTES
    }

    /// Places for `count` commands.
    pub(super) fn new(count: u32, tables: Buffer) -> Ops {
        let nothing = DeviceOp {
            what: For::Fill,
            unit: 0,
            frames: [0; RUN],
            count: 0,
            request: Request::flush(0),
        };
        Ops { ops: vec![nothing; count as usize], free: (0..count).rev().collect(), tables }
    }

    /// Commands that can be made now.
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// Commands under way.
    pub(super) fn busy(&self) -> usize {
        self.ops.len() - self.free.len()
    }

    pub(super) fn get(&self, op: u32) -> &DeviceOp {
        &self.ops[op as usize]
    }

    /// A command for a request that goes past the frames; `None` without a place.
    pub(super) fn pass(&mut self, io: u32, request: Request) -> Option<u32> {
        let op = self.free.pop()?;
        let slot = &mut self.ops[op as usize];
        (slot.what, slot.count) = (For::Pass { io }, 0);
        slot.request = Request { tag: op.into(), ..request };
        Some(op)
    }

    /// A command for neighbouring units, each of `pieces` being a frame, where its memory is, and
    /// how many bytes; `None` without a place. `request` is without data.
    pub(super) fn run(
        &mut self,
        what: For,
        unit: u64,
        request: Request,
        pieces: impl ExactSizeIterator<Item = (u32, ring::Iova, u32)>,
    ) -> Option<u32> {
        let op = self.free.pop()?;
        let table = op as usize * RUN * Segment::BYTES;
        let slot = &mut self.ops[op as usize];
        let count = pieces.len();
        (slot.what, slot.unit, slot.count) = (what, unit, count as u8);
        let mut data = Payload::BitBucket;
        for (i, (frame, at, bytes)) in pieces.enumerate() {
            slot.frames[i] = frame;
            data = Payload::At(at);
            let segment = Segment { at: Some(at), bytes };
            for (j, word) in segment.encode().iter().enumerate() {
                self.tables.write(table + i * Segment::BYTES + 8 * j, &word.to_le_bytes());
            }
        }
        if count > 1 {
            let table = self.tables.at().offset(table as u64);
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
pub(super) fn bare(op: Op, lba: u64, sectors: u32, fua: bool) -> Request {
    Request { op, fua, ..Request::read(lba, sectors, Payload::BitBucket, 0) }
}
