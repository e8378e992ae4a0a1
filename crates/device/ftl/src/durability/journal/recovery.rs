//! [`JournalRecovery`]: reads the chunks after a power loss, and builds the journal that continues.
//!
//! It takes the newest generation with a complete snapshot, and its records up to the first frame
//! that no copy has. It writes nothing but padding.

use nvme::Status;
use time::Nanos;

use super::capacity::JournalCapacity;
use super::chunks::{ChunkPool, ChunkRole};
use super::frame::FrameKind;
use super::replay::Replay;
use super::scan::{JournalScan, ScannedChunk, UnitContent};
use super::writer::ResumePoint;
use super::{FoundJournalChunk, Journal, JournalConfig, JournalError, JournalMedia};
use crate::FlashGeometry;
use crate::ids::{ToIndex, ToU32};

/// Result of a recovery.
#[derive(Debug)]
pub struct Recovered {
    /// The last snapshot; `None` if there was none before the records.
    pub snapshot: Option<Vec<u8>>,
    /// The records behind it, in the order in which they were appended.
    pub records: Vec<Vec<u8>>,
    /// Whether there are signs of newer records that cannot be read: frames behind a missing one,
    /// or a part of a newer generation. A power cut alone never causes this.
    pub truncated: bool,
    /// Write units that could not be read or were no frames: torn by a power cut, lost or damaged.
    /// When nothing was found and this is not 0, it is for the owner to say whether there was a
    /// journal before.
    pub unreadable: u64,
    /// Frames of padding that recovery has programmed.
    pub padding: u64,
    /// The journal that continues. Everything found is durable in it. Its first
    /// [kick](Journal::kick) erases the chunks that are not part of what was found.
    pub journal: Journal,
}

#[derive(Debug)]
enum Phase {
    Scan,
    Replay(Box<Replay>),
    Done,
    Taken,
}

/// Reads a journal. Driven like a [`Journal`], until [`finish`](JournalRecovery::finish) returns a
/// result. It can be interrupted and repeated at any time.
#[derive(Debug)]
pub struct JournalRecovery {
    geometry: FlashGeometry,
    config: JournalConfig,
    capacity: JournalCapacity,
    scan: JournalScan,
    phase: Phase,
    /// Generations seen, the newest last; incomplete ones are removed.
    generations: Vec<u64>,
    newest: u64,
    truncated: bool,
    result: Option<Result<Recovered, JournalError>>,
}

impl JournalRecovery {
    /// A recovery of the journal on the chunks `found`, all that are reserved for it.
    ///
    /// # Errors
    /// [`JournalError::InvalidParameter`], [`JournalError::Chunk`], [`JournalError::WritePointer`].
    pub fn new(
        shape: &FlashGeometry,
        config: JournalConfig,
        found: &[FoundJournalChunk],
    ) -> Result<JournalRecovery, JournalError> {
        let capacity = JournalCapacity::new(shape, &config)?;
        Ok(JournalRecovery {
            geometry: *shape,
            config,
            capacity,
            scan: JournalScan::new(shape, capacity, config.owner, found)?,
            phase: Phase::Scan,
            generations: Vec::new(),
            newest: 0,
            truncated: false,
            result: None,
        })
    }

    /// Starts all possible operations. Returns whether any was started.
    pub fn kick(&mut self, now: Nanos, flash: &mut impl JournalMedia) -> bool {
        let mut any = false;
        loop {
            let moved = match &mut self.phase {
                Phase::Scan => self.scan.kick(now, flash),
                Phase::Replay(replay) => replay.kick(now, flash),
                Phase::Done | Phase::Taken => false,
            };
            any |= moved;
            if !self.next_phase() {
                return any;
            }
        }
    }

    /// Reports the end of a program of padding. Call [`kick`](JournalRecovery::kick) afterwards.
    ///
    /// # Panics
    /// If it is not in flight.
    pub fn program_done(&mut self, op: u32, status: Status) {
        self.scan.program_done(op, status.is_success());
    }

    /// Reports the end of a read; bit `i` of `failed` says that its sector number `i` could not be
    /// read. Call [`kick`](JournalRecovery::kick) afterwards.
    ///
    /// # Panics
    /// If it is not in flight, unless the result is known already.
    pub fn read_done(&mut self, op: u32, failed: u64, flash: &mut impl JournalMedia) {
        match &mut self.phase {
            Phase::Scan => self.scan.read_done(op, failed, flash),
            Phase::Replay(replay) => replay.read_done(op, failed, flash),
            Phase::Done | Phase::Taken => {}
        }
    }

    /// Returns the result, once and as soon as it is known.
    ///
    /// # Errors
    ///
    /// [`JournalError::NotAJournal`], [`JournalError::Foreign`], [`JournalError::Version`].
    pub fn finish(&mut self) -> Option<Result<Recovered, JournalError>> {
        if let Phase::Done = self.phase {
            self.phase = Phase::Taken;
        }
        self.result.take()
    }

    fn next_phase(&mut self) -> bool {
        match &mut self.phase {
            Phase::Scan => match self.scan.result() {
                None => return false,
                Some(Err(error)) => self.complete(Err(error)),
                Some(Ok(())) => {
                    self.generations = generations(&self.scan.chunks);
                    self.newest = self.generations.last().copied().unwrap_or(0);
                    self.next_generation();
                }
            },
            Phase::Replay(replay) => {
                if !replay.is_complete() {
                    return false;
                }
                let (generation, next) = (replay.generation, replay.next);
                let seen = || headers(&self.scan.chunks).filter(|h| h.generation == generation);
                if replay.base_frames.is_some() {
                    self.truncated |= seen().any(|h| h.index >= next);
                    let resume = self.resume();
                    self.complete_with(resume);
                } else {
                    // Frames from the snapshot's end on show that the generation was
                    // complete in one copy at least.
                    self.truncated |= seen().any(|h| h.kind != FrameKind::SnapshotPart);
                    self.next_generation();
                }
            }
            Phase::Done | Phase::Taken => return false,
        }
        true
    }

    fn next_generation(&mut self) {
        match self.generations.pop() {
            Some(generation) => {
                let (unit, bytes) = (self.geometry.ws_opt, self.geometry.sector_bytes);
                let chunks = &self.scan.chunks;
                let replay = Replay::new(generation, self.capacity, unit, bytes, chunks);
                self.phase = Phase::Replay(Box::new(replay));
            }
            None => {
                let resume = self.resume();
                self.complete_with(resume);
            }
        }
    }

    fn complete(&mut self, result: Result<Recovered, JournalError>) {
        self.phase = Phase::Done;
        self.result = Some(result);
    }

    /// Returns where the journal continues, and its chunks.
    fn resume(&self) -> Result<(ChunkPool, ResumePoint), JournalError> {
        let chunks = &self.scan.chunks;
        let mut pool = ChunkPool::new(&self.geometry, chunks.iter().map(|c| c.chunk))?;
        let mut resume = ResumePoint {
            generation: 0,
            newest: self.newest,
            frames: 0,
            base_frames: 0,
            position: 0,
            can_continue: true,
            open: [None; 2],
            copies: [false; 2],
        };
        if let Phase::Replay(replay) = &self.phase
            && let Some(base_frames) = replay.base_frames
        {
            resume.generation = replay.generation;
            (resume.frames, resume.base_frames) = (replay.next, base_frames);
            resume.position = replay.records.len() as u64;
        }
        // Frames of each copy, and the last of them with its chunk.
        let mut have = [vec![false; resume.frames.index()], vec![false; resume.frames.index()]];
        let mut last: [Option<(u32, usize)>; 2] = [None; 2];
        for (i, chunk) in chunks.iter().enumerate() {
            pool.chunks[i].failed = chunk.failed;
            let ours = || {
                chunk.units.iter().enumerate().filter_map(|(at, unit)| match unit {
                    UnitContent::Frame(h) if h.generation == resume.generation => Some((at, *h)),
                    _ => None,
                })
            };
            let Some((_, header)) = ours().next().filter(|_| resume.generation > 0) else {
                if chunk.bad {
                    pool.chunks[i].role = ChunkRole::Retired;
                } else if !chunk.units.is_empty() || !chunk.open {
                    pool.mark_untrusted(i);
                }
                continue;
            };
            let lane = usize::from(header.replica);
            pool.chunks[i].role = ChunkRole::InUse { generation: resume.generation, copy: lane };
            let mut behind = 0;
            for (at, header) in ours() {
                if let Some(have) = have[lane].get_mut(header.index.index()) {
                    *have = true;
                    behind = at + 1;
                    if last[lane].is_none_or(|(index, _)| index <= header.index) {
                        last[lane] = Some((header.index, i));
                    }
                }
            }
            // Any unit but padding could be the next frame.
            resume.can_continue &=
                chunk.units[behind..].iter().all(|unit| *unit == UnitContent::Padding);
        }
        for lane in 0..2 {
            resume.copies[lane] = have[lane].iter().all(|have| *have);
            resume.open[lane] = last[lane]
                .filter(|(_, i)| chunks[*i].open)
                .map(|(_, i)| (i, chunks[i].units.len().to_u32()));
        }
        Ok((pool, resume))
    }

    fn complete_with(&mut self, resume: Result<(ChunkPool, ResumePoint), JournalError>) {
        let (pool, resume) = match resume {
            Ok(resume) => resume,
            Err(error) => return self.complete(Err(error)),
        };
        let (snapshot, records) = match &mut self.phase {
            Phase::Replay(replay) if resume.generation > 0 => replay.take_contents(),
            _ => (None, Vec::new()),
        };
        let units = self.scan.chunks.iter().flat_map(|chunk| &chunk.units);
        self.complete(Ok(Recovered {
            snapshot,
            records,
            truncated: self.truncated,
            unreadable: units.filter(|unit| **unit == UnitContent::Unreadable).count() as u64,
            padding: self.scan.padded,
            journal: Journal::resume(&self.geometry, self.capacity, self.config, pool, &resume),
        }));
    }
}

fn headers(chunks: &[ScannedChunk]) -> impl Iterator<Item = super::frame::FrameHeader> {
    chunks.iter().flat_map(|chunk| &chunk.units).filter_map(|unit| match unit {
        UnitContent::Frame(header) => Some(*header),
        _ => None,
    })
}

/// Returns all generations with at least one frame, in order.
fn generations(chunks: &[ScannedChunk]) -> Vec<u64> {
    let mut all: Vec<u64> = headers(chunks).map(|h| h.generation).collect();
    all.sort_unstable();
    all.dedup();
    all
}
