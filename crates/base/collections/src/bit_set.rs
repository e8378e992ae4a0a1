//! [`BitSet`]: a set of small indices, one bit each.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A set of indices below a fixed length, as bits in 64-bit words.
///
/// # Panics
/// [`insert`](BitSet::insert) and [`remove`](BitSet::remove) of an index beyond the last word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BitSet {
    words: Vec<u64>,
}

impl BitSet {
    /// Creates an empty set of indices below `len`.
    pub fn new(len: usize) -> BitSet {
        BitSet { words: vec![0; len.div_ceil(64)] }
    }

    /// Returns whether an index is in the set; one beyond the length is not.
    #[inline]
    pub fn contains(&self, index: usize) -> bool {
        self.words.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    /// Inserts an index. Returns whether it was not in the set.
    #[inline]
    pub fn insert(&mut self, index: usize) -> bool {
        let (word, bit) = (&mut self.words[index / 64], 1 << (index % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Removes an index. Returns whether it was in the set.
    #[inline]
    pub fn remove(&mut self, index: usize) -> bool {
        let (word, bit) = (&mut self.words[index / 64], 1 << (index % 64));
        let was_in = *word & bit != 0;
        *word &= !bit;
        was_in
    }

    /// Removes the indices of a range.
    pub fn remove_range(&mut self, range: Range<usize>) {
        let mut at = range.start;
        while at < range.end {
            if at.is_multiple_of(64) && at + 64 <= range.end {
                self.words[at / 64] = 0;
                at += 64;
            } else {
                self.remove(at);
                at += 1;
            }
        }
    }

    /// Removes all indices.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Returns the first index of the set that is at least `from`.
    #[inline]
    pub fn next_at(&self, from: usize) -> Option<usize> {
        let mut at = from / 64;
        let mut bits = self.words.get(at)? & !0 << (from % 64);
        while bits == 0 {
            at += 1;
            bits = *self.words.get(at)?;
        }
        Some(at * 64 + bits.trailing_zeros() as usize)
    }

    /// Returns the number of indices in the set.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether no index is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Returns the indices of the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        std::iter::successors(self.next_at(0), |at| self.next_at(at + 1))
    }

    /// Returns the first index of both sets that is at least `from`.
    #[inline]
    pub fn next_common(&self, other: &BitSet, from: usize) -> Option<usize> {
        let mut at = from / 64;
        let mut bits = self.words.get(at)? & other.words.get(at)? & !0 << (from % 64);
        while bits == 0 {
            at += 1;
            bits = self.words.get(at)? & other.words.get(at)?;
        }
        Some(at * 64 + bits.trailing_zeros() as usize)
    }

    /// Returns the indices of both sets: ascending from `from` to the end, and then from 0 to `from`.
    #[inline]
    pub fn common_cyclic(&self, other: &BitSet, from: usize) -> impl Iterator<Item = usize> {
        let common = |from| {
            let next = move |at| self.next_common(other, at);
            std::iter::successors(next(from), move |at| next(at + 1))
        };
        common(from).chain(common(0).take_while(move |at| *at < from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_inserted() {
        let mut set = BitSet::new(200);
        assert!(set.is_empty() && !set.contains(0) && !set.contains(10_000));
        assert!([0, 63, 64, 199].into_iter().all(|index| set.insert(index)));
        assert!(!set.insert(63) && set.contains(63) && !set.contains(65));
        assert_eq!((set.count(), set.iter().collect::<Vec<_>>()), (4, vec![0, 63, 64, 199]));
        assert_eq!(
            [1, 64, 65, 200].map(|from| set.next_at(from)),
            [63, 64, 199, 0].map(|n| (n > 0).then_some(n))
        );
        assert!(set.remove(64) && !set.remove(64) && set.next_at(64) == Some(199));
        set.remove_range(60..199);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 199]);
        let mut other = BitSet::new(200);
        assert!([0, 5, 199].into_iter().all(|index| other.insert(index)));
        for (from, expected) in [(0, [0, 199]), (1, [199, 0]), (199, [199, 0]), (200, [0, 199])] {
            assert_eq!(set.common_cyclic(&other, from).collect::<Vec<_>>(), expected);
            assert_eq!(other.common_cyclic(&set, from).collect::<Vec<_>>(), expected);
        }
        other.clear();
        assert_eq!(set.common_cyclic(&other, 7).next(), None);
        for index in 0..200 {
            set.insert(index);
        }
        set.remove_range(1..190);
        assert_eq!((set.count(), set.next_at(1)), (11, Some(190)));
        set.clear();
        assert!(set.is_empty());
    }
}
