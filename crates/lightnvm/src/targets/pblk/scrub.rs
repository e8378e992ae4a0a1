//! [`PblkScrubber`]: reads data that nobody writes, and has what is hard to read moved (LightNVM paper section
//! 4.1 leaves the health of the flash to the host).
//!
//! Owns a [`Scrubber`], which says what to read and what to move. Guarantees: one read at a time, no
//! more sectors per second than configured, behind all other commands; lines are moved no faster
//! than that either; advice ends when its chunk is erased or gone; a line is left open for
//! [`cold_after`](ScrubConfig::cold_after) and [`repeat_after`](ScrubConfig::repeat_after), and until
//! the next look, if there is room to give up what is left of it.

use std::collections::{BTreeMap, BTreeSet};

use clock::Nanos;
use ftl::{ChunkEvent, Ftl};

use super::vector_backend::VectorBackend;
use crate::subsystem::{RelocationReason, ScrubConfig, ScrubRead, ScrubStats, Scrubber, WearInfo};

/// The layer has a static wear levelling of its own, which knows every chunk.
const EQUAL_WEAR: WearInfo = WearInfo { cycles: 0, pu_cycles_max: 0 };

/// Looks after closed chunks.
#[derive(Debug)]
pub(super) struct PblkScrubber {
    scrubber: Scrubber,
    /// The read that is under way, or that the queue had no room for.
    read: Option<(ScrubRead, bool)>,
    /// Chunks whose line the layer was asked to move.
    requested: BTreeSet<u32>,
    /// Chunks that are still being written and are hard to read, of which the drive says so once until
    /// they are erased, or old.
    degraded_open: BTreeSet<u32>,
    /// When the next line may be moved, and how long after one.
    next_relocation: Nanos,
    relocation_interval: Nanos,
    /// Chunks that are being written; when they are looked at again, and how long after.
    open_chunks: BTreeMap<u32, OpenChunkProgress>,
    next_open_check: Nanos,
    cold_after: Nanos,
    /// When the journal is written anew, and how long after.
    next_checkpoint: Nanos,
    repeat_after: Nanos,
    /// Lines that the layer was asked to move.
    pub(super) relocations: u64,
}

/// A chunk that is being written.
#[derive(Clone, Copy, Debug)]
struct OpenChunkProgress {
    /// How far it was when it was last looked at.
    written: u32,
    /// When there was first seen to be something in it.
    since: Nanos,
}

impl PblkScrubber {
    pub(super) fn new(config: ScrubConfig, ftl: &mut Ftl, sectors_max: u32) -> PblkScrubber {
        ftl.subscribe_chunk_events();
        let config = ScrubConfig { wear_gap_cycles: None, ..config };
        let line = u64::from(ftl.capacity_plan().line_sectors);
        PblkScrubber {
            scrubber: Scrubber::new(config, sectors_max),
            read: None,
            requested: BTreeSet::new(),
            degraded_open: BTreeSet::new(),
            next_relocation: Nanos::ZERO,
            relocation_interval: Nanos::transfer(line, config.sectors_per_sec.max(1).into()),
            open_chunks: BTreeMap::new(),
            next_open_check: Nanos::ZERO,
            cold_after: config.cold_after.max(Nanos(1)),
            next_checkpoint: Nanos::ZERO,
            repeat_after: config.repeat_after.max(Nanos(1)),
            relocations: 0,
        }
    }

    /// Chunks that are open and were not written for as long as makes them cold are read as closed ones are.
    /// Those that are open for longer than it takes to read a closed one again are old: what is put
    /// into them would be as old as they are before it is looked at for the first time.
    fn check_open_chunks(&mut self, now: Nanos, ftl: &mut Ftl) -> bool {
        self.next_open_check = now + self.cold_after;
        let before = std::mem::take(&mut self.open_chunks);
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
                self.degraded_open.insert(chunk);
            }
            if known.is_some_and(|open| open.written == written) {
                self.scrubber.on_chunk_closed(chunk, readable, then);
                if written > readable {
                    ftl.rewrite_buffered(chunk);
                    renewed = true;
                }
            }
            self.open_chunks.insert(chunk, OpenChunkProgress { written, since });
        }
        renewed
    }

    /// Somebody else has found a chunk to be hard to read.
    pub(super) fn report_error(&mut self, chunk: u32, reason: RelocationReason) {
        if !self.scrubber.report_error(chunk, reason) {
            self.degraded_open.insert(chunk);
        }
    }

    pub(super) fn stats(&self) -> &ScrubStats {
        self.scrubber.stats()
    }

    /// The read has ended.
    pub(super) fn on_read_complete(&mut self, failed: u64, high_ecc: bool) {
        if let Some((read, true)) = self.read.take() {
            self.scrubber.read_done(read, failed, high_ecc);
        }
    }

    /// Goes on. Returns whether the layer has something to do.
    pub(super) fn poll(&mut self, now: Nanos, ftl: &mut Ftl, flash: &mut VectorBackend) -> bool {
        while let Some(change) = ftl.pop_chunk_event() {
            match change {
                ChunkEvent::Closed { chunk, sectors } => {
                    self.scrubber.on_chunk_closed(chunk, sectors, now)
                }
                ChunkEvent::Emptied { chunk } => {
                    self.scrubber.on_chunk_erased(chunk);
                    self.requested.remove(&chunk);
                }
            }
        }
        let mut moved = now >= self.next_open_check && self.check_open_chunks(now, ftl);
        if self.read.is_none() {
            self.read = self.scrubber.next_read(now, &|_| EQUAL_WEAR).map(|read| (read, false));
        }
        if let Some((read, sent @ false)) = &mut self.read {
            *sent = flash.submit_scrub_read(read.chunk, read.sector, read.sectors);
        }
        if now >= self.next_checkpoint {
            // The journal is on chunks of its own, and each snapshot begins it anew on others.
            ftl.checkpoint();
            self.next_checkpoint = now + self.repeat_after;
            moved = true;
        }
        while now >= self.next_relocation
            && let Some(chunk) = self.next_recommended()
        {
            self.requested.insert(chunk);
            self.degraded_open.remove(&chunk);
            // A line is advised once for each of its chunks.
            if ftl.refresh(chunk) {
                self.relocations += 1;
                self.next_relocation = now + self.relocation_interval;
                moved = true;
            }
        }
        moved
    }

    /// A chunk whose line is to be moved and that the layer was not asked for.
    fn next_recommended(&self) -> Option<u32> {
        let advice = self.scrubber.recommendations().map(|(chunk, _)| chunk);
        advice
            .chain(self.degraded_open.iter().copied())
            .find(|chunk| !self.requested.contains(chunk))
    }

    pub(super) fn deadline(&self) -> Nanos {
        let next_move =
            if self.next_recommended().is_some() { self.next_relocation } else { Nanos::MAX };
        self.scrubber.deadline().min(next_move).min(self.next_open_check).min(self.next_checkpoint)
    }
}
