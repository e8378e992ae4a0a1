//! [`Mix`]: the operations of a case; [`Seen`]: its coverage.

use time::Nanos;

/// Operations of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// All operations.
    All,
    /// Mostly small writes to a few files, with syncs, and operations that remove blocks.
    Small,
    /// `Small` with ordered barriers, and syncs now and then.
    Barriers,
    /// `Barriers`, but the volume is not told of them, and keeps no order.
    Unordered,
}

impl Mix {
    /// Returns whether the case has barriers, which the volume may know or not.
    pub(crate) fn has_barriers(self) -> bool {
        matches!(self, Mix::Barriers | Mix::Unordered)
    }

    /// Returns how long barriers of a case may wait: not at all, for a short time, or longer than any
    /// case takes.
    pub(crate) fn barrier_delay(self, seed: u64) -> Nanos {
        match seed % 3 {
            1 if self.has_barriers() => Nanos::from_micros(50 + seed * 7919 % 10_000),
            2 if self.has_barriers() => Nanos::from_secs(100_000),
            _ => Nanos::ZERO,
        }
    }

    /// Returns whether most writes are small.
    pub(crate) fn is_small(self) -> bool {
        self != Mix::All
    }
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
    /// Barriers, requests that waited for one, and blocks written in place before one.
    pub(crate) barriers: u64,
    pub(crate) waits: u64,
    pub(crate) in_place: u64,
    /// Requests that failed for lack of space.
    pub(crate) no_space: u64,
    /// Power cuts when barriers were not durable, and when two or more were not.
    pub(crate) pending: u64,
    pub(crate) several: u64,
    /// Power cuts after which no barrier fits.
    pub(crate) violations: u64,
}

impl Seen {
    pub(crate) fn plus(self, other: Seen) -> Seen {
        Seen {
            cuts: self.cuts + other.cuts,
            journaled: self.journaled + other.journaled,
            recovered: self.recovered + other.recovered,
            checkpoints: self.checkpoints + other.checkpoints,
            barriers: self.barriers + other.barriers,
            waits: self.waits + other.waits,
            in_place: self.in_place + other.in_place,
            no_space: self.no_space + other.no_space,
            pending: self.pending + other.pending,
            several: self.several + other.several,
            violations: self.violations + other.violations,
        }
    }

    /// Returns whether every kind of event was frequent.
    pub(crate) fn is_dense(&self) -> bool {
        5 * self.recovered > self.cuts && self.journaled > self.cuts && self.checkpoints > 50
    }
}
