//! [`FrameHeader`]: the first bytes of every frame. One write unit is one frame. The byte map is
//! `docs/format/journal.md`.
//!
//! There are two CRC-32C. One covers the header, so that a scan can verify it from the first sector
//! of a unit. The other is inside the header, covers the payload, and is verified when the payload
//! is used. Together they cover everything but the zeros behind the payload.

use crate::ids::ToIndex;
use collections::{HeaderError, Reader, Seal, SealedHeader, put_at};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 48;
/// The version written and read.
pub(crate) const VERSION: u16 = 1;

const HEADER: SealedHeader = SealedHeader {
    magic: *b"SLUICJNL",
    version: VERSION as u32,
    version_bytes: 2,
    seal: Seal::of_bytes_before(HEADER_BYTES - 4),
};

/// Contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Padding, which makes earlier units readable.
    Padding = 1,
    /// The start of a generation without a snapshot: the first one of a journal.
    Start = 2,
    /// A part of the snapshot.
    SnapshotPart = 3,
    /// The last part of the snapshot.
    SnapshotEnd = 4,
    /// Records. The first and the last may be cut.
    Records = 5,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<FrameKind> {
        use FrameKind::*;
        [Padding, Start, SnapshotPart, SnapshotEnd, Records].into_iter().find(|k| *k as u8 == byte)
    }

    /// Returns whether the generation is complete once this frame and all earlier ones are
    /// programmed.
    pub(crate) fn is_base_end(self) -> bool {
        matches!(self, FrameKind::Start | FrameKind::SnapshotEnd)
    }
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) kind: FrameKind,
    /// Number of the copy, 0 or 1.
    pub(crate) replica: u8,
    /// Owner of the journal; 0 for padding.
    pub(crate) owner: u32,
    /// Generation, from 1 on; 0 for padding.
    pub(crate) generation: u64,
    /// Number of the frame in its generation.
    pub(crate) index: u32,
    /// Bytes of payload.
    pub(crate) length: u32,
    /// Bytes at the start of the payload that belong to a record begun in an earlier frame.
    pub(crate) continues: u32,
    pub(crate) payload_crc: u32,
}

/// Result of decoding the start of a write unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameDecode {
    /// A frame of this version.
    Frame(FrameHeader),
    /// A frame of another version.
    OtherVersion(u16),
    /// No frame.
    Garbage,
}

impl FrameHeader {
    /// Returns a frame of padding. It names no owner: recovery pads before it may know the owner of
    /// the chunks.
    pub(crate) fn padding() -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Padding,
            replica: 0,
            owner: 0,
            generation: 0,
            index: 0,
            length: 0,
            continues: 0,
            payload_crc: crc32c::crc32c(&[]),
        }
    }

    /// Encodes the header.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        HEADER.begin(&mut bytes);
        bytes[10] = self.kind as u8;
        bytes[11] = self.replica;
        put_at(&mut bytes, 12, &self.owner.to_le_bytes());
        put_at(&mut bytes, 16, &self.generation.to_le_bytes());
        put_at(&mut bytes, 24, &self.index.to_le_bytes());
        put_at(&mut bytes, 28, &self.length.to_le_bytes());
        put_at(&mut bytes, 32, &self.continues.to_le_bytes());
        put_at(&mut bytes, 36, &self.payload_crc.to_le_bytes());
        HEADER.seal.store(&mut bytes);
        bytes
    }

    /// Decodes `bytes`, the start of a write unit with space for `payload_max` bytes of payload.
    pub(crate) fn decode(bytes: &[u8], payload_max: usize) -> FrameDecode {
        match HEADER.check_seal_first(bytes) {
            Ok(()) => {}
            Err(HeaderError::Version(version)) => return FrameDecode::OtherVersion(version as u16),
            Err(_) => return FrameDecode::Garbage,
        }
        let header = FrameHeader::decode_fields(Reader::new(&bytes[10..]));
        match header.filter(|header| header.is_sound(payload_max)) {
            Some(header) => FrameDecode::Frame(header),
            None => FrameDecode::Garbage,
        }
    }

    fn decode_fields(mut r: Reader<'_>) -> Option<FrameHeader> {
        Some(FrameHeader {
            kind: FrameKind::from_byte(r.u8()?)?,
            replica: r.u8()?,
            owner: r.u32()?,
            generation: r.u64()?,
            index: r.u32()?,
            length: r.u32()?,
            continues: r.u32()?,
            payload_crc: r.u32()?,
        })
    }

    fn is_sound(&self, payload_max: usize) -> bool {
        self.length.index() <= payload_max
            && self.continues <= self.length
            && (self.kind == FrameKind::Records || self.continues == 0)
            && self.replica < 2
            && (self.kind == FrameKind::Padding) == (self.generation == 0)
    }

    /// The payload in `unit`, the bytes of a whole frame, if it is undamaged.
    pub(crate) fn payload<'a>(&self, unit: &'a [u8]) -> Option<&'a [u8]> {
        let payload = unit.get(HEADER_BYTES..)?.get(..self.length.index())?;
        (crc32c::crc32c(payload) == self.payload_crc).then_some(payload)
    }

    /// Returns the bytes of the header and the payload.
    pub(crate) fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.length.index()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Records,
            replica: 1,
            owner: 0x0102_0304,
            generation: 0x1122_3344_5566_7788,
            index: 0xa1a2_a3a4,
            length: 5,
            continues: 2,
            payload_crc: crc32c::crc32c(b"hello"),
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_byte_map() {
        let bytes = header().encode();
        assert_eq!(&bytes[..8], b"SLUICJNL");
        assert_eq!(bytes[8..12], [1, 0, 5, 1]);
        assert_eq!(bytes[12..16], [4, 3, 2, 1]);
        assert_eq!(bytes[16..24], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(bytes[24..28], [0xa4, 0xa3, 0xa2, 0xa1]);
        assert_eq!(bytes[28..36], [5, 0, 0, 0, 2, 0, 0, 0]);
        // CRC-32C of "hello".
        assert_eq!(bytes[36..40], 0x9a71_bb4c_u32.to_le_bytes());
        assert_eq!(bytes[40..44], [0; 4]);
        assert_eq!(FrameHeader::decode(&bytes, 5), FrameDecode::Frame(header()));
    }

    #[test]
    fn no_flipped_bit_goes_unnoticed() {
        let good = header().encode();
        for bit in 0..good.len() * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHeader::decode(&bytes, 464), FrameDecode::Garbage, "bit {bit}");
        }
        let mut unit = good.to_vec();
        unit.extend_from_slice(b"hello, and what is behind does not matter");
        assert_eq!(header().payload(&unit), Some(&b"hello"[..]));
        for bit in HEADER_BYTES * 8..(HEADER_BYTES + 5) * 8 {
            let mut unit = unit.clone();
            unit[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(header().payload(&unit), None);
        }
        assert_eq!(header().payload(&unit[..52]), None);
    }

    #[test]
    fn numbers_that_no_frame_has_make_it_none() {
        let cases = [
            FrameHeader { length: 465, ..header() },
            FrameHeader { continues: 6, ..header() },
            FrameHeader { replica: 2, ..header() },
            FrameHeader { generation: 0, ..header() },
            FrameHeader { kind: FrameKind::SnapshotPart, ..header() },
            FrameHeader { kind: FrameKind::Padding, continues: 0, ..header() },
        ];
        for header in cases {
            assert_eq!(
                FrameHeader::decode(&header.encode(), 464),
                FrameDecode::Garbage,
                "{header:?}"
            );
        }
        assert_eq!(FrameHeader::decode(&[0; 512], 464), FrameDecode::Garbage);
        assert_eq!(FrameHeader::decode(&header().encode()[..47], 464), FrameDecode::Garbage);
        let padding = FrameHeader::padding();
        assert_eq!(FrameHeader::decode(&padding.encode(), 464), FrameDecode::Frame(padding));
    }

    #[test]
    fn another_version_is_believed_only_with_its_crc() {
        let mut bytes = header().encode();
        bytes[8] = 2;
        assert_eq!(FrameHeader::decode(&bytes, 464), FrameDecode::Garbage);
        HEADER.seal.store(&mut bytes);
        assert_eq!(FrameHeader::decode(&bytes, 464), FrameDecode::OtherVersion(2));
    }
}
