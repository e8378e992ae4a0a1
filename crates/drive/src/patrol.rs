//! [`Care`]: what a drive that manages its flash does about what its media notice, and [`Patrol`]: the
//! reads by which they notice it of data that nobody reads (LightNVM paper section 2.2 has the drive tell
//! its host of the same; here who would be told is in the drive, so that no log page is in between).
//!
//! | what is noticed | what is done |
//! |---|---|
//! | a chunk has gone | no more writes to it; what is in the write buffer is written again; its line is moved |
//! | a die has gone | the same of its chunks that are being written; the others are come upon one by one: to give all up at once, and to move all lines, would take the spare space from users' writes |
//! | a sector is lost, reads need repetitions, a program failed | the line is moved |
//! | reads have many bit errors | with a patrol the line is moved, else nothing: on a worn drive all data is so |
//!
//! Guarantees of the patrol: one read at a time, no more sectors per second than configured, and no
//! more moved for it; every chunk that holds data is read once per round, those of the journal included,
//! which is begun anew with each round; what is still in the write buffer because its pages are not
//! paired is written once more if it was there a round ago; a line that has been written to for
//! longer than two rounds is moved.

use std::collections::{BTreeMap, BTreeSet};

use clock::Nanos;
use ftl::{Ftl, Shape};
use media::{ChunkId, ChunkState, Nand};
use nvme::{MediaNotice, MediaScope};

use crate::PatrolConfig;
use crate::notice::Notice;
use crate::stats::CareStats;

/// Rounds after which a line that is still being written is moved: what is put into it is as old as its
/// chunks are.
const ROUNDS_OPEN: u32 = 2;

/// Acts on what is noticed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Care {
    patrol: Option<Box<Patrol>>,
    pub(crate) stats: CareStats,
}

/// A read that the patrol wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PatrolRead {
    /// The first physical sector, and how many.
    pub(crate) first: u32,
    pub(crate) sectors: u32,
}

#[derive(Clone, Debug)]
struct Patrol {
    config: PatrolConfig,
    /// Where the round is: the next chunk and sector.
    at: (u32, u32),
    /// When the next read may begin; never while one is under way.
    next_read: Nanos,
    reads: bool,
    /// When this round began, and the next may.
    next_round: Nanos,
    /// Chunks that are being written, how far they were when the round began, and in how many rounds
    /// before they were, too.
    open: BTreeMap<u32, (u32, u32)>,
    /// Chunks whose line is to be moved, and when that may be.
    hard: BTreeSet<u32>,
    next_move: Nanos,
}

impl Care {
    pub(crate) fn new(patrol: Option<PatrolConfig>) -> Care {
        let patrol = patrol.filter(|p| p.sectors_per_sec > 0).map(|config| {
            Box::new(Patrol {
                config,
                at: (u32::MAX, 0),
                next_read: Nanos::ZERO,
                reads: false,
                next_round: Nanos::ZERO,
                open: BTreeMap::new(),
                hard: BTreeSet::new(),
                next_move: Nanos::ZERO,
            })
        });
        Care { patrol, stats: CareStats::default() }
    }

    /// When the patrol wants to go on; never without one.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        self.patrol.as_ref().map_or(Nanos::MAX, |p| p.deadline())
    }

    /// Something was noticed, on a layer that is kicked afterwards.
    #[cold]
    pub(crate) fn heed(&mut self, notice: Notice, ftl: &mut Ftl) {
        self.stats.notices += 1;
        let shape = *ftl.shape();
        let chunk = shape.chunk_of(notice.psn.0);
        let done = match (notice.scope, notice.what) {
            (MediaScope::Pu, MediaNotice::Unrecoverable) => {
                let pu = shape.pu_of(chunk);
                let open = ftl.open_chunks().map(|(chunk, ..)| chunk);
                let open: Vec<u32> = open.filter(|chunk| shape.pu_of(*chunk) == pu).collect();
                open.into_iter().filter(|chunk| ftl.retire(*chunk)).count() > 0
            }
            (MediaScope::Chunk, MediaNotice::Unrecoverable) => ftl.retire(chunk),
            (_, MediaNotice::Unrecoverable | MediaNotice::ErrorRateHigh) => self.hard(chunk, ftl),
            (_, MediaNotice::ErrorRateMedium) if self.patrol.is_some() => self.hard(chunk, ftl),
            _ => false,
        };
        self.stats.ignored += u64::from(!done);
    }

    /// A chunk is hard to read.
    fn hard(&mut self, chunk: u32, ftl: &mut Ftl) -> bool {
        if let Some(patrol) = &mut self.patrol {
            patrol.hard.insert(chunk);
            return true;
        }
        let moves = ftl.refresh(chunk);
        self.stats.moves += u64::from(moves);
        moves
    }

    /// The patrol's read has ended.
    pub(crate) fn read_done(&mut self, now: Nanos) {
        if let Some(patrol) = &mut self.patrol {
            patrol.reads = false;
            patrol.next_read = patrol.next_read.max(now);
        }
    }

    /// Goes on with the patrol at `now`, which it wanted. Returns what it reads next, and whether the layer
    /// is to be kicked.
    pub(crate) fn go_on(
        &mut self,
        now: Nanos,
        ftl: &mut Ftl,
        nand: &Nand,
    ) -> (Option<PatrolRead>, bool) {
        let Some(patrol) = &mut self.patrol else { return (None, false) };
        let mut kick = false;
        while now >= patrol.next_move
            && let Some(chunk) = patrol.hard.pop_first()
        {
            // Of a line's chunks the first to be noticed has all of it moved.
            if ftl.refresh(chunk) {
                self.stats.moves += 1;
                let line = u64::from(ftl.layout().line_sectors);
                patrol.next_move = now + patrol.time_of(line);
                kick = true;
            }
        }
        if patrol.reads || now < patrol.next_read {
            return (None, kick);
        }
        if patrol.at.0 >= ftl.shape().total_chunks() {
            if now < patrol.next_round {
                patrol.next_read = patrol.next_round;
                return (None, kick);
            }
            patrol.begin_round(now, ftl);
            self.stats.rounds += 1;
            kick = true;
        }
        let read = patrol.next(ftl.shape(), nand);
        if let Some(read) = read {
            self.stats.sectors_read += u64::from(read.sectors);
            patrol.reads = true;
            patrol.next_read = now + patrol.time_of(read.sectors.into());
        }
        (read, kick)
    }
}

impl Patrol {
    /// How long so many sectors take at the configured rate.
    fn time_of(&self, sectors: u64) -> Nanos {
        Nanos::transfer(sectors, self.config.sectors_per_sec.into())
    }

    fn deadline(&self) -> Nanos {
        let next_move = if self.hard.is_empty() { Nanos::MAX } else { self.next_move };
        let next_read = if self.reads { Nanos::MAX } else { self.next_read };
        next_move.min(next_read)
    }

    fn begin_round(&mut self, now: Nanos, ftl: &mut Ftl) {
        self.at = (0, 0);
        self.next_round = now + self.config.repeat_after.max(Nanos(1));
        // The journal is on chunks of its own, and each snapshot begins it anew on others.
        ftl.checkpoint();
        let before = std::mem::take(&mut self.open);
        let open: Vec<(u32, u32, u32)> = ftl.open_chunks().collect();
        for (chunk, readable, written) in open.into_iter().filter(|(.., written)| *written > 0) {
            let known = before.get(&chunk).filter(|(then, _)| *then <= written);
            let rounds = known.map_or(0, |(_, rounds)| rounds.saturating_add(1));
            if rounds >= ROUNDS_OPEN {
                self.hard.insert(chunk);
            }
            if written > readable && known.is_some_and(|(then, _)| *then == written) {
                ftl.renew(chunk);
            }
            self.open.insert(chunk, (written, rounds));
        }
    }

    /// The next write unit of the next chunk that holds something; `None` at the end of the round.
    fn next(&mut self, shape: &Shape, nand: &Nand) -> Option<PatrolRead> {
        while self.at.0 < shape.total_chunks() {
            let (chunk, sector) = self.at;
            let end = nand.chunk_info(ChunkId(chunk)).map_or(0, |info| match info.state {
                ChunkState::Free | ChunkState::Offline => 0,
                _ if info.write_pointer == shape.sectors => shape.sectors,
                // What is not paired cannot be read.
                _ => info.write_pointer.saturating_sub(shape.pair),
            });
            if sector < end {
                let sectors = shape.unit.min(end - sector);
                self.at.1 += sectors;
                return Some(PatrolRead { first: shape.first_psn(chunk) + sector, sectors });
            }
            self.at = (chunk + 1, 0);
        }
        None
    }
}
