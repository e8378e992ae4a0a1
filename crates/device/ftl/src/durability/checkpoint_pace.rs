//! [`CheckpointPace`]: when a checkpoint is due.

use serde::{Deserialize, Serialize};

use crate::env::Env;
use crate::ids::WriteSeq;
use crate::{CapacityPlan, FtlConfig};

/// Counts the sectors written since the last checkpoint began.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct CheckpointPace {
    /// Sectors that are written between the beginnings of two checkpoints, without translation pages.
    interval: u64,
    /// Whether relocated sectors count.
    counts_relocations: bool,
    /// Sequence number of the next write unit when the latest checkpoint began.
    began_seq: WriteSeq,
    /// Sectors of units since then that do not bring on a checkpoint.
    excluded_sectors: u64,
    /// Whether the host or a relocation has changed a page since then. Padding and relocations that
    /// a checkpoint itself causes do not set it.
    changed: bool,
}

impl CheckpointPace {
    /// Starts the pace at a sequence number. The first checkpoint is due without a change.
    pub(super) fn new(
        plan: &CapacityPlan,
        config: &FtlConfig,
        began_seq: WriteSeq,
    ) -> CheckpointPace {
        CheckpointPace {
            interval: plan.checkpoint_sectors,
            counts_relocations: config.checkpoint_sectors > 0,
            began_seq,
            excluded_sectors: 0,
            changed: true,
        }
    }

    /// Sectors between the beginnings of two checkpoints.
    pub(super) fn interval(&self) -> u64 {
        self.interval
    }

    /// Records that the host wrote or trimmed, or requested a relocation.
    #[inline]
    pub(super) fn record_host_change(&mut self) {
        self.changed = true;
    }

    /// Counts a unit with `sectors` relocated sectors.
    #[inline]
    pub(super) fn record_relocated(&mut self, sectors: u32) {
        self.excluded_sectors += if self.counts_relocations { 0 } else { u64::from(sectors) };
    }

    /// Excludes sectors from the interval.
    pub(super) fn exclude(&mut self, sectors: u64) {
        self.excluded_sectors += sectors;
    }

    /// Returns the counted sectors since the latest checkpoint began.
    pub(super) fn written_since(&self, env: &Env, next_seq: WriteSeq) -> u64 {
        let written = (next_seq - self.began_seq) * u64::from(env.geometry.ws_opt);
        written.saturating_sub(self.excluded_sectors)
    }

    /// Whether a checkpoint is due.
    pub(super) fn is_due(&self, env: &Env, next_seq: WriteSeq) -> bool {
        self.changed && self.written_since(env, next_seq) >= self.interval
    }

    /// Records that a checkpoint begins.
    pub(super) fn begin(&mut self, next_seq: WriteSeq) {
        (self.began_seq, self.excluded_sectors, self.changed) = (next_seq, 0, false);
    }
}
