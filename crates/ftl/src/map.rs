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
#[derive(Debug)]
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
        match self.l2p[self.index(lba)] {
            0 => Location::Unmapped,
            w if w & BUFFER != 0 => match w {
                LOST => Location::Lost,
                w => Location::Buffer(w & !BUFFER),
            },
            w => Location::Flash(w - 1),
        }
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
    #[inline]
    pub(crate) fn set(&mut self, lba: u32, to: Location) -> Location {
        let old = self.get(lba);
        let at = self.index(lba);
        self.l2p[at] = word(to);
        self.mapped = self.mapped + u64::from(to != Location::Unmapped)
            - u64::from(old != Location::Unmapped);
        old
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

    /// Whether a logical sector points at this physical one.
    #[inline]
    pub(crate) fn points_at(&self, lba: u32, psn: u32) -> bool {
        self.l2p[self.index(lba)] == psn + 1
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
