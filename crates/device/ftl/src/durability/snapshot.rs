//! [`Snapshot`], [`LineOpened`]: the FTL's contents of the journal: a checkpoint of the map, and a
//! log of operations on lines [LightNVM17 §4.2.2].
//!
//! ```text
//! snapshot
//! bytes 0..4     0x50616e53 ("Snap"), little endian as everything
//! bytes 4..8     version: 1, or 2 if the owner of the FTL keeps a state
//! bytes 8..48    ten words: parallel units, chunks, sectors, write unit, pair, bytes per sector, chunks
//!                per line, host sectors, map pages, usable chunks
//! bytes 48..56   base: every write unit with a smaller sequence number is included in the map pages
//! bytes 56..60   lines
//! bytes 60..64   write units of metadata in a full line, 0 if lines have none
//! bytes 64..72   in version 2 only: bytes of the owner's state (4 bytes), 0 (4 bytes)
//! then           per map page: physical sector + 1, 0 if it was never written, or 0xffffffff
//!                if it was and its latest version is lost
//! then           per line: stream (1 byte), state (1 byte: bit 0 open, bit 1 with
//!                footer), chunks (2 bytes), 0 (4 bytes), the
//!                largest sequence number of a unit in it (8 bytes), its chunks (4 bytes each)
//! then           in version 2 only: the owner's state
//!
//! record: a line was opened
//! byte 0         1
//! byte 1         stream
//! bytes 2..4     0
//! then           its chunks (4 bytes each)
//! ```
//!
//! Other records are those of [`device_l2p`](crate::durability::device_l2p) and
//! [`owner_state`](crate::durability::owner_state). The checksum is in the journal's frames.

use crate::ids::{ToIndex, WriteSeq};
use collections::{PutBytes, Reader, put_at, u32_at};
use nvme::ChunkId;

use crate::{CapacityPlan, FlashGeometry};

const MAGIC: u32 = 0x5061_6e53;
const VERSION: u32 = 1;
/// The version of a snapshot with the state of the owner.
const VERSION_OWNER_STATE: u32 = 2;
const HEADER_BYTES: usize = 64;
/// Bytes that the header has more in version 2.
const OWNER_HEADER_BYTES: u32 = 8;
/// Offset of the number of lines in the header.
const LINES_AT: usize = 56;
const LINE_BYTES: usize = 16;
const RECORD_LINE_OPENED: u8 = 1;
const CAPACITY: &str = "the capacity in sectors (over_provisioning)";

/// A line as recorded in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineEntry {
    pub(crate) stream: u8,
    pub(crate) open: bool,
    /// Whether its footer is on the media.
    pub(crate) has_footer: bool,
    /// The largest sequence number of a write unit in it; the maximum of the type if it is open.
    pub(crate) max_seq: WriteSeq,
    pub(crate) chunks: Vec<ChunkId>,
}

/// A checkpoint: the locations of the translation pages, and the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Chunks that count towards capacity.
    pub(crate) usable_chunks: u32,
    /// Every write unit with a smaller sequence number is included in the map pages.
    pub(crate) base_seq: WriteSeq,
    /// Physical sector plus 1 of each page; 0 or [`LOST_PAGE`](Snapshot::LOST_PAGE).
    pub(crate) pages: Vec<u32>,
    pub(crate) lines: Vec<LineEntry>,
    /// The state of the owner; empty if it keeps none.
    pub(crate) owner_state: Vec<u8>,
}

/// A property of the medium that differs from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} was {was} when the drive was written, and is {is} now")]
pub struct ConfigMismatch {
    /// Name of the property.
    pub what: &'static str,
    /// The value on the medium.
    pub was: u32,
    /// The configured value.
    pub is: u32,
}

/// Reasons why a snapshot cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotError {
    /// It was written with another configuration.
    ConfigMismatch(ConfigMismatch),
    /// It is not a snapshot of this version.
    Malformed,
}

fn fingerprint(shape: &FlashGeometry, layout: &CapacityPlan) -> [(&'static str, u32); 9] {
    [
        ("the number of parallel units", shape.pus),
        ("the number of chunks per parallel unit", shape.chunks_per_pu),
        ("the number of sectors per chunk", shape.sectors_per_chunk),
        ("the write unit (ws_opt)", shape.ws_opt),
        ("the distance to the paired page (mw_cunits)", shape.mw_cunits),
        ("the size of a sector", shape.sector_bytes),
        ("active_pus", layout.active_pus),
        (CAPACITY, layout.logical),
        ("the number of map pages", layout.map_pages),
    ]
}

impl Snapshot {
    /// Location of a page that was written and whose latest version is lost.
    const LOST_PAGE: u32 = crate::ids::LOST_SECTOR.get() + 1;

    /// Returns the largest size of a snapshot in bytes.
    pub(crate) fn bytes_max(pages: u32, chunks: u32, owner_bytes: u32) -> u64 {
        let owner = if owner_bytes > 0 { OWNER_HEADER_BYTES.into() } else { 0 };
        let (pages, chunks) = (u64::from(pages), u64::from(chunks));
        HEADER_BYTES as u64
            + 4 * pages
            + (LINE_BYTES as u64 + 4) * chunks
            + owner
            + u64::from(owner_bytes)
    }

    /// Returns the number of usable chunks, from which the layout that [`decode`](Snapshot::decode)
    /// compares follows.
    pub(crate) fn usable_chunks(bytes: &[u8]) -> Option<u32> {
        u32_at(bytes, 44)
    }

    pub(crate) fn decode(
        bytes: &[u8],
        shape: &FlashGeometry,
        layout: &CapacityPlan,
    ) -> Result<Snapshot, SnapshotError> {
        let mut r = Reader::new(bytes);
        let garbled = SnapshotError::Malformed;
        let owner_bytes = match (r.u32(), r.u32()) {
            (Some(MAGIC), Some(VERSION)) => 0,
            (Some(MAGIC), Some(VERSION_OWNER_STATE)) => {
                u32_at(bytes, HEADER_BYTES).ok_or(garbled)?
            }
            _ => return Err(garbled),
        };
        if owner_bytes != layout.owner_bytes {
            // It changes the capacity.
            return Err(SnapshotError::ConfigMismatch(ConfigMismatch {
                what: "the number of bytes that the journal keeps for the owner of the FTL \
                       (durable_memory)",
                was: owner_bytes,
                is: layout.owner_bytes,
            }));
        }
        let of_lines = u32_at(bytes, 60).ok_or(garbled)?;
        let of_lines = ConfigMismatch {
            what: "the number of write units of metadata in a line (line_metadata)",
            was: of_lines,
            is: layout.line_metadata_units,
        };
        for (what, is) in fingerprint(shape, layout) {
            let was = r.u32().ok_or(garbled)?;
            if was != is && !(what == CAPACITY && of_lines.was != of_lines.is) {
                return Err(SnapshotError::ConfigMismatch(ConfigMismatch { what, was, is }));
            }
            if what == CAPACITY && of_lines.was != of_lines.is {
                // The metadata of lines changes the capacity.
                return Err(SnapshotError::ConfigMismatch(of_lines));
            }
        }
        Snapshot::body(&mut r, shape, layout).ok_or(garbled)
    }

    fn body(r: &mut Reader<'_>, shape: &FlashGeometry, layout: &CapacityPlan) -> Option<Snapshot> {
        let counted = r.u32()?;
        let base = r.u64()?;
        let count = r.u32()?;
        r.u32()?;
        if layout.owner_bytes > 0 {
            r.bytes(OWNER_HEADER_BYTES.index())?;
        }
        let physical = shape.total_sectors();
        let known = |w: &u32| u64::from(*w) <= physical || *w == Snapshot::LOST_PAGE;
        let page = |r: &mut Reader<'_>| r.u32().filter(known);
        let pages = (0..layout.map_pages).map(|_| page(r)).collect::<Option<Vec<u32>>>()?;
        let mut lines = Vec::new();
        for _ in 0..count {
            let (stream, state, chunks) = (r.u8()?, r.u8()?, r.u16()?);
            r.u32()?;
            let newest = r.u64()?;
            let chunk =
                |r: &mut Reader<'_>| r.u32().filter(|c| *c < shape.total_chunks()).map(ChunkId);
            let chunks = (0..chunks).map(|_| chunk(r)).collect::<Option<Vec<ChunkId>>>()?;
            let (open, last) = (state & 1 != 0, state & 2 != 0);
            lines.push(LineEntry {
                stream,
                open,
                has_footer: last,
                max_seq: WriteSeq(newest),
                chunks,
            });
        }
        let owner_state = r.bytes(layout.owner_bytes.index())?.to_vec();
        let base_seq = WriteSeq(base);
        Some(Snapshot { usable_chunks: counted, base_seq, pages, lines, owner_state })
    }
}

/// Writes a snapshot: first its pages, then its lines, then the state of the owner. It needs no memory per line besides the
/// snapshot's own.
#[derive(Debug)]
pub(crate) struct SnapshotEncoder {
    out: Vec<u8>,
    lines: u32,
}

impl SnapshotEncoder {
    /// Begins a snapshot with this base and at most `lines_max` lines.
    pub(crate) fn new(
        shape: &FlashGeometry,
        layout: &CapacityPlan,
        base_seq: WriteSeq,
        lines_max: u32,
    ) -> SnapshotEncoder {
        let chunks = lines_max.min(shape.total_chunks()) * layout.active_pus;
        let chunks = chunks.min(shape.total_chunks());
        let bytes = Snapshot::bytes_max(layout.map_pages, chunks, layout.owner_bytes);
        let mut out = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
        let has_owner = layout.owner_bytes > 0;
        out.put_u32(MAGIC).put_u32(if has_owner { VERSION_OWNER_STATE } else { VERSION });
        for (_, fact) in fingerprint(shape, layout) {
            out.put_u32(fact);
        }
        out.put_u32(layout.usable_chunks).put_u64(base_seq.get());
        out.put_u32(0).put_u32(layout.line_metadata_units);
        if has_owner {
            out.put_u32(layout.owner_bytes).put_u32(0);
        }
        SnapshotEncoder { out, lines: 0 }
    }

    /// Appends a page: its physical sector plus 1; 0 or [`LOST_PAGE`](Snapshot::LOST_PAGE).
    #[inline]
    pub(crate) fn put_page(&mut self, entry: u32) {
        self.out.put_u32(entry);
    }

    /// Appends a line.
    #[inline]
    pub(crate) fn put_line(&mut self, line: &LineEntry) {
        let mut header = [0; LINE_BYTES];
        header[0] = line.stream;
        header[1] = u8::from(line.open) | u8::from(line.has_footer) << 1;
        put_at(&mut header, 2, &(line.chunks.len() as u16).to_le_bytes());
        put_at(&mut header, 8, &line.max_seq.get().to_le_bytes());
        self.out.put(&header);
        for chunk in &line.chunks {
            self.out.put_u32(chunk.get());
        }
        self.lines += 1;
    }

    /// Returns the snapshot, with the state of the owner.
    pub(crate) fn finish(mut self, owner_state: &[u8]) -> Vec<u8> {
        self.out.put(owner_state);
        put_at(&mut self.out, LINES_AT, &self.lines.to_le_bytes());
        self.out
    }
}

/// The record of a line that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineOpened {
    pub(crate) stream: u8,
    pub(crate) chunks: Vec<ChunkId>,
}

impl LineOpened {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![RECORD_LINE_OPENED, self.stream, 0, 0];
        out.extend(self.chunks.iter().flat_map(|c| c.get().to_le_bytes()));
        out
    }

    pub(crate) fn decode(bytes: &[u8], shape: &FlashGeometry) -> Option<LineOpened> {
        let (&[kind, stream, 0, 0], chunks) = bytes.split_first_chunk()? else { return None };
        let (chunks, rest) = chunks.as_chunks::<4>();
        let chunks: Vec<ChunkId> = chunks.iter().map(|c| ChunkId(u32::from_le_bytes(*c))).collect();
        let sound = chunks.iter().all(|c| c.get() < shape.total_chunks());
        (kind == RECORD_LINE_OPENED && rest.is_empty() && sound)
            .then_some(LineOpened { stream, chunks })
    }
}
