//! [`Nand`]: NAND flash [LightNVM17 §2.1, §2.2].
//!
//! Invariants, in every build (ARCHITECTURE.md, R5): a unit is programmed only at its chunk's write
//! pointer, and only once between erases. A sector is readable only when it and its paired pages
//! are programmed. A chunk has at most one operation in progress. A power cut leaves a unit in
//! programming torn, and a chunk in erasure unusable until it is erased again. For a medium in an
//! image, the death of the process has the same effect.
//!
//! Error-free operations allocate nothing and take nanoseconds: one comparison of the chunk's word
//! checks all rules, and only a mismatch is examined further.

mod aging;
pub(crate) mod paired_pages;
mod power;
mod retry;
mod write;

use std::collections::BTreeSet;

use mem::SharedRegion;
use serde::{Deserialize, Serialize};

use aging::Aging;
use time::Nanos;

use crate::chunk::{
    BAD, CLOSED, ChunkRecord, DIE_FAILED, ERASING, HAS_DEFECTS, INTERRUPTED, PROGRAMMING,
};
use crate::faults::fault_injection::InjectedFaults;
use crate::faults::fault_model::{BitErrorModel, FailureModel};
use crate::nand::paired_pages::PairedPages;
use crate::storage::image::OpenMode;
use crate::storage::store::{OpenedStore, Store};
use crate::{
    BufferSlot, ChunkId, ChunkInfo, MediaError, MediaStats, NandConfig, NandLayout, OpenError,
    Operation, PhysSector, SectorBufferStats, Wear,
};

/// The result of a successful read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadInfo {
    /// Corrected bit errors.
    pub corrected_bits: u32,
    /// Bit errors of the first attempt.
    pub raw_bits: u32,
    /// Whether `raw_bits` exceeds three quarters of the correctable bits: the data should be
    /// relocated soon.
    pub high_ecc: bool,
    /// Read retries made.
    pub retries: u32,
}

/// NAND flash.
///
/// ```
/// # use time::Nanos;
/// # use sluice_media as media;
/// use media::{CellType, ChunkId, DataStore, ErrorModel, MediaError};
/// use media::{Nand, NandConfig, NandGeometry, NandTiming, PhysSector, UnitInChunk};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut nand = Nand::create(NandConfig {
///     geometry: NandGeometry {
///         channels: 1,
///         pus: 2,
///         planes: 1,
///         chunks: 8,
///         pages: 4,
///         page_bytes: 4096,
///         sector_bytes: 4096,
///         oob_bytes: 16,
///     },
///     cell: CellType::Mlc,
///     one_shot: false,
///     paired_page_distance: 1,
///     timing: NandTiming::uniform(Nanos(50_000), Nanos(1_000_000), Nanos(5_000_000), 0),
///     errors: ErrorModel::default(),
///     data: DataStore::Memory,
///     seed: 1,
/// })?;
/// let chunk = ChunkId(3);
/// for unit in UnitInChunk(0).run(2) {
///     nand.stage_bytes(nand.layout().unit_start(chunk, unit), &[unit.get() as u8; 4096])?;
///     nand.begin_program(chunk, unit)?;
///     nand.complete_program(chunk, unit)?;
/// }
/// nand.check_read(PhysSector(12))?;
/// let unpaired = nand.check_read(PhysSector(13));
/// assert!(matches!(unpaired, Err(MediaError::PairNotProgrammed { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Nand {
    config: NandConfig,
    layout: NandLayout,
    paired_pages: PairedPages,
    records: Vec<ChunkRecord>,
    store: Store,
    /// Torn units: `chunk × units_per_chunk + unit`. Their chunks have `HAS_DEFECTS`.
    torn: BTreeSet<u32>,
    /// Sectors made uncorrectable. Their chunks have `HAS_DEFECTS`.
    uncorrectable: BTreeSet<PhysSector>,
    failure_model: FailureModel,
    bit_error_model: Option<BitErrorModel>,
    /// The aging state, if the medium ages.
    aging: Option<Aging>,
    injected_faults: InjectedFaults,
    /// Whether a program failure is possible: random or injected.
    programs_can_fail: bool,
    /// Whether an injected fault makes reads fail at a rate.
    reads_fail_at_rate: bool,
    stats: MediaStats,
}

impl Nand {
    /// Creates a fresh medium. An image file must be missing or empty.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn create(config: NandConfig) -> Result<Nand, OpenError> {
        Nand::build(config, OpenMode::Create)
    }

    /// Opens the medium in an existing image file; a medium without a file is fresh.
    ///
    /// A medium keeps the seed of its creation, regardless of the configuration, because the seed
    /// decides which cells are weak. Operations that were in progress when the last process ended
    /// are resolved as by a power cut.
    ///
    /// # Errors
    /// [`OpenError`]; a refused file is not changed.
    pub fn open(config: NandConfig) -> Result<Nand, OpenError> {
        Nand::build(config, OpenMode::Open)
    }

    /// Opens the medium in the image file, or creates a fresh one if the file is missing or empty.
    ///
    /// # Errors
    /// [`OpenError`]; a refused file is not changed.
    pub fn open_or_create(config: NandConfig) -> Result<Nand, OpenError> {
        Nand::build(config, OpenMode::OpenOrCreate)
    }

    fn build(mut config: NandConfig, mode: OpenMode) -> Result<Nand, OpenError> {
        config.check()?;
        config.errors.check()?;
        let layout = NandLayout::new(&config);
        let OpenedStore { store, records, seed } = Store::open(&config, layout, mode)?;
        config.seed = seed;
        let failures = FailureModel::new(&config, seed);
        let mut nand = Nand {
            layout,
            aging: Aging::new(&config.errors, records.len()),
            paired_pages: PairedPages::new(&config, &layout),
            records,
            store,
            torn: BTreeSet::new(),
            uncorrectable: BTreeSet::new(),
            programs_can_fail: failures.can_programs_fail(),
            reads_fail_at_rate: false,
            failure_model: failures,
            bit_error_model: BitErrorModel::new(&config, seed),
            injected_faults: InjectedFaults::default(),
            stats: MediaStats::default(),
            config,
        };
        for i in 0..nand.records.len() {
            if nand.records[i].has_any(HAS_DEFECTS) {
                let first = i as u32 * layout.units_per_chunk();
                let torn = nand.store.torn_units(ChunkId(i as u32));
                nand.torn.extend(torn.into_iter().map(|unit| first + unit));
            }
        }
        nand.resolve_interrupted();
        Ok(nand)
    }

    /// Returns the configuration, with the seed in use.
    pub fn config(&self) -> &NandConfig {
        &self.config
    }

    /// Sets the present time, for a medium that ages.
    #[inline]
    pub fn set_time(&mut self, now: Nanos) {
        if let Some(ageing) = &mut self.aging {
            ageing.set_time(now);
        }
    }

    /// Returns the bit error factor of a chunk relative to freshly written data, and counts a read.
    #[inline]
    fn age(&mut self, chunk: ChunkId) -> f64 {
        let Some(ageing) = &mut self.aging else { return 1.0 };
        let factor = ageing.rber_factor(chunk);
        ageing.on_read(chunk);
        factor
    }

    /// Returns the numbering of sectors and chunks.
    #[inline]
    pub fn layout(&self) -> &NandLayout {
        &self.layout
    }

    /// Returns the state of a chunk; `None` past the end.
    #[inline]
    pub fn chunk_info(&self, chunk: ChunkId) -> Option<ChunkInfo> {
        self.records.get(chunk.0 as usize).map(|r| r.info(&self.layout))
    }

    /// Whether a power cut interrupted a chunk's last erase: its state is
    /// [closed](ChunkInfo::state), but nothing in it is readable.
    pub fn is_erase_interrupted(&self, chunk: ChunkId) -> bool {
        self.records.get(chunk.0 as usize).is_some_and(|r| r.has_any(INTERRUPTED))
    }

    /// Whether a chunk has data that no erase has removed, also if the chunk is offline and its data
    /// cannot be read any more.
    pub fn has_data(&self, chunk: ChunkId) -> bool {
        self.records.get(chunk.0 as usize).is_some_and(|r| r.write_pointer() > 0)
    }

    /// Returns the state of every chunk.
    pub fn chunks(&self) -> impl Iterator<Item = (ChunkId, ChunkInfo)> + '_ {
        (0..).map(ChunkId).zip(self.records.iter().map(|r| r.info(&self.layout)))
    }

    /// Returns the counters, and the wear statistics, which visit every chunk.
    pub fn stats(&self) -> MediaStats {
        let good = || self.records.iter().filter(|r| !r.has_any(BAD | DIE_FAILED));
        MediaStats {
            wear: Wear::from_cycles(good().map(|r| r.wear())),
            offline_chunks: (self.records.len() - good().count()) as u32,
            ..self.stats
        }
    }

    #[inline]
    fn record(&self, chunk: ChunkId) -> Result<ChunkRecord, MediaError> {
        self.records.get(chunk.0 as usize).copied().ok_or(MediaError::OutOfRange {
            what: "chunk",
            value: chunk.0,
            limit: self.layout.chunk_count(),
        })
    }

    #[inline]
    fn set_record(&mut self, chunk: ChunkId, record: ChunkRecord) {
        self.records[chunk.0 as usize] = record;
        self.store.record(chunk, record);
    }

    #[cold]
    fn sector_out_of_range(&self, phys: PhysSector) -> MediaError {
        let limit = self.layout.sector_count();
        MediaError::OutOfRange { what: "sector", value: phys.0, limit }
    }

    /// Checks that a chunk is not bad, failed or in need of an erase.
    #[cold]
    fn check_usable(
        &mut self,
        chunk: ChunkId,
        record: ChunkRecord,
        doing: Operation,
    ) -> Result<(), MediaError> {
        let error = if record.has_any(DIE_FAILED) {
            MediaError::DieFailed { pu: self.layout.pu_of(chunk), doing }
        } else if record.has_any(BAD) {
            MediaError::ChunkBad { chunk, doing }
        } else if record.has_any(INTERRUPTED) && doing != Operation::Erase {
            MediaError::EraseInterrupted { chunk, doing }
        } else if record.has_any(CLOSED) && doing == Operation::Program {
            return Err(MediaError::ClosedEarly { chunk, write_pointer: record.write_pointer() });
        } else {
            return Ok(());
        };
        self.stats.offline_operations += 1;
        Err(error)
    }

    /// Checks whether a sector is readable, and determines its bit errors, with up to the maximum
    /// number of [read retries](Nand::retries_needed). [`copy_out`](Nand::copy_out),
    /// [`read_bytes`](Nand::read_bytes) and [`oob`](Nand::oob) then return the data without another
    /// check.
    ///
    /// # Errors
    /// [`MediaError::Unwritten`], [`MediaError::PairNotProgrammed`], [`MediaError::Torn`],
    /// [`MediaError::FailedUnit`], [`MediaError::Uncorrectable`], [`MediaError::Busy`] during an
    /// erase, [`MediaError::EraseInterrupted`], [`MediaError::ChunkBad`],
    /// [`MediaError::DieFailed`].
    #[inline]
    pub fn check_read(&mut self, phys: PhysSector) -> Result<ReadInfo, MediaError> {
        self.check_read_within(phys, self.config.errors.read_retries)
    }

    /// Checks reads of `sectors` sectors of a chunk, all before `end`, at once. Returns whether they
    /// succeed without a bit error. Otherwise it has no effect, and each sector is to be checked by
    /// [`check_read_within`](Nand::check_read_within).
    #[inline]
    pub fn check_plain_reads(&mut self, chunk: ChunkId, end: u32, sectors: u32) -> bool {
        let Some(record) = self.records.get(chunk.0 as usize) else { return false };
        let readable = self.paired_pages.readable_sectors(record.write_pointer());
        let is_plain = record.without(PROGRAMMING).has_no_flags()
            && end <= readable
            && !self.reads_fail_at_rate
            && self.aging.is_none()
            && self.bit_error_model.is_none();
        self.stats.reads += if is_plain { sectors.into() } else { 0 };
        is_plain
    }

    /// Checks a sector like [`check_read`](Nand::check_read), with a given maximum of read retries.
    ///
    /// # Errors
    /// As [`check_read`](Nand::check_read).
    #[inline]
    pub fn check_read_within(
        &mut self,
        phys: PhysSector,
        retries: u32,
    ) -> Result<ReadInfo, MediaError> {
        let (chunk, sector) = self.layout.split(phys);
        let Some(record) = self.records.get(chunk.0 as usize).copied() else {
            return Err(self.sector_out_of_range(phys));
        };
        let readable = self.paired_pages.readable_sectors(record.write_pointer());
        // A program in progress does not block reads of earlier sectors.
        let simple = record.without(PROGRAMMING).has_no_flags() && sector < readable;
        if !simple || self.reads_fail_at_rate {
            self.check_readable_once(phys, chunk, sector, record)?;
        }
        self.stats.reads += 1;
        let factor = self.age(chunk);
        match &mut self.bit_error_model {
            None => Ok(ReadInfo::default()),
            Some(errors) => {
                let (raw, ecc_bits) =
                    (errors.sample_sector(phys, record.wear(), factor), errors.ecc_bits());
                let (retries, bits) = match raw > ecc_bits {
                    false => (0, raw),
                    true => {
                        let model = &self.config.errors;
                        let most = retries.min(model.read_retries);
                        retry::retries_to_correct(raw, ecc_bits, model.retry_error_fraction, most)
                    }
                };
                if bits > ecc_bits {
                    self.stats.reads -= 1;
                    self.stats.uncorrectable_reads += 1;
                    return Err(MediaError::Uncorrectable { phys, bits, ecc_bits });
                }
                self.stats.corrected_bits += u64::from(bits);
                self.stats.retried_reads += u64::from(retries > 0);
                let high_ecc = u64::from(raw) * 4 > u64::from(ecc_bits) * 3;
                Ok(ReadInfo { corrected_bits: bits, raw_bits: raw, high_ecc, retries })
            }
        }
    }

    /// Examines a sector that may not be readable, for a read that takes injected faults.
    #[cold]
    fn check_readable_once(
        &mut self,
        phys: PhysSector,
        chunk: ChunkId,
        sector: u32,
        record: ChunkRecord,
    ) -> Result<(), MediaError> {
        let is_due = self.injected_faults.fails_next_read(phys);
        let checked = self.check_readable(phys, chunk, sector, record);
        if !is_due {
            checked?;
        }
        match self.injected_faults.take_read_fault(phys) {
            true if is_due => checked,
            true => {
                self.stats.uncorrectable_reads += 1;
                Err(self.uncorrectable(phys))
            }
            false => Ok(()),
        }
    }

    /// Returns the error of a sector with one bit error more than ECC corrects.
    fn uncorrectable(&self, phys: PhysSector) -> MediaError {
        let ecc_bits = self.config.errors.ecc_bits;
        MediaError::Uncorrectable { phys, bits: ecc_bits + 1, ecc_bits }
    }

    /// Examines a sector that may not be readable.
    #[cold]
    fn check_readable(
        &mut self,
        phys: PhysSector,
        chunk: ChunkId,
        sector: u32,
        record: ChunkRecord,
    ) -> Result<(), MediaError> {
        let (write_pointer, unit) = (record.write_pointer(), self.layout.write_unit());
        self.check_usable(chunk, record, Operation::Read)?;
        if record.has_any(ERASING) {
            self.stats.unwritten_reads += 1;
            let (doing, with) = (Operation::Read, Operation::Erase);
            return Err(MediaError::Busy { chunk, doing, with });
        }
        if sector >= write_pointer {
            if record.has_any(CLOSED) && sector < write_pointer + unit {
                self.stats.uncorrectable_reads += 1;
                return Err(MediaError::FailedUnit { phys });
            }
            self.stats.unwritten_reads += 1;
            return Err(MediaError::Unwritten { phys, write_pointer });
        }
        if record.has_any(HAS_DEFECTS) {
            let torn = chunk.0 * self.layout.units_per_chunk() + self.layout.unit_of(sector).get();
            if self.torn.contains(&torn) {
                self.stats.torn_reads += 1;
                return Err(MediaError::Torn { phys });
            }
        }
        if sector >= self.paired_pages.readable_sectors(write_pointer) && !record.has_any(CLOSED) {
            self.stats.unpaired_reads += 1;
            let needs = self.paired_pages.write_pointer_needed(sector, unit);
            return Err(MediaError::PairNotProgrammed { phys, needs, write_pointer });
        }
        if record.has_any(HAS_DEFECTS)
            && (self.uncorrectable.contains(&phys) || self.injected_faults.fails_next_read(phys))
        {
            self.stats.uncorrectable_reads += 1;
            return Err(self.uncorrectable(phys));
        }
        Ok(())
    }

    /// Copies the data of a sector that [`check_read`](Nand::check_read) accepted: `sector_bytes`
    /// bytes to `to` at `offset`. A medium that stores no data returns the pattern of the sector
    /// number.
    ///
    /// # Panics
    /// If the sector or the range does not exist.
    #[inline]
    pub fn copy_out(&self, phys: PhysSector, to: &SharedRegion, offset: usize) {
        self.store.copy_out(phys, to, offset);
    }

    /// Copies up to `sector_bytes` bytes from the start of a sector that `check_read` accepted.
    ///
    /// # Panics
    /// If the sector does not exist.
    pub fn read_bytes(&self, phys: PhysSector, into: &mut [u8]) {
        let whole = into.len().min(self.layout.sector_bytes() as usize);
        self.store.read(phys, &mut into[..whole]);
    }

    /// Copies the out-of-band bytes of a sector that [`check_read`](Nand::check_read) accepted.
    /// Bytes beyond `oob_bytes` are 0, and all bytes are 0 if the medium stores no data.
    ///
    /// # Panics
    /// If the sector does not exist.
    #[inline]
    pub fn oob(&self, phys: PhysSector, into: &mut [u8]) {
        self.store.read_oob_at(phys, 0, into);
    }

    /// Copies the out-of-band bytes from byte `offset` on of a sector that
    /// [`check_read`](Nand::check_read) accepted, as [`oob`](Nand::oob) does from the first one on.
    ///
    /// # Panics
    /// If the sector does not exist.
    pub fn oob_at(&self, phys: PhysSector, offset: usize, into: &mut [u8]) {
        self.store.read_oob_at(phys, offset, into);
    }

    /// Loads the data of a sector that [`check_read`](Nand::check_read) accepted into a slot. Does
    /// nothing if the medium stores no data.
    ///
    /// # Panics
    /// If the sector or the slot does not exist.
    #[inline]
    pub fn load_slot(&mut self, phys: PhysSector, slot: BufferSlot) {
        self.store.load_slot(phys, slot);
    }

    /// Returns the region and the offset of a slot's data; `None` for zeros.
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub fn slot_data(&self, slot: BufferSlot) -> Option<(&SharedRegion, usize)> {
        self.store.slot_data(slot)
    }

    /// Returns the counters of sector data in memory: of the slots, and of the sectors of a medium
    /// that is not in an image.
    pub fn buffer_stats(&self) -> SectorBufferStats {
        self.store.buffer_stats()
    }
}
