//! [`L2p`]: the logical-to-physical map, four bytes per sector; all of it in memory, or the pages
//! that are in [`Frames`].

use std::io;

use mem::HugeArray;
use nvme::PhysSector;
use serde::{Deserialize, Serialize};

use crate::ids::{Lba, MapPageId, SlotId, ToIndex};
use crate::mapping::cache::frames::Frames;

/// Location of a logical sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum L2pEntry {
    /// Not mapped: it reads as zeros.
    Unmapped,
    /// In the write buffer, in this slot.
    Buffer(SlotId),
    /// On the media, at this physical sector.
    Flash(PhysSector),
    /// Lost: its translation page could not be read. Reads fail until it is written.
    Lost,
}

/// The map. An entry of zero is unmapped, so that memory is touched only for mapped sectors.
///
/// ```text
/// entry: 0 unmapped | 1..=0xe000_0000 physical sector + 1 | 0xe000_0001 + slot | 0xffff_ffff lost
/// ```
///
/// With a map in frames, a caller may only access sectors whose page is in a frame. The locations
/// of the pages themselves are always in memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct L2p {
    table: HugeArray,
    /// `None` if the whole map is in memory.
    frames: Option<Box<Frames>>,
    /// Logical sectors that are mapped.
    mapped: u64,
}

/// Maximum number of sectors of a medium (about 14 TiB at 4 KiB): the map has 32-bit entries, and
/// some of their values are slots of the write buffer.
pub const PHYSICAL_SECTORS_MAX: u32 = 0xe000_0000;
/// Maximum number of slots of the write buffer.
pub(crate) const SLOTS_MAX: u32 = LOST_ENTRY - FIRST_SLOT_ENTRY;
const FIRST_SLOT_ENTRY: u32 = PHYSICAL_SECTORS_MAX + 1;
const LOST_ENTRY: u32 = u32::MAX;

/// Encodes a location as a map entry.
#[inline]
pub(crate) fn encode_l2p_entry(at: L2pEntry) -> u32 {
    match at {
        L2pEntry::Unmapped => 0,
        L2pEntry::Buffer(slot) => FIRST_SLOT_ENTRY + slot.get(),
        L2pEntry::Flash(phys) => phys.get() + 1,
        L2pEntry::Lost => LOST_ENTRY,
    }
}

/// Decodes a map entry.
#[inline(always)]
fn decode_l2p_entry(word: u32) -> L2pEntry {
    match word {
        0 => L2pEntry::Unmapped,
        LOST_ENTRY => L2pEntry::Lost,
        w if w >= FIRST_SLOT_ENTRY => L2pEntry::Buffer(SlotId(w - FIRST_SLOT_ENTRY)),
        w => L2pEntry::Flash(PhysSector(w - 1)),
    }
}

impl L2p {
    /// An empty map, all of it in memory.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
    pub fn new(logical: u32) -> io::Result<L2p> {
        Ok(L2p { table: HugeArray::zeroed(logical.index())?, frames: None, mapped: 0 })
    }

    /// An empty map in frames.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
    pub(crate) fn with_frames(frames: Frames) -> io::Result<L2p> {
        Ok(L2p {
            table: HugeArray::zeroed(frames.entry_count())?,
            frames: Some(Box::new(frames)),
            mapped: 0,
        })
    }

    /// The frames that hold the pages in memory; none if all of the map is.
    #[inline]
    pub(crate) fn frames(&self) -> Option<&Frames> {
        self.frames.as_deref()
    }

    #[inline]
    pub(super) fn frames_mut(&mut self) -> Option<&mut Frames> {
        self.frames.as_deref_mut()
    }

    /// Returns the number of mapped logical sectors; with a map cache, those in reconciled pages.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Counts a sector of a page that was read as mapped.
    pub(super) fn count_mapped(&mut self) {
        self.mapped += 1;
    }

    #[inline]
    fn index(&self, lba: Lba) -> usize {
        match &self.frames {
            None => lba.index(),
            Some(frames) => frames.index(lba),
        }
    }

    /// Returns the location of a logical sector.
    #[inline]
    pub fn get(&self, lba: Lba) -> L2pEntry {
        decode_l2p_entry(self.table[self.index(lba)])
    }

    /// Returns the physical sector of a logical one, if it has one, for a prefetch. With a map in
    /// frames it returns nothing.
    #[inline]
    pub(crate) fn prefetch(&self, lba: Lba) -> Option<PhysSector> {
        if self.frames.is_some() {
            return None;
        }
        self.table
            .get(lba.index())
            .filter(|word| **word < FIRST_SLOT_ENTRY)?
            .checked_sub(1)
            .map(PhysSector)
    }

    /// Sets the location of a logical sector, and returns the one before.
    #[inline(always)]
    pub(crate) fn set(&mut self, lba: Lba, to: L2pEntry) -> L2pEntry {
        let (at, to) = (self.index(lba), encode_l2p_entry(to));
        let old = std::mem::replace(&mut self.table[at], to);
        self.mapped = self.mapped + u64::from(to != 0) - u64::from(old != 0);
        decode_l2p_entry(old)
    }

    /// Replaces the location of a logical sector if it is `from`.
    ///
    /// # Errors
    /// The present location, if it is another one; nothing was changed.
    #[inline(always)]
    pub(crate) fn compare_and_set(
        &mut self,
        lba: Lba,
        from: L2pEntry,
        to: L2pEntry,
    ) -> Result<(), L2pEntry> {
        debug_assert!(from != L2pEntry::Unmapped && to != L2pEntry::Unmapped);
        let at = self.index(lba);
        let at = &mut self.table[at];
        if *at != encode_l2p_entry(from) {
            return Err(decode_l2p_entry(*at));
        }
        *at = encode_l2p_entry(to);
        Ok(())
    }

    /// Returns the entries of a run of logical sectors, to find mapped ones quickly; with a map
    /// cache, of one page.
    #[inline]
    pub(crate) fn raw_range(&self, first: Lba, count: u32) -> &[u32] {
        let at = self.index(first);
        &self.table[at..at + count.index()]
    }

    /// Sets the `i`-th entry of a frame.
    #[inline]
    pub(crate) fn set_raw(&mut self, frame_at: usize, i: u32, word: u32) {
        self.table[frame_at + i.index()] = word;
    }

    /// Returns whether a logical sector has this location.
    #[inline]
    pub(crate) fn is_at(&self, lba: Lba, place: L2pEntry) -> bool {
        self.table[self.index(lba)] == encode_l2p_entry(place)
    }

    /// Returns whether a logical sector is at this physical sector.
    #[inline]
    pub(crate) fn is_mapped_to(&self, lba: Lba, phys: PhysSector) -> bool {
        self.is_at(lba, L2pEntry::Flash(phys))
    }

    /// Returns whether the entries of a page are in memory.
    #[inline]
    pub(crate) fn is_page_resident(&self, page: MapPageId) -> bool {
        self.frames.as_ref().is_none_or(|frames| frames.is_resident(page))
    }

    /// Pins the page of a host sector: the sector is in the write buffer.
    #[inline]
    pub(crate) fn pin(&mut self, lba: Lba) {
        if let Some(frames) = &mut self.frames
            && let Some(page) = frames.page_of(lba)
        {
            frames.pin(page);
        }
    }

    /// Releases the pin of a sector that has left the write buffer.
    #[inline]
    pub(crate) fn unpin(&mut self, lba: Lba) {
        if let Some(frames) = &mut self.frames
            && let Some(page) = frames.page_of(lba)
        {
            frames.unpin(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_the_first_and_the_last_of_each_kind() {
        let slots = [0, 1, SLOTS_MAX - 1].map(|slot| L2pEntry::Buffer(SlotId(slot)));
        let sectors = [0, 1, 0x7fff_ffff, 0x8000_0000, PHYSICAL_SECTORS_MAX - 1];
        let sectors = sectors.map(|phys| L2pEntry::Flash(PhysSector(phys)));
        let others = [L2pEntry::Unmapped, L2pEntry::Lost];
        let mut words = std::collections::BTreeSet::new();
        for entry in slots.into_iter().chain(sectors).chain(others) {
            let word = encode_l2p_entry(entry);
            assert_eq!(decode_l2p_entry(word), entry);
            assert!(words.insert(word), "{entry:?} has an entry of its own");
        }
        let mut map = L2p::new(2).unwrap();
        map.set(Lba(0), slots[2]);
        map.set(Lba(1), sectors[4]);
        let prefetched = [0, 1].map(|lba| map.prefetch(Lba(lba)));
        assert_eq!(prefetched, [None, Some(PhysSector(PHYSICAL_SECTORS_MAX - 1))]);
    }

    #[test]
    fn a_sector_is_redirected_from_where_it_is_and_from_nowhere_else() {
        let mut map = L2p::new(8).unwrap();
        let (slot, media) = (L2pEntry::Buffer(SlotId(7)), L2pEntry::Flash(PhysSector(7)));
        assert_eq!(map.set(Lba(3), slot), L2pEntry::Unmapped);
        assert_eq!(map.compare_and_set(Lba(3), L2pEntry::Buffer(SlotId(6)), media), Err(slot));
        assert_eq!(map.compare_and_set(Lba(3), media, slot), Err(slot), "slot 7 is not sector 7");
        assert!(map.is_at(Lba(3), slot) && !map.is_at(Lba(3), media));
        assert_eq!(map.compare_and_set(Lba(3), slot, media), Ok(()));
        assert_eq!(
            (map.get(Lba(3)), map.is_mapped_to(Lba(3), PhysSector(7)), map.mapped),
            (media, true, 1)
        );
        assert_eq!(map.set(Lba(3), L2pEntry::Lost), media);
        assert_eq!(map.compare_and_set(Lba(3), media, slot), Err(L2pEntry::Lost));
        assert_eq!((map.set(Lba(3), L2pEntry::Unmapped), map.mapped), (L2pEntry::Lost, 0));
        assert_eq!(map.compare_and_set(Lba(3), slot, media), Err(L2pEntry::Unmapped));
        assert_eq!((map.get(Lba(3)), map.mapped), (L2pEntry::Unmapped, 0));
    }
}
