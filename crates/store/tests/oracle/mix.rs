//! [`Mix`]: what a case asks for; [`Seen`]: what it met.

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Everything.
    All,
    /// Mostly small writes of a few files, with syncs, and what takes their blocks away.
    Small,
}

/// What was met.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) cuts: u64,
    /// Blocks of which the journal was given data, and those that an opening found there.
    pub(crate) journaled: u64,
    pub(crate) recovered: u64,
    /// Snapshots while the journal had some.
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

    /// Whether there is much of everything.
    pub(crate) fn is_dense(&self) -> bool {
        5 * self.recovered > self.cuts && self.journaled > self.cuts && self.checkpoints > 50
    }
}
