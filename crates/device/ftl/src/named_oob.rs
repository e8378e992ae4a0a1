//! [`NamedOob`]: the out-of-band bytes of a sector that has a name.

use nvme::PhysSector;

use crate::Oob;
use crate::ids::WriteSeq;

/// The sixteen out-of-band bytes of a sector in a write unit of sectors with names.
///
/// ```text
/// bytes 0..4   sector that it was moved from + 1, little endian; 0 if it is where it was written first
/// bytes 4..6   0x51cf, a mark
/// bytes 6..8   bit 0 padding, bit 1 0, bits 2..15 a fragment of the write unit's sequence number
/// bytes 8..16  the host's tag, little endian; 0 for padding
/// ```
/// The fragment of sector `i` of the unit has bits `14 p` to `14 p + 13` of the number, with `p = i % 4`. So
/// four sectors in a row have all of it, up to 2^56 - 1. Padding outside of the write buffer, and the
/// journal, have the bytes of [`Oob`]; the marks tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedOob {
    /// The sector that it was moved from.
    pub source: Option<PhysSector>,
    /// Whether it holds no sector of the host.
    pub is_padding: bool,
    /// The fragment of the sequence number.
    pub fragment: u16,
    /// The host's tag.
    pub tag: u64,
}

const MARK: u16 = 0x51cf;
/// Bits of a fragment of the sequence number.
const FRAGMENT_BITS: u32 = 14;

impl NamedOob {
    /// Fragments of a sequence number: a write unit has at least as many sectors.
    pub const FRAGMENTS: u32 = 4;

    /// Returns the fragment of a sequence number for sector `index` of its unit.
    pub(crate) fn fragment_of(sequence: WriteSeq, index: u32) -> u16 {
        let fragment = sequence.get() >> (FRAGMENT_BITS * (index % NamedOob::FRAGMENTS));
        let [low, high, ..] = fragment.to_le_bytes();
        u16::from_le_bytes([low, high]) & ((1 << FRAGMENT_BITS) - 1)
    }

    /// Adds the fragment of sector `index` of a unit to the bits of its sequence number.
    pub(crate) fn add_fragment(&self, index: u32) -> u64 {
        u64::from(self.fragment) << (FRAGMENT_BITS * (index % NamedOob::FRAGMENTS))
    }

    /// The bytes for the media.
    pub fn encode(&self) -> [u8; Oob::BYTES] {
        let mut out = [0; Oob::BYTES];
        out[..4].copy_from_slice(&self.source.map_or(0, |s| s.get() + 1).to_le_bytes());
        out[4..6].copy_from_slice(&MARK.to_le_bytes());
        let flags = u16::from(self.is_padding) | self.fragment << 2;
        out[6..8].copy_from_slice(&flags.to_le_bytes());
        out[8..].copy_from_slice(&self.tag.to_le_bytes());
        out
    }

    /// Decodes bytes from the media; `None` if they are of no sector in a unit of sectors with names.
    pub fn decode(bytes: &[u8]) -> Option<NamedOob> {
        let bytes: &[u8; Oob::BYTES] = bytes.get(..Oob::BYTES)?.try_into().ok()?;
        let [a, b, c, d, m0, m1, f0, f1, tag @ ..] = *bytes;
        let flags = u16::from_le_bytes([f0, f1]);
        if u16::from_le_bytes([m0, m1]) != MARK || flags & 2 != 0 {
            return None;
        }
        Some(NamedOob {
            source: u32::from_le_bytes([a, b, c, d]).checked_sub(1).map(PhysSector),
            is_padding: flags & 1 != 0,
            fragment: flags >> 2,
            tag: u64::from_le_bytes(tag),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Lba;

    #[test]
    fn survives_the_media_and_is_no_logical_sector() {
        let padding = NamedOob { source: None, is_padding: true, fragment: 0, tag: 0 };
        let moved = NamedOob {
            source: Some(PhysSector(0xdfff_ffff)),
            is_padding: false,
            fragment: 0x3fff,
            tag: u64::MAX,
        };
        // A tag that has the mark of the other format where that format has it.
        let marked = NamedOob { tag: 0x51ce_51ce_51ce_51ce, ..moved };
        for oob in [padding, moved, marked, NamedOob { source: Some(PhysSector(0)), ..moved }] {
            assert_eq!(NamedOob::decode(&oob.encode()), Some(oob));
            assert_eq!(Oob::decode(&oob.encode()), None);
        }
        let logical =
            Oob { lba: Some(Lba(7)), poison: false, metadata: false, sequence: WriteSeq(1) };
        assert_eq!(NamedOob::decode(&logical.encode()), None);
        assert_eq!(NamedOob::decode(&moved.encode()[..15]), None);
    }

    #[test]
    fn four_sectors_in_a_row_have_the_number() {
        for number in [1, 0x3fff, 0x4000, 0x00ab_cdef_0123_4567, (1 << 56) - 1] {
            for first in 0..8 {
                let fragment = |i| {
                    let fragment = NamedOob::fragment_of(WriteSeq(number), i);
                    NamedOob { source: None, is_padding: false, fragment, tag: 0 }.add_fragment(i)
                };
                assert_eq!((first..first + 4).map(fragment).sum::<u64>(), number);
            }
        }
    }
}
