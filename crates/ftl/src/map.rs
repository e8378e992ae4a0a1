//! [`Map`]: logical to physical, four bytes per sector.

use std::io;

use ring::Table;

/// Where a logical sector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// Nowhere: it reads as zeros.
    Unmapped,
    /// In the write buffer, in this slot.
    Buffer(u32),
    /// On the media, at this physical sector.
    Flash(u32),
}

/// The map. A word of zero means nothing, so memory is touched only for what is mapped.
///
/// ```text
/// word: 0 unmapped | 1..=0x7000_0000 physical sector + 1 | 0x8000_0000 + slot
/// ```
#[derive(Debug)]
pub struct Map {
    l2p: Table,
    /// Logical sectors that are mapped.
    pub(crate) mapped: u64,
}

const BUFFER: u32 = 1 << 31;

impl Map {
    /// An empty map.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
    pub fn new(logical: u32) -> io::Result<Map> {
        Ok(Map { l2p: Table::zeroed(logical as usize)?, mapped: 0 })
    }

    /// Where a logical sector is.
    #[inline]
    pub fn get(&self, lba: u32) -> Location {
        match self.l2p[lba as usize] {
            0 => Location::Unmapped,
            w if w & BUFFER != 0 => Location::Buffer(w & !BUFFER),
            w => Location::Flash(w - 1),
        }
    }

    /// The physical sector of a logical one, if it has one and there is one: a look ahead.
    #[inline]
    pub(crate) fn look(&self, lba: u64) -> Option<u32> {
        self.l2p.get(lba as usize).filter(|word| **word & BUFFER == 0)?.checked_sub(1)
    }

    /// Points a logical sector somewhere and returns where it pointed before.
    #[inline]
    pub(crate) fn set(&mut self, lba: u32, to: Location) -> Location {
        let old = self.get(lba);
        self.l2p[lba as usize] = match to {
            Location::Unmapped => 0,
            Location::Buffer(slot) => BUFFER | slot,
            Location::Flash(psn) => psn + 1,
        };
        self.mapped = self.mapped + u64::from(to != Location::Unmapped)
            - u64::from(old != Location::Unmapped);
        old
    }

    /// The words of a run of logical sectors, to look for mapped ones quickly.
    #[inline]
    pub(crate) fn words(&self, first: u32, count: u32) -> &[u32] {
        &self.l2p[first as usize..(first + count) as usize]
    }

    /// Whether a logical sector points at this physical one.
    #[inline]
    pub(crate) fn points_at(&self, lba: u32, psn: u32) -> bool {
        self.l2p[lba as usize] == psn + 1
    }
}
