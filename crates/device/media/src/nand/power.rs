//! Power cuts, injected faults, wear presets, and the release of free space.

use std::io;

use super::Nand;
use crate::chunk::{BAD, ChunkRecord, DIE_FAILED, ERASING, HAS_DEFECTS, INTERRUPTED, PROGRAMMING};
use crate::{
    ChunkId, HostFlushStats, InjectedFault, MediaError, Operation, PhysSector, PowerLossReport,
    SyncObserver,
};

/// The bits that change in each byte of a corrupted sector.
const CORRUPTION: u8 = 0x5a;

impl Nand {
    /// Cuts the power: units in programming become torn, and the write pointer covers them;
    /// interrupted erases must be repeated. The medium is then in the state of the next power-on.
    pub fn power_cut(&mut self) -> PowerLossReport {
        self.stats.power_cuts += 1;
        self.resolve_interrupted()
    }

    /// Resolves the operations in progress.
    pub(super) fn resolve_interrupted(&mut self) -> PowerLossReport {
        let mut cut = PowerLossReport::default();
        for i in 0..self.records.len() {
            let (chunk, record) = (ChunkId(i as u32), self.records[i]);
            if record.has_any(PROGRAMMING | ERASING) && record.has_any(BAD | DIE_FAILED) {
                self.set_record(chunk, record.without(PROGRAMMING | ERASING));
            } else if record.has_any(PROGRAMMING) {
                let unit = self.layout.unit_of(record.write_pointer());
                let record = self.prepare_defect_mark(chunk);
                self.torn.insert(chunk.0 * self.layout.units_per_chunk() + unit.get());
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

    /// Returns the record of a chunk that is about to get a defect mark. Clears marks in the image
    /// that date from before the chunk's last erase.
    fn prepare_defect_mark(&mut self, chunk: ChunkId) -> ChunkRecord {
        let record = self.records[chunk.0 as usize];
        if !record.has_any(HAS_DEFECTS) {
            self.store.clear_marks(chunk);
        }
        record.with(HAS_DEFECTS)
    }

    /// Injects a fault.
    ///
    /// # Errors
    /// [`MediaError::OutOfRange`] for an object that does not exist.
    ///
    /// # Panics
    /// If a rate is not from 0 to 1.
    pub fn inject(&mut self, fault: InjectedFault) -> Result<(), MediaError> {
        match fault {
            InjectedFault::Program { chunk, unit } => {
                self.record(chunk)?;
                let limit = self.layout.units_per_chunk();
                if unit.get() >= limit {
                    return Err(MediaError::OutOfRange { what: "unit", value: unit.get(), limit });
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
            InjectedFault::Read { phys } => {
                self.mark_defect(phys)?;
                self.injected_faults.fail_read(phys);
            }
            InjectedFault::Rate { operation, rate } => {
                assert!((0.0..=1.0).contains(&rate), "the rate {rate} is a share from 0 to 1");
                self.injected_faults.start_rate(operation, rate, self.config.seed);
                match operation {
                    Operation::Read => self.reads_fail_at_rate = true,
                    Operation::Program => self.programs_can_fail = true,
                    Operation::Erase => {}
                }
            }
            InjectedFault::Uncorrectable { phys } => {
                self.mark_defect(phys)?;
                self.uncorrectable.insert(phys);
            }
            InjectedFault::Corrupt { phys } => {
                self.record(self.layout.chunk_of(phys))
                    .map_err(|_| self.sector_out_of_range(phys))?;
                if self.store.stores_data() {
                    let mut bytes = vec![0; self.layout.sector_bytes() as usize];
                    self.store.read(phys, &mut bytes);
                    bytes.iter_mut().for_each(|byte| *byte ^= CORRUPTION);
                    self.store.write(phys, &bytes);
                }
            }
            InjectedFault::CorruptOob { phys, offset } => {
                self.record(self.layout.chunk_of(phys))
                    .map_err(|_| self.sector_out_of_range(phys))?;
                let limit = self.layout.oob_bytes();
                if offset >= limit {
                    let what = "out-of-band byte";
                    return Err(MediaError::OutOfRange { what, value: offset, limit });
                }
                let mut byte = [0];
                self.store.read_oob_at(phys, offset as usize, &mut byte);
                self.store.write_oob_at(phys, offset as usize, &[byte[0] ^ CORRUPTION]);
            }
            InjectedFault::ChunkBad { chunk } => {
                let record = self.record(chunk)?;
                self.set_record(chunk, record.with(BAD));
            }
            InjectedFault::DieFailure { pu } => {
                let limit = self.layout.pu_count();
                if pu.get() >= limit {
                    return Err(MediaError::OutOfRange { what: "PU", value: pu.get(), limit });
                }
                self.fail_die(pu);
            }
            InjectedFault::HostDiskFull => self.store.fail_next_allocation(),
            InjectedFault::HostFlush => {
                if let Some(synced) = self.store.synced_mut() {
                    synced.fail_next();
                }
            }
        }
        Ok(())
    }

    /// Marks the chunk of a sector as one with a defect.
    fn mark_defect(&mut self, phys: PhysSector) -> Result<(), MediaError> {
        let chunk = self.layout.chunk_of(phys);
        self.record(chunk).map_err(|_| self.sector_out_of_range(phys))?;
        let record = self.prepare_defect_mark(chunk);
        self.set_record(chunk, record);
        Ok(())
    }

    /// Ends the failures of operations at a rate. Returns the number of operations that failed.
    pub fn end_failures(&mut self, operation: Operation) -> u64 {
        if operation == Operation::Read {
            self.reads_fail_at_rate = false;
        }
        // `programs_can_fail` is updated by the next program.
        self.injected_faults.end_rate(operation)
    }

    /// Returns the number of operations that have failed at the rate in force; `None` without one.
    pub fn failed_at_rate(&self, operation: Operation) -> Option<u64> {
        self.injected_faults.failed_at_rate(operation)
    }

    /// Whether an injected failure of one addressed operation has not occurred yet. Other faults
    /// take effect at once.
    pub fn is_pending(&self, fault: &InjectedFault) -> bool {
        let faults = &self.injected_faults;
        match *fault {
            InjectedFault::Program { chunk, unit } => faults.fails_next_program(chunk, unit),
            InjectedFault::Erase { chunk } => faults.fails_next_erase(chunk),
            InjectedFault::Read { phys } => faults.fails_next_read(phys),
            _ => false,
        }
    }

    /// Sets the program/erase cycles of a chunk, to emulate a used drive.
    ///
    /// # Errors
    /// [`MediaError::OutOfRange`] for a chunk that does not exist.
    pub fn set_wear(&mut self, chunk: ChunkId, cycles: u32) -> Result<(), MediaError> {
        let record = self.record(chunk)?;
        self.set_record(chunk, record.with_wear(cycles));
        Ok(())
    }

    /// Returns the memory or disk blocks of free chunks to the operating system. Erases do not do
    /// so, because the chunk is soon written again. The caller must not have staged data in a free
    /// chunk.
    ///
    /// # Errors
    /// The error of the operating system; the medium does not change.
    pub fn release_free(&mut self) -> io::Result<()> {
        // The state of the last flush may refer to a chunk that is free now.
        self.store.flush_to_host(&self.records)?;
        let mut run: Option<(u32, u32)> = None;
        for i in 0..=self.records.len() {
            let free =
                self.records.get(i).is_some_and(|r| r.write_pointer() == 0 && r.has_no_flags());
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
        self.store.discard_free()
    }

    /// Removes the stored bytes of all chunks that are erased, also of those whose erase has failed: an
    /// erase by itself only has them read as unwritten. The caller must not have staged data in a free
    /// chunk.
    ///
    /// # Errors
    /// The error of the operating system; bytes may be left.
    pub fn discard_erased(&mut self) -> io::Result<()> {
        // The state of the last flush may refer to a chunk that is free now.
        self.store.flush_to_host(&self.records)?;
        for (chunk, record) in (0..).map(ChunkId).zip(&self.records) {
            if record.write_pointer() == 0 && !record.has_any(ERASING | PROGRAMMING) {
                self.store.discard(chunk)?;
            }
        }
        self.store.discard_free()
    }

    /// Waits until everything that was programmed and erased is on the host's stable storage. A crash
    /// of the host is then a power cut at this time, or at that of a later flush. Does nothing unless
    /// the data is in a [`DataStore::DurableFile`](crate::DataStore::DurableFile), or if nothing
    /// changed since the last flush.
    ///
    /// # Errors
    /// The error of `fdatasync(2)`. After a failure, data may be lost: all later flushes fail.
    pub fn flush_to_host(&mut self) -> io::Result<()> {
        self.store.flush_to_host(&self.records)
    }

    /// Returns the counters of flushes to the host's stable storage; `None` unless flushes reach it.
    pub fn host_flush_stats(&self) -> Option<HostFlushStats> {
        self.store.host_flush_stats()
    }

    /// Calls the observer whenever the host's stable storage has everything that was written to the
    /// image, for tests that lose the rest. No effect unless flushes reach it.
    pub fn observe_host_flushes(&mut self, observer: SyncObserver) {
        if let Some(synced) = self.store.synced_mut() {
            synced.observe(observer);
        }
    }

    /// Waits until all data is on the image's device, at the end of the medium's use.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn close(&mut self) -> io::Result<()> {
        self.store.close(&self.records)
    }

    /// Waits until all data is on the image's device. Does nothing without an image.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn sync(&self) -> io::Result<()> {
        self.store.sync()
    }
}
