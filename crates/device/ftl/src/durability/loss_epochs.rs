//! [`LossEpochs`]: which lost sectors a checkpoint has recorded.

use crate::check::{Subject, Violation, require};

/// How often something was lost that the last checkpoint does not know of.
///
/// Invariant: durable ≤ begun ≤ known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossEpochs {
    known: u64,
    /// When the checkpoint under way began, or the last one.
    begun: u64,
    /// When the last durable checkpoint began.
    durable: u64,
}

impl LossEpochs {
    /// Records a loss.
    pub(super) fn record(&mut self) {
        self.known += 1;
    }

    /// Whether something was lost since the last checkpoint began, so that another is to begin.
    #[inline]
    pub(super) fn is_begun_due(&self) -> bool {
        self.known > self.begun
    }

    /// Whether something was lost that no durable checkpoint knows of.
    #[inline]
    pub(super) fn has_undurable(&self) -> bool {
        self.known > self.durable
    }

    /// A checkpoint begins.
    pub(super) fn begin(&mut self) {
        self.begun = self.known;
    }

    /// The checkpoint is durable.
    pub(super) fn complete(&mut self) {
        self.durable = self.begun;
    }

    /// Checks the order of the epochs.
    pub(super) fn check_invariants(&self) -> Result<(), Violation> {
        let order = [self.durable, self.begun, self.known];
        require!(
            order.is_sorted(),
            Durability,
            "losses: durable ≤ begun ≤ known",
            Subject::Part,
            "ascending",
            format_args!("{order:?}")
        );
        Ok(())
    }

    /// Says that a checkpoint has begun for a loss that there was not.
    #[cfg(test)]
    pub(super) fn break_order(&mut self) {
        self.begun = self.known + 1;
    }
}
