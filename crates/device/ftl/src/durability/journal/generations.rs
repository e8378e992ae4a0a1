//! [`Generations`]: which generations of a journal are on the media, and which numbers are used up.

use crate::check::{Subject, Violation, require};

/// The generation that a recovery would find, the one before it, and the next number.
///
/// Invariant: readable ≤ committed ≤ last number + 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Generations {
    /// The generation that would be found now; 0 if there is none.
    committed: u64,
    /// Last generation whose snapshot can be read without padding; 0 if there is none. It is kept
    /// until the next one can be read, unless its chunks are needed.
    readable: u64,
    /// Which copies hold all of the committed generation that is durable.
    complete_copies: [bool; 2],
    /// No generation up to this one is begun any more.
    last: u64,
    /// Whether a frame of the newest generation may be on the media: its number is used up.
    begun: bool,
}

impl Generations {
    /// The generation that was found, 0 for none, and the newest of which there was a sign.
    pub(super) fn found(generation: u64, newest: u64, complete_copies: [bool; 2]) -> Generations {
        Generations {
            committed: generation,
            readable: generation,
            complete_copies,
            last: newest,
            begun: generation > 0,
        }
    }

    /// The generation that would be found now; 0 if there is none.
    pub(super) fn committed(&self) -> u64 {
        self.committed
    }

    /// The last generation of which a snapshot can be read without padding; 0 if there is none.
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

    /// A generation is durable, in these copies.
    pub(super) fn commit(&mut self, generation: u64, copies: [bool; 2]) {
        (self.committed, self.complete_copies) = (generation, copies);
    }

    /// Whether a copy holds all of the committed generation that is durable.
    pub(super) fn is_complete(&self, copy: usize) -> bool {
        self.complete_copies[copy]
    }

    /// A copy lacks something of the committed generation.
    pub(super) fn mark_incomplete(&mut self, copy: usize) {
        self.complete_copies[copy] = false;
    }

    /// A frame of the newest generation may be on the media.
    pub(super) fn mark_begun(&mut self) {
        self.begun = true;
    }

    /// Whether a frame of the newest generation may be on the media.
    pub(super) fn is_begun(&self) -> bool {
        self.begun
    }

    /// Uses the numbers up to this one up.
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

    /// Says that a generation is committed that was never begun.
    #[cfg(test)]
    pub(super) fn break_order(&mut self) {
        self.committed = self.last + 2;
    }
}
