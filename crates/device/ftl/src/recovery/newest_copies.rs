//! [`NewestCopies`]: the latest version of every sector that was found.

use std::collections::BTreeMap;

use crate::ids::{Lba, LbaRun, WriteSeq};

use nvme::PhysSector;
use serde::{Deserialize, Serialize};

use crate::Oob;

/// A copy of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyRef {
    pub(crate) sequence: WriteSeq,
    pub(crate) phys: PhysSector,
    pub(crate) poison: bool,
}

/// Latest versions by logical sector.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct NewestCopies {
    newest: BTreeMap<Lba, CopyRef>,
    max_seq: WriteSeq,
}

impl NewestCopies {
    /// Adds a copy that was found.
    pub(super) fn add(&mut self, lba: Lba, phys: PhysSector, oob: Oob) {
        self.max_seq = self.max_seq.max(oob.sequence);
        let copy = CopyRef { sequence: oob.sequence, phys, poison: oob.poison };
        let newest = self.newest.entry(lba).or_insert(copy);
        // Within a unit the later one is newer.
        if (copy.sequence, copy.phys) > (newest.sequence, newest.phys) {
            *newest = copy;
        }
    }

    /// Returns the latest version of the sector.
    pub(crate) fn get(&self, lba: Lba) -> Option<CopyRef> {
        self.newest.get(&lba).copied()
    }

    /// Removes the copy of a sector.
    pub(crate) fn remove(&mut self, lba: Lba) {
        self.newest.remove(&lba);
    }

    /// Whether there is a copy of any of these sectors.
    pub(crate) fn any_in(&self, sectors: LbaRun) -> bool {
        self.newest.range(sectors.first..sectors.end()).next().is_some()
    }

    /// Returns an unused sequence number.
    pub(super) fn next_seq(&self) -> WriteSeq {
        WriteSeq(self.max_seq.get().saturating_add(1))
    }

    /// All of them, by logical sector.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Lba, CopyRef)> {
        self.newest.iter().map(|(lba, copy)| (*lba, *copy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_wins_and_in_a_unit_the_last() {
        let oob = |sequence| Oob { lba: Some(Lba(7)), poison: false, metadata: false, sequence };
        let mut copies = NewestCopies::default();
        copies.add(Lba(7), PhysSector(50), oob(WriteSeq(3)));
        copies.add(Lba(7), PhysSector(10), oob(WriteSeq(5)));
        copies.add(Lba(7), PhysSector(90), oob(WriteSeq(4)));
        assert_eq!(copies.get(Lba(7)).map(|c| c.phys), Some(PhysSector(10)));
        copies.add(Lba(7), PhysSector(12), oob(WriteSeq(5)));
        copies.add(Lba(7), PhysSector(11), oob(WriteSeq(5)));
        assert_eq!(
            (copies.get(Lba(7)).map(|c| c.phys), copies.next_seq()),
            (Some(PhysSector(12)), WriteSeq(6))
        );
        copies.remove(Lba(7));
        assert_eq!((copies.get(Lba(7)), copies.iter().count()), (None, 0));
    }
}
