//! The spare space of a drive that manages its own flash, and what of its logical space is used.

use crate::personality::block::BlockDrive;

impl BlockDrive {
    /// Returns the number of mapped logical blocks, an upper bound: those of the map itself count,
    /// too.
    pub(crate) fn mapped_blocks(&self) -> u64 {
        self.ftl.mapped().min(self.ftl.sectors()) * u64::from(self.unit_blocks())
    }

    /// Returns the number of chunks that were good when the drive was new, and are bad.
    pub(crate) fn failed_chunks(&self) -> u32 {
        let (plan, shape) = (self.ftl.capacity_plan(), self.ftl.geometry());
        let factory_bad = shape.total_chunks().saturating_sub(plan.usable_chunks);
        self.ftl.bad_chunks().saturating_sub(factory_bad)
    }

    /// Returns the share of the new drive's spare space that is left, in percent, rounded down. The
    /// spare space are the sectors beyond the mapped and the reserved ones; chunks that fail take
    /// from it.
    pub(crate) fn spare_percent(&self) -> u8 {
        let (plan, shape) = (self.ftl.capacity_plan(), self.ftl.geometry());
        let failed = self.failed_chunks();
        let lost = u64::from(failed) * u64::from(shape.sectors_per_chunk);
        let initial = u64::from(plan.op_sectors);
        match initial {
            0 if failed > 0 => 0,
            0 => 100,
            _ => (initial.saturating_sub(lost) * 100 / initial) as u8,
        }
    }
}
