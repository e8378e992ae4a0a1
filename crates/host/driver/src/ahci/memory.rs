//! [`PortMemory`]: the memory of a port that the controller accesses, besides payloads ([AHCI1.3
//! §4.2]).
//!
//! It has the command list, received FISes, command tables, trim ranges, a page for the driver's
//! own commands, and scratch memory for bit buckets.

use std::sync::Arc;

use ahci::ata::TrimRange;
use ahci::{COMMAND_SLOTS_MAX, CommandHeader, CommandTable, PrdtEntry, RegisterH2d, received};
use mem::{AddressSpace, Iova, PAGE_BYTES, SharedRegion};
use zerocopy::IntoBytes;

use super::AhciError;

/// Maximum number of physical regions per command: the table size is a multiple of 128 bytes, and
/// other drivers of such controllers use this value.
pub(super) const PRDT_ENTRIES_MAX: usize = 168;

/// Maximum number of 512-byte blocks of trim ranges per command.
pub(super) const TRIM_BLOCKS_MAX: usize = 8;

/// Size of the scratch memory for bit buckets, which is used repeatedly.
pub(super) const SCRATCH_BYTES: usize = 64 << 10;

/// The command table of the driver's own commands, which has no tag.
pub(super) const INTERNAL_TABLE: usize = COMMAND_SLOTS_MAX;

const LIST: usize = 0;
const RECEIVED: usize = LIST + COMMAND_SLOTS_MAX * CommandHeader::BYTES;
/// Offset of the 512 bytes into which the driver's own commands read.
const INTERNAL_PAGE: usize = 2048;
const RANGES: usize = PAGE_BYTES;
const RANGES_STRIDE: usize = TRIM_BLOCKS_MAX * 512;
const TABLES: usize = RANGES + COMMAND_SLOTS_MAX * RANGES_STRIDE;
const TABLE_STRIDE: usize = CommandTable::bytes(PRDT_ENTRIES_MAX);
const SCRATCH_OFFSET: usize =
    (TABLES + (COMMAND_SLOTS_MAX + 1) * TABLE_STRIDE).next_multiple_of(PAGE_BYTES);
const BYTES: usize = SCRATCH_OFFSET + SCRATCH_BYTES;

const _: () = assert!(RECEIVED.is_multiple_of(received::BYTES));
const _: () = assert!(RECEIVED + received::BYTES <= INTERNAL_PAGE && INTERNAL_PAGE + 512 <= RANGES);
const _: () = assert!(TABLES.is_multiple_of(CommandTable::ALIGN as usize));
const _: () = assert!(SCRATCH_BYTES as u32 <= PrdtEntry::BYTES_MAX);

#[derive(Debug)]
pub(super) struct PortMemory {
    region: Arc<SharedRegion>,
    at: Iova,
}

impl PortMemory {
    pub(super) fn new(space: &AddressSpace) -> Result<PortMemory, AhciError> {
        let region = SharedRegion::anonymous(BYTES)?;
        let at = space.register(&region)?;
        Ok(PortMemory { region, at })
    }

    /// Returns the address of the command list.
    pub(super) fn list(&self) -> Iova {
        self.at.offset(LIST as u64)
    }

    /// Returns the address of received FISes.
    pub(super) fn received(&self) -> Iova {
        self.at.offset(RECEIVED as u64)
    }

    /// Returns the address of the scratch memory.
    #[inline]
    pub(super) fn scratch(&self) -> Iova {
        self.at.offset(SCRATCH_OFFSET as u64)
    }

    /// Returns the address of the trim ranges of a slot.
    pub(super) fn ranges(&self, slot: usize) -> Iova {
        self.at.offset((RANGES + slot * RANGES_STRIDE) as u64)
    }

    /// Returns the address of the page of the driver's own commands.
    pub(super) fn page(&self) -> Iova {
        self.at.offset(INTERNAL_PAGE as u64)
    }

    /// Returns the data that the driver's own command has read.
    pub(super) fn read_page(&self) -> [u8; 512] {
        let mut page = [0; 512];
        self.region.read(INTERNAL_PAGE, &mut page);
        page
    }

    /// Writes a command's FIS into table `table`.
    #[inline]
    pub(super) fn write_fis(&self, table: usize, fis: &RegisterH2d) {
        self.region.write(TABLES + table * TABLE_STRIDE + CommandTable::CFIS, fis.as_bytes());
    }

    /// Writes the command header of slot `slot`, which points to table `table`.
    #[inline]
    pub(super) fn set_command_header(&self, slot: usize, table: usize, write: bool, regions: u16) {
        let at = self.at.offset((TABLES + table * TABLE_STRIDE) as u64).0;
        let header = CommandHeader::new(at, write, regions);
        self.region.write(LIST + slot * CommandHeader::BYTES, header.as_bytes());
    }

    /// Writes the physical region `index` of table `table`.
    #[inline]
    pub(super) fn write_prdt_entry(&self, table: usize, index: usize, entry: PrdtEntry) {
        debug_assert!(index < PRDT_ENTRIES_MAX);
        let offset = TABLES + table * TABLE_STRIDE + CommandTable::PRDT + index * PrdtEntry::BYTES;
        self.region.write(offset, entry.as_bytes());
    }

    /// Writes the trim range `index` of slot `slot`.
    pub(super) fn write_trim_range(&self, slot: usize, index: usize, range: TrimRange) {
        debug_assert!(index * TrimRange::BYTES < RANGES_STRIDE);
        let offset = RANGES + slot * RANGES_STRIDE + index * TrimRange::BYTES;
        self.region.write(offset, &range.to_bytes());
    }
}
