//! [`Mix`]: what share of the operations is what, and which records are popular.

use std::fmt;
use std::str::FromStr;

/// Which records are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Popularity {
    /// All alike.
    Uniform,
    /// A few much more than others, wherever they are in the order of insertion (*scrambled*
    /// zipfian, exponent 0.99).
    Zipfian,
    /// The last ones inserted most (exponent 0.99).
    Latest,
}

/// Shares of the operations; they add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Reads of a record.
    pub read: f64,
    /// Writes of a record that exists.
    pub update: f64,
    /// New records.
    pub insert: f64,
    /// Reads of up to [`scan_records_max`](RwMix::scan_records_max) records that follow each other in the order of
    /// their keys.
    pub scan: f64,
    /// A record read, and then written.
    pub read_modify_write: f64,
    /// Which records.
    pub popularity: Popularity,
    /// Records of a scan at most: their number is uniform from 1 on.
    pub scan_records_max: u32,
}

/// One of the six standard workloads.
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
    /// All of them.
    pub const ALL: [YcsbWorkload; 6] = [
        YcsbWorkload::A,
        YcsbWorkload::B,
        YcsbWorkload::C,
        YcsbWorkload::D,
        YcsbWorkload::E,
        YcsbWorkload::F,
    ];

    /// Its published parameters (`workloads/workload[a-f]` of the YCSB distribution).
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
