//! [`UnitSource`]: the next vector command of a job on parallel units, as in [LightNVM17 §5].
//!
//! Writes go round the job's units, in each to the write pointer of its chunk. A full chunk is
//! followed by the next of the unit, and the last by the first; a chunk with data is reset before
//! it is written again. Reads are of sectors that were written.

use rng::Rng;
use time::Nanos;

use crate::io_range::IoRange;
use crate::job::{Direction, Distribution, JobSpec};
use crate::runner::chunk_states::{ChunkStates, WriteStep};
use crate::runner::source::{GeneratedIo, IoKind, IssueDecision, NextIo};
use crate::runner::verify::VerifyState;
use crate::unit_spec::{UnitLimits, UnitSpec};

/// Number of random chunks that a read tries before it searches.
const RANDOM_TRIES: u32 = 64;

/// Why a job on parallel units cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitSourceError {
    /// A reading job finds nothing to read.
    #[error("no block on its parallel units can be read yet: write them with a job before it")]
    NothingToRead,
    /// All chunks have failed.
    #[error("its parallel units have no chunk that can be written")]
    NoChunks,
}

/// A parallel unit of a job.
#[derive(Clone, Copy, Debug)]
struct Lane {
    unit: u32,
    /// Chunk that is written, and whether the job arrives at it.
    chunk: u32,
    arrives: bool,
    /// Chunk and sector of the next sequential read.
    read_chunk: u32,
    read_sector: u32,
}

/// Commands of a job on parallel units.
#[derive(Debug)]
pub(crate) struct UnitSource {
    /// Directions, amounts and rates.
    pace: GeneratedIo,
    lanes: Vec<Lane>,
    limits: UnitLimits,
    /// Number of chunks of each unit that the job uses.
    chunks: u32,
    read_sectors: u32,
    write_sectors: u32,
    random: bool,
    writes: bool,
    /// Whether the amount of a job that only reads is that of the sectors that it finds.
    reads_once: bool,
    write_lane: usize,
    read_lane: usize,
    /// Direction of a command that waits for a chunk.
    waiting: Option<Direction>,
    rng: Rng,
}

impl UnitSource {
    /// Returns the source of a job; it draws from `rng`.
    ///
    /// # Errors
    /// A description of an option that does not fit.
    pub(crate) fn new(
        spec: &JobSpec,
        units: &UnitSpec,
        limits: &UnitLimits,
        rng: &Rng,
    ) -> Result<UnitSource, String> {
        let chunks = limits.chunks_used(spec, units);
        let geometry = &limits.geometry;
        let sector = u64::from(geometry.sector_bytes);
        let row = units.pus.len() * u64::from(geometry.sectors) * sector;
        let whole = row * u64::from(geometry.chunks);
        let bytes = spec.range.size.map_or(whole, |size| size.resolve(whole).min(whole));
        let mut paced = spec.clone();
        (paced.pattern.norandommap, paced.pattern.distribution) = (true, Distribution::Uniform);
        let area = IoRange { offset: 0, bytes, unit_bytes: sector };
        let pace = GeneratedIo::new(&paced, area, geometry.sector_bytes, rng.clone())?;
        let lane = |unit| Lane { unit, chunk: 0, arrives: true, read_chunk: 0, read_sector: 0 };
        let writes = spec.pattern.access.uses(Direction::Write);
        Ok(UnitSource {
            pace,
            lanes: limits.units_of(units).into_iter().map(lane).collect(),
            limits: limits.clone(),
            chunks,
            read_sectors: limits.block_sectors(spec, Direction::Read).max(1),
            write_sectors: limits.block_sectors(spec, Direction::Write).max(1),
            random: spec.pattern.access.random,
            writes,
            reads_once: !writes && spec.range.io_size.is_none() && !spec.schedule.time_based,
            write_lane: 0,
            read_lane: 0,
            waiting: None,
            rng: rng.fork(3),
        })
    }

    /// Restarts the source for another loop.
    pub(super) fn restart(&mut self, spec: &JobSpec, rng: &Rng) -> Result<(), String> {
        let Some(units) = &spec.units else { return Ok(()) };
        let lanes = std::mem::take(&mut self.lanes);
        *self = UnitSource::new(spec, units, &self.limits, rng)?;
        // Writes continue at the write pointers.
        for (lane, before) in self.lanes.iter_mut().zip(lanes) {
            (lane.chunk, lane.arrives) = (before.chunk, before.arrives);
        }
        Ok(())
    }

    /// Starts the limits of rates at the start of the job.
    pub(super) fn start(&mut self, now: Nanos) {
        self.pace.start(now);
    }

    /// Returns the issued share of the bytes or requests, from 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        self.pace.progress()
    }

    /// Returns the next extent of the job's units with known contents that can be read, from sector
    /// `next` on, at most `block` sectors long and in one chunk.
    pub(super) fn next_written(
        &self,
        next: u64,
        block: u64,
        ledger: &VerifyState,
        states: &ChunkStates,
    ) -> Option<(u64, u32)> {
        let is_known = |lba: u64| ledger.is_known(lba) && states.is_readable(lba);
        let is_own = |lba: u64| {
            let unit = states.unit_of(lba);
            self.lanes.iter().any(|lane| lane.unit == unit)
        };
        let lba = (next..self.limits.sectors()).find(|lba| is_known(*lba) && is_own(*lba))?;
        let most = block.min(states.to_chunk_end(lba));
        let known = (lba..lba + most).take_while(|lba| is_known(*lba)).count();
        Some((lba, known as u32))
    }

    /// Returns the next command, or when to call again.
    ///
    /// # Errors
    /// [`UnitSourceError`].
    #[inline(never)]
    pub(super) fn next(
        &mut self,
        now: Nanos,
        states: &mut ChunkStates,
    ) -> Result<IssueDecision, UnitSourceError> {
        if std::mem::take(&mut self.reads_once) {
            let bytes = u64::from(self.limits.geometry.sector_bytes);
            let readable = self.readable_sectors(states);
            if readable == 0 {
                return Err(UnitSourceError::NothingToRead);
            }
            self.pace.limit_bytes(readable * bytes);
        }
        let direction = match self.waiting.take() {
            Some(direction) => direction,
            None => match self.pace.next(now) {
                IssueDecision::Now(NextIo { kind: IoKind::Transfer(direction), .. }) => direction,
                other => return Ok(other),
            },
        };
        if direction == Direction::Read {
            if let Some((lba, sectors)) = self.next_read(states) {
                states.begin_read(lba);
                let kind = IoKind::Transfer(Direction::Read);
                return Ok(IssueDecision::Now(NextIo { kind, lba, sectors }));
            }
            if !self.writes {
                return Err(UnitSourceError::NothingToRead);
            }
        }
        // A mixed job writes while there is nothing to read.
        let mut waits = false;
        for _ in 0..self.lanes.len() {
            let at = self.write_lane;
            self.write_lane = (at + 1) % self.lanes.len();
            match self.write_step(at, states) {
                WriteStep::Write { sector: lba, sectors } => {
                    let kind = IoKind::Transfer(Direction::Write);
                    return Ok(IssueDecision::Now(NextIo { kind, lba, sectors }));
                }
                WriteStep::Reset { sector: lba, sectors } => {
                    self.waiting = Some(direction);
                    let kind = IoKind::Transfer(Direction::Trim);
                    return Ok(IssueDecision::Now(NextIo { kind, lba, sectors }));
                }
                WriteStep::Wait => waits = true,
                WriteStep::Skip => {}
            }
        }
        self.waiting = Some(direction);
        if waits { Ok(IssueDecision::WaitForCompletion) } else { Err(UnitSourceError::NoChunks) }
    }

    /// Returns the next step of a lane; [`WriteStep::Skip`] if all of its chunks have failed.
    fn write_step(&mut self, at: usize, states: &mut ChunkStates) -> WriteStep {
        let lane = &mut self.lanes[at];
        for _ in 0..=self.chunks {
            let chunk = states.chunk(lane.unit, lane.chunk);
            match states.write_step(chunk, self.write_sectors, lane.arrives) {
                WriteStep::Skip => {
                    (lane.chunk, lane.arrives) = ((lane.chunk + 1) % self.chunks, true);
                }
                step => {
                    lane.arrives &= !matches!(step, WriteStep::Write { .. });
                    return step;
                }
            }
        }
        WriteStep::Skip
    }

    /// Returns the first sector and the number of sectors of the next read.
    fn next_read(&mut self, states: &ChunkStates) -> Option<(u64, u32)> {
        if self.random { self.random_read(states) } else { self.sequential_read(states) }
    }

    fn random_read(&mut self, states: &ChunkStates) -> Option<(u64, u32)> {
        let all = self.lanes.len() as u64 * u64::from(self.chunks);
        let mut tried = 0;
        for attempt in 0..u64::from(RANDOM_TRIES) + all {
            // The search is from the last chunk that was tried.
            let random = attempt < u64::from(RANDOM_TRIES);
            tried = if random { self.rng.below(all) } else { (tried + 1) % all };
            let lane = &self.lanes[(tried / u64::from(self.chunks)) as usize];
            let chunk = states.chunk(lane.unit, (tried % u64::from(self.chunks)) as u32);
            let blocks = states.readable(chunk) / self.read_sectors;
            if blocks > 0 {
                let block = self.rng.below(blocks.into()) as u32;
                let sector = states.sector_of(chunk, block * self.read_sectors);
                return Some((sector, self.read_sectors));
            }
        }
        None
    }

    fn sequential_read(&mut self, states: &ChunkStates) -> Option<(u64, u32)> {
        let lanes = self.lanes.len();
        for _ in 0..lanes {
            let lane = &mut self.lanes[self.read_lane];
            self.read_lane = (self.read_lane + 1) % lanes;
            for _ in 0..=self.chunks {
                let chunk = states.chunk(lane.unit, lane.read_chunk);
                let sector = lane.read_sector;
                if sector + self.read_sectors <= states.readable(chunk) {
                    lane.read_sector += self.read_sectors;
                    return Some((states.sector_of(chunk, sector), self.read_sectors));
                }
                (lane.read_chunk, lane.read_sector) = ((lane.read_chunk + 1) % self.chunks, 0);
            }
        }
        None
    }

    /// Returns the number of sectors in whole blocks that can be read.
    fn readable_sectors(&self, states: &ChunkStates) -> u64 {
        let chunks = self.lanes.iter().flat_map(|lane| {
            (0..self.chunks).map(|chunk| states.readable(states.chunk(lane.unit, chunk)))
        });
        chunks.map(|sectors| u64::from(sectors / self.read_sectors * self.read_sectors)).sum()
    }
}
