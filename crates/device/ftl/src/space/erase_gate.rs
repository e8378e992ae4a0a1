//! [`EraseGate`]: the conditions of the erase of a line.

use serde::{Deserialize, Serialize};

use crate::check::{Subject, Violation, require};
use crate::ids::LineId;

/// The conditions of the erase of a line, and the erases of its chunks in flight.
///
/// Invariant: no chunk is being erased while relocations are in flight.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct EraseGate {
    /// Relocated sectors that are not durable elsewhere.
    relocations_in_flight: u32,
    /// Chunks being erased.
    erasing: u32,
    /// Position of the host's rings that must be durable: a sector of the line was overwritten before
    /// it, and until the new copy is durable the old one may be needed.
    after_pos: u64,
    /// Whether a trim of a sector of the line must be durable.
    after_trims: bool,
}

impl EraseGate {
    /// Delays the erase until what supersedes a sector is durable: the host's rings up to position
    /// `after`, or a trim.
    #[inline]
    pub(super) fn wait_for(&mut self, after: Option<u64>) {
        match after {
            Some(after) => self.after_pos = after,
            None => self.after_trims = true,
        }
    }

    /// The position of the host's rings that must be durable.
    pub(crate) fn after_pos(&self) -> u64 {
        self.after_pos
    }

    /// Whether trims must be durable.
    pub(crate) fn is_after_trims(&self) -> bool {
        self.after_trims
    }

    /// Relocated sectors that are not durable elsewhere.
    #[inline]
    pub(crate) fn relocations_in_flight(&self) -> u32 {
        self.relocations_in_flight
    }

    /// Counts sectors that are being relocated.
    pub(super) fn relocations_started(&mut self, count: u32) {
        self.relocations_in_flight += count;
    }

    /// Records that a relocated sector is durable. Returns the number of those that are not.
    pub(super) fn relocation_durable(&mut self) -> u32 {
        self.relocations_in_flight -= 1;
        self.relocations_in_flight
    }

    /// Chunks being erased.
    #[inline]
    pub(crate) fn erasing(&self) -> u32 {
        self.erasing
    }

    /// Whether no relocation and no erase is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.relocations_in_flight == 0 && self.erasing == 0
    }

    /// Records that the erase of a chunk starts.
    pub(super) fn erase_started(&mut self) {
        self.erasing += 1;
    }

    /// Records that the erase of a chunk ended.
    pub(super) fn erase_done(&mut self) {
        self.erasing -= 1;
    }

    /// Checks that no chunk is being erased while relocations are in flight.
    pub(super) fn check_invariants(&self, line: LineId) -> Result<(), Violation> {
        require!(
            self.erasing == 0 || self.relocations_in_flight == 0,
            Space,
            "a line is erased when no relocation is in flight",
            Subject::Line(line),
            0,
            self.relocations_in_flight
        );
        Ok(())
    }

    /// Breaks the count of relocations.
    #[cfg(test)]
    pub(crate) fn break_relocations(&mut self) {
        self.relocations_in_flight -= 1;
    }

    /// Breaks the counts of erases and relocations.
    #[cfg(test)]
    pub(crate) fn break_order(&mut self) {
        self.relocations_in_flight += 1;
        self.erasing += 1;
    }
}
