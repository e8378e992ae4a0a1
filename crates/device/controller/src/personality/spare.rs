//! The capacity of a drive that manages its own flash, its spare space, and what of its logical space is used.

use ftl::{Ftl, L2pEntry};
use nvme::{IoCommand, Status};
use rules::AppId;

use crate::personality::block::BlockDrive;
use crate::personality::spaces::{SpaceId, SpaceUnits};

impl BlockDrive {
    /// Returns the number of mapped logical blocks, an upper bound: those of the map itself count,
    /// too.
    pub(crate) fn mapped_blocks(&self) -> u64 {
        let mapped = |ftl: &Ftl| ftl.mapped().min(ftl.sectors());
        self.spaces.all().map(mapped).sum::<u64>() * u64::from(self.unit_blocks())
    }

    /// Returns the number of mapped logical blocks of an application; an upper bound if it does not share its
    /// space.
    pub(crate) fn mapped_blocks_of(&self, app: AppId) -> u64 {
        let (space, blocks) = (self.spaces.space_of(app), self.blocks_of(app));
        if self.spaces.sole_space(app).is_some() {
            let mapped = self.spaces.of(space).mapped() * u64::from(self.unit_blocks());
            return mapped.min(blocks);
        }
        let (mut lba, end) = (self.spaces.base_of(app), self.spaces.base_of(app) + blocks);
        let mut found = 0;
        while lba < end {
            let left = u32::try_from(end - lba).unwrap_or(u32::MAX);
            let (is_mapped, count) = self.extent(space, lba, left);
            found += if is_mapped { u64::from(count) } else { 0 };
            lba += u64::from(count);
        }
        found
    }

    /// Returns the number of chunks that were good when the drive was new, and are bad.
    pub(crate) fn failed_chunks(&self) -> u32 {
        let shape = self.spaces.first.geometry();
        let failed = |(ftl, units): (&Ftl, SpaceUnits)| {
            let owned = (units.last - units.first + 1) * shape.chunks_per_pu;
            let factory_bad = owned.saturating_sub(ftl.capacity_plan().usable_chunks);
            ftl.bad_chunks().saturating_sub(factory_bad)
        };
        self.spaces.all().zip(self.spaces.units()).map(failed).sum()
    }

    /// Returns the share of the new drive's spare space that is left, in percent, rounded down. The
    /// spare space are the sectors beyond the mapped and the reserved ones; chunks that fail take
    /// from it.
    pub(crate) fn spare_percent(&self) -> u8 {
        let failed = self.failed_chunks();
        let chunk_sectors = self.spaces.first.geometry().sectors_per_chunk;
        let lost = u64::from(failed) * u64::from(chunk_sectors);
        let initial: u64 =
            self.spaces.all().map(|ftl| u64::from(ftl.capacity_plan().op_sectors)).sum();
        match initial {
            0 if failed > 0 => 0,
            0 => 100,
            _ => (initial.saturating_sub(lost) * 100 / initial) as u8,
        }
    }

    /// Records whether writes find space. Returns the status that the host sees: a write without
    /// space is one to a drive that is read only, since a drive with all of its spare space always
    /// has some.
    #[cold]
    pub(super) fn update_read_only(&mut self, status: Status, io: &IoCommand) -> Status {
        let writes = matches!(
            io,
            IoCommand::Write { .. }
                | IoCommand::WriteZeroes { .. }
                | IoCommand::WriteUncorrectable { .. }
        );
        if writes && status.is_success() {
            self.is_read_only = false;
        }
        let is_full = status.is(Status::CAPACITY_EXCEEDED);
        if !is_full || !writes && !matches!(io, IoCommand::Flush) {
            return status;
        }
        self.is_read_only = true;
        Status::WRITE_PROTECTED.do_not_retry()
    }

    /// Returns whether the last write found no space.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Whether logical blocks are smaller than the units of the FTL.
    pub(crate) fn has_partial_units(&self) -> bool {
        self.blocks.is_below_unit()
    }

    /// Returns the number of logical blocks in a unit of the FTL.
    pub(crate) fn unit_blocks(&self) -> u32 {
        self.blocks.unit_blocks()
    }

    /// Returns the capacity in logical blocks: the sum of those of all spaces.
    pub(crate) fn capacity_blocks(&self) -> u64 {
        self.spaces.sectors() * u64::from(self.unit_blocks())
    }

    /// Returns the capacity of each application in sectors of its FTL.
    pub(crate) fn capacities(&self) -> Vec<u64> {
        self.spaces.apps().map(|app| self.spaces.sectors_of(app)).collect()
    }

    /// Returns the logical blocks of an application.
    #[inline]
    pub(crate) fn blocks_of(&self, app: AppId) -> u64 {
        self.spaces.sectors_of(app) * u64::from(self.unit_blocks())
    }

    /// Returns the logical blocks of a space.
    #[inline]
    pub(crate) fn blocks_in(&self, space: SpaceId) -> u64 {
        self.spaces.of(space).sectors() * u64::from(self.unit_blocks())
    }

    /// Returns the location of the unit of a logical block, as [`Ftl::location`] does; `None` on a drive
    /// with several applications, whose blocks are those of hosts.
    pub(crate) fn location(&self, lba: u64) -> Option<L2pEntry> {
        let unit = self.blocks.unit_of(lba);
        if self.spaces.are_several() { None } else { self.spaces.first.location(unit) }
    }

    /// Returns whether the blocks of a space from `lba` on are mapped, and for how many of `blocks`
    /// that holds, as [`Ftl::extent`] does.
    pub(crate) fn extent(&self, space: SpaceId, lba: u64, blocks: u32) -> (bool, u32) {
        let units = self.blocks.covering_units(lba, blocks);
        let (mapped, count) = self.spaces.of(space).extent(units.first, units.count);
        let end = (units.first + u64::from(count)) * u64::from(self.unit_blocks());
        (mapped, (end - lba).min(blocks.into()) as u32)
    }
}
