//! [`AtomicityModel`]: an oracle for devices that keep writes whole when power is cut.
//!
//! A test tells the model about all changes, in the order in which the device executes them. After a
//! power cut the model compares the values of all sectors with the changes. If one sector of a write
//! certainly is as the write left it, and another one certainly as before the write, the write is torn.
//! A sector with a later version shows nothing: later writes may be there without earlier ones.
//!
//! Values are numbers; 0 stands for zeros, and also for the contents before the first change.

use std::fmt;

/// A version of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    /// Position of the change in the order of all changes; 0 for the contents before all of them.
    order: u64,
    value: u64,
}

/// The versions of a sector that may be found after a power cut.
#[derive(Clone, Debug)]
struct Versions {
    /// Oldest first.
    known: Vec<Version>,
    /// Index of the oldest version that may be found: the last durable one.
    oldest: usize,
    /// Whether the media may have lost durable versions. Then an older one may be found, or none.
    is_weak: bool,
    /// Position of the change whose durable version the media have lost; 0 for none. That an older
    /// version is found then does not show that the change was not there.
    lost_to: u64,
}

impl Versions {
    fn new(value: u64) -> Versions {
        Versions { known: vec![Version { order: 0, value }], oldest: 0, is_weak: false, lost_to: 0 }
    }

    /// Returns the smallest and the largest position of a change that left this value; `None` if there
    /// is none. A sector that cannot be read may have any version.
    fn orders_of(&self, found: Option<u64>) -> Option<(u64, u64)> {
        let Some(found) = found else { return self.is_weak.then_some((0, u64::MAX)) };
        let oldest = if self.is_weak { 0 } else { self.oldest };
        let same = self.known[oldest..].iter().filter(|v| v.value == found).map(|v| v.order);
        // A weak sector may also be as before the last power cut.
        same.clone().min().zip(same.max()).or(self.is_weak.then_some((0, 0)))
    }
}

/// A wrong state after a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AtomicityViolation {
    /// A sector has a value that it cannot have.
    WrongValue {
        /// The sector.
        sector: usize,
        /// The value; `None` if it cannot be read.
        found: Option<u64>,
    },
    /// A part of a write is there, and another one is not.
    Torn {
        /// Position of the write in the order of all changes.
        order: u64,
        /// A sector as before the write.
        old: usize,
        /// A sector as the write left it.
        new: usize,
    },
}

impl fmt::Display for AtomicityViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AtomicityViolation::WrongValue { sector, found } => {
                write!(f, "sector {sector} is {found:?}, which it cannot be")
            }
            AtomicityViolation::Torn { order, old, new } => {
                write!(f, "write {order} is torn: sector {new} is written, sector {old} is not")
            }
        }
    }
}

/// The changes since the last power cut.
#[derive(Clone, Debug)]
pub struct AtomicityModel {
    sectors: Vec<Versions>,
    /// Atomic writes: position, first sector and number of sectors.
    writes: Vec<(u64, usize, usize)>,
    /// Position of the last change.
    order: u64,
}

impl AtomicityModel {
    /// Creates the model of a device of zeros.
    pub fn new(sectors: usize) -> AtomicityModel {
        AtomicityModel { sectors: vec![Versions::new(0); sectors], writes: Vec::new(), order: 0 }
    }

    /// Records a change of the sectors from `first` on. All of it, or nothing, must be found if it
    /// `is_atomic`. Returns its position in the order of all changes.
    pub fn change(&mut self, first: usize, values: &[u64], is_atomic: bool) -> u64 {
        self.order += 1;
        for (versions, &value) in self.sectors[first..].iter_mut().zip(values) {
            versions.known.push(Version { order: self.order, value });
        }
        if is_atomic {
            self.writes.push((self.order, first, values.len()));
        }
        self.order
    }

    /// Returns the position of the last change.
    pub fn last(&self) -> u64 {
        self.order
    }

    /// Records that all changes up to a position are durable.
    pub fn durable(&mut self, order: u64) {
        for versions in &mut self.sectors {
            let last = versions.known.iter().rposition(|v| v.order <= order);
            versions.oldest = last.unwrap_or(0).max(versions.oldest);
        }
    }

    /// Records that the media may have lost durable versions of a sector: older ones, or none, may be
    /// found from now on. `value` is that of a version that was durable and is lost for certain.
    pub fn lose(&mut self, sector: usize, value: Option<u64>) {
        let versions = &mut self.sectors[sector];
        versions.is_weak = true;
        let lost = versions.known.iter().rfind(|version| Some(version.value) == value);
        versions.lost_to = versions.lost_to.max(lost.map_or(0, |version| version.order));
    }

    /// Compares the values after a power cut, `None` where a sector cannot be read, and begins anew with
    /// them.
    ///
    /// # Errors
    /// The first [`AtomicityViolation`].
    pub fn restart(&mut self, found: &[Option<u64>]) -> Result<(), AtomicityViolation> {
        let result = self.check(found);
        for (versions, found) in self.sectors.iter_mut().zip(found) {
            let is_weak = versions.is_weak;
            *versions = Versions::new(found.unwrap_or(0));
            // A sector that the test cannot read may show an older version after the next power cut.
            versions.is_weak = is_weak;
        }
        (self.writes, self.order) = (Vec::new(), 0);
        result
    }

    fn check(&self, found: &[Option<u64>]) -> Result<(), AtomicityViolation> {
        let mut orders = Vec::with_capacity(found.len());
        for (sector, (versions, &found)) in self.sectors.iter().zip(found).enumerate() {
            let range = versions.orders_of(found);
            orders.push(range.ok_or(AtomicityViolation::WrongValue { sector, found })?);
        }
        for &(order, first, count) in &self.writes {
            let sectors = first..first + count;
            let old = sectors
                .clone()
                .find(|sector| orders[*sector].1 < order && self.sectors[*sector].lost_to < order);
            let new = sectors.clone().find(|sector| orders[*sector] == (order, order));
            if let (Some(old), Some(new)) = (old, new) {
                return Err(AtomicityViolation::Torn { order, old, new });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_found_completely_or_not_at_all() {
        let mut model = AtomicityModel::new(4);
        let order = model.change(0, &[1, 2, 3], true);
        let found = |values: [u64; 4]| values.map(Some);
        assert_eq!(model.clone().restart(&found([0; 4])), Ok(()));
        assert_eq!(model.clone().restart(&found([1, 2, 3, 0])), Ok(()));
        let torn = Err(AtomicityViolation::Torn { order, old: 2, new: 0 });
        assert_eq!(model.clone().restart(&found([1, 2, 0, 0])), torn);
        let wrong = Err(AtomicityViolation::WrongValue { sector: 3, found: Some(7) });
        assert_eq!(model.clone().restart(&found([1, 2, 3, 7])), wrong);
        // A later change replaces a part of it, and may be there without it.
        model.change(1, &[9], true);
        assert_eq!(model.clone().restart(&found([0, 9, 0, 0])), Ok(()));
        assert_eq!(model.clone().restart(&found([1, 9, 3, 0])), Ok(()));
        assert_eq!(model.clone().restart(&found([1, 9, 0, 0])), torn);
    }

    #[test]
    fn flushed_and_lost_versions() {
        let mut model = AtomicityModel::new(2);
        let first = model.change(0, &[1, 2], true);
        model.change(0, &[3, 4], true);
        model.durable(first);
        model.durable(0);
        let wrong = Err(AtomicityViolation::WrongValue { sector: 0, found: Some(0) });
        assert_eq!(model.clone().restart(&[Some(0), Some(2)]), wrong);
        let unreadable = Err(AtomicityViolation::WrongValue { sector: 1, found: None });
        assert_eq!(model.clone().restart(&[Some(1), None]), unreadable);
        model.lose(0, None);
        model.lose(1, Some(4));
        // The second sector shows the first write: the media have lost the second one there.
        assert_eq!(model.clone().restart(&[Some(3), Some(2)]), Ok(()));
        assert_eq!(model.clone().restart(&[Some(3), None]), Ok(()));
        let torn = Err(AtomicityViolation::Torn { order: 2, old: 0, new: 1 });
        assert_eq!(model.clone().restart(&[Some(1), Some(4)]), torn);
        assert!(model.restart(&[Some(3), None]).is_ok());
        // The second sector may still be as before the power cut.
        assert_eq!(model.restart(&[Some(3), Some(2)]), Ok(()));
    }
}
