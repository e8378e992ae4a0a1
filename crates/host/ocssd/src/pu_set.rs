//! [`PuSet`]: a set of parallel units in text form (`0-63`, `0,4,8-11`). Applications allocate
//! chunks from a set, and the partition table assigns sets to targets. Parallel units are numbered
//! group by group [LightNVM17 §3.1].
//!
//! Invariant: ranges are ascending, not adjacent and not empty, so that equal sets are equal values
//! with the same text. A set is independent of a drive; the caller checks it with [`PuSet::check`].

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::ppa::{AddressError, PpaSpace, PuId};

/// A set of parallel units.
///
/// ```
/// use ocssd::ppa::{PuId, PuSet};
///
/// let set: PuSet = "8-11, 0,4,5".parse()?;
/// assert_eq!(set.to_string(), "0,4-5,8-11");
/// assert_eq!(set.len(), 7);
/// assert!(set.contains(PuId(9)) && !set.contains(PuId(7)));
/// assert!(set.is_disjoint(&"1-3,12-63".parse()?));
/// # Ok::<(), ocssd::ppa::PuSetError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PuSet {
    /// First and last index of each range.
    ranges: Vec<(u32, u32)>,
}

/// Why a text is not a set of parallel units.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PuSetError {
    /// The text is empty.
    #[error("the set has no parallel units: write for example 0-63 or 0,4,8-11")]
    Empty,
    /// An item is neither a number nor a range.
    #[error("`{part}` is neither a parallel unit nor a range: write for example 0-63 or 0,4,8-11")]
    InvalidItem {
        /// The item.
        part: String,
    },
    /// A range ends before it begins.
    #[error("the range {first}-{last} ends before it begins")]
    Backwards {
        /// First index.
        first: u32,
        /// Last index.
        last: u32,
    },
}

impl PuSet {
    /// Returns the set of all parallel units of a drive.
    pub fn all(space: &PpaSpace) -> PuSet {
        // A drive has at least one parallel unit.
        PuSet { ranges: vec![(0, space.geometry().total_pus() - 1)] }
    }

    /// Returns the set of units `first` to `end - 1`.
    pub fn range(first: PuId, end: PuId) -> PuSet {
        let some = first < end;
        PuSet { ranges: some.then(|| (first.0, end.0 - 1)).into_iter().collect() }
    }

    /// Returns the set of the units in half-open ranges, which may overlap.
    pub fn from_ranges(runs: impl IntoIterator<Item = Range<u32>>) -> PuSet {
        let some = runs.into_iter().filter(|run| !run.is_empty());
        PuSet::from_inclusive(some.map(|run| (run.start, run.end - 1)).collect())
    }

    fn from_inclusive(mut ranges: Vec<(u32, u32)>) -> PuSet {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if before.1.checked_add(1).is_none_or(|next| first <= next) => {
                    before.1 = before.1.max(last);
                }
                _ => merged.push((first, last)),
            }
        }
        PuSet { ranges: merged }
    }

    /// Returns the number of parallel units.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns whether the set contains `pu`.
    pub fn contains(&self, pu: PuId) -> bool {
        let after = self.ranges.partition_point(|(first, _)| *first <= pu.0);
        after > 0 && pu.0 <= self.ranges[after - 1].1
    }

    /// Returns the parallel unit with the largest index.
    pub fn last(&self) -> Option<PuId> {
        self.ranges.last().map(|(_, last)| PuId(*last))
    }

    /// Returns the union of two sets.
    #[must_use]
    pub fn union(&self, other: &PuSet) -> PuSet {
        PuSet::from_inclusive([&self.ranges[..], &other.ranges[..]].concat())
    }

    /// Returns the intersection of two sets.
    #[must_use]
    pub fn intersection(&self, other: &PuSet) -> PuSet {
        let mut common = Vec::new();
        let (mut a, mut b) = (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            let (first, last) = (x.0.max(y.0), x.1.min(y.1));
            if first <= last {
                common.push((first, last));
            }
            if x.1 < y.1 {
                a.next()
            } else {
                b.next()
            };
        }
        PuSet { ranges: common }
    }

    /// Returns whether the intersection is empty.
    pub fn is_disjoint(&self, other: &PuSet) -> bool {
        self.intersection(other).is_empty()
    }

    /// Checks that all parallel units exist on the drive.
    ///
    /// # Errors
    /// [`AddressError::Pu`], for the first that does not exist.
    pub fn check(&self, space: &PpaSpace) -> Result<(), AddressError> {
        let pus = space.geometry().total_pus();
        match self.ranges.last() {
            Some((first, last)) if *last >= pus => {
                Err(AddressError::Pu { pu: PuId(pus.max(*first)), pus })
            }
            _ => Ok(()),
        }
    }

    /// Iterates over the parallel units in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = PuId> + '_ {
        self.ranges.iter().flat_map(|(first, last)| (*first..=*last).map(PuId))
    }

    /// Returns the parallel units in striping order: consecutive ones are on different channels
    /// where the set allows it.
    pub fn striped(&self, space: &PpaSpace) -> Vec<PuId> {
        space.striped().filter(|pu| self.contains(*pu)).collect()
    }
}

impl FromIterator<PuId> for PuSet {
    fn from_iter<I: IntoIterator<Item = PuId>>(pus: I) -> PuSet {
        PuSet::from_inclusive(pus.into_iter().map(|pu| (pu.0, pu.0)).collect())
    }
}

impl FromStr for PuSet {
    type Err = PuSetError;

    /// Parses indexes and ranges separated by commas, in any order. Spaces around them are ignored,
    /// duplicates are merged. The set must not be empty.
    fn from_str(text: &str) -> Result<PuSet, PuSetError> {
        if text.trim().is_empty() {
            return Err(PuSetError::Empty);
        }
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let wrong = || PuSetError::InvalidItem { part: part.trim().to_owned() };
            let number = |s: &str| -> Result<u32, PuSetError> {
                let s = s.trim();
                // `parse` would accept a sign.
                let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
                s.parse().ok().filter(|_| digits).ok_or_else(wrong)
            };
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if last < first {
                return Err(PuSetError::Backwards { first, last });
            }
            ranges.push((first, last));
        }
        Ok(PuSet::from_inclusive(ranges))
    }
}

impl fmt::Display for PuSet {
    /// Formats the set in ascending order, in the shortest form that [`FromStr`] accepts. The empty
    /// set is an empty text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nvme::Geometry;
    use rng::Rng;

    use super::*;

    #[test]
    fn sets_agree_with_a_model_and_print_as_they_parse() {
        let mut rng = Rng::new(3);
        let mut draw = || {
            let n = rng.below(12);
            (0..n).map(|_| rng.below(40) as u32).collect::<BTreeSet<u32>>()
        };
        for _ in 0..2_000 {
            let (a, b) = (draw(), draw());
            let set = |model: &BTreeSet<u32>| model.iter().copied().map(PuId).collect::<PuSet>();
            let model = |set: &PuSet| set.iter().map(|p| p.0).collect::<BTreeSet<u32>>();
            let (x, y) = (set(&a), set(&b));
            assert_eq!((model(&x), x.len()), (a.clone(), a.len() as u64));
            assert_eq!(model(&x.union(&y)), &a | &b);
            assert_eq!(x.union(&y), y.union(&x));
            assert_eq!(model(&x.intersection(&y)), &a & &b);
            assert_eq!(x.is_disjoint(&y), a.is_disjoint(&b));
            assert!((0..45).all(|pu| x.contains(PuId(pu)) == a.contains(&pu)));
            assert_eq!(x.is_empty(), a.is_empty());
            assert_eq!(x.last().map(|p| p.0), a.last().copied());
            if !a.is_empty() {
                assert_eq!(x.to_string().parse(), Ok(x.clone()), "{x}");
            }
        }
    }

    #[test]
    fn texts_that_are_no_sets_are_refused_by_part() {
        let part = |part: &str| Err(PuSetError::InvalidItem { part: part.into() });
        for (text, want) in [
            ("", Err(PuSetError::Empty)),
            (" ", Err(PuSetError::Empty)),
            ("1,,2", part("")),
            ("-3", part("-3")),
            ("1-", part("1-")),
            ("a", part("a")),
            ("+1", part("+1")),
            ("1-2-3", part("1-2-3")),
            ("4294967296", part("4294967296")),
            ("5-3", Err(PuSetError::Backwards { first: 5, last: 3 })),
        ] {
            assert_eq!(text.parse::<PuSet>(), want, "{text:?}");
        }
        for (text, told) in [
            ("a", "`a` is neither a parallel unit"),
            ("5-3", "the range 5-3 ends before it begins"),
            ("", "the set has no parallel units"),
        ] {
            let error = text.parse::<PuSet>().unwrap_err().to_string();
            assert!(error.contains(told), "{text:?}: {error}");
        }
        let all: PuSet = "0-4294967295,7".parse().unwrap();
        assert_eq!((all.len(), all.to_string().as_str()), (1 << 32, "0-4294967295"));
        assert_eq!(" 3 - 5 , 4-9".parse::<PuSet>().unwrap().to_string(), "3-9");
    }

    #[test]
    fn a_set_is_shown_in_its_shortest_form() {
        for (text, shown, len) in [
            ("0-63", "0-63", 64),
            ("5", "5", 1),
            ("8-11, 0,4", "0,4,8-11", 6),
            ("1,2,3", "1-3", 3),
            ("0-3,2-5", "0-5", 6),
            ("65535", "65535", 1),
        ] {
            let set: PuSet = text.parse().unwrap();
            assert_eq!((set.to_string().as_str(), set.len()), (shown, len), "{text}");
        }
        assert_eq!(PuSet::default().to_string(), "");
    }

    #[test]
    fn a_set_is_made_of_runs() {
        let runs = [3..7, 0..2, 9..9, 7..8, 1..3];
        assert_eq!(PuSet::from_ranges(runs).to_string(), "0-7");
        assert_eq!(PuSet::range(PuId(60), PuId(100)).to_string(), "60-99");
        assert_eq!(PuSet::range(PuId(9), PuId(9)), PuSet::default());
        assert_eq!(PuSet::range(PuId(9), PuId(3)), PuSet::default());
        let both = PuSet::range(PuId(0), PuId(70)).intersection(&PuSet::range(PuId(60), PuId(100)));
        assert_eq!(both.to_string(), "60-69");
    }

    #[test]
    fn sets_are_checked_against_a_drive_and_striped_over_its_channels() {
        let space = PpaSpace::from_geometry(Geometry {
            groups: 3,
            pus: 5,
            chunks: 7,
            sectors: 24,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 8,
            ws_opt: 8,
            mw_cunits: 0,
        });
        let space = space.unwrap();
        let set: PuSet = "0-2,5,6,13".parse().unwrap();
        set.check(&space).unwrap();
        let order: Vec<u32> = set.striped(&space).iter().map(|p| p.0).collect();
        assert_eq!(order, [0, 5, 1, 6, 2, 13], "PU 10 g + p goes by p, then g");
        assert_eq!(PuSet::all(&space).to_string(), "0-14");
        for (text, first) in [("14-16", 15), ("3,20-30", 20)] {
            let set: PuSet = text.parse().unwrap();
            assert_eq!(set.check(&space), Err(AddressError::Pu { pu: PuId(first), pus: 15 }));
        }
    }
}
