//! [`Map`]: logical to physical, four bytes per sector; all of it in memory, or those pages of it that
//! are in [`Frames`].

use std::io;

use ring::Table;

use crate::frames::Frames;

/// Where a logical sector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// Nowhere: it reads as zeros.
    Unmapped,
    /// In the write buffer, in this slot.
    Buffer(u32),
    /// On the media, at this physical sector.
    Flash(u32),
    /// Not known any more: its page of the map could not be read. Reads fail until it is written.
    Lost,
}

/// The map. A word of zero means nothing, so memory is touched only for what is mapped.
///
/// ```text
/// word: 0 unmapped | 1..=0x7000_0000 physical sector + 1 | 0x8000_0000 + slot | 0xffff_ffff lost
/// ```
/// Of a map in frames only those sectors may be asked for whose page is in one; where the pages
/// themselves are is always there.
#[derive(Clone, Debug)]
pub struct Map {
    l2p: Table,
    /// None if all of the map is in memory.
    pub(crate) frames: Option<Box<Frames>>,
    /// Logical sectors that are mapped.
    pub(crate) mapped: u64,
}

const BUFFER: u32 = 1 << 31;
const LOST: u32 = u32::MAX;

/// A place as a word of the map.
#[inline]
pub(crate) fn word(at: Location) -> u32 {
    match at {
        Location::Unmapped => 0,
        Location::Buffer(slot) => BUFFER | slot,
        Location::Flash(psn) => psn + 1,
        Location::Lost => LOST,
    }
}

/// The place that a word of the map stands for.
#[inline(always)]
fn place(word: u32) -> Location {
    match word {
        0 => Location::Unmapped,
        LOST => Location::Lost,
        w if w & BUFFER != 0 => Location::Buffer(w & !BUFFER),
        w => Location::Flash(w - 1),
    }
}

impl Map {
    /// An empty map, all of it in memory.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
    pub fn new(logical: u32) -> io::Result<Map> {
        Ok(Map { l2p: Table::zeroed(logical as usize)?, frames: None, mapped: 0 })
    }

    /// An empty map in frames.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
    pub(crate) fn in_frames(frames: Frames) -> io::Result<Map> {
        Ok(Map { l2p: Table::zeroed(frames.words())?, frames: Some(Box::new(frames)), mapped: 0 })
    }

    #[inline]
    fn index(&self, lba: u32) -> usize {
        match &self.frames {
            None => lba as usize,
            Some(frames) => frames.index(lba),
        }
    }

    /// Where a logical sector is.
    #[inline]
    pub fn get(&self, lba: u32) -> Location {
        place(self.l2p[self.index(lba)])
    }

    /// The physical sector of a logical one, if it has one and there is one: a look ahead. Of a map in
    /// frames nothing is looked at.
    #[inline]
    pub(crate) fn look(&self, lba: u64) -> Option<u32> {
        if self.frames.is_some() {
            return None;
        }
        self.l2p.get(lba as usize).filter(|word| **word & BUFFER == 0)?.checked_sub(1)
    }

    /// Points a logical sector somewhere and returns where it pointed before.
    #[inline(always)]
    pub(crate) fn set(&mut self, lba: u32, to: Location) -> Location {
        let (at, to) = (self.index(lba), word(to));
        let old = std::mem::replace(&mut self.l2p[at], to);
        self.mapped = self.mapped + u64::from(to != 0) - u64::from(old != 0);
        place(old)
    }

    /// Points a logical sector from one place to another, if that is where it points.
    ///
    /// # Errors
    /// Where it points instead; nothing was changed.
    #[inline(always)]
    pub(crate) fn redirect(
        &mut self,
        lba: u32,
        from: Location,
        to: Location,
    ) -> Result<(), Location> {
        debug_assert!(from != Location::Unmapped && to != Location::Unmapped);
        let at = self.index(lba);
        let at = &mut self.l2p[at];
        if *at != word(from) {
            return Err(place(*at));
        }
        *at = word(to);
        Ok(())
    }

    /// The words of a run of logical sectors, to look for mapped ones quickly; in frames, of one page.
    #[inline]
    pub(crate) fn words(&self, first: u32, count: u32) -> &[u32] {
        let at = self.index(first);
        &self.l2p[at..at + count as usize]
    }

    /// The word number `i` of a frame.
    #[inline]
    pub(crate) fn put_word(&mut self, frame_at: usize, i: u32, word: u32) {
        self.l2p[frame_at + i as usize] = word;
    }

    /// Whether a logical sector is there.
    #[inline]
    pub(crate) fn is_at(&self, lba: u32, place: Location) -> bool {
        self.l2p[self.index(lba)] == word(place)
    }

    /// Whether a logical sector points at this physical one.
    #[inline]
    pub(crate) fn points_at(&self, lba: u32, psn: u32) -> bool {
        self.is_at(lba, Location::Flash(psn))
    }

    /// Whether what a page says is in memory.
    #[inline]
    pub(crate) fn has_page(&self, page: u32) -> bool {
        self.frames.as_ref().is_none_or(|frames| frames.is_resident(page))
    }

    /// The page of a users' sector must stay in its frame: the sector is in the write buffer.
    #[inline]
    pub(crate) fn hold(&mut self, lba: u32) {
        if let Some(frames) = &mut self.frames
            && let Some(page) = frames.page_of(lba)
        {
            frames.hold(page);
        }
    }

    /// A sector has left the write buffer.
    #[inline]
    pub(crate) fn let_go(&mut self, lba: u32) {
        if let Some(frames) = &mut self.frames
            && let Some(page) = frames.page_of(lba)
        {
            frames.let_go(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_redirected_from_where_it_is_and_from_nowhere_else() {
        let mut map = Map::new(8).unwrap();
        let (slot, media) = (Location::Buffer(7), Location::Flash(7));
        assert_eq!(map.set(3, slot), Location::Unmapped);
        assert_eq!(map.redirect(3, Location::Buffer(6), media), Err(slot));
        assert_eq!(map.redirect(3, media, slot), Err(slot), "slot 7 is not sector 7");
        assert!(map.is_at(3, slot) && !map.is_at(3, media));
        assert_eq!(map.redirect(3, slot, media), Ok(()));
        assert_eq!((map.get(3), map.points_at(3, 7), map.mapped), (media, true, 1));
        assert_eq!(map.set(3, Location::Lost), media);
        assert_eq!(map.redirect(3, media, slot), Err(Location::Lost));
        assert_eq!((map.set(3, Location::Unmapped), map.mapped), (Location::Lost, 0));
        assert_eq!(map.redirect(3, slot, media), Err(Location::Unmapped));
        assert_eq!((map.get(3), map.mapped), (Location::Unmapped, 0));
    }
}
