//! Power cuts, forced faults, and what a medium is told from outside of its operations.

use std::io;

use super::Nand;
use crate::chunk::{BAD, DIE, ERASING, INTERRUPTED, MARKED, PROGRAMMING, Record};
use crate::{ChunkId, Fault, MediaError, PowerCut};

impl Nand {
    /// Cuts the power: programs that are under way leave torn units, which the write pointer
    /// covers; erases that are under way must be repeated. The medium is then as the next
    /// power-on finds it.
    pub fn power_cut(&mut self) -> PowerCut {
        self.stats.power_cuts += 1;
        self.resolve()
    }

    /// Resolves the operations that are under way.
    pub(super) fn resolve(&mut self) -> PowerCut {
        let mut cut = PowerCut::default();
        for i in 0..self.records.len() {
            let (chunk, record) = (ChunkId(i as u32), self.records[i]);
            if record.is(PROGRAMMING | ERASING) && record.is(BAD | DIE) {
                self.set(chunk, record.without(PROGRAMMING | ERASING));
            } else if record.is(PROGRAMMING) {
                let unit = self.layout.unit_of(record.pointer());
                let record = self.marked(chunk);
                self.torn.insert(chunk.0 * self.layout.units_per_chunk() + unit);
                self.store.mark_torn(chunk, unit);
                let past = record.without(PROGRAMMING).advanced(self.layout.write_unit());
                self.set(chunk, past);
                cut.torn_units += 1;
            } else if record.is(ERASING) {
                self.set(chunk, record.without(ERASING).with(INTERRUPTED));
                cut.interrupted_erases += 1;
            }
        }
        self.stats.torn_units += u64::from(cut.torn_units);
        self.stats.interrupted_erases += u64::from(cut.interrupted_erases);
        cut
    }

    /// The record of a chunk that is about to get a mark. Marks that an image has from before the
    /// chunk's last erase go first.
    fn marked(&mut self, chunk: ChunkId) -> Record {
        let record = self.records[chunk.0 as usize];
        if !record.is(MARKED) {
            self.store.clear_marks(chunk);
        }
        record.with(MARKED)
    }

    /// Forces a fault.
    ///
    /// # Errors
    /// [`MediaError::OutOfRange`] for something that does not exist.
    pub fn inject(&mut self, fault: Fault) -> Result<(), MediaError> {
        match fault {
            Fault::Program { chunk, unit } => {
                self.record(chunk)?;
                let limit = self.layout.units_per_chunk();
                if unit >= limit {
                    return Err(MediaError::OutOfRange { what: "unit", value: unit, limit });
                }
                self.forced.program(chunk, unit);
                self.programs_can_fail = true;
            }
            Fault::NextProgram => {
                self.forced.next_program();
                self.programs_can_fail = true;
            }
            Fault::Erase { chunk } => {
                self.record(chunk)?;
                self.forced.erase(chunk);
            }
            Fault::NextErase => self.forced.next_erase(),
            Fault::Uncorrectable { psn } => {
                let chunk = self.layout.chunk_of(psn);
                self.record(chunk).map_err(|_| self.no_sector(psn))?;
                let record = self.marked(chunk);
                self.uncorrectable.insert(psn);
                self.set(chunk, record);
            }
            Fault::ChunkBad { chunk } => {
                let record = self.record(chunk)?;
                self.set(chunk, record.with(BAD));
            }
            Fault::DieFailure { pu } => {
                let limit = self.layout.pu_count();
                if pu >= limit {
                    return Err(MediaError::OutOfRange { what: "PU", value: pu, limit });
                }
                for i in 0..self.layout.chunks_per_pu() {
                    let chunk = self.layout.chunk(pu, i);
                    self.set(chunk, self.records[chunk.0 as usize].with(DIE));
                }
            }
            Fault::HostDiskFull => self.store.refuse_room(),
        }
        Ok(())
    }

    /// Gives a chunk a past of so many program/erase cycles, for a drive that is not new.
    ///
    /// # Errors
    /// [`MediaError::OutOfRange`] for a chunk that does not exist.
    pub fn set_wear(&mut self, chunk: ChunkId, cycles: u32) -> Result<(), MediaError> {
        let record = self.record(chunk)?;
        self.set(chunk, record.with_wear(cycles));
        Ok(())
    }

    /// Gives the memory or disk blocks of free chunks back to the machine; erases do not, since the
    /// chunk is about to be written again. To be called when no data is staged in a free chunk.
    ///
    /// # Errors
    /// What the operating system says; the medium is as before.
    pub fn release_free(&mut self) -> io::Result<()> {
        let mut run: Option<(u32, u32)> = None;
        for i in 0..=self.records.len() {
            let free = self.records.get(i).is_some_and(|r| r.pointer() == 0 && r.is_plain());
            run = match (run, free) {
                (None, true) => Some((i as u32, 1)),
                (Some((first, n)), true) => Some((first, n + 1)),
                (Some((first, n)), false) => {
                    self.store.release(ChunkId(first), n)?;
                    None
                }
                (None, false) => None,
            };
        }
        Ok(())
    }

    /// Waits until everything is on the image's device. Nothing to do without an image.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn sync(&self) -> io::Result<()> {
        self.store.sync()
    }
}
