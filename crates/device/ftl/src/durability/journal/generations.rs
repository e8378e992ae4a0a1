//! [`Generations`]: the generations of a journal that are on the media, and the used numbers.

use serde::{Deserialize, Serialize};

use crate::check::{Subject, Violation, require};

/// The generation that a recovery would find, the one before it, and the next number.
///
/// Invariant: readable ≤ committed ≤ last number + 1.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Generations {
    /// The generation that a recovery would find now; 0 if there is none.
    committed: u64,
    /// Last generation whose snapshot can be read without padding; 0 if there is none. It is kept
    /// until the next one can be read, unless its chunks are needed.
    readable: u64,
    /// Whether each copy holds all durable frames of the committed generation.
    complete_copies: [bool; 2],
    /// Generation numbers up to this one are used.
    last: u64,
    /// Whether a frame of the newest generation may be on the media, so that its number is used.
    begun: bool,
}

impl Generations {
    /// Creates the state after a recovery: the generation found, 0 for none, and the newest one with
    /// any frame.
    pub(super) fn found(generation: u64, newest: u64, complete_copies: [bool; 2]) -> Generations {
        Generations {
            committed: generation,
            readable: generation,
            complete_copies,
            last: newest,
            begun: generation > 0,
        }
    }

    /// Returns the generation that a recovery would find now; 0 if there is none.
    pub(super) fn committed(&self) -> u64 {
        self.committed
    }

    /// Returns the last generation whose snapshot can be read without padding; 0 if there is none.
    pub(super) fn readable(&self) -> u64 {
        self.readable
    }

    /// Whether the readable generation is kept beside the committed one.
    pub(super) fn keeps_previous(&self) -> bool {
        self.readable != self.committed
    }

    /// Replaces the readable generation, and returns the one before.
    pub(super) fn replace_readable(&mut self, now: u64) -> u64 {
        std::mem::replace(&mut self.readable, now)
    }

    /// Records that a generation is durable in these copies.
    pub(super) fn commit(&mut self, generation: u64, copies: [bool; 2]) {
        (self.committed, self.complete_copies) = (generation, copies);
    }

    /// Returns whether a copy holds all durable frames of the committed generation.
    pub(super) fn is_complete(&self, copy: usize) -> bool {
        self.complete_copies[copy]
    }

    /// Records that a copy lacks frames of the committed generation.
    pub(super) fn mark_incomplete(&mut self, copy: usize) {
        self.complete_copies[copy] = false;
    }

    /// Records that a frame of the newest generation may be on the media.
    pub(super) fn mark_begun(&mut self) {
        self.begun = true;
    }

    /// Whether a frame of the newest generation may be on the media.
    pub(super) fn is_begun(&self) -> bool {
        self.begun
    }

    /// Marks the numbers up to this one as used.
    pub(super) fn use_up(&mut self, generation: u64) {
        self.last = self.last.max(generation);
    }

    /// Returns the number of the generation that is begun next.
    pub(super) fn begin(&mut self) -> u64 {
        self.begun = false;
        self.last + 1
    }

    /// Checks the order of the generations.
    pub(super) fn check_invariants(&self) -> Result<(), Violation> {
        let order = [self.readable, self.committed, self.last.saturating_add(1)];
        require!(
            order.is_sorted(),
            Durability,
            "journal: readable ≤ committed ≤ next generation",
            Subject::Part,
            "ascending",
            format_args!("{order:?}")
        );
        Ok(())
    }

    /// Breaks the order: commits a generation that never began.
    #[cfg(test)]
    pub(super) fn break_order(&mut self) {
        self.committed = self.last + 2;
    }
}
