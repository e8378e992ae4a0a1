//! [`P2l`]: the logical sector written at a physical one, and sectors that were already lost when
//! they were written. In memory, four bytes per physical sector, or only the lost ones: then the
//! rest is in the footers of lines (`line_meta`).

use std::collections::BTreeSet;
use std::io;

use mem::HugeArray;
use nvme::PhysSector;
use serde::{Deserialize, Serialize};

use crate::P2lLocation;
use crate::ids::{Lba, ToIndex};

/// The reverse map. It says what was written, not what is valid: a physical sector is valid if its
/// logical sector maps to it. With a map in frames it names only sectors that are valid, or in the
/// write buffer on their way, as far as pages are reconciled: a lost page is rebuilt from it (see
/// `rebuild`).
///
/// ```text
/// entry: 0 nothing | logical sector + 1 | bit 31: poison
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct P2l {
    /// `None` if it is on the media.
    table: Option<HugeArray>,
    /// Lost sectors, if the table is not in memory. Nearly always empty.
    poisoned: BTreeSet<PhysSector>,
    /// Whether a sector was ever lost: without one, reads need no lookup here.
    any_poison: bool,
    /// Whether entries of sectors that are not valid are removed.
    only_valid: bool,
}

const POISON: u32 = 1 << 31;
/// Maximum number of logical sectors, those of translation pages included: the reverse map has
/// 31-bit entries.
pub const LOGICAL_SECTORS_MAX: u32 = 0x7fff_ffff;
const _: () = assert!(LOGICAL_SECTORS_MAX < POISON);

/// The contents of a physical sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrittenSector {
    /// The logical sector; `None` for padding.
    pub(crate) lba: Option<Lba>,
    /// Whether its data was lost before it was written here.
    pub(crate) poison: bool,
}

/// The entry of the P2L for a sector.
#[inline]
fn encode_p2l_entry(lba: Option<Lba>, poison: bool) -> u32 {
    lba.map_or(0, |l| l.get() + 1) | if poison { POISON } else { 0 }
}

impl P2l {
    /// Creates an empty P2L, for a map cache (`frames`) or a map in memory. Memory is touched only
    /// for written sectors.
    ///
    /// # Errors
    ///
    /// The error of `mmap(2)`.
    pub(crate) fn new(physical: u64, kind: P2lLocation, frames: bool) -> io::Result<P2l> {
        let words = match kind {
            P2lLocation::Memory => Some(HugeArray::zeroed(physical.index())?),
            P2lLocation::Media => None,
        };
        let only_valid = frames && words.is_some();
        Ok(P2l { table: words, poisoned: BTreeSet::new(), any_poison: false, only_valid })
    }

    /// Returns whether the P2L is in memory; otherwise it is on the media.
    #[inline]
    pub(crate) fn is_in_memory(&self) -> bool {
        self.table.is_some()
    }

    /// The logical sector that was written at a physical one, if it is in memory.
    #[inline]
    pub(crate) fn get(&self, phys: PhysSector) -> Option<Lba> {
        (self.table.as_ref()?[phys.index()] & !POISON).checked_sub(1).map(Lba)
    }

    /// Loads an entry; 0 without a table in memory.
    #[inline]
    pub(crate) fn prefetch(&self, phys: PhysSector) -> u32 {
        self.table.as_ref().map_or(0, |words| words[phys.index()])
    }

    /// Records the logical sector written at a physical one.
    #[inline]
    pub(crate) fn set(&mut self, phys: PhysSector, lba: Option<Lba>, poison: bool) {
        self.any_poison |= poison;
        match &mut self.table {
            Some(words) => words[phys.index()] = encode_p2l_entry(lba, poison),
            None if poison => {
                self.poisoned.insert(phys);
            }
            None if self.any_poison => {
                self.poisoned.remove(&phys);
            }
            None => {}
        }
    }

    /// Records the logical sectors written from physical sector `first` on.
    #[inline]
    pub(crate) fn set_run(
        &mut self,
        first: PhysSector,
        written: impl ExactSizeIterator<Item = WrittenSector>,
    ) {
        let Some(words) = &mut self.table else {
            for (phys, WrittenSector { lba, poison }) in first.ascending().zip(written) {
                self.set(phys, lba, poison);
            }
            return;
        };
        let words = &mut words[first.index()..][..written.len()];
        let mut any_poison = self.any_poison;
        for (at, WrittenSector { lba, poison }) in words.iter_mut().zip(written) {
            any_poison |= poison;
            *at = encode_p2l_entry(lba, poison);
        }
        self.any_poison = any_poison;
    }

    /// Records that a physical sector is not valid any more. Its poison mark stays.
    #[inline]
    pub(crate) fn invalidate(&mut self, phys: PhysSector) {
        if self.only_valid {
            self.clear_lba(phys);
        }
    }

    fn clear_lba(&mut self, phys: PhysSector) {
        if let Some(words) = &mut self.table {
            words[phys.index()] &= POISON;
        }
    }

    /// Returns whether the data at a physical sector was lost before it was written there.
    #[inline]
    pub(crate) fn is_poisoned(&self, phys: PhysSector) -> bool {
        self.any_poison
            && match &self.table {
                Some(words) => words[phys.index()] & POISON != 0,
                None => self.poisoned.contains(&phys),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_table_only_what_was_lost_is_known() {
        for kind in [P2lLocation::Memory, P2lLocation::Media] {
            let mut reverse = P2l::new(1000, kind, false).unwrap();
            let in_memory = kind == P2lLocation::Memory;
            assert_eq!(reverse.is_in_memory(), in_memory);
            reverse.set(PhysSector(7), Some(Lba(3)), false);
            reverse.set(PhysSector(8), Some(Lba(4)), true);
            assert_eq!(reverse.get(PhysSector(7)), in_memory.then_some(Lba(3)));
            assert_eq!(
                (reverse.is_poisoned(PhysSector(7)), reverse.is_poisoned(PhysSector(8))),
                (false, true)
            );
            reverse.set(PhysSector(8), Some(Lba(5)), false);
            assert_eq!(
                (reverse.get(PhysSector(8)), reverse.is_poisoned(PhysSector(8))),
                (in_memory.then_some(Lba(5)), false)
            );
        }
    }

    #[test]
    fn a_run_is_as_good_as_one_sector_after_the_other() {
        let (a, b) = (Some(Lba(3)), Some(Lba(9)));
        let unit = [(a, false), (None, false), (b, true), (a, false)];
        for kind in [P2lLocation::Memory, P2lLocation::Media] {
            let mut one = P2l::new(100, kind, false).unwrap();
            let mut run = P2l::new(100, kind, false).unwrap();
            for (first, lost) in [(8, true), (8, false), (10, true)] {
                let unit = unit.map(|(lba, poison)| (lba, poison && lost));
                for (phys, (lba, poison)) in PhysSector(first).ascending().zip(unit) {
                    one.set(phys, lba, poison);
                }
                let unit = unit.map(|(lba, poison)| WrittenSector { lba, poison });
                run.set_run(PhysSector(first), unit.into_iter());
                for phys in 0..100 {
                    assert_eq!(
                        (one.get(PhysSector(phys)), one.is_poisoned(PhysSector(phys))),
                        (run.get(PhysSector(phys)), run.is_poisoned(PhysSector(phys))),
                        "{kind:?}: {phys}"
                    );
                }
                assert_eq!(run.is_poisoned(PhysSector(first + 2)), lost);
            }
        }
    }
}
