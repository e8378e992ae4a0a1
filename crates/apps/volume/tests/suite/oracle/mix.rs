//! [`Mix`]: the operations of a case; [`Seen`]: its coverage.

/// Operations of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// All operations.
    All,
    /// Mostly small writes to a few files, with syncs, and operations that remove blocks.
    Small,
}

/// Coverage of a case.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) cuts: u64,
    /// Blocks journaled, and blocks recovered by mounts.
    pub(crate) journaled: u64,
    pub(crate) recovered: u64,
    /// Checkpoints with journaled data.
    pub(crate) checkpoints: u64,
}

impl Seen {
    pub(crate) fn plus(self, other: Seen) -> Seen {
        Seen {
            cuts: self.cuts + other.cuts,
            journaled: self.journaled + other.journaled,
            recovered: self.recovered + other.recovered,
            checkpoints: self.checkpoints + other.checkpoints,
        }
    }

    /// Returns whether every kind of event was frequent.
    pub(crate) fn is_dense(&self) -> bool {
        5 * self.recovered > self.cuts && self.journaled > self.cuts && self.checkpoints > 50
    }
}
