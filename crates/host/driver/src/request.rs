//! [`Request`] and [`Completion`]: the requests of a block device.

use mem::Iova;
use nvme::{SglDescriptor, Status};

use crate::AtomicLimits;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads sectors into memory.
    Read,
    /// Writes sectors from memory.
    Write,
    /// Makes all completed writes durable.
    Flush,
    /// Discards the contents of sectors, which read as zeros afterwards.
    Discard,
    /// Writes zeros: the sectors read as zeros afterwards.
    WriteZeroes,
    /// Queries which sectors are mapped. Fills the payload with [`Extent`]s of sixteen bytes each,
    /// at most [`Request::extent_capacity`]; the completion's `result` is their number.
    Extents,
}

/// The location of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// No memory: data that is read is dropped, data that is written is unspecified. The transfer
    /// takes its time nevertheless (NVMe SGL bit bucket).
    BitBucket,
    /// Contiguous registered memory.
    Contiguous(Iova),
    /// Scattered registered memory: a table of [`Segment`]s, like an NVMe SGL's last segment. The
    /// table is registered itself and must not change until the command has completed.
    Scattered {
        /// Address of the table.
        table: Iova,
        /// Number of entries.
        segments: u16,
    },
}

/// A segment of a scattered payload, encoded as an NVMe SGL data block descriptor ([NVMe1.4 §4.4]),
/// so that a drive reads the table without conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address; `None` for bytes that are dropped or unspecified ([`Payload::BitBucket`]).
    pub at: Option<Iova>,
    /// Length in bytes.
    pub bytes: u32,
}

impl Segment {
    /// Size of an entry, in bytes.
    pub const BYTES: usize = 16;

    /// Returns the two little-endian words of a table entry.
    pub fn encode(self) -> [u64; 2] {
        match self.at {
            Some(at) => SglDescriptor::DataBlock { address: at.0, length: self.bytes },
            None => SglDescriptor::BitBucket { length: self.bytes },
        }
        .encode()
    }

    /// Returns the segment of a table entry, the inverse of [`encode`](Segment::encode); `None` for
    /// other descriptors.
    pub fn decode(words: [u64; 2]) -> Option<Segment> {
        match SglDescriptor::decode(words) {
            SglDescriptor::DataBlock { address, length } => {
                Some(Segment { at: Some(Iova(address)), bytes: length })
            }
            SglDescriptor::BitBucket { length } => Some(Segment { at: None, bytes: length }),
            SglDescriptor::Segment { .. } | SglDescriptor::Unsupported(_) => None,
        }
    }
}

/// A request to a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// First sector.
    pub lba: u64,
    /// Number of sectors; 0 only for [`Op::Flush`].
    pub sectors: u32,
    /// Location of the data.
    pub data: Payload,
    /// Whether a write completes only when it is durable (force unit access).
    pub fua: bool,
    /// Whether a write, or Write Zeroes, must be atomic ([`AtomicLimits`](crate::AtomicLimits)). The
    /// request is refused with [`INVALID_FIELD`](nvme::Status::INVALID_FIELD) where it cannot be.
    pub atomic: bool,
    /// Whether [`Op::WriteZeroes`] may unmap the sectors instead of writing zeros.
    pub deallocate: bool,
    /// The caller's tag of the request, which its completion returns.
    pub tag: u64,
}

impl Request {
    /// Returns a read.
    pub fn read(lba: u64, sectors: u32, data: Payload, tag: u64) -> Request {
        Request {
            op: Op::Read,
            lba,
            sectors,
            data,
            fua: false,
            atomic: false,
            deallocate: false,
            tag,
        }
    }

    /// Returns a write.
    pub fn write(lba: u64, sectors: u32, data: Payload, tag: u64) -> Request {
        Request { op: Op::Write, ..Request::read(lba, sectors, data, tag) }
    }

    /// Returns a write that a power cut does not tear.
    pub fn atomic_write(lba: u64, sectors: u32, data: Payload, tag: u64) -> Request {
        Request { atomic: true, ..Request::write(lba, sectors, data, tag) }
    }

    /// Returns whether the request must be atomic on a device where it cannot be. Zeros that may be
    /// deallocated are a trim, which is done sector by sector.
    #[inline(always)]
    pub fn breaks_atomicity(&self, limits: &AtomicLimits) -> bool {
        self.atomic && !self.can_be_atomic(limits)
    }

    #[cold]
    fn can_be_atomic(&self, limits: &AtomicLimits) -> bool {
        let is_write = match self.op {
            Op::Write => true,
            Op::WriteZeroes => !self.deallocate,
            Op::Read | Op::Flush | Op::Discard | Op::Extents => false,
        };
        is_write && limits.allows(self.lba, self.sectors)
    }

    /// Returns a flush.
    pub fn flush(tag: u64) -> Request {
        Request { op: Op::Flush, ..Request::read(0, 0, Payload::BitBucket, tag) }
    }

    /// Returns a discard (trim, deallocate).
    pub fn discard(lba: u64, sectors: u32, tag: u64) -> Request {
        Request { op: Op::Discard, ..Request::read(lba, sectors, Payload::BitBucket, tag) }
    }

    /// Returns a Write Zeroes request.
    pub fn write_zeroes(lba: u64, sectors: u32, deallocate: bool, tag: u64) -> Request {
        let read = Request::read(lba, sectors, Payload::BitBucket, tag);
        Request { op: Op::WriteZeroes, deallocate, ..read }
    }

    /// Returns an extent query; `into` must have space for [`Request::extent_capacity`] extents.
    pub fn extents(lba: u64, sectors: u32, into: Iova, tag: u64) -> Request {
        Request { op: Op::Extents, ..Request::read(lba, sectors, Payload::Contiguous(into), tag) }
    }

    /// Returns the maximum number of extents per query: one page of them. If a query returns this
    /// many, the caller continues after the last extent.
    pub const fn extent_capacity() -> usize {
        mem::PAGE_BYTES / Extent::BYTES
    }
}

/// The completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// The status.
    pub status: Status,
    /// For [`Op::Extents`]: number of extents written to the payload.
    pub result: u64,
}

/// Whether the sectors of an extent are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// Written and not trimmed since.
    Mapped,
    /// Never written, or trimmed: a hole that reads as zeros.
    Unmapped,
}

/// A range of sectors in one state. The extents of one answer are adjacent and start at the first
/// sector of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First sector.
    pub lba: u64,
    /// Number of sectors.
    pub sectors: u32,
    /// Whether the sectors are mapped.
    pub state: ExtentState,
}

impl Extent {
    /// Size of an encoded extent, in bytes.
    pub const BYTES: usize = 16;

    /// Returns the extent as an NVMe LBA Status Descriptor ([NVMe1.4 §5.15], [NVMe1.4 fig. 158]):
    /// starting LBA, number of blocks, and in byte 13 whether they are allocated.
    pub fn encode(&self) -> [u8; Extent::BYTES] {
        let mut out = [0; Extent::BYTES];
        out[..8].copy_from_slice(&self.lba.to_le_bytes());
        out[8..12].copy_from_slice(&self.sectors.to_le_bytes());
        out[13] = (self.state == ExtentState::Mapped).into();
        out
    }

    /// Returns the extent of a descriptor, the inverse of [`encode`](Extent::encode).
    pub fn decode(bytes: [u8; Extent::BYTES]) -> Extent {
        let [a, b, c, d, e, f, g, h, i, j, k, l, _, state, ..] = bytes;
        Extent {
            lba: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            sectors: u32::from_le_bytes([i, j, k, l]),
            state: if state == 0 { ExtentState::Unmapped } else { ExtentState::Mapped },
        }
    }
}
