//! Power cuts, forced faults, and what a medium is told from outside of its operations.

use std::io;

use super::Nand;
use crate::chunk::{BAD, ChunkRecord, DIE_FAILED, ERASING, HAS_DEFECTS, INTERRUPTED, PROGRAMMING};
use crate::{ChunkIndex, InjectedFault, MediaError, PowerLossReport};

impl Nand {
    /// Cuts the power: programs that are under way leave torn units, which the write pointer
    /// covers; erases that are under way must be repeated. The medium is then as the next
    /// power-on finds it.
    pub fn power_cut(&mut self) -> PowerLossReport {
        self.stats.power_cuts += 1;
        self.resolve_interrupted()
    }

    /// Resolves the operations that are under way.
    pub(super) fn resolve_interrupted(&mut self) -> PowerLossReport {
        let mut cut = PowerLossReport::default();
        for i in 0..self.records.len() {
            let (chunk, record) = (ChunkIndex(i as u32), self.records[i]);
            if record.has_any(PROGRAMMING | ERASING) && record.has_any(BAD | DIE_FAILED) {
                self.set_record(chunk, record.without(PROGRAMMING | ERASING));
            } else if record.has_any(PROGRAMMING) {
                let unit = self.layout.unit_of(record.write_pointer());
                let record = self.prepare_defect_mark(chunk);
                self.torn.insert(chunk.0 * self.layout.units_per_chunk() + unit);
                self.store.mark_torn(chunk, unit);
                let past = record.without(PROGRAMMING).advanced(self.layout.write_unit());
                self.set_record(chunk, past);
                cut.torn_units += 1;
            } else if record.has_any(ERASING) {
                self.set_record(chunk, record.without(ERASING).with(INTERRUPTED));
                cut.interrupted_erases += 1;
            }
        }
        self.stats.torn_units += u64::from(cut.torn_units);
        self.stats.interrupted_erases += u64::from(cut.interrupted_erases);
        cut
    }

    /// The record of a chunk that is about to get a mark. Marks that an image has from before the
    /// chunk's last erase go first.
    fn prepare_defect_mark(&mut self, chunk: ChunkIndex) -> ChunkRecord {
        let record = self.records[chunk.0 as usize];
        if !record.has_any(HAS_DEFECTS) {
            self.store.clear_marks(chunk);
        }
        record.with(HAS_DEFECTS)
    }

    /// Forces a fault.
    ///
    /// # Errors
    /// [`MediaError::OutOfRange`] for something that does not exist.
    pub fn inject(&mut self, fault: InjectedFault) -> Result<(), MediaError> {
        match fault {
            InjectedFault::Program { chunk, unit } => {
                self.record(chunk)?;
                let limit = self.layout.units_per_chunk();
                if unit >= limit {
                    return Err(MediaError::OutOfRange { what: "unit", value: unit, limit });
                }
                self.injected_faults.fail_program(chunk, unit);
                self.programs_can_fail = true;
            }
            InjectedFault::NextProgram => {
                self.injected_faults.fail_next_program();
                self.programs_can_fail = true;
            }
            InjectedFault::Erase { chunk } => {
                self.record(chunk)?;
                self.injected_faults.fail_erase(chunk);
            }
            InjectedFault::NextErase => self.injected_faults.fail_next_erase(),
            InjectedFault::Uncorrectable { psn } => {
                let chunk = self.layout.chunk_of(psn);
                self.record(chunk).map_err(|_| self.sector_out_of_range(psn))?;
                let record = self.prepare_defect_mark(chunk);
                self.uncorrectable.insert(psn);
                self.set_record(chunk, record);
            }
            InjectedFault::ChunkBad { chunk } => {
                let record = self.record(chunk)?;
                self.set_record(chunk, record.with(BAD));
            }
            InjectedFault::DieFailure { pu } => {
                let limit = self.layout.pu_count();
                if pu >= limit {
                    return Err(MediaError::OutOfRange { what: "PU", value: pu, limit });
                }
                for i in 0..self.layout.chunks_per_pu() {
                    let chunk = self.layout.chunk(pu, i);
                    self.set_record(chunk, self.records[chunk.0 as usize].with(DIE_FAILED));
                }
            }
            InjectedFault::HostDiskFull => self.store.fail_next_allocation(),
        }
        Ok(())
    }

    /// Gives a chunk a past of so many program/erase cycles, for a drive that is not new.
    ///
    /// # Errors
    /// [`MediaError::OutOfRange`] for a chunk that does not exist.
    pub fn set_wear(&mut self, chunk: ChunkIndex, cycles: u32) -> Result<(), MediaError> {
        let record = self.record(chunk)?;
        self.set_record(chunk, record.with_wear(cycles));
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
            let free =
                self.records.get(i).is_some_and(|r| r.write_pointer() == 0 && r.has_no_flags());
            run = match (run, free) {
                (None, true) => Some((i as u32, 1)),
                (Some((first, n)), true) => Some((first, n + 1)),
                (Some((first, n)), false) => {
                    self.store.release(ChunkIndex(first), n)?;
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
