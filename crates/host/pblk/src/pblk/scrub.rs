//! [`PblkScrubber`]: reads cold data in the background and requests relocation of data that is hard
//! to read. Open-channel drives leave this to the host [LightNVM17 §4.1].
//!
//! Owns a [`Scrubber`], which selects what to read and what to relocate.
//!
//! Invariants:
//! - One read is in flight at a time, at most the configured number of sectors per second, and only
//!   if no other command waits.
//! - Lines are relocated at most at the rate at which they are read.
//! - A recommendation ends when its chunk is erased or goes offline.
//! - A chunk that stays open longer than [`cold_after`](ScrubConfig::cold_after) plus
//!   [`repeat_after`](ScrubConfig::repeat_after) has its line relocated at the next check, if there
//!   is capacity to give up the rest of the line.

use std::collections::{BTreeMap, BTreeSet};

use ftl::{ChunkEvent, Ftl};
use nvme::ChunkId;
use time::Nanos;

use super::vector_backend::VectorBackend;
use crate::invariants::{PblkViolation, require};
use lnvm::{RelocationReason, ScrubConfig, ScrubRead, ScrubStats, Scrubber, WearInfo};

/// Equal wear of all chunks: the FTL has its own static wear leveling, with the wear of every
/// chunk.
const EQUAL_WEAR: WearInfo = WearInfo { cycles: 0, pu_cycles_max: 0 };

/// Scrubs closed chunks, and open chunks that are cold.
#[derive(Debug)]
pub(super) struct PblkScrubber {
    scrubber: Scrubber,
    /// The current read, and whether it was submitted; the queue may have been full.
    read: Option<(ScrubRead, bool)>,
    /// Chunks whose line the FTL was asked to relocate.
    requested: BTreeSet<ChunkId>,
    /// Open chunks that are old, or that are hard to read; the drive reports the latter once until
    /// they are erased.
    degraded_open: BTreeSet<ChunkId>,
    /// Earliest time of the next relocation, and the interval between two.
    next_relocation: Nanos,
    relocation_interval: Nanos,
    /// Open chunks; the time of their next check, and the interval between two.
    open_chunks: BTreeMap<ChunkId, OpenChunkProgress>,
    next_open_check: Nanos,
    cold_after: Nanos,
    /// Time of the next checkpoint, and the interval between two.
    next_checkpoint: Nanos,
    repeat_after: Nanos,
    /// Number of lines that the FTL was asked to relocate.
    pub(super) relocations: u64,
}

/// An open chunk.
#[derive(Clone, Copy, Debug)]
struct OpenChunkProgress {
    /// Sectors written at the last check.
    written: u32,
    /// When data was first seen in it.
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

    /// Checks the open chunks. An open chunk that was not written for `cold_after` is read like a
    /// closed one. An open chunk older than `cold_after + repeat_after`, the time within which a
    /// closed chunk is read again, is marked for relocation: data appended to it would reach that
    /// age before its first scrub read.
    fn check_open_chunks(&mut self, now: Nanos, ftl: &mut Ftl) -> bool {
        self.next_open_check = now + self.cold_after;
        let before = std::mem::take(&mut self.open_chunks);
        let open: Vec<(ChunkId, u32, u32)> = ftl.open_chunks().collect();
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
                self.scrubber.on_chunk_closed(chunk.get(), readable, then);
                if written > readable {
                    ftl.rewrite_buffered(chunk);
                    renewed = true;
                }
            }
            self.open_chunks.insert(chunk, OpenChunkProgress { written, since });
        }
        renewed
    }

    /// Handles a report, from outside the scrub, that a chunk is hard to read.
    pub(super) fn report_error(&mut self, chunk: ChunkId, reason: RelocationReason) {
        if !self.scrubber.report_error(chunk.get(), reason) {
            self.degraded_open.insert(chunk);
        }
    }

    /// Checks the read in flight and the open chunks.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(super) fn check_invariants(&self) -> Result<(), PblkViolation> {
        if let Some((read, _)) = &self.read {
            let subject = format_args!("chunk {}", read.chunk);
            require!(read.sectors > 0, Scrub, "a read has sectors", subject, 1, read.sectors);
        }
        let last_check = self.next_open_check.since(self.cold_after);
        for (chunk, open) in &self.open_chunks {
            let since = open.since;
            require!(open.written > 0, Scrub, "an open chunk is written", chunk, 1, open.written);
            let name = "an open chunk was seen at a check";
            let was_seen = since <= last_check || self.next_open_check == Nanos::MAX;
            require!(was_seen, Scrub, name, chunk, last_check, since);
        }
        Ok(())
    }

    pub(super) fn stats(&self) -> &ScrubStats {
        self.scrubber.stats()
    }

    /// Handles the completion of the read.
    pub(super) fn on_read_complete(&mut self, failed: u64, high_ecc: bool) {
        if let Some((read, true)) = self.read.take() {
            self.scrubber.read_done(read, failed, high_ecc);
        }
    }

    /// Advances the scrub. Returns whether the FTL has operations to start.
    pub(super) fn poll(&mut self, now: Nanos, ftl: &mut Ftl, flash: &mut VectorBackend) -> bool {
        while let Some(change) = ftl.pop_chunk_event() {
            match change {
                ChunkEvent::Closed { chunk, sectors } => {
                    self.scrubber.on_chunk_closed(chunk.get(), sectors, now)
                }
                ChunkEvent::Emptied { chunk } => {
                    self.scrubber.on_chunk_erased(chunk.get());
                    self.requested.remove(&chunk);
                }
            }
        }
        let mut moved = now >= self.next_open_check && self.check_open_chunks(now, ftl);
        if self.read.is_none() {
            self.read = self.scrubber.next_read(now, &|_| EQUAL_WEAR).map(|read| (read, false));
        }
        if let Some((read, sent @ false)) = &mut self.read {
            *sent = flash.submit_scrub_read(ChunkId(read.chunk), read.sector, read.sectors);
        }
        if now >= self.next_checkpoint {
            // The journal has its own chunks; each snapshot restarts it on other chunks.
            ftl.checkpoint();
            self.next_checkpoint = now + self.repeat_after;
            moved = true;
        }
        while now >= self.next_relocation
            && let Some(chunk) = self.next_recommended()
        {
            self.requested.insert(chunk);
            self.degraded_open.remove(&chunk);
            // Each chunk of a line causes a recommendation; only the first one relocates the line.
            if ftl.refresh(chunk) {
                self.relocations += 1;
                self.next_relocation = now + self.relocation_interval;
                moved = true;
            }
        }
        moved
    }

    /// Returns a chunk whose line is to be relocated and was not requested yet.
    fn next_recommended(&self) -> Option<ChunkId> {
        let advice = self.scrubber.recommendations().map(|(chunk, _)| ChunkId(chunk));
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
