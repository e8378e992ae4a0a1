//! [`VolumeLayout`]: the layout of a volume (`docs/format/volume.md`).

use block::{AtomicLimits, Limits};

use crate::VolumeOpenError;
use crate::on_media::journal::{TXN_BYTES, txn_bytes_max};
use crate::on_media::record::{DATA_BYTES, INODE_BYTES};

/// Bytes of a block, the unit of allocation.
pub const BLOCK: usize = 4096;

/// Blocks of a snapshot segment.
pub(crate) const SEGMENT_BLOCKS: u32 = 16;
pub(crate) const SEGMENT_BYTES: usize = SEGMENT_BLOCKS as usize * BLOCK;
/// Bytes of a segment's header.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 32;

/// Minimum blocks of a journal: a transaction, the changes during its commit, and the changes
/// during a snapshot.
const JOURNAL_BLOCKS_MIN: u32 = 32;
/// Maximum blocks of a journal whose size the caller leaves open: 64 MiB, enough for transactions of
/// the largest size.
const JOURNAL_BLOCKS_DEFAULT_MAX: u32 = 16_384;
/// Blocks from which on a volume has twice as large a journal: 1 GiB.
const LARGE_VOLUME_BLOCKS: u32 = 262_144;
/// Minimum blocks for metadata.
const METADATA_BLOCKS_MIN: u32 = 16;

/// Contiguous blocks of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockRun {
    pub(crate) first_block: u32,
    /// Number of blocks.
    pub(crate) blocks: u32,
}

impl BlockRun {
    /// Returns the block after the last one.
    pub(crate) fn end_block(self) -> u32 {
        self.first_block + self.blocks
    }
}

/// The layout of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeLayout {
    /// Bytes per sector of the device.
    pub sector_bytes: u32,
    /// Total blocks.
    pub blocks: u32,
    /// Blocks of each of the two snapshot areas.
    pub snapshot_blocks: u32,
    /// Blocks of the journal.
    pub journal_blocks: u32,
    /// Blocks of a unit, in which files get their blocks: a power of two, at most 16.
    pub unit_blocks: u32,
}

/// Maximum blocks of a unit.
const UNIT_BLOCKS_MAX: u32 = 16;

/// Returns the possible lengths of a unit in blocks.
fn units() -> impl Iterator<Item = u32> {
    (0..=UNIT_BLOCKS_MAX.ilog2()).map(|shift| 1 << shift)
}

/// Returns the blocks of the largest unit that a device keeps whole wherever it is aligned; 0 if it
/// promises no block, or no more than a sector.
pub(crate) fn device_unit_blocks(limits: &Limits) -> u32 {
    let AtomicLimits { sectors, boundary_sectors } = limits.atomic;
    let longest = sectors.min(limits.max_sectors);
    let block_sectors = BLOCK as u32 / limits.sector_bytes;
    let keeps = |unit: &u32| {
        let unit_sectors = unit * block_sectors;
        sectors > 1 && unit_sectors <= longest && boundary_sectors.is_multiple_of(unit_sectors)
    };
    units().filter(keeps).max().unwrap_or(0)
}

/// Returns the number of whole blocks of a device.
pub(crate) fn device_blocks(limits: &Limits) -> u64 {
    limits.bytes() / BLOCK as u64
}

/// Returns the blocks of a journal whose size the caller leaves open.
fn default_journal_blocks(blocks: u32) -> u32 {
    let share = if blocks < LARGE_VOLUME_BLOCKS { blocks / 128 } else { blocks / 64 };
    share.clamp(JOURNAL_BLOCKS_MIN, JOURNAL_BLOCKS_DEFAULT_MAX)
}

impl VolumeLayout {
    /// Computes the layout of a new volume. `metadata_blocks` and `journal_blocks` default to
    /// values that suit the device.
    ///
    /// # Errors
    /// [`VolumeOpenError::Unfit`].
    pub fn new(
        limits: &Limits,
        metadata_blocks: Option<u32>,
        journal_blocks: Option<u32>,
    ) -> Result<VolumeLayout, VolumeOpenError> {
        let unfit = |what: String| Err(VolumeOpenError::Unfit { what });
        let sector_bytes = limits.sector_bytes;
        if sector_bytes < 512 || sector_bytes > BLOCK as u32 || !sector_bytes.is_power_of_two() {
            return unfit(format!("sectors of {sector_bytes} bytes; they must have 512 to 4096"));
        }
        let Ok(blocks) = u32::try_from(device_blocks(limits)) else {
            return unfit(format!("{} bytes; a volume has at most 16 TiB", limits.bytes()));
        };
        let journal = journal_blocks.unwrap_or_else(|| default_journal_blocks(blocks));
        let metadata = metadata_blocks.unwrap_or((blocks / 128).clamp(METADATA_BLOCKS_MIN, 16384));
        if journal < JOURNAL_BLOCKS_MIN || metadata < METADATA_BLOCKS_MIN {
            return unfit(format!(
                "a journal of {journal} blocks and {metadata} for metadata; they have at least \
                 {JOURNAL_BLOCKS_MIN} and {METADATA_BLOCKS_MIN}"
            ));
        }
        let snapshot = u64::from(journal) + u64::from(metadata);
        let overhead = 2 + 2 * snapshot + u64::from(journal);
        if overhead + 16 > u64::from(blocks) {
            return unfit(format!(
                "a device of {blocks} blocks of 4096 bytes has no room for {overhead} of metadata \
                 and journal, and data"
            ));
        }
        let snapshot_blocks = snapshot as u32;
        let journal_blocks = journal;
        Ok(VolumeLayout { sector_bytes, blocks, snapshot_blocks, journal_blocks, unit_blocks: 1 })
    }

    /// Returns the layout with units of another length.
    ///
    /// # Errors
    /// [`VolumeOpenError::Unfit`] if the length is no power of two, exceeds 64 KiB, or the journal is
    /// too small for it, or no unit fits.
    pub fn with_unit(self, bytes: u32) -> Result<VolumeLayout, VolumeOpenError> {
        let unfit = |what: String| Err(VolumeOpenError::Unfit { what });
        let unit_blocks = bytes / BLOCK as u32;
        if !bytes.is_power_of_two() || !(1..=UNIT_BLOCKS_MAX).contains(&unit_blocks) {
            return unfit(format!(
                "units of {bytes} bytes; they have 4096 to 65536, in powers of two"
            ));
        }
        let max = self.journal_unit_blocks();
        if unit_blocks > max {
            return unfit(format!(
                "units of {bytes} bytes; a journal of {} blocks permits {}",
                self.journal_blocks,
                max as usize * BLOCK
            ));
        }
        let layout = VolumeLayout { unit_blocks, ..self };
        if layout.data() >= layout.data_end() {
            return unfit(format!(
                "a device of {} blocks has no unit of {bytes} bytes",
                self.blocks
            ));
        }
        Ok(layout)
    }

    /// Returns the largest unit that half a transaction can hold with any options, or 1.
    pub(crate) fn journal_unit_blocks(&self) -> u32 {
        let bytes = txn_bytes_max(self.journal_sectors(), self.sector_bytes, TXN_BYTES) / 2;
        let fits = |unit: &u32| *unit as usize * (BLOCK + DATA_BYTES) + INODE_BYTES <= bytes;
        units().filter(fits).max().unwrap_or(1)
    }

    /// Returns whether the fields of a superblock are consistent.
    pub(crate) fn is_plausible(&self) -> bool {
        let metadata = u64::from(self.snapshot_blocks) * 2 + u64::from(self.journal_blocks) + 2;
        self.sector_bytes.is_power_of_two()
            && (512..=BLOCK as u32).contains(&self.sector_bytes)
            && self.unit_blocks.is_power_of_two()
            && self.unit_blocks <= UNIT_BLOCKS_MAX
            && self.journal_blocks >= JOURNAL_BLOCKS_MIN
            && u64::from(self.snapshot_blocks)
                >= u64::from(self.journal_blocks) + u64::from(METADATA_BLOCKS_MIN)
            && metadata < u64::from(self.blocks)
    }

    /// Returns the sectors per block.
    pub(crate) fn block_sectors(&self) -> u32 {
        BLOCK as u32 / self.sector_bytes
    }

    /// Returns the first block of a snapshot area.
    pub(crate) fn snapshot(&self, area: u32) -> u32 {
        1 + (area & 1) * self.snapshot_blocks
    }

    /// Returns the first block of the journal.
    pub(crate) fn journal(&self) -> u32 {
        1 + 2 * self.snapshot_blocks
    }

    /// Returns the sectors of the journal.
    pub(crate) fn journal_sectors(&self) -> u64 {
        u64::from(self.journal_blocks) * u64::from(self.block_sectors())
    }

    /// Returns the first data block, with which a unit begins.
    pub fn data(&self) -> u32 {
        (self.journal() + self.journal_blocks).next_multiple_of(self.unit_blocks)
    }

    /// Returns the end of the data blocks, with which a unit ends.
    pub fn data_end(&self) -> u32 {
        self.second() / self.unit_blocks * self.unit_blocks
    }

    /// Returns the block of the second superblock.
    pub(crate) fn second(&self) -> u32 {
        self.blocks - 1
    }

    /// Returns the number of data blocks.
    pub fn data_blocks(&self) -> u32 {
        self.data_end() - self.data()
    }

    /// Returns the end of a file's blocks, so that its last unit is whole.
    pub(crate) fn file_blocks_max(&self) -> u32 {
        u32::MAX / self.unit_blocks * self.unit_blocks
    }

    /// Returns the first block of a block's unit.
    pub(crate) fn unit_start(&self, block: u32) -> u32 {
        block / self.unit_blocks * self.unit_blocks
    }

    /// Returns the end of the units of the blocks before `end`.
    pub(crate) fn unit_end(&self, end: u32) -> u32 {
        end.checked_next_multiple_of(self.unit_blocks).unwrap_or(self.file_blocks_max())
    }

    /// Returns the maximum bytes of a snapshot's records. The rest of an area is for records added
    /// while it is written, which are at most what the journal holds.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        u64::from(self.snapshot_blocks - self.journal_blocks) * BLOCK as u64 / 16 * 15
    }
}
