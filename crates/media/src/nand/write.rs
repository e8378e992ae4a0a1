//! Placing data, program and erase.

use ring::Region;

use super::Nand;
use crate::chunk::{BAD, CLOSED, DIE, ERASING, INTERRUPTED, MARKED, PROGRAMMING, Record};
use crate::{ChunkId, MediaError, Operation, Psn};

impl Nand {
    /// Places the data of a sector that is about to be programmed: `sector_bytes` of `from` at
    /// `offset`. It can be read once its unit is programmed. Nothing to do for a medium that keeps
    /// no data.
    ///
    /// # Errors
    /// [`MediaError::Overwrite`] when the sector is programmed or being programmed,
    /// [`MediaError::HostDiskFull`], and those of a chunk that cannot be programmed.
    ///
    /// # Panics
    /// When the range is outside of the region.
    #[inline]
    pub fn stage(&mut self, psn: Psn, from: &Region, offset: usize) -> Result<(), MediaError> {
        if self.store.keeps() {
            self.place(psn)?;
            self.store.copy_in(psn, from, offset);
        }
        Ok(())
    }

    /// As [`stage`](Nand::stage), from `sector_bytes` bytes.
    ///
    /// # Errors
    /// As [`stage`](Nand::stage); [`MediaError::OutOfRange`] for another number of bytes.
    pub fn stage_bytes(&mut self, psn: Psn, bytes: &[u8]) -> Result<(), MediaError> {
        let limit = self.layout.sector_bytes();
        if bytes.len() != limit as usize {
            let value = bytes.len() as u32;
            return Err(MediaError::OutOfRange { what: "bytes of a sector", value, limit });
        }
        if self.store.keeps() {
            self.place(psn)?;
            self.store.write(psn, bytes);
        }
        Ok(())
    }

    /// Places the out-of-band bytes of a sector that is about to be programmed, at most
    /// `oob_bytes`; the rest are 0.
    ///
    /// # Errors
    /// As [`stage`](Nand::stage); [`MediaError::OutOfRange`] for too many bytes.
    pub fn set_oob(&mut self, psn: Psn, bytes: &[u8]) -> Result<(), MediaError> {
        let limit = self.layout.oob_bytes();
        if bytes.len() > limit as usize {
            let value = bytes.len() as u32;
            return Err(MediaError::OutOfRange { what: "out-of-band bytes", value, limit });
        }
        if self.store.keeps() {
            self.place(psn)?;
            self.store.write_oob(psn, bytes);
        }
        Ok(())
    }

    /// Whether data may be placed in a sector.
    #[inline]
    fn place(&mut self, psn: Psn) -> Result<(), MediaError> {
        let (chunk, sector) = self.layout.split(psn);
        let record = match self.records.get(chunk.0 as usize) {
            Some(record) => *record,
            None => return Err(self.no_sector(psn)),
        };
        // What an erase that is under way removes is gone already.
        let free = if record.is(ERASING) {
            0
        } else if record.is(PROGRAMMING) {
            record.pointer() + self.layout.write_unit()
        } else {
            record.pointer()
        };
        if sector < free || record.is(BAD | DIE | CLOSED | INTERRUPTED) {
            self.stats.refused_programs += 1;
            self.usable(chunk, record, Operation::Program)?;
            return Err(MediaError::Overwrite { psn, free });
        }
        self.room(chunk)
    }

    #[inline]
    fn room(&mut self, chunk: ChunkId) -> Result<(), MediaError> {
        let room = self.store.prepare(chunk);
        self.stats.host_disk_failures += u64::from(room.is_err());
        room
    }

    /// Begins to program a unit: `write_unit` sectors of a chunk. Until
    /// [`end_program`](Nand::end_program) a power cut tears it.
    ///
    /// # Errors
    /// [`MediaError::OutOfOrder`] when the unit is not the one at the write pointer;
    /// [`MediaError::Busy`] when an operation is under way in the chunk;
    /// [`MediaError::ClosedEarly`], [`MediaError::EraseInterrupted`], [`MediaError::ChunkBad`],
    /// [`MediaError::DieFailed`], [`MediaError::HostDiskFull`].
    #[inline]
    pub fn begin_program(&mut self, chunk: ChunkId, unit: u32) -> Result<(), MediaError> {
        let record = self.record(chunk)?;
        if !self.start_of(unit).is_some_and(|sector| record.takes(sector)) {
            return Err(self.refuse_program(chunk, unit, record));
        }
        if self.store.keeps() {
            self.room(chunk)?;
        }
        if unit == 0
            && let Some(ageing) = &mut self.ageing
        {
            ageing.written(chunk);
        }
        self.set(chunk, record.with(PROGRAMMING));
        Ok(())
    }

    /// The sector in its chunk that a unit starts at, if there is such a unit.
    #[inline]
    fn start_of(&self, unit: u32) -> Option<u32> {
        let sector = u64::from(unit) * u64::from(self.layout.write_unit());
        (sector < u64::from(self.layout.sectors_per_chunk())).then_some(sector as u32)
    }

    #[cold]
    fn refuse_program(&mut self, chunk: ChunkId, unit: u32, record: Record) -> MediaError {
        self.stats.refused_programs += 1;
        let doing = Operation::Program;
        if let Err(error) = self.usable(chunk, record, doing) {
            error
        } else if record.is(PROGRAMMING) {
            MediaError::Busy { chunk, doing, with: Operation::Program }
        } else if record.is(ERASING) {
            MediaError::Busy { chunk, doing, with: Operation::Erase }
        } else {
            MediaError::OutOfOrder { chunk, unit, expected: self.layout.unit_of(record.pointer()) }
        }
    }

    /// Ends a program: the unit is programmed, and the write pointer moves past it.
    ///
    /// # Errors
    /// [`MediaError::ProgramFailed`]: the unit is lost, the chunk is closed, and what it held before
    /// is readable. [`MediaError::ChunkBad`] or [`MediaError::DieFailed`] when that happened
    /// meanwhile; [`MediaError::NotBegun`].
    #[inline]
    pub fn end_program(&mut self, chunk: ChunkId, unit: u32) -> Result<(), MediaError> {
        let record = self.record(chunk)?;
        if !self.start_of(unit).is_some_and(|sector| record.is_programming(sector)) {
            return Err(self.refuse_end_program(chunk, unit, record));
        }
        if self.programs_can_fail && self.program_fails(chunk, unit, record) {
            self.stats.program_failures += 1;
            self.set(chunk, record.without(PROGRAMMING).with(CLOSED));
            return Err(MediaError::ProgramFailed { chunk, unit });
        }
        self.stats.programs += 1;
        self.set(chunk, record.without(PROGRAMMING).advanced(self.layout.write_unit()));
        Ok(())
    }

    #[cold]
    fn program_fails(&mut self, chunk: ChunkId, unit: u32, record: Record) -> bool {
        let forced = self.forced.takes_program(chunk, unit);
        self.programs_can_fail = self.failures.programs_fail() || self.forced.awaits_program();
        forced || self.failures.program(self.layout.unit_start(chunk, unit), record.wear())
    }

    #[cold]
    fn refuse_end_program(&mut self, chunk: ChunkId, unit: u32, record: Record) -> MediaError {
        let doing = Operation::Program;
        if !record.is(PROGRAMMING) || self.layout.unit_of(record.pointer()) != unit {
            return MediaError::NotBegun { chunk, doing };
        }
        // The chunk went bad, or its die, while it was programmed.
        self.set(chunk, record.without(PROGRAMMING));
        self.stats.program_failures += 1;
        match self.usable(chunk, record, doing) {
            Err(error) => error,
            Ok(()) => MediaError::ProgramFailed { chunk, unit },
        }
    }

    /// Begins to erase a chunk, which wears it by one cycle. Its data is gone from now on; until
    /// [`end_erase`](Nand::end_erase) a power cut leaves it to be erased again. Physics allows to
    /// erase a chunk in any state.
    ///
    /// # Errors
    /// [`MediaError::Busy`], [`MediaError::ChunkBad`], [`MediaError::DieFailed`].
    pub fn begin_erase(&mut self, chunk: ChunkId) -> Result<(), MediaError> {
        let record = self.record(chunk)?;
        let doing = Operation::Erase;
        self.usable(chunk, record, doing)?;
        for (flag, with) in [(PROGRAMMING, Operation::Program), (ERASING, Operation::Erase)] {
            if record.is(flag) {
                return Err(MediaError::Busy { chunk, doing, with });
            }
        }
        if record.is(MARKED) {
            self.forget_marks(chunk);
        }
        let erasing = Record::FRESH
            .with_wear(record.wear() + 1)
            .with_pointer(self.layout.sectors_per_chunk())
            .with(ERASING);
        self.records[chunk.0 as usize] = erasing;
        // Before data for the next program is placed where the old data was.
        self.store.record_first(chunk, erasing);
        Ok(())
    }

    fn forget_marks(&mut self, chunk: ChunkId) {
        let (units, sectors) = (self.layout.units_per_chunk(), self.layout.sectors_per_chunk());
        let first = chunk.0 * units;
        while let Some(&unit) = self.torn.range(first..first + units).next() {
            self.torn.remove(&unit);
        }
        let first = self.layout.psn(chunk, 0);
        while let Some(&psn) = self.uncorrectable.range(first..Psn(first.0 + sectors)).next() {
            self.uncorrectable.remove(&psn);
        }
    }

    /// Ends an erase: the chunk is free.
    ///
    /// # Errors
    /// [`MediaError::EraseFailed`]: the chunk is bad. [`MediaError::ChunkBad`] or
    /// [`MediaError::DieFailed`] when that happened meanwhile; [`MediaError::NotBegun`].
    pub fn end_erase(&mut self, chunk: ChunkId) -> Result<(), MediaError> {
        let record = self.record(chunk)?;
        let doing = Operation::Erase;
        if !record.is(ERASING) {
            return Err(MediaError::NotBegun { chunk, doing });
        }
        if record.is(BAD | DIE) {
            self.set(chunk, record.without(ERASING));
            self.stats.erase_failures += 1;
            self.usable(chunk, record, doing)?;
        }
        let erased = Record::FRESH.with_wear(record.wear());
        if self.forced.takes_erase(chunk) || self.failures.erase(chunk, record.wear()) {
            self.stats.erase_failures += 1;
            self.set(chunk, erased.with(BAD));
            return Err(MediaError::EraseFailed { chunk });
        }
        self.stats.erases += 1;
        // Marks of this erase's past, such as sectors made uncorrectable while it was under way.
        self.set(chunk, erased.with(record.0 & MARKED));
        Ok(())
    }
}
