//! [`Request`] and [`Completion`].

use nvme::{SglDescriptor, Status};
use ring::Iova;

/// What is asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Sectors to memory.
    Read,
    /// Memory to sectors.
    Write,
    /// Everything completed so far becomes durable.
    Flush,
    /// The sectors' contents are no longer needed; they read as zeros afterwards.
    Discard,
    /// The sectors read as zeros afterwards.
    WriteZeroes,
    /// Which sectors are mapped: fills the payload with [`Extent`]s, sixteen bytes each, as many as
    /// fit [`Request::extent_capacity`]; the completion's `result` says how many.
    Extents,
}

/// Where the data of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nowhere: what is read is thrown away, what is written is unspecified. Transfers take their
    /// time all the same (NVMe SGL bit bucket).
    BitBucket,
    /// In registered memory, in one piece.
    Contiguous(Iova),
    /// In registered memory, in pieces: a table of [`Segment`]s, which is registered itself and must
    /// stay as it is until the command has completed (an NVMe SGL's last segment).
    Scattered {
        /// Where the table is.
        table: Iova,
        /// Entries.
        segments: u16,
    },
}

/// A piece of a scattered payload, encoded as an NVMe SGL data block descriptor (NVMe section 4.4),
/// so that a drive reads the table as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where; `None` for bytes that are thrown away or unspecified ([`Payload::BitBucket`]).
    pub at: Option<Iova>,
    /// How many bytes.
    pub bytes: u32,
}

impl Segment {
    /// Bytes of an entry.
    pub const BYTES: usize = 16;

    /// As two little-endian words of a table.
    pub fn encode(self) -> [u64; 2] {
        match self.at {
            Some(at) => SglDescriptor::DataBlock { address: at.0, length: self.bytes },
            None => SglDescriptor::BitBucket { length: self.bytes },
        }
        .encode()
    }

    /// The inverse of [`encode`](Segment::encode); `None` for other descriptors.
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

/// One request to a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// First sector.
    pub lba: u64,
    /// Number of sectors; 0 only for [`Op::Flush`].
    pub sectors: u32,
    /// Where the data is.
    pub data: Payload,
    /// Complete a write only when it is durable (force unit access).
    pub fua: bool,
    /// [`Op::WriteZeroes`] may unmap the sectors instead of writing zeros.
    pub deallocate: bool,
    /// The caller's name for the request, returned with its completion.
    pub tag: u64,
}

impl Request {
    /// A read.
    pub fn read(lba: u64, sectors: u32, data: Payload, tag: u64) -> Request {
        Request { op: Op::Read, lba, sectors, data, fua: false, deallocate: false, tag }
    }

    /// A write.
    pub fn write(lba: u64, sectors: u32, data: Payload, tag: u64) -> Request {
        Request { op: Op::Write, ..Request::read(lba, sectors, data, tag) }
    }

    /// A flush.
    pub fn flush(tag: u64) -> Request {
        Request { op: Op::Flush, ..Request::read(0, 0, Payload::BitBucket, tag) }
    }

    /// A discard (trim, deallocate).
    pub fn discard(lba: u64, sectors: u32, tag: u64) -> Request {
        Request { op: Op::Discard, ..Request::read(lba, sectors, Payload::BitBucket, tag) }
    }

    /// Zeros.
    pub fn write_zeroes(lba: u64, sectors: u32, deallocate: bool, tag: u64) -> Request {
        let read = Request::read(lba, sectors, Payload::BitBucket, tag);
        Request { op: Op::WriteZeroes, deallocate, ..read }
    }

    /// A query for mapped extents; `into` must have room for [`Request::extent_capacity`] of them.
    pub fn extents(lba: u64, sectors: u32, into: Iova, tag: u64) -> Request {
        Request { op: Op::Extents, ..Request::read(lba, sectors, Payload::Contiguous(into), tag) }
    }

    /// How many extents a query returns at most: one page of them. A query answered with this many
    /// is continued after the last extent.
    pub const fn extent_capacity() -> usize {
        ring::PAGE_BYTES / Extent::BYTES
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// How it ended.
    pub status: Status,
    /// For [`Op::Extents`]: how many extents were written to the payload.
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

/// A run of sectors in one state. Extents of one answer are adjacent and cover the query from its
/// first sector on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First sector.
    pub lba: u64,
    /// Sectors.
    pub sectors: u32,
    /// Mapped or not.
    pub state: ExtentState,
}

impl Extent {
    /// Bytes of an encoded extent.
    pub const BYTES: usize = 16;

    /// As an NVMe LBA Status Descriptor (NVMe section 5.15, figure 158): starting LBA, number of
    /// blocks, and in byte 13 whether they are allocated.
    pub fn encode(&self) -> [u8; Extent::BYTES] {
        let mut out = [0; Extent::BYTES];
        out[..8].copy_from_slice(&self.lba.to_le_bytes());
        out[8..12].copy_from_slice(&self.sectors.to_le_bytes());
        out[13] = (self.state == ExtentState::Mapped).into();
        out
    }

    /// The inverse of [`encode`](Extent::encode).
    pub fn decode(bytes: [u8; Extent::BYTES]) -> Extent {
        let [a, b, c, d, e, f, g, h, i, j, k, l, _, state, ..] = bytes;
        Extent {
            lba: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            sectors: u32::from_le_bytes([i, j, k, l]),
            state: if state == 0 { ExtentState::Unmapped } else { ExtentState::Mapped },
        }
    }
}
