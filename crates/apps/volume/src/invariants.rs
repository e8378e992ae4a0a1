//! [`VolumeViolation`]: an invariant of an open volume that does not hold.

use std::fmt;

use collections::BrokenInvariant;

/// A part of an open volume's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumePart {
    /// Requests in flight, and their completions.
    Requests,
    /// Transfers in flight on the device.
    Transfers,
    /// Free, promised and reserved blocks.
    Allocator,
    /// Inodes, names and extents.
    Inodes,
    /// The page cache.
    Pages,
    /// Buffers for unaligned reads and for writes.
    Staging,
    /// Files with data to be written in place.
    Writeback,
    /// Order of writes and flushes.
    Barriers,
    /// The running transaction, its commit, and the journal's sectors.
    Log,
    /// Snapshots and superblocks.
    Checkpoint,
}

impl fmt::Display for VolumePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VolumePart::Requests => "requests",
            VolumePart::Transfers => "transfers",
            VolumePart::Allocator => "allocator",
            VolumePart::Inodes => "inodes",
            VolumePart::Pages => "pages",
            VolumePart::Staging => "staging",
            VolumePart::Writeback => "writeback",
            VolumePart::Barriers => "barriers",
            VolumePart::Log => "log",
            VolumePart::Checkpoint => "checkpoint",
        })
    }
}

/// An invariant that does not hold.
pub type VolumeViolation = BrokenInvariant<VolumePart>;

collections::invariant_macros!($ crate::invariants::VolumeViolation, crate::invariants::VolumePart, of_values);
#[expect(
    clippy::single_component_path_imports,
    reason = "it makes the macros visible outside of this file"
)]
pub(crate) use {require, require_eq};
