//! The slots of a drive's write buffer, and the moves of sectors between slots and chunks.
//!
//! With data in memory, a sector moves by reference: [`stage_slot`](Nand::stage_slot) hands the
//! buffer of a slot to a sector, [`load_slot`](Nand::load_slot) the buffer of a sector to a slot, and
//! [`stage_copy`](Nand::stage_copy) that of one sector to another. The source keeps its data: a
//! relocated sector is readable until its chunk is erased, so that nothing is lost if the power is
//! cut in between. An image has a place for every sector, and there these functions copy.
//!
//! An erase frees no buffers, because reads that executed before it may still have to copy their
//! data to the host. The next data of the sector does.

use std::io;

use mem::SharedRegion;

use super::Nand;
use crate::{MediaError, PhysSector, SectorBufferStats};

impl Nand {
    /// Replaces the slots of the write buffer by `slots` empty ones, which read as zeros. Does
    /// nothing if the medium stores no data.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns.
    pub fn set_slots(&mut self, slots: u32) -> io::Result<()> {
        self.store.set_slots(slots)
    }

    /// Returns the region and the offset to which the caller writes the new data of a slot, all
    /// `sector_bytes` of it; `None` if the medium stores no data.
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub fn slot_to_write(&mut self, slot: u32) -> Option<(&SharedRegion, usize)> {
        self.store.slot_to_write(slot)
    }

    /// Writes `bytes`, contents of the FTL of at most a sector, to the start of a slot; the remaining
    /// bytes are 0. Does nothing if the medium stores no data.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn write_slot(&mut self, slot: u32, bytes: &[u8]) {
        self.store.write_slot(slot, bytes);
    }

    /// Returns the region and the offset of a slot's data; `None` for zeros.
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub fn slot_data(&self, slot: u32) -> Option<(&SharedRegion, usize)> {
        self.store.slot_data(slot)
    }

    /// Stages the data of a slot in a sector, like [`stage`](Nand::stage). The slot keeps it.
    ///
    /// # Errors
    /// As [`stage`](Nand::stage).
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub fn stage_slot(&mut self, phys: PhysSector, slot: u32) -> Result<(), MediaError> {
        if self.store.stores_data() {
            self.check_stage(phys)?;
            self.store.store_slot(slot, phys);
        }
        Ok(())
    }

    /// Loads the data of a sector that [`check_read`](Nand::check_read) accepted into a slot. Does
    /// nothing if the medium stores no data.
    ///
    /// # Panics
    /// If the sector or the slot does not exist.
    #[inline]
    pub fn load_slot(&mut self, phys: PhysSector, slot: u32) {
        self.store.load_slot(phys, slot);
    }

    /// Stages the data and the out-of-band bytes of `from`, a sector that
    /// [`check_read`](Nand::check_read) accepted, in another sector.
    ///
    /// # Errors
    /// As [`stage`](Nand::stage).
    ///
    /// # Panics
    /// If `from` does not exist.
    pub fn stage_copy(&mut self, from: PhysSector, to: PhysSector) -> Result<(), MediaError> {
        if self.store.stores_data() {
            self.check_stage(to)?;
            self.store.copy_sector(from, to);
        }
        Ok(())
    }

    /// Returns the counters of sector data in memory: of the slots, and of the sectors of a medium
    /// that is not in an image.
    pub fn buffer_stats(&self) -> SectorBufferStats {
        self.store.buffer_stats()
    }
}
