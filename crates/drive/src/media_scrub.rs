//! [`MediaEventHandler`]: what a drive that manages its flash does about what its media notice, and [`Patrol`]: the
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
use ftl::{FlashGeometry, Ftl};
use media::{ChunkIndex, ChunkState, Nand};
use nvme::{ChunkNotificationKind, ChunkNotificationScope};

use crate::MediaScrubConfig;
use crate::media_events::MediaEvent;
use crate::stats::MediaScrubStats;

/// Rounds after which a line that is still being written is moved: what is put into it is as old as its
/// chunks are.
const OPEN_LINE_AGE_PASSES: u32 = 2;

/// Acts on what is noticed.
#[derive(Clone, Debug, Default)]
pub(crate) struct MediaEventHandler {
    scrubber: Option<Box<MediaScrubber>>,
    pub(crate) stats: MediaScrubStats,
}

/// A read that the patrol wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MediaScrubRead {
    /// The first physical sector, and how many.
    pub(crate) first: u32,
    pub(crate) sectors: u32,
}

#[derive(Clone, Debug)]
struct MediaScrubber {
    config: MediaScrubConfig,
    /// Where the round is: the next chunk and sector.
    position: (u32, u32),
    /// When the next read may begin; never while one is under way.
    next_read_at: Nanos,
    read_in_flight: bool,
    /// When this round began, and the next may.
    next_pass_at: Nanos,
    /// Chunks that are being written, how far they were when the round began, and in how many rounds
    /// before they were, too.
    open_chunks: BTreeMap<u32, (u32, u32)>,
    /// Chunks whose line is to be moved, and when that may be.
    chunks_to_refresh: BTreeSet<u32>,
    next_refresh_at: Nanos,
}

impl MediaEventHandler {
    pub(crate) fn new(patrol: Option<MediaScrubConfig>) -> MediaEventHandler {
        let scrubber = patrol.filter(|p| p.sectors_per_sec > 0).map(|config| {
            Box::new(MediaScrubber {
                config,
                position: (u32::MAX, 0),
                next_read_at: Nanos::ZERO,
                read_in_flight: false,
                next_pass_at: Nanos::ZERO,
                open_chunks: BTreeMap::new(),
                chunks_to_refresh: BTreeSet::new(),
                next_refresh_at: Nanos::ZERO,
            })
        });
        MediaEventHandler { scrubber, stats: MediaScrubStats::default() }
    }

    /// When the patrol wants to go on; never without one.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        self.scrubber.as_ref().map_or(Nanos::MAX, |p| p.deadline())
    }

    /// Something was noticed, on a layer that is kicked afterwards.
    #[cold]
    pub(crate) fn on_media_event(&mut self, notice: MediaEvent, ftl: &mut Ftl) {
        self.stats.media_events += 1;
        let shape = *ftl.geometry();
        let chunk = shape.chunk_of(notice.psn.0);
        let done = match (notice.scope, notice.kind) {
            (ChunkNotificationScope::Pu, ChunkNotificationKind::Unrecoverable) => {
                let pu = shape.pu_of(chunk);
                let open = ftl.open_chunks().map(|(chunk, ..)| chunk);
                let open: Vec<u32> = open.filter(|chunk| shape.pu_of(*chunk) == pu).collect();
                open.into_iter().filter(|chunk| ftl.chunk_offline(*chunk)).count() > 0
            }
            (ChunkNotificationScope::Chunk, ChunkNotificationKind::Unrecoverable) => {
                ftl.chunk_offline(chunk)
            }
            (_, ChunkNotificationKind::Unrecoverable | ChunkNotificationKind::ErrorRateHigh) => {
                self.refresh_or_queue(chunk, ftl)
            }
            (_, ChunkNotificationKind::ErrorRateMedium) if self.scrubber.is_some() => {
                self.refresh_or_queue(chunk, ftl)
            }
            _ => false,
        };
        self.stats.ignored += u64::from(!done);
    }

    /// A chunk is hard to read.
    fn refresh_or_queue(&mut self, chunk: u32, ftl: &mut Ftl) -> bool {
        if let Some(patrol) = &mut self.scrubber {
            patrol.chunks_to_refresh.insert(chunk);
            return true;
        }
        let moves = ftl.refresh(chunk);
        self.stats.refreshes += u64::from(moves);
        moves
    }

    /// The patrol's read has ended.
    pub(crate) fn on_read_complete(&mut self, now: Nanos) {
        if let Some(patrol) = &mut self.scrubber {
            patrol.read_in_flight = false;
            patrol.next_read_at = patrol.next_read_at.max(now);
        }
    }

    /// Goes on with the patrol at `now`, which it wanted. Returns what it reads next, and whether the layer
    /// is to be kicked.
    pub(crate) fn step(
        &mut self,
        now: Nanos,
        ftl: &mut Ftl,
        nand: &Nand,
    ) -> (Option<MediaScrubRead>, bool) {
        let Some(patrol) = &mut self.scrubber else { return (None, false) };
        let mut kick = false;
        while now >= patrol.next_refresh_at
            && let Some(chunk) = patrol.chunks_to_refresh.pop_first()
        {
            // Of a line's chunks the first to be noticed has all of it moved.
            if ftl.refresh(chunk) {
                self.stats.refreshes += 1;
                let line = u64::from(ftl.capacity_plan().line_sectors);
                patrol.next_refresh_at = now + patrol.duration_of(line);
                kick = true;
            }
        }
        if patrol.read_in_flight || now < patrol.next_read_at {
            return (None, kick);
        }
        if patrol.position.0 >= ftl.geometry().total_chunks() {
            if now < patrol.next_pass_at {
                patrol.next_read_at = patrol.next_pass_at;
                return (None, kick);
            }
            patrol.begin_pass(now, ftl);
            self.stats.passes += 1;
            kick = true;
        }
        let read = patrol.next_read(ftl.geometry(), nand);
        if let Some(read) = read {
            self.stats.sectors_read += u64::from(read.sectors);
            patrol.read_in_flight = true;
            patrol.next_read_at = now + patrol.duration_of(read.sectors.into());
        }
        (read, kick)
    }
}

impl MediaScrubber {
    /// How long so many sectors take at the configured rate.
    fn duration_of(&self, sectors: u64) -> Nanos {
        Nanos::transfer(sectors, self.config.sectors_per_sec.into())
    }

    fn deadline(&self) -> Nanos {
        let next_move =
            if self.chunks_to_refresh.is_empty() { Nanos::MAX } else { self.next_refresh_at };
        let next_read = if self.read_in_flight { Nanos::MAX } else { self.next_read_at };
        next_move.min(next_read)
    }

    fn begin_pass(&mut self, now: Nanos, ftl: &mut Ftl) {
        self.position = (0, 0);
        self.next_pass_at = now + self.config.pass_interval_min.max(Nanos(1));
        // The journal is on chunks of its own, and each snapshot begins it anew on others.
        ftl.checkpoint();
        let before = std::mem::take(&mut self.open_chunks);
        let open: Vec<(u32, u32, u32)> = ftl.open_chunks().collect();
        for (chunk, readable, written) in open.into_iter().filter(|(.., written)| *written > 0) {
            let known = before.get(&chunk).filter(|(then, _)| *then <= written);
            let rounds = known.map_or(0, |(_, rounds)| rounds.saturating_add(1));
            if rounds >= OPEN_LINE_AGE_PASSES {
                self.chunks_to_refresh.insert(chunk);
            }
            if written > readable && known.is_some_and(|(then, _)| *then == written) {
                ftl.rewrite_buffered(chunk);
            }
            self.open_chunks.insert(chunk, (written, rounds));
        }
    }

    /// The next write unit of the next chunk that holds something; `None` at the end of the round.
    fn next_read(&mut self, shape: &FlashGeometry, nand: &Nand) -> Option<MediaScrubRead> {
        while self.position.0 < shape.total_chunks() {
            let (chunk, sector) = self.position;
            let end = nand.chunk_info(ChunkIndex(chunk)).map_or(0, |info| match info.state {
                ChunkState::Free | ChunkState::Offline => 0,
                _ if info.write_pointer == shape.sectors_per_chunk => shape.sectors_per_chunk,
                // What is not paired cannot be read.
                _ => info.write_pointer.saturating_sub(shape.mw_cunits),
            });
            if sector < end {
                let sectors = shape.ws_opt.min(end - sector);
                self.position.1 += sectors;
                return Some(MediaScrubRead {
                    first: shape.first_sector_of(chunk) + sector,
                    sectors,
                });
            }
            self.position = (chunk + 1, 0);
        }
        None
    }
}
