//! [`Patrol`]: reads data that nobody writes, and has what is hard to read moved (LightNVM paper section
//! 4.1 leaves the health of the flash to the host).
//!
//! Owns a [`Scrubber`], which says what to read and what to move. Guarantees: one read at a time, no
//! more sectors per second than configured, behind all other commands; lines are moved no faster
//! than that either; advice ends when its chunk is erased or gone; a line is left open for
//! [`cold_after`](ScrubConfig::cold_after) and [`repeat_after`](ScrubConfig::repeat_after), and until
//! the next look, if there is room to give up what is left of it.

use std::collections::{BTreeMap, BTreeSet};

use clock::Nanos;
use ftl::{ChunkChange, Ftl};

use super::vectors::VectorFlash;
use crate::core::{Reason, ScrubConfig, ScrubRead, ScrubStats, Scrubber, WearOf};

/// The layer has a static wear levelling of its own, which knows every chunk.
const EVEN: WearOf = WearOf { cycles: 0, oldest_cycles: 0 };

/// Looks after closed chunks.
#[derive(Debug)]
pub(super) struct Patrol {
    scrubber: Scrubber,
    /// The read that is under way, or that the queue had no room for.
    read: Option<(ScrubRead, bool)>,
    /// Chunks whose line the layer was asked to move.
    asked: BTreeSet<u32>,
    /// Chunks that are still being written and are hard to read, of which the drive says so once until
    /// they are erased, or old.
    hard: BTreeSet<u32>,
    /// When the next line may be moved, and how long after one.
    next_move: Nanos,
    pause: Nanos,
    /// Chunks that are being written; when they are looked at again, and how long after.
    open: BTreeMap<u32, Open>,
    next_look: Nanos,
    cold_after: Nanos,
    /// When the journal is written anew, and how long after.
    next_journal: Nanos,
    repeat_after: Nanos,
    /// Lines that the layer was asked to move.
    pub(super) moves: u64,
}

/// A chunk that is being written.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// How far it was when it was last looked at.
    written: u32,
    /// When there was first seen to be something in it.
    since: Nanos,
}

impl Patrol {
    pub(super) fn new(config: ScrubConfig, ftl: &mut Ftl, sectors_max: u32) -> Patrol {
        ftl.watch_chunks();
        let config = ScrubConfig { spread_cycles: None, ..config };
        let line = u64::from(ftl.layout().line_sectors);
        Patrol {
            scrubber: Scrubber::new(config, sectors_max),
            read: None,
            asked: BTreeSet::new(),
            hard: BTreeSet::new(),
            next_move: Nanos::ZERO,
            pause: Nanos::transfer(line, config.sectors_per_sec.max(1).into()),
            open: BTreeMap::new(),
            next_look: Nanos::ZERO,
            cold_after: config.cold_after.max(Nanos(1)),
            next_journal: Nanos::ZERO,
            repeat_after: config.repeat_after.max(Nanos(1)),
            moves: 0,
        }
    }

    /// Chunks that are open and were not written for as long as makes them cold are read as closed ones are.
    /// Those that are open for longer than it takes to read a closed one again are old: what is put
    /// into them would be as old as they are before it is looked at for the first time.
    fn look_at_open(&mut self, now: Nanos, ftl: &mut Ftl) -> bool {
        self.next_look = now + self.cold_after;
        let before = std::mem::take(&mut self.open);
        let open: Vec<(u32, u32, u32)> = ftl.open_chunks().collect();
        let then = Nanos(now.0.saturating_sub(self.cold_after.0));
        let mut renewed = false;
        for (chunk, readable, written) in open {
            if written == 0 {
                continue;
            }
            let known = before.get(&chunk).filter(|open| open.written <= written);
            let since = known.map_or(now, |open| open.since);
            if now.since(since) >= self.cold_after + self.repeat_after {
                self.hard.insert(chunk);
            }
            if known.is_some_and(|open| open.written == written) {
                self.scrubber.closed(chunk, readable, then);
                if written > readable {
                    ftl.renew(chunk);
                    renewed = true;
                }
            }
            self.open.insert(chunk, Open { written, since });
        }
        renewed
    }

    /// Somebody else has found a chunk to be hard to read.
    pub(super) fn suspect(&mut self, chunk: u32, reason: Reason) {
        if !self.scrubber.suspect(chunk, reason) {
            self.hard.insert(chunk);
        }
    }

    pub(super) fn stats(&self) -> &ScrubStats {
        self.scrubber.stats()
    }

    /// The read has ended.
    pub(super) fn scrubbed(&mut self, failed: u64, high_ecc: bool) {
        if let Some((read, true)) = self.read.take() {
            self.scrubber.read_done(read, failed, high_ecc);
        }
    }

    /// Goes on. Returns whether the layer has something to do.
    pub(super) fn poll(&mut self, now: Nanos, ftl: &mut Ftl, flash: &mut VectorFlash) -> bool {
        while let Some(change) = ftl.take_change() {
            match change {
                ChunkChange::Closed { chunk, sectors } => self.scrubber.closed(chunk, sectors, now),
                ChunkChange::Emptied { chunk } => {
                    self.scrubber.emptied(chunk);
                    self.asked.remove(&chunk);
                }
            }
        }
        let mut moved = now >= self.next_look && self.look_at_open(now, ftl);
        if self.read.is_none() {
            self.read = self.scrubber.next(now, &|_| EVEN).map(|read| (read, false));
        }
        if let Some((read, sent @ false)) = &mut self.read {
            *sent = flash.scrub(read.chunk, read.sector, read.sectors);
        }
        if now >= self.next_journal {
            // The journal is on chunks of its own, and each snapshot begins it anew on others.
            ftl.checkpoint();
            self.next_journal = now + self.repeat_after;
            moved = true;
        }
        while now >= self.next_move
            && let Some(chunk) = self.advised()
        {
            self.asked.insert(chunk);
            self.hard.remove(&chunk);
            // A line is advised once for each of its chunks.
            if ftl.refresh(chunk) {
                self.moves += 1;
                self.next_move = now + self.pause;
                moved = true;
            }
        }
        moved
    }

    /// A chunk whose line is to be moved and that the layer was not asked for.
    fn advised(&self) -> Option<u32> {
        let advice = self.scrubber.advice().map(|(chunk, _)| chunk);
        advice.chain(self.hard.iter().copied()).find(|chunk| !self.asked.contains(chunk))
    }

    pub(super) fn deadline(&self) -> Nanos {
        let next_move = if self.advised().is_some() { self.next_move } else { Nanos::MAX };
        self.scrubber.deadline().min(next_move).min(self.next_look).min(self.next_journal)
    }
}
