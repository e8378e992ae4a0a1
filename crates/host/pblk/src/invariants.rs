//! [`PblkViolation`]: an invariant of a target that does not hold.

use std::fmt;

use collections::BrokenInvariant;

/// A part of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PblkPart {
    /// Outstanding requests, and reads whose mapping entries have not been looked up.
    Requests,
    /// Commands on the drive, and commands that wait for queue entries.
    Commands,
    /// Reads that take several commands.
    SplitReads,
    /// Counts of the host reads in flight per parallel unit.
    ReadTracker,
    /// Reactions to media events.
    Maintenance,
    /// Reads of cold data.
    Scrub,
    /// Copies of the superblock of a sharded device.
    Superblock,
    /// Requests with fragments on several shards.
    Fragments,
    /// Rings between cores.
    CoreChannels,
    /// The order of overlapping requests.
    Overlaps,
}

impl fmt::Display for PblkPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PblkPart::Requests => "requests",
            PblkPart::Commands => "commands",
            PblkPart::SplitReads => "split reads",
            PblkPart::ReadTracker => "read tracker",
            PblkPart::Maintenance => "maintenance",
            PblkPart::Scrub => "scrub",
            PblkPart::Superblock => "superblock",
            PblkPart::Fragments => "fragments",
            PblkPart::CoreChannels => "core channels",
            PblkPart::Overlaps => "overlaps",
        })
    }
}

/// An invariant that does not hold.
pub type PblkViolation = BrokenInvariant<PblkPart>;

collections::invariant_macros!($ crate::invariants::PblkViolation, crate::invariants::PblkPart, of_values);
#[expect(
    clippy::single_component_path_imports,
    reason = "it makes the macros visible outside of this file"
)]
pub(crate) use {require, require_eq};
