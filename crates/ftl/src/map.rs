//! [`Map`]: logical to physical and back, eight bytes per sector.

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

/// The two tables. A word of zero means nothing, so memory is touched only for what is mapped.
///
/// ```text
/// l2p word: 0 unmapped | 1..=0x7000_0000 physical sector + 1 | 0x8000_0000 + slot
/// p2l word: 0 nothing  | logical sector + 1 | bit 31: poison
/// ```
/// A physical sector is valid when its logical sector points back at it; nothing else says so.
#[derive(Debug)]
pub struct Map {
    l2p: Table,
    p2l: Table,
    /// Logical sectors that are mapped.
    pub(crate) mapped: u64,
    /// Whether anything was ever lost: as long as not, reads need not look at the second table.
    any_poison: bool,
}

const BUFFER: u32 = 1 << 31;
const POISON: u32 = 1 << 31;

impl Map {
    /// An empty map.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
    pub fn new(logical: u32, physical: u64) -> io::Result<Map> {
        Ok(Map {
            l2p: Table::zeroed(logical as usize)?,
            p2l: Table::zeroed(physical as usize)?,
            mapped: 0,
            any_poison: false,
        })
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

    /// The logical sector that was written at a physical one.
    #[inline]
    pub(crate) fn reverse(&self, psn: u32) -> Option<u32> {
        (self.p2l[psn as usize] & !POISON).checked_sub(1)
    }

    /// Notes which logical sector is written at a physical one.
    #[inline]
    pub(crate) fn set_reverse(&mut self, psn: u32, lba: Option<u32>, poison: bool) {
        self.any_poison |= poison;
        self.p2l[psn as usize] = lba.map_or(0, |l| l + 1) | if poison { POISON } else { 0 };
    }

    /// Whether the data at a physical sector was lost before it came there.
    #[inline]
    pub(crate) fn poisoned(&self, psn: u32) -> bool {
        self.any_poison && self.p2l[psn as usize] & POISON != 0
    }
}
