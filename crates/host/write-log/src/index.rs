//! [`SectorIndex`]: where the latest version of each logged sector is.

use std::collections::HashMap;

/// A range of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SectorRange {
    pub(crate) lba: u64,
    pub(crate) sectors: u32,
}

impl SectorRange {
    pub(crate) fn end(self) -> u64 {
        self.lba + u64::from(self.sectors)
    }

    pub(crate) fn overlaps(self, other: SectorRange) -> bool {
        self.lba < other.end() && other.lba < self.end()
    }

    /// Returns the sectors of both ranges.
    pub(crate) fn intersection(self, other: SectorRange) -> Option<SectorRange> {
        let (lba, end) = (self.lba.max(other.lba), self.end().min(other.end()));
        let sectors = u32::try_from(end.checked_sub(lba)?).ok().filter(|sectors| *sectors > 0)?;
        Some(SectorRange { lba, sectors })
    }

    /// Returns whether all sectors of `other` are in this range.
    pub(crate) fn contains(self, other: SectorRange) -> bool {
        self.lba <= other.lba && other.end() <= self.end()
    }
}

/// The position in the log of the latest version of each logged sector. It is never iterated, so
/// that no result depends on the order of the table.
#[derive(Debug)]
pub(crate) struct SectorIndex {
    positions: HashMap<u64, u64>,
}

impl SectorIndex {
    /// Creates an index for up to `sectors` sectors, which then allocates no memory.
    pub(crate) fn new(sectors: usize) -> SectorIndex {
        SectorIndex { positions: HashMap::with_capacity(sectors) }
    }

    pub(crate) fn clear(&mut self) {
        self.positions.clear();
    }

    /// Returns the position of the sector's data.
    pub(crate) fn get(&self, lba: u64) -> Option<u64> {
        self.positions.get(&lba).copied()
    }

    pub(crate) fn set(&mut self, lba: u64, position: u64) {
        self.positions.insert(lba, position);
    }

    /// Forgets a sector whose latest version is at `position`.
    pub(crate) fn remove_version(&mut self, lba: u64, position: u64) {
        if self.get(lba) == Some(position) {
            self.positions.remove(&lba);
        }
    }

    /// Forgets the sectors of a range whose latest version is before `bound`. `logged` are the ranges
    /// of all records. Returns whether there was one.
    pub(crate) fn remove_range_before(
        &mut self,
        range: SectorRange,
        bound: u64,
        logged: impl Iterator<Item = SectorRange>,
    ) -> bool {
        let mut any = false;
        // A discard may have more sectors than the log.
        if range.sectors as usize <= self.positions.len() {
            self.remove_each_before(range, bound, &mut any);
        } else if !self.positions.is_empty() {
            for part in logged.filter_map(|logged| logged.intersection(range)) {
                self.remove_each_before(part, bound, &mut any);
            }
        }
        any
    }

    fn remove_each_before(&mut self, range: SectorRange, bound: u64, any: &mut bool) {
        for lba in range.lba..range.end() {
            if self.get(lba).is_some_and(|position| position < bound) {
                self.positions.remove(&lba);
                *any = true;
            }
        }
    }
}
