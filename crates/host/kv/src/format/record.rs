//! [`RecordHeader`]: precedes the inline bytes of a record in packed chunks; see
//! `docs/format/kv.md`.
//!
//! ```text
//! 0..4    0x7276_6b53 ("Skvr"); all numbers are little endian
//! 4..8    CRC-32C of the bytes from 8 to the inline bytes
//! 8..16   sequence number of the version
//! 16..20  inline bytes of this record
//! 20..24  CRC-32C of the inline bytes
//! 24..28  offset of the batch in the chunk, 0 without one
//! 28..32  end of the batch in the chunk, 0 without one
//! 32..34  index of this record in the value
//! 34..36  number of records of the value
//! 36..38  number of whole chunks of the value (in record 0; 0 in the others)
//! 38      bytes of the key
//! 39      1 value, 2 tombstone, 3 uncorrectable
//! 40..    the key, zero-padded to a multiple of 8
//! ..      per whole chunk: its index, CRC-32C of its bytes
//! ..      inline bytes, zero-padded to a multiple of 8
//! ```

use collections::{PutBytes, Seal, u16_at, u32_at, u64_at};

use crate::format::key::Key;
use crate::index::ChunkExtent;

const MAGIC: u32 = 0x7276_6b53;
const SEAL: Seal = Seal::of_bytes_behind(4);

/// Size of the fixed part in bytes.
pub(crate) const FIXED_HEADER_BYTES: u32 = 40;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// A value, or a part of one.
    Value,
    /// The key was deleted.
    Tombstone,
    /// The value was uncorrectable when it was to be relocated.
    Uncorrectable,
}

/// A record without its key and inline bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) seq: u64,
    pub(crate) bytes: u32,
    pub(crate) crc: u32,
    /// Offset and end of the batch in the chunk.
    pub(crate) batch: Option<(u32, u32)>,
    pub(crate) record_index: u16,
    pub(crate) record_count: u16,
    pub(crate) kind: RecordKind,
}

/// Returns the number of bytes before the inline bytes.
#[inline]
pub(crate) fn header_bytes(key: u8, parts: usize) -> u32 {
    FIXED_HEADER_BYTES + u32::from(key).next_multiple_of(8) + 8 * parts as u32
}

/// Returns the size of a record in bytes.
#[inline]
pub(crate) fn record_bytes(key: u8, parts: usize, bytes: u32) -> u32 {
    (header_bytes(key, parts) + bytes).next_multiple_of(8)
}

impl RecordHeader {
    /// Encodes the header into `out`, which is cleared first.
    pub(crate) fn encode(&self, key: &Key, parts: &[ChunkExtent], out: &mut Vec<u8>) {
        let (start, end) = self.batch.unwrap_or((0, 0));
        let kind = match self.kind {
            RecordKind::Value => 1,
            RecordKind::Tombstone => 2,
            RecordKind::Uncorrectable => 3,
        };
        out.clear();
        out.put_u32(MAGIC).put_u32(0).put_u64(self.seq);
        out.put_u32(self.bytes).put_u32(self.crc).put_u32(start).put_u32(end);
        out.put_u16(self.record_index).put_u16(self.record_count).put_u16(parts.len() as u16);
        out.put_u8(key.len()).put_u8(kind).put(key.as_bytes());
        out.resize(out.len().next_multiple_of(8), 0);
        for part in parts {
            out.put_u32(part.chunk).put_u32(part.crc);
        }
        SEAL.store(out);
    }

    /// Returns whether bytes begin with the magic of a header.
    pub(crate) fn has_magic(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC.to_le_bytes())
    }

    /// Decodes the header at the start of `bytes`; `None` if it is incomplete or damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(RecordHeader, Key, Vec<ChunkExtent>)> {
        if !RecordHeader::has_magic(bytes) {
            return None;
        }
        let word = |at: usize| u32_at(bytes, at);
        let (key, parts) = (*bytes.get(38)?, usize::from(u16_at(bytes, 36)?));
        let whole = bytes.get(..header_bytes(key, parts) as usize)?;
        SEAL.check(whole).ok()?;
        let kind = match bytes[39] {
            1 => RecordKind::Value,
            2 => RecordKind::Tombstone,
            3 => RecordKind::Uncorrectable,
            _ => return None,
        };
        let list = header_bytes(key, 0) as usize;
        let key = Key::new(
            &whole[FIXED_HEADER_BYTES as usize..FIXED_HEADER_BYTES as usize + usize::from(key)],
        )
        .ok()?;
        let part =
            |i| Some(ChunkExtent { chunk: word(list + 8 * i)?, crc: word(list + 8 * i + 4)? });
        let parts = (0..parts).map(part).collect::<Option<Vec<ChunkExtent>>>()?;
        let (start, end) = (word(24)?, word(28)?);
        let header = RecordHeader {
            seq: u64_at(bytes, 8)?,
            bytes: word(16)?,
            crc: word(20)?,
            batch: (end > 0).then_some((start, end)),
            record_index: u16_at(bytes, 32)?,
            record_count: u16_at(bytes, 34)?,
            kind,
        };
        (header.record_index < header.record_count).then_some((header, key, parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_bytes_and_damage_is_seen() {
        let mut bytes = Vec::new();
        for (len, parts, batch) in [(1, 0, None), (8, 3, Some((64, 4096))), (255, 17, None)] {
            let key = Key::new(&vec![b'k'; len]).unwrap();
            let parts: Vec<ChunkExtent> =
                (0..parts).map(|i| ChunkExtent { chunk: i, crc: !i.rotate_left(7) }).collect();
            let kind =
                [RecordKind::Value, RecordKind::Tombstone, RecordKind::Uncorrectable][len % 3];
            let header = RecordHeader {
                seq: 1 << 40 | 7,
                bytes: 99,
                crc: 5,
                batch,
                record_index: 2,
                record_count: 3,
                kind,
            };
            header.encode(&key, &parts, &mut bytes);
            assert_eq!(bytes.len() as u32, header_bytes(len as u8, parts.len()));
            let decoded = RecordHeader::decode(&bytes).unwrap();
            assert_eq!(decoded, (header, key, parts));
            for bit in (0..bytes.len() * 8).step_by(3) {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(RecordHeader::decode(&bytes).is_none(), "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            assert!(RecordHeader::decode(&bytes[..bytes.len() - 1]).is_none());
        }
        assert!(RecordHeader::decode(&[]).is_none());
        assert!(RecordHeader::decode(&[0; 512]).is_none());
    }
}
