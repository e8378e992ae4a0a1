//! [`PuSet`]: a set of parallel units, as people write it (`0-63,70`) and as the partition table
//! keeps it. Parallel units are numbered flat: group by group (LightNVM paper section 3.1).

use std::fmt;
use std::str::FromStr;

/// Parallel units that a set can name: 0 to `PU_MAX - 1`.
pub const PU_MAX: u32 = 1 << 16;

/// A set of parallel units by their flat numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PuSet {
    /// Bit `i % 64` of word `i / 64` stands for unit `i`; the last word is not 0.
    words: Vec<u64>,
}

/// Why a text names no set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PuSetError {
    /// Nothing is named.
    #[error("no parallel unit is named: write for example 0-63 or 0,4,8-11")]
    Empty,
    /// A part is neither a number nor a range.
    #[error(
        "`{part}` is no parallel unit and no range of them: write for example 0-63 or 0,4,8-11"
    )]
    Part {
        /// The part between two commas.
        part: String,
    },
    /// A range ends before it begins.
    #[error("the range {first}-{last} ends before it begins")]
    Backwards {
        /// Its first number.
        first: u32,
        /// Its last number.
        last: u32,
    },
    /// A number that no drive has.
    #[error("parallel unit {pu} is out of range: there are at most {PU_MAX} on any drive")]
    TooLarge {
        /// The number.
        pu: u32,
    },
}

impl PuSet {
    /// The units `first` to `end - 1`; those past [`PU_MAX`] are left out.
    pub fn range(first: u32, end: u32) -> PuSet {
        (first..end.min(PU_MAX)).collect()
    }

    /// Puts a unit in; one past [`PU_MAX`] is left out.
    pub fn insert(&mut self, pu: u32) {
        if pu >= PU_MAX {
            return;
        }
        let word = (pu / 64) as usize;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (pu % 64);
    }

    /// Whether a unit is in it.
    #[inline]
    pub fn contains(&self, pu: u32) -> bool {
        self.words.get((pu / 64) as usize).is_some_and(|w| w >> (pu % 64) & 1 != 0)
    }

    /// How many units are in it.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The units, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.words).flat_map(|(word, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word * 64 + bit)
        })
    }

    /// The highest unit.
    pub fn last(&self) -> Option<u32> {
        let top = self.words.last()?;
        Some((self.words.len() as u32 - 1) * 64 + 63 - top.leading_zeros())
    }

    /// The units that are in both.
    #[must_use]
    pub fn common(&self, other: &PuSet) -> PuSet {
        self.iter().filter(|pu| other.contains(*pu)).collect()
    }
}

impl FromIterator<u32> for PuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(pus: I) -> PuSet {
        let mut set = PuSet::default();
        pus.into_iter().for_each(|pu| set.insert(pu));
        set
    }
}

impl FromStr for PuSet {
    type Err = PuSetError;

    fn from_str(text: &str) -> Result<PuSet, PuSetError> {
        if text.trim().is_empty() {
            return Err(PuSetError::Empty);
        }
        let mut set = PuSet::default();
        for part in text.split(',') {
            let part = part.trim();
            let wrong = || PuSetError::Part { part: part.into() };
            let number = |text: &str| {
                let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                if digits { text.parse::<u32>().map_err(|_| wrong()) } else { Err(wrong()) }
            };
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first.trim())?, number(last.trim())?),
                None => (number(part)?, number(part)?),
            };
            if last < first {
                return Err(PuSetError::Backwards { first, last });
            }
            if last >= PU_MAX {
                return Err(PuSetError::TooLarge { pu: last });
            }
            (first..=last).for_each(|pu| set.insert(pu));
        }
        Ok(set)
    }
}

impl fmt::Display for PuSet {
    /// Ascending, in the shortest form that [`FromStr`] reads; nothing for the empty set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pus = self.iter().peekable();
        let mut gap = "";
        while let Some(first) = pus.next() {
            let mut last = first;
            while pus.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            match last - first {
                0 => write!(f, "{gap}{first}")?,
                _ => write!(f, "{gap}{first}-{last}")?,
            }
            gap = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rng::Rng;

    use super::*;

    #[test]
    fn what_is_shown_is_what_is_read() {
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
        let mut rng = Rng::new(7);
        for _ in 0..500 {
            let set: PuSet = (0..1 + rng.below(40)).map(|_| rng.below(200) as u32).collect();
            assert_eq!(set.to_string().parse(), Ok(set.clone()));
            assert_eq!(set.iter().last(), set.last());
            assert_eq!(set.iter().count() as u32, set.len());
            assert!(set.iter().all(|pu| set.contains(pu)));
        }
    }

    #[test]
    fn what_names_no_set_says_why() {
        for (text, error) in [
            ("", "no parallel unit is named"),
            ("a", "`a` is no parallel unit"),
            ("1,,2", "`` is no parallel unit"),
            ("-3", "`-3` is no parallel unit"),
            ("+3", "`+3` is no parallel unit"),
            ("1-2-3", "`1-2-3` is no parallel unit"),
            ("99999999999", "is no parallel unit"),
            ("7-3", "the range 7-3 ends before it begins"),
            ("0-65536", "parallel unit 65536 is out of range"),
        ] {
            let told = text.parse::<PuSet>().unwrap_err().to_string();
            assert!(told.contains(error), "{text}: {told}");
        }
    }

    #[test]
    fn sets_meet_where_both_have_a_unit() {
        let (a, b) = (PuSet::range(0, 70), PuSet::range(60, 100));
        assert_eq!(a.common(&b).to_string(), "60-69");
        assert!(a.common(&PuSet::range(70, 71)).is_empty());
        assert_eq!(PuSet::default().to_string(), "");
    }
}
