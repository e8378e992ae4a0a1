//! [`TranslationPage`]: a page of the map as it is on the media [LightNVM17 §4.2.2].
//!
//! ```text
//! bytes 0..4      0x4d617031 ("1paM"), little endian
//! bytes 4..8      the page's number: it maps the logical sectors from number * count on
//! bytes 8..16     base: every write unit with a smaller sequence number is included in this page
//! bytes 16..20    CRC-32C of everything else in the page
//! bytes 20..32    0
//! then            one bit per logical sector, lowest first: its data was lost; without a physical
//!                 sector its location was lost too
//! then            one 32-bit word per logical sector: physical sector + 1, or 0 if it is not mapped
//! ```
//! A page holds the locations on the media when it was written, without those in the write buffer.
//! A copy in a unit sequenced at or after `base_seq` may be newer than the page; one with a smaller
//! number is not.

use collections::{Seal, put_at, u32_at, u64_at};
use nvme::PhysSector;

use crate::FlashGeometry;
use crate::ids::{ToIndex, ToU32, WriteSeq};

const MAGIC: u32 = 0x4d61_7031;
const HEADER_BYTES: usize = 32;
const SEAL: Seal = Seal::of_all_bytes(16);

/// Entry of a page for one logical sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageEntry {
    /// Its physical sector, if it is mapped.
    pub(crate) phys: Option<PhysSector>,
    /// Whether its data was lost.
    pub(crate) poison: bool,
}

/// A page of the map as it is on the media.
#[derive(Debug)]
pub(crate) struct TranslationPage<'a> {
    pub(crate) base_seq: WriteSeq,
    lost_bits: &'a [u8],
    entries: &'a [u8],
}

impl<'a> TranslationPage<'a> {
    /// Logical sectors per page.
    pub(crate) fn entries_per_page(shape: &FlashGeometry) -> u32 {
        TranslationPage::entries_per_page_of(shape.sector_bytes)
    }

    /// Logical sectors per page in sectors of this size.
    pub(crate) fn entries_per_page_of(sector_bytes: u32) -> u32 {
        let bytes = sector_bytes.index().saturating_sub(HEADER_BYTES);
        // A whole number of bytes of bits, so that words begin at a byte.
        (bytes * 8 / 33 / 8 * 8).to_u32()
    }

    /// Encodes page `number` into one sector.
    pub(crate) fn encode(
        shape: &FlashGeometry,
        number: u32,
        low: WriteSeq,
        mapped: impl ExactSizeIterator<Item = PageEntry>,
        bytes: &mut Vec<u8>,
    ) {
        let count = TranslationPage::entries_per_page(shape).index();
        debug_assert!(mapped.len() <= count);
        bytes.clear();
        bytes.resize(shape.sector_bytes.index(), 0);
        put_at(bytes, 0, &MAGIC.to_le_bytes());
        put_at(bytes, 4, &number.to_le_bytes());
        put_at(bytes, 8, &low.get().to_le_bytes());
        for (i, PageEntry { phys, poison }) in mapped.enumerate() {
            bytes[HEADER_BYTES + i / 8] |= u8::from(poison) << (i % 8);
            let at = HEADER_BYTES + count / 8 + 4 * i;
            bytes[at..at + 4].copy_from_slice(&phys.map_or(0, |p| p.get() + 1).to_le_bytes());
        }
        SEAL.store(bytes);
    }

    /// Decodes page `number`; `None` if the bytes are not this page.
    pub(crate) fn decode(
        shape: &FlashGeometry,
        number: u32,
        bytes: &'a [u8],
    ) -> Option<TranslationPage<'a>> {
        let count = TranslationPage::entries_per_page(shape).index();
        if bytes.len() < HEADER_BYTES + count / 8 + 4 * count {
            return None;
        }
        if u32_at(bytes, 0)? != MAGIC || u32_at(bytes, 4)? != number || !SEAL.is_intact(bytes) {
            return None;
        }
        let low = u64_at(bytes, 8)?;
        let (bits, words) = bytes[HEADER_BYTES..].split_at(count / 8);
        Some(TranslationPage { base_seq: WriteSeq(low), lost_bits: bits, entries: words })
    }

    /// Returns the entry of its `i`-th logical sector.
    pub(crate) fn get(&self, i: u32) -> PageEntry {
        let i = i.index();
        let word: [u8; 4] = self.entries[4 * i..4 * i + 4].try_into().unwrap_or_default();
        let poison = self.lost_bits[i / 8] >> (i % 8) & 1 != 0;
        PageEntry { phys: u32::from_le_bytes(word).checked_sub(1).map(PhysSector), poison }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_4_kib_has_984_entries() {
        assert_eq!(TranslationPage::entries_per_page_of(4096), 984);
    }
}
