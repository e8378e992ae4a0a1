//! [`SectorTag`]: the out-of-band bytes of a sector, which describe its contents.
//!
//! ```text
//! 0..2   0x564b ("KV"); all numbers are little endian
//! 2      version: 1
//! 3      1 packed, 2 whole chunk, 3 padding, 4 filler, 5 seal
//! 4..8   packed: offset of the first record that starts in the sector, in units of 8 bytes;
//!        all ones: none
//!        whole chunk: index of this chunk in its value
//!        seal: number of sectors of the chunk, from its start, that were intact at power-on
//! 8..16  packed, padding: the chunk's stamp; whole chunk: the value's sequence number
//! ```

/// The contents of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectorTag {
    /// Records.
    Packed { first: Option<u32>, stamp: u64 },
    /// A whole chunk of a value.
    LargeValue { chunk_index: u32, seq: u64 },
    /// Padding, written in normal operation.
    Padding { stamp: u64 },
    /// Padding, written at power-on to make preceding sectors readable. It does not imply that they
    /// are intact.
    Filler,
    /// Padding, written at power-on: all sectors from `intact` up to this one are void.
    Seal { intact: u32 },
}

const MAGIC: u16 = 0x564b;
const VERSION: u8 = 1;

impl SectorTag {
    /// Size of the encoding in bytes.
    pub(crate) const BYTES: usize = 16;

    /// Encodes the tag.
    #[inline]
    pub(crate) fn encode(self) -> [u8; SectorTag::BYTES] {
        let (kind, word, long) = match self {
            SectorTag::Packed { first, stamp } => (1, first.map_or(u32::MAX, |at| at / 8), stamp),
            SectorTag::LargeValue { chunk_index: part, seq } => (2, part, seq),
            SectorTag::Padding { stamp } => (3, 0, stamp),
            SectorTag::Filler => (4, 0, 0),
            SectorTag::Seal { intact } => (5, intact, 0),
        };
        let mut out = [0; SectorTag::BYTES];
        out[..2].copy_from_slice(&MAGIC.to_le_bytes());
        out[2..4].copy_from_slice(&[VERSION, kind]);
        out[4..8].copy_from_slice(&word.to_le_bytes());
        out[8..].copy_from_slice(&u64::to_le_bytes(long));
        out
    }

    /// Decodes a tag; `None` if another target wrote the bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<SectorTag> {
        let bytes: &[u8; SectorTag::BYTES] = bytes.get(..SectorTag::BYTES)?.try_into().ok()?;
        let [m0, m1, VERSION, kind, a, b, c, d, long @ ..] = *bytes else { return None };
        if u16::from_le_bytes([m0, m1]) != MAGIC {
            return None;
        }
        let (word, long) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(long));
        Some(match kind {
            1 if word == u32::MAX => SectorTag::Packed { first: None, stamp: long },
            1 => SectorTag::Packed { first: Some(word.checked_mul(8)?), stamp: long },
            2 => SectorTag::LargeValue { chunk_index: word, seq: long },
            3 => SectorTag::Padding { stamp: long },
            4 => SectorTag::Filler,
            5 => SectorTag::Seal { intact: word },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_survives_its_bytes_and_foreign_bytes_are_told_apart() {
        for label in [
            SectorTag::Packed { first: None, stamp: 1 },
            SectorTag::Packed { first: Some(4088), stamp: u64::MAX },
            SectorTag::LargeValue { chunk_index: 7, seq: 1 << 60 },
            SectorTag::Padding { stamp: 2 },
            SectorTag::Filler,
            SectorTag::Seal { intact: 12 },
        ] {
            assert_eq!(SectorTag::decode(&label.encode()), Some(label));
        }
        let mut other = SectorTag::Filler.encode();
        other[2] = 2;
        assert_eq!(SectorTag::decode(&other), None, "another version");
        for foreign in [[0; 16], [0xff; 16]] {
            assert_eq!(SectorTag::decode(&foreign), None);
        }
        assert_eq!(SectorTag::decode(&[0; 15]), None);
        // The tags of pblk and kv are not confused.
        let oob = ftl::Oob {
            lba: Some(ftl::Lba(3)),
            poison: false,
            metadata: false,
            sequence: ftl::WriteSeq(9),
        };
        assert_eq!(SectorTag::decode(&oob.encode()), None);
        assert_eq!(ftl::Oob::decode(&SectorTag::Filler.encode()), None);
    }
}
