//! [`Reverse`]: which logical sector was written at a physical one, and what was lost before it came
//! there; four bytes per physical sector.

use std::io;

use ring::Table;

/// The reverse map. It says what was written, not what is valid: a physical sector is valid when its
/// logical sector points back at it; nothing else says so.
///
/// ```text
/// word: 0 nothing | logical sector + 1 | bit 31: poison
/// ```
#[derive(Debug)]
pub(crate) struct Reverse {
    words: Table,
    /// Whether anything was ever lost: as long as not, reads need not look here.
    any_poison: bool,
}

const POISON: u32 = 1 << 31;

impl Reverse {
    /// An empty one; memory is touched only for what is written.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
    pub(crate) fn new(physical: u64) -> io::Result<Reverse> {
        Ok(Reverse { words: Table::zeroed(physical as usize)?, any_poison: false })
    }

    /// The logical sector that was written at a physical one.
    #[inline]
    pub(crate) fn get(&self, psn: u32) -> Option<u32> {
        (self.words[psn as usize] & !POISON).checked_sub(1)
    }

    /// Notes which logical sector is written at a physical one.
    #[inline]
    pub(crate) fn set(&mut self, psn: u32, lba: Option<u32>, poison: bool) {
        self.any_poison |= poison;
        self.words[psn as usize] = lba.map_or(0, |l| l + 1) | if poison { POISON } else { 0 };
    }

    /// Whether the data at a physical sector was lost before it came there.
    #[inline]
    pub(crate) fn poisoned(&self, psn: u32) -> bool {
        self.any_poison && self.words[psn as usize] & POISON != 0
    }
}
