//! [`FailedMask`]: a bit mask over the addresses of a vector of any length; each address has its
//! own completion status [LightNVM17 §3.3].
//!
//! The first 64 bits, enough for one command, are stored inline; only a longer vector with a
//! failure past them allocates.

use std::fmt;
use std::ops::Range;

/// A set of positions in a vector, counted from 0.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FailedMask {
    first_word: u64,
    /// Positions from 64 on. The last word is never 0, so that equal sets are equal values.
    more_words: Vec<u64>,
}

impl FailedMask {
    /// Returns an empty mask.
    pub const fn new() -> FailedMask {
        FailedMask { first_word: 0, more_words: Vec::new() }
    }

    /// Sets one position.
    pub fn insert(&mut self, position: u32) {
        self.insert_word(position & !63, 1 << (position % 64));
    }

    /// Sets position `at + i` for each bit `i` of `word`.
    #[inline]
    pub(crate) fn insert_word(&mut self, at: u32, word: u64) {
        if at == 0 {
            self.first_word |= word;
        } else if word != 0 {
            let (index, shift) = (at / 64, at % 64);
            self.insert_aligned(index, word << shift);
            if shift > 0 {
                self.insert_aligned(index + 1, word >> (64 - shift));
            }
        }
    }

    fn insert_aligned(&mut self, index: u32, word: u64) {
        if index == 0 {
            self.first_word |= word;
        } else if word != 0 {
            let index = index as usize - 1;
            if self.more_words.len() <= index {
                self.more_words.resize(index + 1, 0);
            }
            self.more_words[index] |= word;
        }
    }

    fn words(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.first_word).chain(self.more_words.iter().copied())
    }

    /// Returns whether no position is set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first_word == 0 && self.more_words.is_empty()
    }

    /// Returns the number of positions set.
    pub fn count(&self) -> u32 {
        self.words().map(u64::count_ones).sum()
    }

    /// Returns whether a position is set.
    pub fn contains(&self, position: u32) -> bool {
        let word = match position / 64 {
            0 => self.first_word,
            n => self.more_words.get(n as usize - 1).copied().unwrap_or(0),
        };
        word >> (position % 64) & 1 != 0
    }

    /// Returns the first position set.
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// Iterates over the positions set, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(self.words()).flat_map(|(index, mut word): (u32, u64)| {
            std::iter::from_fn(move || {
                let bit = word.trailing_zeros();
                word &= word.checked_sub(1)?;
                Some(index * 64 + bit)
            })
        })
    }

    /// Returns the runs of positions set, in ascending order.
    pub fn ranges(&self) -> Vec<Range<u32>> {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for position in self.iter() {
            match ranges.last_mut() {
                Some(last) if last.end == position => last.end += 1,
                _ => ranges.push(position..position + 1),
            }
        }
        ranges
    }
}

impl FromIterator<u32> for FailedMask {
    fn from_iter<I: IntoIterator<Item = u32>>(positions: I) -> FailedMask {
        let mut bits = FailedMask::new();
        positions.into_iter().for_each(|position| bits.insert(position));
        bits
    }
}

impl fmt::Display for FailedMask {
    /// Formats the mask as `0-3,17`, or `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (i, Range { start, end }) in self.ranges().into_iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match end - start {
                1 => write!(f, "{comma}{start}")?,
                _ => write!(f, "{comma}{start}-{}", end - 1)?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for FailedMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bits({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rng::Rng;

    use super::*;

    #[test]
    fn masks_agree_with_a_model_of_any_length() {
        let mut rng = Rng::new(11);
        for _ in 0..1_000 {
            let (mut bits, mut model) = (FailedMask::new(), BTreeSet::new());
            let length = 1 + rng.below(400);
            for _ in 0..rng.below(12) {
                let shift = rng.below(64);
                let (at, word) = (rng.below(length) as u32, rng.next_u64() >> shift);
                bits.insert_word(at, word);
                model.extend((0..64).filter(|i| word >> i & 1 != 0).map(|i| at + i));
            }
            assert!(bits.iter().eq(model.iter().copied()));
            assert_eq!(bits.count() as usize, model.len());
            assert_eq!((bits.is_empty(), bits.first()), (model.is_empty(), model.first().copied()));
            assert!((0..500).all(|i| bits.contains(i) == model.contains(&i)));
            assert!(bits.ranges().into_iter().flatten().eq(model.iter().copied()));
            assert_eq!(model.into_iter().collect::<FailedMask>(), bits);
        }
    }

    #[test]
    fn masks_print_as_ranges() {
        let bits: FailedMask = [0, 1, 2, 3, 17, 9_999].into_iter().collect();
        assert_eq!(bits.to_string(), "0-3,17,9999");
        assert_eq!(FailedMask::new().to_string(), "none");
    }
}
