//! [`SanitizeRun`]: an operation in progress, which erases and programs the flash without the FTL.
//!
//! Each parallel unit goes through its chunks, one operation after the other, all units at the same
//! time. A pass of an overwrite erases each chunk that is not free and programs the pattern; the last
//! pass, which is that of a block erase, too, erases each chunk that is not free. A pass begins when
//! the one before has ended on all units.

use media::{BufferSlot, ChunkId, ChunkState, Nand, PuId, UnitInChunk};
use nvme::{SanitizeAction, SanitizeCommand, VectorHints};
use time::Nanos;

use crate::nand_array::{NandArray, NandOpCompletion, NandOpKind, OpOwner};
use crate::personality::sanitize::record::SanitizeRecord;

/// The hosts that get the event of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SanitizeReport {
    /// None: an administrator has requested the operation.
    None,
    /// The host with this index, which has sent the command.
    Host(usize),
    /// All: the operation began before the drive was powered on.
    All,
}

/// The step that an operation is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SanitizePhase {
    /// Commands that were fetched before are in flight.
    Waiting,
    /// Operations of the FTL are in flight.
    Settling,
    Running,
    Done,
}

/// The position of a parallel unit in a pass.
#[derive(Clone, Copy, Debug, Default)]
struct PuPosition {
    /// Index of the chunk in the parallel unit.
    chunk: u32,
    /// Next unit to be programmed.
    unit: u32,
    /// Whether the chunk was erased in this pass.
    is_erased: bool,
}

impl PuPosition {
    fn next_chunk(&mut self) {
        *self = PuPosition { chunk: self.chunk + 1, ..PuPosition::default() };
    }
}

/// A sanitize operation in progress.
#[derive(Clone, Debug)]
pub(crate) struct SanitizeRun {
    pub(super) command: SanitizeCommand,
    pub(super) report: SanitizeReport,
    pub(super) phase: SanitizePhase,
    /// Passes that have ended.
    pub(super) pass: u8,
    /// Whether a chunk could not be erased.
    pub(super) has_failed: bool,
    positions: Vec<PuPosition>,
    in_flight: u32,
}

impl SanitizeRun {
    pub(super) fn new(command: SanitizeCommand, report: SanitizeReport) -> SanitizeRun {
        SanitizeRun {
            command,
            report,
            phase: SanitizePhase::Waiting,
            pass: 0,
            has_failed: false,
            positions: Vec::new(),
            in_flight: 0,
        }
    }

    /// Returns the operation of a drive that is powered on during it.
    pub(super) fn resumed(record: &SanitizeRecord) -> SanitizeRun {
        let mut run = SanitizeRun::new(record.command(), SanitizeReport::All);
        run.phase = SanitizePhase::Settling;
        run.pass = record.passes.min(run.pattern_passes());
        run
    }

    /// Returns the number of passes that program the flash.
    pub(super) fn pattern_passes(&self) -> u8 {
        match self.command.action {
            SanitizeAction::Overwrite => self.command.passes,
            _ => 0,
        }
    }

    /// Starts the first pass. No operation is in flight, and the slots of the write buffer are free.
    pub(super) fn begin(&mut self, now: Nanos, array: &mut NandArray) {
        self.phase = SanitizePhase::Running;
        self.begin_pass(now, array);
    }

    /// Starts a pass; the next ones, too, as long as they have nothing to do.
    fn begin_pass(&mut self, now: Nanos, array: &mut NandArray) {
        loop {
            let pus = array.nand.layout().pu_count();
            self.positions = vec![PuPosition::default(); pus as usize];
            if self.pass < self.pattern_passes() {
                self.store_pattern(&mut array.nand);
            }
            for pu in 0..pus {
                self.start_next(now, array, PuId(pu));
            }
            if self.in_flight > 0 {
                return;
            }
            self.end_pass();
            if self.phase == SanitizePhase::Done {
                return;
            }
        }
    }

    fn end_pass(&mut self) {
        match self.pass < self.pattern_passes() {
            true => self.pass += 1,
            false => self.phase = SanitizePhase::Done,
        }
    }

    /// Writes the pattern of the pass into slots of the write buffer, from which a write unit is
    /// programmed.
    fn store_pattern(&self, nand: &mut Nand) {
        let pattern = self.command.pattern_of_pass(self.pass).to_le_bytes();
        let sector = pattern.repeat(nand.layout().sector_bytes() as usize / pattern.len());
        for slot in 0..nand.layout().write_unit() {
            nand.write_slot(BufferSlot(slot), &sector);
        }
    }

    /// Processes the end of an operation. Returns whether a pass has ended.
    pub(super) fn on_complete(
        &mut self,
        now: Nanos,
        done: &NandOpCompletion,
        array: &mut NandArray,
    ) -> bool {
        let OpOwner::Sanitize(pu) = done.owner else { return false };
        self.in_flight -= 1;
        // The data that a program does not replace is gone since the erase before it.
        self.has_failed |= done.kind == NandOpKind::Erase && !done.status.is_success();
        self.start_next(now, array, pu);
        if self.in_flight > 0 {
            return false;
        }
        self.end_pass();
        if self.phase == SanitizePhase::Running {
            self.begin_pass(now, array);
        }
        true
    }

    /// Starts the next operation of a parallel unit, if there is one in this pass.
    fn start_next(&mut self, now: Nanos, array: &mut NandArray, pu: PuId) {
        let layout = *array.nand.layout();
        let programs = self.pass < self.pattern_passes();
        let position = &mut self.positions[pu.index()];
        while position.chunk < layout.chunks_per_pu() {
            let chunk = layout.chunk(pu, position.chunk);
            let Some(info) = array.nand.chunk_info(chunk) else { return };
            let owner = OpOwner::Sanitize(pu);
            match info.state {
                // Without data it is a chunk that was bad from the start, or whose erase has failed.
                ChunkState::Offline => self.has_failed |= array.nand.has_data(chunk),
                state if state != ChunkState::Free && !position.is_erased => {
                    position.is_erased = true;
                    self.in_flight += 1;
                    return array.erase(now, owner, VectorHints::NONE, chunk.get());
                }
                ChunkState::Free | ChunkState::Open
                    if programs && position.unit < layout.units_per_chunk() =>
                {
                    position.is_erased = true;
                    let unit = UnitInChunk(position.unit);
                    position.unit += 1;
                    if stage(&mut array.nand, chunk, unit) {
                        self.in_flight += 1;
                        let sector = unit.get() * layout.write_unit();
                        return array.program(now, owner, VectorHints::NONE, chunk.get(), sector);
                    }
                    // The machine's disk is full: the chunk stays erased.
                    self.has_failed = true;
                }
                ChunkState::Closed if !programs => self.has_failed = true,
                ChunkState::Free | ChunkState::Open | ChunkState::Closed => {}
            }
            position.next_chunk();
        }
    }

    /// Returns the share of the work that is done, as SPROG: in units of 1/65536, by the times of the
    /// media.
    pub(super) fn progress(&self, nand: &Nand) -> u16 {
        let times = MediaTimes::of(nand);
        let passes = u128::from(self.pattern_passes());
        let chunks = u128::from(nand.layout().chunk_count());
        let total = chunks * (times.chunk * passes + times.erase);
        let of_chunk = if self.pass < self.pattern_passes() { times.chunk } else { times.erase };
        let mut done = chunks * times.chunk * u128::from(self.pass);
        if self.phase == SanitizePhase::Running {
            done += self.positions.iter().fold(0, |sum, position| {
                let programs = times.program * u128::from(position.unit);
                sum + of_chunk * u128::from(position.chunk) + programs
            });
        }
        // All ones say that no operation is in progress.
        (done * (1 << 16) / total.max(1)).min(0xfffe) as u16
    }
}

/// Stages the pattern of a pass in a write unit.
fn stage(nand: &mut Nand, chunk: ChunkId, unit: UnitInChunk) -> bool {
    let first = nand.layout().unit_start(chunk, unit);
    let no_oob = std::iter::repeat_n([0; 0], nand.layout().write_unit() as usize);
    nand.stage_slots(first, BufferSlot(0), no_oob.collect::<Vec<_>>().into_iter()).is_ok()
}

/// Times of the media, in nanoseconds.
struct MediaTimes {
    erase: u128,
    /// Program of a write unit with its transfer.
    program: u128,
    /// Erase and programs of a chunk.
    chunk: u128,
    /// Transfer of a write unit.
    transfer: u128,
}

impl MediaTimes {
    fn of(nand: &Nand) -> MediaTimes {
        let (config, layout) = (nand.config(), nand.layout());
        let types = if config.one_shot { 1 } else { config.cell.bits() as usize };
        let programs = &config.timing.program[..types];
        let mean = programs.iter().map(|time| u128::from(time.0)).sum::<u128>() / types as u128;
        let bytes = u64::from(layout.write_unit()) * u64::from(layout.sector_bytes());
        let transfer = match config.timing.channel_bytes_per_sec {
            0 => 0,
            rate => Nanos::transfer(bytes, rate).0.into(),
        };
        let erase = config.timing.erase.0.into();
        let program = mean + transfer;
        let chunk = erase + program * u128::from(layout.units_per_chunk());
        MediaTimes { erase, program, chunk, transfer }
    }
}

/// The estimated times of operations on a drive, in seconds, rounded up.
pub(super) struct SanitizeEstimates {
    pub(super) block_erase: u32,
    /// With 16 passes.
    pub(super) overwrite: u32,
}

impl SanitizeEstimates {
    /// Returns the times of operations on flash that is full of data: those of the parallel units, or
    /// of the transfers on a channel if these take longer.
    pub(super) fn of(nand: &Nand) -> SanitizeEstimates {
        const PASSES: u128 = 16;
        let (times, layout) = (MediaTimes::of(nand), nand.layout());
        let chunks = u128::from(layout.chunks_per_pu());
        let units = chunks * u128::from(layout.units_per_chunk());
        let pus = u128::from(nand.config().geometry.pus);
        let pass = (chunks * times.chunk).max(pus * units * times.transfer + chunks * times.erase);
        let seconds = |ns: u128| u32::try_from(ns.div_ceil(1_000_000_000)).unwrap_or(u32::MAX - 1);
        SanitizeEstimates {
            block_erase: seconds(chunks * times.erase),
            overwrite: seconds(PASSES * pass + chunks * times.erase),
        }
    }
}
