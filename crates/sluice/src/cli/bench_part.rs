//! [`BenchPart`]: `sluice bench GROUP --part …`, of the groups that have parts.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::args::{BenchGroup, LightnvmPart};

/// A part of the group `direct`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectPart {
    /// Nanoseconds per command through queue, handle and policies (real time).
    Null,
    /// A file of the host, with fio's io_uring engine beside it (real time).
    File,
    /// Polling periods: IOPS kept, CPU used (real time).
    Polling,
    /// A drive in another process (real time).
    Processes,
    /// Priorities and rates: whose requests are served (virtual time).
    Service,
}

/// A part of a group that has parts. Their names are the groups' own, and differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchPart {
    /// Of the group `lightnvm`.
    Lightnvm(LightnvmPart),
    /// Of the group `direct`.
    Direct(DirectPart),
}

impl BenchPart {
    const ALL: [BenchPart; 16] = [
        BenchPart::Lightnvm(LightnvmPart::Drive),
        BenchPart::Lightnvm(LightnvmPart::Mixed),
        BenchPart::Lightnvm(LightnvmPart::Predictable),
        BenchPart::Lightnvm(LightnvmPart::Steady),
        BenchPart::Lightnvm(LightnvmPart::Recovery),
        BenchPart::Lightnvm(LightnvmPart::Errors),
        BenchPart::Lightnvm(LightnvmPart::Active),
        BenchPart::Lightnvm(LightnvmPart::Limiter),
        BenchPart::Lightnvm(LightnvmPart::Overhead),
        BenchPart::Lightnvm(LightnvmPart::Shards),
        BenchPart::Lightnvm(LightnvmPart::Work),
        BenchPart::Direct(DirectPart::Null),
        BenchPart::Direct(DirectPart::File),
        BenchPart::Direct(DirectPart::Polling),
        BenchPart::Direct(DirectPart::Processes),
        BenchPart::Direct(DirectPart::Service),
    ];

    /// Whose part it is.
    pub fn group(self) -> BenchGroup {
        match self {
            BenchPart::Lightnvm(_) => BenchGroup::Lightnvm,
            BenchPart::Direct(_) => BenchGroup::Direct,
        }
    }

    /// The part of the group `lightnvm` that it is.
    pub fn lightnvm(self) -> Option<LightnvmPart> {
        match self {
            BenchPart::Lightnvm(part) => Some(part),
            BenchPart::Direct(_) => None,
        }
    }

    /// The part of the group `direct` that it is.
    pub fn direct(self) -> Option<DirectPart> {
        match self {
            BenchPart::Direct(part) => Some(part),
            BenchPart::Lightnvm(_) => None,
        }
    }
}

impl ValueEnum for BenchPart {
    fn value_variants<'a>() -> &'a [BenchPart] {
        &BenchPart::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            BenchPart::Lightnvm(part) => part.to_possible_value(),
            BenchPart::Direct(part) => part.to_possible_value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_name_of_its_own_and_is_in_the_list() {
        let parts = BenchPart::value_variants();
        let own = LightnvmPart::value_variants().len() + DirectPart::value_variants().len();
        assert_eq!(parts.len(), own);
        for (i, part) in parts.iter().enumerate() {
            let name = part.to_possible_value().unwrap();
            let again = BenchPart::from_str(name.get_name(), false).unwrap();
            assert_eq!(parts.iter().position(|p| *p == again), Some(i), "{}", name.get_name());
            assert!(part.lightnvm().is_some() != part.direct().is_some());
        }
    }
}
