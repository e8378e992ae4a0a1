//! Staging data, programs and erases.
//!
//! A drive's write buffer consists of slots. With data in memory, a sector moves by reference:
//! [`stage_slots`](Nand::stage_slots) hands the buffers of slots to sectors,
//! [`load_slot`](Nand::load_slot) the buffer of a sector to a slot, and
//! [`stage_copy`](Nand::stage_copy) that of one sector to another. The source keeps its data: a
//! relocated sector is readable until its chunk is erased, so that nothing is lost if the power is
//! cut in between. An image has a place for every sector, and there these functions copy.
//!
//! An erase frees no buffers, because reads that executed before it may still have to copy their
//! data to the host. The next data of the sector does.

use std::io;

use crate::layout::UnitInChunk;
use mem::SharedRegion;

use super::Nand;
use crate::chunk::{
    BAD, CLOSED, ChunkRecord, DIE_FAILED, ERASING, HAS_DEFECTS, INTERRUPTED, PROGRAMMING,
};
use crate::{BufferSlot, ChunkId, MediaError, Operation, PhysSector, PuId};

impl Nand {
    /// Stages the data of a sector that is about to be programmed: `sector_bytes` bytes of `from`
    /// at `offset`. The data is readable after its unit is programmed. Does nothing if the medium
    /// stores no data.
    ///
    /// # Errors
    /// [`MediaError::Overwrite`] if the sector is programmed or being programmed;
    /// [`MediaError::HostDiskFull`]; and the errors of a chunk that cannot be programmed.
    ///
    /// # Panics
    /// If the range is outside the region.
    #[inline]
    pub fn stage(
        &mut self,
        phys: PhysSector,
        from: &SharedRegion,
        offset: usize,
    ) -> Result<(), MediaError> {
        if self.store.stores_data() {
            self.check_stage(phys)?;
            self.store.copy_in(phys, from, offset);
        }
        Ok(())
    }

    /// Stages the data of a sector, like [`stage`](Nand::stage), from `sector_bytes` bytes.
    ///
    /// # Errors
    /// As [`stage`](Nand::stage); [`MediaError::OutOfRange`] for another number of bytes.
    pub fn stage_bytes(&mut self, phys: PhysSector, bytes: &[u8]) -> Result<(), MediaError> {
        let limit = self.layout.sector_bytes();
        if bytes.len() != limit as usize {
            let value = bytes.len() as u32;
            return Err(MediaError::OutOfRange { what: "bytes of a sector", value, limit });
        }
        if self.store.stores_data() {
            self.check_stage(phys)?;
            self.store.write(phys, bytes);
        }
        Ok(())
    }

    /// Stages the out-of-band bytes of a sector that is about to be programmed, at most
    /// `oob_bytes`; the remaining bytes are 0.
    ///
    /// # Errors
    /// As [`stage`](Nand::stage); [`MediaError::OutOfRange`] for too many bytes.
    pub fn set_oob(&mut self, phys: PhysSector, bytes: &[u8]) -> Result<(), MediaError> {
        let limit = self.layout.oob_bytes();
        if bytes.len() > limit as usize {
            let value = bytes.len() as u32;
            return Err(MediaError::OutOfRange { what: "out-of-band bytes", value, limit });
        }
        if self.store.stores_data() {
            self.check_stage(phys)?;
            self.store.write_oob(phys, bytes);
        }
        Ok(())
    }

    /// Stages out-of-band bytes from byte `offset` on, beside those that
    /// [`stage_slots`](Nand::stage_slots) or [`set_oob`](Nand::set_oob) has staged before.
    ///
    /// # Errors
    /// As [`set_oob`](Nand::set_oob).
    pub fn set_oob_at(
        &mut self,
        phys: PhysSector,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), MediaError> {
        let (end, limit) = (offset.saturating_add(bytes.len()), self.layout.oob_bytes());
        if end > limit as usize {
            let value = u32::try_from(end).unwrap_or(u32::MAX);
            return Err(MediaError::OutOfRange { what: "out-of-band bytes", value, limit });
        }
        if self.store.stores_data() {
            self.check_stage(phys)?;
            self.store.write_oob_at(phys, offset, bytes);
        }
        Ok(())
    }

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
    pub fn slot_to_write(&mut self, slot: BufferSlot) -> Option<(&SharedRegion, usize)> {
        self.store.slot_to_write(slot)
    }

    /// Writes `bytes`, contents of the FTL of at most a sector, to the start of a slot; the remaining
    /// bytes are 0. Does nothing if the medium stores no data.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn write_slot(&mut self, slot: BufferSlot, bytes: &[u8]) {
        self.store.write_slot(slot, bytes);
    }

    /// Stages sectors from `first` on with the data of the slots from `slot` on, and their
    /// out-of-band bytes, like [`stage`](Nand::stage) and [`set_oob`](Nand::set_oob). The slots keep
    /// the data. Does nothing if the medium stores no data.
    ///
    /// # Errors
    /// As [`set_oob`](Nand::set_oob); [`MediaError::OutOfRange`] for sectors past the end of the
    /// chunk. Nothing or some of the data is staged then.
    ///
    /// # Panics
    /// If a slot does not exist.
    #[inline]
    pub fn stage_slots<const OOB: usize>(
        &mut self,
        first: PhysSector,
        slot: BufferSlot,
        oobs: impl ExactSizeIterator<Item = [u8; OOB]>,
    ) -> Result<(), MediaError> {
        if !self.store.stores_data() {
            return Ok(());
        }
        // Of the sectors of a chunk from one on, all may be staged if that one may.
        self.check_stage(first)?;
        let (end, limit) =
            (self.layout.split(first).1 + oobs.len() as u32, self.layout.sectors_per_chunk());
        if end > limit {
            return Err(MediaError::OutOfRange {
                what: "sector of a chunk",
                value: end - 1,
                limit,
            });
        }
        let limit = self.layout.oob_bytes();
        if OOB > limit as usize {
            let value = OOB as u32;
            return Err(MediaError::OutOfRange { what: "out-of-band bytes", value, limit });
        }
        for (i, oob) in (0..).zip(oobs) {
            self.store.store_slot(BufferSlot(slot.0 + i), first + i);
            self.store.write_oob(first + i, &oob);
        }
        Ok(())
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

    /// Checks that data may be staged in a sector.
    #[inline]
    fn check_stage(&mut self, phys: PhysSector) -> Result<(), MediaError> {
        let (chunk, sector) = self.layout.split(phys);
        let record = match self.records.get(chunk.0 as usize) {
            Some(record) => *record,
            None => return Err(self.sector_out_of_range(phys)),
        };
        // An erase in progress has already removed the data.
        let free = if record.has_any(ERASING) {
            0
        } else if record.has_any(PROGRAMMING) {
            record.write_pointer() + self.layout.write_unit()
        } else {
            record.write_pointer()
        };
        if sector < free || record.has_any(BAD | DIE_FAILED | CLOSED | INTERRUPTED) {
            self.stats.refused_programs += 1;
            self.check_usable(chunk, record, Operation::Program)?;
            return Err(MediaError::Overwrite { phys, free });
        }
        self.reserve_chunk(chunk)
    }

    #[inline]
    fn reserve_chunk(&mut self, chunk: ChunkId) -> Result<(), MediaError> {
        let room = self.store.allocate_chunk(chunk, &self.records);
        self.stats.host_disk_failures += u64::from(room.is_err());
        room
    }

    /// Begins to program a unit: `write_unit` sectors of a chunk. A power cut before
    /// [`complete_program`](Nand::complete_program) tears the unit.
    ///
    /// # Errors
    /// [`MediaError::OutOfOrder`] if the unit is not at the write pointer; [`MediaError::Busy`] if
    /// an operation is in progress in the chunk; [`MediaError::ClosedEarly`],
    /// [`MediaError::EraseInterrupted`], [`MediaError::ChunkBad`], [`MediaError::DieFailed`],
    /// [`MediaError::HostDiskFull`].
    #[inline]
    pub fn begin_program(&mut self, chunk: ChunkId, unit: UnitInChunk) -> Result<(), MediaError> {
        let record = self.record(chunk)?;
        if !self.unit_start_sector(unit).is_some_and(|sector| record.can_program_at(sector)) {
            return Err(self.program_error(chunk, unit, record));
        }
        if self.store.stores_data() {
            self.reserve_chunk(chunk)?;
        }
        if unit == UnitInChunk(0)
            && let Some(ageing) = &mut self.aging
        {
            ageing.on_chunk_written(chunk);
        }
        self.set_record(chunk, record.with(PROGRAMMING));
        Ok(())
    }

    /// Returns the index of a unit's first sector in the chunk, if the unit exists.
    #[inline]
    fn unit_start_sector(&self, unit: UnitInChunk) -> Option<u32> {
        let sector = u64::from(unit.get()) * u64::from(self.layout.write_unit());
        (sector < u64::from(self.layout.sectors_per_chunk())).then_some(sector as u32)
    }

    #[cold]
    fn program_error(
        &mut self,
        chunk: ChunkId,
        unit: UnitInChunk,
        record: ChunkRecord,
    ) -> MediaError {
        self.stats.refused_programs += 1;
        let doing = Operation::Program;
        if let Err(error) = self.check_usable(chunk, record, doing) {
            error
        } else if record.has_any(PROGRAMMING) {
            MediaError::Busy { chunk, doing, with: Operation::Program }
        } else if record.has_any(ERASING) {
            MediaError::Busy { chunk, doing, with: Operation::Erase }
        } else {
            MediaError::OutOfOrder {
                chunk,
                unit,
                expected: self.layout.unit_of(record.write_pointer()),
            }
        }
    }

    /// Completes a program: the unit is programmed, and the write pointer moves past it.
    ///
    /// # Errors
    /// [`MediaError::ProgramFailed`]: the unit is lost, the chunk is closed, and its earlier
    /// contents stay readable. [`MediaError::ChunkBad`] or [`MediaError::DieFailed`] if that
    /// happened in the meantime; [`MediaError::NotBegun`].
    #[inline]
    pub fn complete_program(
        &mut self,
        chunk: ChunkId,
        unit: UnitInChunk,
    ) -> Result<(), MediaError> {
        let record = self.record(chunk)?;
        if !self.unit_start_sector(unit).is_some_and(|sector| record.is_programming(sector)) {
            return Err(self.complete_program_error(chunk, unit, record));
        }
        if self.programs_can_fail && self.die_fails(chunk, unit, record) {
            self.stats.program_failures += 1;
            let doing = Operation::Program;
            return Err(MediaError::DieFailed { pu: self.layout.pu_of(chunk), doing });
        }
        if self.programs_can_fail && self.program_fails(chunk, unit, record) {
            self.stats.program_failures += 1;
            self.set_record(chunk, record.without(PROGRAMMING).with(CLOSED));
            return Err(MediaError::ProgramFailed { chunk, unit });
        }
        self.stats.programs += 1;
        self.set_record(chunk, record.without(PROGRAMMING).advanced(self.layout.write_unit()));
        Ok(())
    }

    /// Whether the die fails with a program or an erase. If so, all of its chunks are lost.
    #[cold]
    fn die_fails(&mut self, chunk: ChunkId, unit: UnitInChunk, record: ChunkRecord) -> bool {
        let first = self.layout.unit_start(chunk, unit);
        let fails = self.failure_model.die_fails(first, record.wear());
        if fails {
            self.set_record(chunk, record.without(PROGRAMMING | ERASING));
            self.fail_die(self.layout.pu_of(chunk));
        }
        fails
    }

    /// Loses all chunks of a die.
    pub(super) fn fail_die(&mut self, pu: PuId) {
        for i in 0..self.layout.chunks_per_pu() {
            let chunk = self.layout.chunk(pu, i);
            self.set_record(chunk, self.records[chunk.0 as usize].with(DIE_FAILED));
        }
    }

    #[cold]
    fn program_fails(&mut self, chunk: ChunkId, unit: UnitInChunk, record: ChunkRecord) -> bool {
        let forced = self.injected_faults.take_program_fault(chunk, unit);
        self.programs_can_fail =
            self.failure_model.can_programs_fail() || self.injected_faults.has_pending_program();
        forced
            || self.failure_model.program_fails(self.layout.unit_start(chunk, unit), record.wear())
    }

    #[cold]
    fn complete_program_error(
        &mut self,
        chunk: ChunkId,
        unit: UnitInChunk,
        record: ChunkRecord,
    ) -> MediaError {
        let doing = Operation::Program;
        if !record.has_any(PROGRAMMING) || self.layout.unit_of(record.write_pointer()) != unit {
            return MediaError::NotBegun { chunk, doing };
        }
        // The chunk or its die failed while it was programmed.
        self.set_record(chunk, record.without(PROGRAMMING));
        self.stats.program_failures += 1;
        match self.check_usable(chunk, record, doing) {
            Err(error) => error,
            Ok(()) => MediaError::ProgramFailed { chunk, unit },
        }
    }

    /// Begins to erase a chunk, which adds one cycle of wear. Its data is gone immediately. A power
    /// cut before [`complete_erase`](Nand::complete_erase) requires another erase. A chunk in any
    /// state may be erased.
    ///
    /// # Errors
    /// [`MediaError::Busy`], [`MediaError::ChunkBad`], [`MediaError::DieFailed`].
    pub fn begin_erase(&mut self, chunk: ChunkId) -> Result<(), MediaError> {
        let record = self.record(chunk)?;
        let doing = Operation::Erase;
        self.check_usable(chunk, record, doing)?;
        for (flag, with) in [(PROGRAMMING, Operation::Program), (ERASING, Operation::Erase)] {
            if record.has_any(flag) {
                return Err(MediaError::Busy { chunk, doing, with });
            }
        }
        if record.has_any(HAS_DEFECTS) {
            self.clear_defects(chunk);
        }
        let erasing = ChunkRecord::ERASED
            .with_wear(record.wear() + 1)
            .with_write_pointer(self.layout.sectors_per_chunk())
            .with(ERASING);
        self.records[chunk.0 as usize] = erasing;
        self.store.on_erase(chunk);
        // The record must be stored before new data is staged over the old data.
        self.store.record_and_fence(chunk, erasing);
        Ok(())
    }

    fn clear_defects(&mut self, chunk: ChunkId) {
        let (units, sectors) = (self.layout.units_per_chunk(), self.layout.sectors_per_chunk());
        let first = chunk.0 * units;
        while let Some(&unit) = self.torn.range(first..first + units).next() {
            self.torn.remove(&unit);
        }
        let first = self.layout.phys(chunk, 0);
        while let Some(&phys) = self.uncorrectable.range(first..first + sectors).next() {
            self.uncorrectable.remove(&phys);
        }
        self.injected_faults.clear_reads(first, first + sectors);
    }

    /// Completes an erase: the chunk is free.
    ///
    /// # Errors
    /// [`MediaError::EraseFailed`]: the chunk is bad. [`MediaError::ChunkBad`] or
    /// [`MediaError::DieFailed`] if that happened in the meantime; [`MediaError::NotBegun`].
    pub fn complete_erase(&mut self, chunk: ChunkId) -> Result<(), MediaError> {
        let record = self.record(chunk)?;
        let doing = Operation::Erase;
        if !record.has_any(ERASING) {
            return Err(MediaError::NotBegun { chunk, doing });
        }
        if record.has_any(BAD | DIE_FAILED) {
            self.set_record(chunk, record.without(ERASING));
            self.stats.erase_failures += 1;
            self.check_usable(chunk, record, doing)?;
        }
        if self.die_fails(chunk, UnitInChunk(0), record) {
            self.stats.erase_failures += 1;
            return Err(MediaError::DieFailed { pu: self.layout.pu_of(chunk), doing });
        }
        let erased = ChunkRecord::ERASED.with_wear(record.wear());
        if self.injected_faults.take_erase_fault(chunk)
            || self.failure_model.erase_fails(chunk, record.wear())
        {
            self.stats.erase_failures += 1;
            self.set_record(chunk, erased.with(BAD));
            return Err(MediaError::EraseFailed { chunk });
        }
        self.stats.erases += 1;
        // Keep marks made during the erase, such as sectors made uncorrectable.
        self.set_record(chunk, erased.with(record.0 & HAS_DEFECTS));
        Ok(())
    }
}
