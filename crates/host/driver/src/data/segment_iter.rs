//! [`SegmentIter`]: the segments of a payload. [`TransferShape`]: which data pointers can name
//! them.

use mem::{AddressSpace, Iova, PAGE_BYTES};
use nvme::Status;

use crate::{Payload, Segment};

/// Iterates over the segments of a payload, in order.
pub(super) struct SegmentIter<'a> {
    memory: &'a AddressSpace,
    /// Address of the next entry of the table.
    table: Iova,
    remaining: u16,
    /// The only segment of a contiguous payload.
    single: Option<Segment>,
}

impl<'a> SegmentIter<'a> {
    pub(super) fn new(memory: &'a AddressSpace, data: Payload, bytes: u32) -> SegmentIter<'a> {
        let (table, remaining, single) = match data {
            Payload::Contiguous(at) => (Iova(0), 0, Some(Segment { at: Some(at), bytes })),
            Payload::BitBucket => (Iova(0), 0, Some(Segment { at: None, bytes })),
            Payload::Scattered { table, segments } => (table, segments, None),
        };
        SegmentIter { memory, table, remaining, single }
    }
}

impl Iterator for SegmentIter<'_> {
    type Item = Result<Segment, Status>;

    fn next(&mut self) -> Option<Result<Segment, Status>> {
        if let Some(single) = self.single.take() {
            return Some(Ok(single));
        }
        self.remaining = self.remaining.checked_sub(1)?;
        let mut entry = [0; Segment::BYTES];
        if self.memory.read(self.table, &mut entry).is_err() {
            self.remaining = 0;
            return Some(Err(Status::DATA_TRANSFER_ERROR));
        }
        self.table = self.table.offset(Segment::BYTES as u64);
        let ([low, high], _) = entry.as_chunks::<8>() else {
            return Some(Err(Status::SGL_TYPE_INVALID));
        };
        let words = [u64::from_le_bytes(*low), u64::from_le_bytes(*high)];
        Some(Segment::decode(words).ok_or(Status::SGL_TYPE_INVALID))
    }
}

/// The kinds of data pointers that can name a scattered payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferShape {
    /// A PRP list of this number of pages: each segment but the first begins with a page, and each
    /// but the last ends with one. The drive reaches all of them.
    Pages(usize),
    /// A segment table whose segments are all memory.
    Memory,
    /// Neither: the payload contains a bit bucket.
    Holes,
}

/// Checks a scattered payload of `bytes` bytes and returns its shape.
///
/// # Errors
/// The status with which a drive that reads the table would complete the command:
/// [`Status::DATA_TRANSFER_ERROR`] for unregistered memory, [`Status::SGL_LENGTH_INVALID`] for
/// another total length, or [`Status::SGL_TYPE_INVALID`].
pub(super) fn transfer_shape(
    memory: &AddressSpace,
    table: Iova,
    segments: u16,
    bytes: u32,
) -> Result<TransferShape, Status> {
    let page = PAGE_BYTES as u64;
    let (mut done, mut pages) = (0u64, Some(0u64));
    let (mut holes, mut first) = (false, true);
    for piece in SegmentIter::new(memory, Payload::Scattered { table, segments }, bytes) {
        let Segment { at, bytes: len } = piece?;
        let len = u64::from(len);
        done += len;
        let Some(at) = at else {
            (holes, pages, first) = (true, None, false);
            continue;
        };
        memory.find(at, len).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        let begins = if first { at.0.is_multiple_of(4) } else { at.0.is_multiple_of(page) };
        let ends = done == u64::from(bytes) || (at.0 + len).is_multiple_of(page);
        pages = pages
            .filter(|_| begins && ends && len > 0 && memory.bus_address(at).is_some())
            .map(|count| count + (at.0 % page + len).div_ceil(page));
        first = false;
    }
    if done != u64::from(bytes) {
        return Err(Status::SGL_LENGTH_INVALID);
    }
    Ok(match (pages, holes) {
        (Some(pages), _) => TransferShape::Pages(pages as usize),
        (None, false) => TransferShape::Memory,
        (None, true) => TransferShape::Holes,
    })
}

/// Returns the drive's addresses of the pages of a payload with the shape [`TransferShape::Pages`];
/// the first is where the payload begins.
pub(super) fn page_addresses(
    memory: &AddressSpace,
    table: Iova,
    segments: u16,
) -> impl Iterator<Item = u64> {
    let page = PAGE_BYTES as u64;
    let pieces = SegmentIter::new(memory, Payload::Scattered { table, segments }, 0).flatten();
    pieces
        .filter_map(|piece| Some((piece.at?.0, u64::from(piece.bytes))))
        .flat_map(move |(at, len)| {
            let begin = at - at % page;
            (0..(at % page + len).div_ceil(page)).map(move |i| at.max(begin + i * page))
        })
        .filter_map(|at| memory.bus_address(Iova(at)))
}

#[cfg(test)]
pub(super) mod tests {
    use transport::Port;

    use super::*;

    /// Writes a segment table.
    pub(in crate::data) fn write_table(port: &Port, table: Iova, pieces: &[Segment]) -> Payload {
        for (i, piece) in pieces.iter().enumerate() {
            let bytes: Vec<u8> = piece.encode().iter().flat_map(|w| w.to_le_bytes()).collect();
            let found = port.memory().find(table.offset(16 * i as u64), 16).unwrap();
            found.region.write(found.offset, &bytes);
        }
        Payload::Scattered { table, segments: pieces.len() as u16 }
    }

    fn segment(at: Iova, bytes: u32) -> Segment {
        Segment { at: Some(at), bytes }
    }

    #[test]
    fn shapes_are_told_apart() {
        let port = Port::new().unwrap();
        let (_, data) = port.memory().allocate_registered(1 << 20).unwrap();
        let (_, table) = port.memory().allocate_registered(PAGE_BYTES).unwrap();
        let say = |pieces: &[Segment], bytes| {
            let Payload::Scattered { table, segments } = write_table(&port, table, pieces) else {
                panic!("scattered")
            };
            transfer_shape(port.memory(), table, segments, bytes)
        };
        let hole = |bytes| Segment { at: None, bytes };
        let (a, b, c) = (data.offset(512), data.offset(0x3000), data.offset(0x9000));
        assert_eq!(
            say(&[segment(a, 3584), segment(b, 8192), segment(c, 512)], 12288),
            Ok(TransferShape::Pages(4))
        );
        assert_eq!(say(&[segment(a, 512)], 512), Ok(TransferShape::Pages(1)));
        assert_eq!(
            say(&[segment(data.offset(2), 510)], 510),
            Ok(TransferShape::Memory),
            "no dword"
        );
        assert_eq!(
            say(&[segment(a, 512), segment(b, 512)], 1024),
            Ok(TransferShape::Memory),
            "ends early"
        );
        assert_eq!(
            say(&[segment(b, 4096), segment(a, 512)], 4608),
            Ok(TransferShape::Memory),
            "begins late"
        );
        assert_eq!(
            say(&[segment(b, 0), segment(b, 512)], 512),
            Ok(TransferShape::Memory),
            "an empty piece"
        );
        assert_eq!(say(&[segment(b, 4096), hole(512)], 4608), Ok(TransferShape::Holes));
        assert_eq!(say(&[segment(b, 4096)], 4608), Err(Status::SGL_LENGTH_INVALID));
        assert_eq!(say(&[segment(b, 4096)], 512), Err(Status::SGL_LENGTH_INVALID));
        assert_eq!(say(&[segment(Iova(1 << 50), 512)], 512), Err(Status::DATA_TRANSFER_ERROR));
        assert_eq!(
            transfer_shape(port.memory(), Iova(1 << 50), 1, 512),
            Err(Status::DATA_TRANSFER_ERROR),
            "no table"
        );
        let found = port.memory().find(table, 16).unwrap();
        found.region.write(found.offset, &[0xff; 16]);
        assert_eq!(transfer_shape(port.memory(), table, 1, 512), Err(Status::SGL_TYPE_INVALID));
        let Payload::Scattered { table, segments } =
            write_table(&port, table, &[segment(a, 3584), segment(b, 8192)])
        else {
            panic!("scattered")
        };
        let pages: Vec<u64> = page_addresses(port.memory(), table, segments).collect();
        assert_eq!(pages, [a.0, b.0, b.0 + 4096]);
    }
}
