//! [`Mix`]: the shares of the operations, and the popularity of records.

use std::fmt;
use std::str::FromStr;

/// Distribution of the records that operations access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Popularity {
    /// All records are equally likely.
    Uniform,
    /// Few records are much more likely than others, independent of the order of insertion
    /// (*scrambled* Zipfian, exponent 0.99).
    Zipfian,
    /// The records inserted last are the most likely (exponent 0.99).
    Latest,
}

/// Shares of the operations; they add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Share of reads of a record.
    pub read: f64,
    /// Share of writes of an existing record.
    pub update: f64,
    /// Share of inserts of a new record.
    pub insert: f64,
    /// Share of scans: reads of up to [`scan_records_max`](Mix::scan_records_max) consecutive
    /// records in the order of their keys.
    pub scan: f64,
    /// Share of read-modify-writes of a record.
    pub read_modify_write: f64,
    /// Popularity of the records.
    pub popularity: Popularity,
    /// Maximum number of records of a scan; the number is uniform from 1 on.
    pub scan_records_max: u32,
}

/// One of the six core workloads of \[YCSB10\].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum YcsbWorkload {
    /// Update heavy: a session store.
    A,
    /// Read mostly: photo tagging.
    B,
    /// Read only: a user profile cache.
    C,
    /// Read latest: user status updates.
    D,
    /// Short ranges: threaded conversations.
    E,
    /// Read-modify-write: a user database.
    F,
}

impl YcsbWorkload {
    /// All workloads.
    pub const ALL: [YcsbWorkload; 6] = [
        YcsbWorkload::A,
        YcsbWorkload::B,
        YcsbWorkload::C,
        YcsbWorkload::D,
        YcsbWorkload::E,
        YcsbWorkload::F,
    ];

    /// Returns the published parameters (`workloads/workload[a-f]` of the YCSB distribution).
    pub fn mix(self) -> Mix {
        let none = Mix {
            read: 0.0,
            update: 0.0,
            insert: 0.0,
            scan: 0.0,
            read_modify_write: 0.0,
            popularity: Popularity::Zipfian,
            scan_records_max: 100,
        };
        match self {
            YcsbWorkload::A => Mix { read: 0.5, update: 0.5, ..none },
            YcsbWorkload::B => Mix { read: 0.95, update: 0.05, ..none },
            YcsbWorkload::C => Mix { read: 1.0, ..none },
            YcsbWorkload::D => {
                Mix { read: 0.95, insert: 0.05, popularity: Popularity::Latest, ..none }
            }
            YcsbWorkload::E => Mix { scan: 0.95, insert: 0.05, ..none },
            YcsbWorkload::F => Mix { read: 0.5, read_modify_write: 0.5, ..none },
        }
    }

    fn letter(self) -> char {
        ["a", "b", "c", "d", "e", "f"][self as usize].chars().next().unwrap_or('a')
    }
}

impl fmt::Display for YcsbWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.letter())
    }
}

impl FromStr for YcsbWorkload {
    type Err = String;
    fn from_str(text: &str) -> Result<YcsbWorkload, String> {
        let found = YcsbWorkload::ALL.into_iter().find(|w| {
            let mut letters = text.chars();
            letters.next().map(|c| c.to_ascii_lowercase()) == Some(w.letter())
                && letters.next().is_none()
        });
        found.ok_or_else(|| format!("no YCSB workload `{text}`: allowed are a to f"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_names_are_found_again() {
        for workload in YcsbWorkload::ALL {
            let mix = workload.mix();
            let sum = mix.read + mix.update + mix.insert + mix.scan + mix.read_modify_write;
            assert!((sum - 1.0).abs() < 1e-12, "{workload}");
            assert_eq!(workload.to_string().parse(), Ok(workload));
            assert_eq!(workload.to_string().to_uppercase().parse(), Ok(workload));
        }
        for wrong in ["", "g", "ab"] {
            assert!(wrong.parse::<YcsbWorkload>().is_err());
        }
    }
}
