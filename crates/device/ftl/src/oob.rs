//! [`Oob`]: the out-of-band bytes of every sector.

use crate::ids::{Lba, WriteSeq};

/// The sixteen out-of-band bytes of a sector: the reverse map, on the media.
///
/// ```text
/// bytes 0..4   logical sector + 1, little endian; 0 for padding
/// bytes 4..6   0x51ce, a mark
/// byte  6      flags: bit 0 poison, bit 1 metadata of a line (then bytes 0..4 are 0)
/// byte  7      0
/// bytes 8..16  the write unit's sequence number, little endian
/// ```
/// The sequence number is that of the write unit, assigned when the unit gets its location: of two
/// copies of a sector the one with the larger number is newer, and within a unit the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oob {
    /// The logical sector; `None` for padding.
    pub lba: Option<Lba>,
    /// The data was lost before it could be moved: reads of the sector fail.
    pub poison: bool,
    /// Whether the sector holds a line's header or footer (`docs/format/line.md`) instead of data.
    /// Then `sequence` is the line's open sequence number.
    pub metadata: bool,
    /// The write unit's number.
    pub sequence: WriteSeq,
}

const MARK: u16 = 0x51ce;

impl Oob {
    /// Bytes of the encoding.
    pub const BYTES: usize = 16;

    /// The bytes for the media.
    pub fn encode(&self) -> [u8; Oob::BYTES] {
        let mut out = [0; Oob::BYTES];
        out[..4].copy_from_slice(&self.lba.map_or(0, |l| l.get() + 1).to_le_bytes());
        out[4..6].copy_from_slice(&MARK.to_le_bytes());
        out[6] = u8::from(self.poison) | u8::from(self.metadata) << 1;
        out[8..].copy_from_slice(&self.sequence.get().to_le_bytes());
        out
    }

    /// Decodes bytes from the media; `None` if an FTL did not write them.
    pub fn decode(bytes: &[u8]) -> Option<Oob> {
        let bytes: &[u8; Oob::BYTES] = bytes.get(..Oob::BYTES)?.try_into().ok()?;
        let [a, b, c, d, m0, m1, flags, zero, s @ ..] = *bytes;
        let lba = u32::from_le_bytes([a, b, c, d]).checked_sub(1).map(Lba);
        // Metadata is of no logical sector.
        let sound = flags < 2 || flags == 2 && lba.is_none();
        if u16::from_le_bytes([m0, m1]) != MARK || !sound || zero != 0 {
            return None;
        }
        Some(Oob {
            lba,
            poison: flags & 1 != 0,
            metadata: flags & 2 != 0,
            sequence: WriteSeq(u64::from_le_bytes(s)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_media_and_foreign_bytes_are_told_apart() {
        for oob in [
            Oob { lba: None, poison: false, metadata: false, sequence: WriteSeq(0) },
            Oob { lba: Some(Lba(0)), poison: false, metadata: false, sequence: WriteSeq(1) },
            Oob {
                lba: Some(Lba(0x6fff_ffff)),
                poison: true,
                metadata: false,
                sequence: WriteSeq::MAX,
            },
            Oob { lba: None, poison: false, metadata: true, sequence: WriteSeq(77) },
        ] {
            assert_eq!(Oob::decode(&oob.encode()), Some(oob));
        }
        let mut metadata_of_a_sector =
            Oob { lba: Some(Lba(3)), poison: false, metadata: false, sequence: WriteSeq(1) }
                .encode();
        metadata_of_a_sector[6] = 2;
        assert_eq!(Oob::decode(&metadata_of_a_sector), None);
        assert_eq!(Oob::decode(&[0; 16]), None);
        assert_eq!(Oob::decode(&[0xff; 16]), None);
        assert_eq!(Oob::decode(&[0; 15]), None);
    }
}
