//! [`LossEpochs`]: the losses that checkpoints have recorded.

use serde::{Deserialize, Serialize};

use crate::check::{Subject, Violation, require};

/// Numbers of losses: recorded ones, and those included in checkpoints.
///
/// Invariant: durable ≤ begun ≤ known.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct LossEpochs {
    known: u64,
    /// The number of losses when the latest checkpoint began.
    begun: u64,
    /// The number of losses when the last durable checkpoint began.
    durable: u64,
}

impl LossEpochs {
    /// Records a loss.
    pub(super) fn record(&mut self) {
        self.known += 1;
    }

    /// Returns whether there is a loss since the latest checkpoint began, so that another is needed.
    #[inline]
    pub(super) fn is_begun_due(&self) -> bool {
        self.known > self.begun
    }

    /// Returns whether there is a loss that no durable checkpoint includes.
    #[inline]
    pub(super) fn has_undurable(&self) -> bool {
        self.known > self.durable
    }

    /// Records that a checkpoint begins.
    pub(super) fn begin(&mut self) {
        self.begun = self.known;
    }

    /// Records that the checkpoint is durable.
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

    /// Breaks the order: a checkpoint has begun for a loss that was not recorded.
    #[cfg(test)]
    pub(super) fn break_order(&mut self) {
        self.begun = self.known + 1;
    }
}
