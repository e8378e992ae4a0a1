//! [`NewestCopies`]: the latest version of every sector that was found.

use std::collections::BTreeMap;

use crate::Oob;

/// A copy of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyRef {
    pub(crate) sequence: u64,
    pub(crate) phys: u32,
    pub(crate) poison: bool,
}

/// Latest versions by logical sector.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewestCopies {
    newest: BTreeMap<u32, CopyRef>,
    max_seq: u64,
}

impl NewestCopies {
    /// Adds a copy that was found.
    pub(super) fn add(&mut self, lba: u32, phys: u32, oob: Oob) {
        self.max_seq = self.max_seq.max(oob.sequence);
        let copy = CopyRef { sequence: oob.sequence, phys, poison: oob.poison };
        let newest = self.newest.entry(lba).or_insert(copy);
        // Within a unit the later one is newer.
        if (copy.sequence, copy.phys) > (newest.sequence, newest.phys) {
            *newest = copy;
        }
    }

    /// Returns the latest version of the sector.
    pub(crate) fn get(&self, lba: u32) -> Option<CopyRef> {
        self.newest.get(&lba).copied()
    }

    /// Removes the copy of a sector.
    pub(crate) fn remove(&mut self, lba: u32) {
        self.newest.remove(&lba);
    }

    /// Whether there is a copy of any of these sectors.
    pub(crate) fn any_in(&self, sectors: std::ops::Range<u32>) -> bool {
        self.newest.range(sectors).next().is_some()
    }

    /// Returns an unused sequence number.
    pub(super) fn next_seq(&self) -> u64 {
        self.max_seq.saturating_add(1)
    }

    /// All of them, by logical sector.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, CopyRef)> {
        self.newest.iter().map(|(lba, copy)| (*lba, *copy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_wins_and_in_a_unit_the_last() {
        let oob = |sequence| Oob { lba: Some(7), poison: false, metadata: false, sequence };
        let mut copies = NewestCopies::default();
        copies.add(7, 50, oob(3));
        copies.add(7, 10, oob(5));
        copies.add(7, 90, oob(4));
        assert_eq!(copies.get(7).map(|c| c.phys), Some(10));
        copies.add(7, 12, oob(5));
        copies.add(7, 11, oob(5));
        assert_eq!((copies.get(7).map(|c| c.phys), copies.next_seq()), (Some(12), 6));
        copies.remove(7);
        assert_eq!((copies.get(7), copies.iter().count()), (None, 0));
    }
}
