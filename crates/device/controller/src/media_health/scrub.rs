//! [`MediaEventHandler`]: the reaction of a drive that manages its own flash to media events, and
//! `MediaScrubber`: background reads that detect errors in data that hosts do not read. [LightNVM17
//! §2.2] has a drive report such events to its host; here the FTL is in the drive, without a log
//! page.
//!
//! | event | reaction |
//! |---|---|
//! | chunk offline | The FTL stops writing to it, redispatches buffered data, and relocates the line. |
//! | die failed | As above for open chunks; others are handled when they are found, because relocating all lines at once would exhaust the spare space. |
//! | uncorrectable sector, read retries, program failure | The FTL refreshes the line. |
//! | many corrected bit errors | With a scrub, the FTL refreshes the line; otherwise nothing, because on a worn drive all data is like this. |
//!
//! Invariants of the scrub: one read at a time, and at most the configured number of sectors per
//! second is read and relocated. Each pass reads every chunk that holds data, and starts the
//! journal anew on other chunks. Buffered data whose paired pages have been missing for a pass is
//! redispatched. A line that has been open for longer than two passes is refreshed.

use std::collections::{BTreeMap, BTreeSet};

use ftl::{FlashGeometry, Ftl};
use media::{ChunkId, ChunkState, Nand, PhysSector};
use nvme::{ChunkNotificationKind, ChunkNotificationScope};
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::MediaScrubConfig;
use crate::media_health::events::MediaHealthEvent;
use crate::stats::MediaScrubStats;

/// Passes after which an open line is refreshed, because its oldest data is as old as the line.
const OPEN_LINE_AGE_PASSES: u32 = 2;

/// Handles media events, and runs the scrub.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MediaEventHandler {
    scrubber: Option<Box<MediaScrubber>>,
    pub(crate) stats: MediaScrubStats,
}

/// A read that the scrub requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MediaScrubRead {
    /// First physical sector, and number of sectors.
    pub(crate) first: PhysSector,
    pub(crate) sectors: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct MediaScrubber {
    config: MediaScrubConfig,
    /// Position of the pass: next chunk and sector.
    position: (u32, u32),
    /// Earliest time of the next read; never while a read is in flight.
    next_read_at: Nanos,
    read_in_flight: bool,
    /// Start of this pass, and earliest start of the next pass.
    next_pass_at: Nanos,
    /// Open chunks: write pointer at the start of the pass, and number of earlier passes in which
    /// the chunk was open.
    open_chunks: BTreeMap<ChunkId, (u32, u32)>,
    /// Chunks whose lines are to be refreshed, and the earliest time of the next refresh.
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

    /// Returns the deadline of the scrub; never if it is disabled.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        self.scrubber.as_ref().map_or(Nanos::MAX, |p| p.deadline())
    }

    /// Handles a media event. The caller kicks the FTL afterwards.
    #[cold]
    pub(crate) fn on_media_event(&mut self, notice: MediaHealthEvent, ftl: &mut Ftl) {
        self.stats.media_events += 1;
        let shape = *ftl.geometry();
        let chunk = shape.chunk_of(notice.phys);
        let done = match (notice.scope, notice.kind) {
            (ChunkNotificationScope::Pu, ChunkNotificationKind::Unrecoverable) => {
                let pu = shape.pu_of(chunk);
                let open = ftl.open_chunks().map(|(chunk, ..)| chunk);
                let open: Vec<ChunkId> = open.filter(|chunk| shape.pu_of(*chunk) == pu).collect();
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

    /// Refreshes the line of a chunk that is hard to read, or queues it for the scrub.
    fn refresh_or_queue(&mut self, chunk: ChunkId, ftl: &mut Ftl) -> bool {
        if let Some(patrol) = &mut self.scrubber {
            patrol.chunks_to_refresh.insert(chunk.get());
            return true;
        }
        let moves = ftl.refresh(chunk);
        self.stats.refreshes += u64::from(moves);
        moves
    }

    /// Records the completion of the scrub's read.
    pub(crate) fn on_read_complete(&mut self, now: Nanos) {
        if let Some(patrol) = &mut self.scrubber {
            patrol.read_in_flight = false;
            patrol.next_read_at = patrol.next_read_at.max(now);
        }
    }

    /// Runs the scrub at its deadline. Returns the next read, and whether the caller must kick the
    /// FTL.
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
            // The first chunk that is refreshed relocates its whole line.
            if ftl.refresh(ChunkId(chunk)) {
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
    /// Returns the time that `sectors` sectors take at the configured rate.
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
        // The journal has its own chunks, and each snapshot restarts it on others.
        ftl.checkpoint();
        let before = std::mem::take(&mut self.open_chunks);
        let open: Vec<(ChunkId, u32, u32)> = ftl.open_chunks().collect();
        for (chunk, readable, written) in open.into_iter().filter(|(.., written)| *written > 0) {
            let known = before.get(&chunk).filter(|(then, _)| *then <= written);
            let rounds = known.map_or(0, |(_, rounds)| rounds.saturating_add(1));
            if rounds >= OPEN_LINE_AGE_PASSES {
                self.chunks_to_refresh.insert(chunk.get());
            }
            if written > readable && known.is_some_and(|(then, _)| *then == written) {
                ftl.rewrite_buffered(chunk);
            }
            self.open_chunks.insert(chunk, (written, rounds));
        }
    }

    /// Returns the next write unit of the next chunk that holds data; `None` at the end of the
    /// pass.
    fn next_read(&mut self, shape: &FlashGeometry, nand: &Nand) -> Option<MediaScrubRead> {
        while self.position.0 < shape.total_chunks() {
            let (chunk, sector) = self.position;
            let end = nand.chunk_info(ChunkId(chunk)).map_or(0, |info| match info.state {
                ChunkState::Free | ChunkState::Offline => 0,
                _ if info.write_pointer == shape.sectors_per_chunk => shape.sectors_per_chunk,
                // Pages without their paired pages cannot be read.
                _ => info.write_pointer.saturating_sub(shape.mw_cunits),
            });
            if sector < end {
                let sectors = shape.ws_opt.min(end - sector);
                self.position.1 += sectors;
                return Some(MediaScrubRead {
                    first: shape.first_sector_of(ChunkId(chunk)) + sector,
                    sectors,
                });
            }
            self.position = (chunk + 1, 0);
        }
        None
    }
}
