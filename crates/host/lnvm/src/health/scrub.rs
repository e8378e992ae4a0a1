//! [`Scrubber`]: visits cold chunks and recommends relocations. Open-channel drives leave the
//! health of the flash to the host [LightNVM17 §4.1].
//!
//! A *visit* reads a cold chunk at a configured rate, and checks whether sectors need much error
//! correction or are unreadable. Cells lose charge over time if they are not rewritten (retention).
//! The visit then compares the chunk's wear with that of its parallel unit: cold data on a
//! little-worn block keeps the block from its share of the erases (static wear leveling).
//!
//! The scrubber only recommends. The owner of the chunk relocates the data and releases or erases
//! the chunk, which ends the recommendation.

use std::collections::BTreeMap;

use time::Nanos;

/// Configuration of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubConfig {
    /// Sectors read per second; 0 for none: visits then check the wear only.
    pub sectors_per_sec: u32,
    /// Time after closing from which a chunk is cold.
    pub cold_after: Nanos,
    /// Interval between two visits of a chunk.
    pub repeat_after: Nanos,
    /// Wear difference in cycles to the most worn chunk of the parallel unit from which cold data
    /// should be relocated to a more worn chunk; `None` disables static wear leveling.
    pub wear_gap_cycles: Option<u32>,
}

impl Default for ScrubConfig {
    /// A chunk is cold after a week, and is read once per month.
    fn default() -> ScrubConfig {
        let day = 24 * 3600;
        ScrubConfig {
            sectors_per_sec: 1024,
            cold_after: Nanos::from_secs(7 * day),
            repeat_after: Nanos::from_secs(30 * day),
            wear_gap_cycles: None,
        }
    }
}

/// Reason for the relocation of a chunk's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelocationReason {
    /// Reads needed much error correction.
    HighEcc {
        /// First such sector.
        sector: u32,
    },
    /// Sectors are uncorrectable.
    Uncorrectable {
        /// First such sector.
        sector: u32,
        /// Number of such sectors.
        sectors: u32,
    },
    /// Cold data on a little-worn block should move to a more worn one
    /// ([`DataTemperature::Cold`](crate::DataTemperature::Cold)).
    ColdOnLowWear {
        /// Cycles of the chunk.
        cycles: u32,
        /// Cycles of the most worn chunk on its parallel unit.
        pu_cycles_max: u32,
    },
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Chunks visited.
    pub visits: u64,
    /// Sectors read.
    pub sectors: u64,
    /// Sectors that were uncorrectable.
    pub uncorrectable: u64,
    /// Reads that needed much error correction.
    pub high_ecc: u64,
}

collections::counters!(ScrubStats { visits, sectors, uncorrectable, high_ecc });

/// A read that the scrubber requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubRead {
    /// The chunk.
    pub chunk: u32,
    /// First sector.
    pub sector: u32,
    /// Number of sectors.
    pub sectors: u32,
}

/// Wear of a chunk, as input of the scrubber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WearInfo {
    /// Cycles of the chunk.
    pub cycles: u32,
    /// Cycles of the most worn good chunk on its parallel unit.
    pub pu_cycles_max: u32,
}

#[derive(Clone, Copy, Debug)]
struct ChunkVisit {
    chunk: u32,
    /// Sectors written in the chunk.
    sectors: u32,
    /// Next sector to read.
    next_sector: u32,
    read_in_flight: bool,
}

/// A closed chunk.
#[derive(Clone, Copy, Debug)]
struct ClosedChunk {
    sectors: u32,
    /// Time of the next visit.
    due_at: Nanos,
}

/// Visits cold chunks, one after the other.
#[derive(Clone, Debug)]
pub struct Scrubber {
    config: ScrubConfig,
    read_sectors_max: u32,
    closed_chunks: BTreeMap<u32, ClosedChunk>,
    visit: Option<ChunkVisit>,
    /// Earliest time of the next read.
    cursor: u32,
    /// When the next read may begin.
    next_read_at: Nanos,
    /// No chunk is due before this time.
    idle_until: Nanos,
    recommendations: BTreeMap<u32, RelocationReason>,
    stats: ScrubStats,
}

impl Scrubber {
    /// Creates a scrubber without chunks. A read has at most `read_sectors_max` sectors.
    pub fn new(config: ScrubConfig, read_sectors_max: u32) -> Scrubber {
        Scrubber {
            config,
            read_sectors_max: read_sectors_max.max(1),
            closed_chunks: BTreeMap::new(),
            visit: None,
            cursor: 0,
            next_read_at: Nanos::ZERO,
            idle_until: Nanos::MAX,
            recommendations: BTreeMap::new(),
            stats: ScrubStats::default(),
        }
    }

    /// Adds a closed chunk with `sectors` readable sectors. If the time of its closing is unknown,
    /// `now` is the time of the discovery.
    pub fn on_chunk_closed(&mut self, chunk: u32, sectors: u32, now: Nanos) {
        let due = now + self.config.cold_after;
        if sectors > 0 {
            self.closed_chunks.insert(chunk, ClosedChunk { sectors, due_at: due });
            self.idle_until = self.idle_until.min(due);
        }
    }

    /// Removes a chunk that was erased, released or retired.
    pub fn on_chunk_erased(&mut self, chunk: u32) {
        self.closed_chunks.remove(&chunk);
        self.recommendations.remove(&chunk);
        if let Some(visit) = self.visit.filter(|v| v.chunk == chunk) {
            // A read in flight ends the visit; its result is ignored.
            self.visit = visit.read_in_flight.then_some(ChunkVisit { sectors: 0, ..visit });
        }
    }

    /// Handles a report that a chunk is hard to read, by a target's own read or by the drive's
    /// chunk notifications. Returns whether the scrubber visits the chunk.
    pub fn report_error(&mut self, chunk: u32, reason: RelocationReason) -> bool {
        let known = self.closed_chunks.contains_key(&chunk);
        if known {
            self.recommend(chunk, reason);
        }
        known
    }

    /// Returns the recommended relocations and their reasons.
    pub fn recommendations(&self) -> impl Iterator<Item = (u32, RelocationReason)> + '_ {
        self.recommendations.iter().map(|(chunk, reason)| (*chunk, *reason))
    }

    /// Dismisses a recommendation; the next visit may repeat it.
    pub fn dismiss(&mut self, chunk: u32) {
        self.recommendations.remove(&chunk);
    }

    /// Returns the counters.
    pub fn stats(&self) -> &ScrubStats {
        &self.stats
    }

    /// Returns when the scrubber has work; [`Nanos::MAX`] while a read is in flight.
    pub fn deadline(&self) -> Nanos {
        match self.visit {
            Some(visit) if visit.read_in_flight => Nanos::MAX,
            Some(_) => self.next_read_at,
            None => self.idle_until,
        }
    }

    /// Returns the next read, if one is due; at most one is in flight. `wear_of` returns a chunk's
    /// wear.
    pub fn next_read(
        &mut self,
        now: Nanos,
        wear_of: &dyn Fn(u32) -> WearInfo,
    ) -> Option<ScrubRead> {
        loop {
            if self.visit.is_none() && !self.start_visit(now) {
                return None;
            }
            let visit = self.visit.as_mut()?;
            if visit.read_in_flight {
                return None;
            }
            if visit.next_sector >= visit.sectors || self.config.sectors_per_sec == 0 {
                self.complete_visit(now, wear_of);
                continue;
            }
            if now < self.next_read_at {
                return None;
            }
            let sectors = self.read_sectors_max.min(visit.sectors - visit.next_sector);
            let read = ScrubRead { chunk: visit.chunk, sector: visit.next_sector, sectors };
            visit.next_sector += sectors;
            visit.read_in_flight = true;
            let rate = u64::from(self.config.sectors_per_sec);
            self.next_read_at = now + Nanos::transfer(sectors.into(), rate);
            return Some(read);
        }
    }

    /// Handles the completion of a read; bit `i` of `failed` stands for its `i`-th sector.
    pub fn read_done(&mut self, read: ScrubRead, failed: u64, high_ecc: bool) {
        let Some(visit) = self.visit.as_mut().filter(|v| v.chunk == read.chunk && v.read_in_flight)
        else {
            return;
        };
        visit.read_in_flight = false;
        if visit.sectors == 0 {
            self.visit = None;
            return;
        }
        self.stats.sectors += u64::from(read.sectors);
        if failed != 0 {
            let (sector, sectors) = (read.sector + failed.trailing_zeros(), failed.count_ones());
            self.stats.uncorrectable += u64::from(sectors);
            self.recommend(read.chunk, RelocationReason::Uncorrectable { sector, sectors });
        } else if high_ecc {
            self.stats.high_ecc += 1;
            self.recommend(read.chunk, RelocationReason::HighEcc { sector: read.sector });
        }
    }

    /// Selects the next chunk that is due, starting at the cursor.
    fn start_visit(&mut self, now: Nanos) -> bool {
        if now < self.idle_until {
            return false;
        }
        let due = |(_, c): &(&u32, &ClosedChunk)| c.due_at <= now;
        let after = self.closed_chunks.range(self.cursor..).find(due);
        let found = after.or_else(|| self.closed_chunks.range(..self.cursor).find(due));
        match found {
            Some((chunk, closed)) => {
                let visit = ChunkVisit {
                    chunk: *chunk,
                    sectors: closed.sectors,
                    next_sector: 0,
                    read_in_flight: false,
                };
                self.cursor = chunk.saturating_add(1);
                self.visit = Some(visit);
                true
            }
            None => {
                self.idle_until =
                    self.closed_chunks.values().map(|c| c.due_at).min().unwrap_or(Nanos::MAX);
                false
            }
        }
    }

    /// Finishes a visit.
    fn complete_visit(&mut self, now: Nanos, wear_of: &dyn Fn(u32) -> WearInfo) {
        let Some(ChunkVisit { chunk, .. }) = self.visit.take() else { return };
        self.stats.visits += 1;
        let Some(closed) = self.closed_chunks.get_mut(&chunk) else { return };
        // Never immediately again, even if visits follow each other without a pause.
        closed.due_at = now + self.config.repeat_after.max(Nanos(1));
        self.idle_until = self.idle_until.min(closed.due_at);
        let Some(spread) = self.config.wear_gap_cycles else { return };
        let WearInfo { cycles, pu_cycles_max: oldest_cycles } = wear_of(chunk);
        if oldest_cycles.saturating_sub(cycles) >= spread.max(1) {
            self.recommend(
                chunk,
                RelocationReason::ColdOnLowWear { cycles, pu_cycles_max: oldest_cycles },
            );
        }
    }

    /// Records the more urgent of two reasons: uncorrectable sectors, high ECC, wear.
    fn recommend(&mut self, chunk: u32, reason: RelocationReason) {
        let urgency = |r: &RelocationReason| match r {
            RelocationReason::Uncorrectable { .. } => 2,
            RelocationReason::HighEcc { .. } => 1,
            RelocationReason::ColdOnLowWear { .. } => 0,
        };
        match (self.recommendations.get_mut(&chunk), reason) {
            (
                Some(RelocationReason::Uncorrectable { sectors, .. }),
                RelocationReason::Uncorrectable { sectors: more, .. },
            ) => {
                *sectors = sectors.saturating_add(more);
            }
            (Some(known), _) if urgency(known) >= urgency(&reason) => {}
            _ => {
                self.recommendations.insert(chunk, reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ScrubConfig {
        ScrubConfig {
            sectors_per_sec: 1000,
            cold_after: Nanos::from_secs(10),
            repeat_after: Nanos::from_secs(100),
            wear_gap_cycles: Some(50),
        }
    }

    const EQUAL_WEAR: WearInfo = WearInfo { cycles: 100, pu_cycles_max: 100 };

    /// Runs until `end`; `outcome` returns the failed sectors of a read, and whether it needed much
    /// correction.
    fn run(
        scrubber: &mut Scrubber,
        end: Nanos,
        wear: WearInfo,
        mut outcome: impl FnMut(ScrubRead) -> (u64, bool),
    ) -> Vec<(Nanos, ScrubRead)> {
        let mut reads = Vec::new();
        loop {
            let now = scrubber.deadline();
            if now > end {
                return reads;
            }
            while let Some(read) = scrubber.next_read(now, &|_| wear) {
                assert_eq!(scrubber.next_read(now, &|_| wear), None, "one at a time");
                reads.push((now, read));
                let (failed, hard) = outcome(read);
                scrubber.read_done(read, failed, hard);
            }
            assert!(scrubber.deadline() > now, "time passes");
        }
    }

    #[test]
    fn cold_chunks_are_read_whole_at_the_rate_and_repeatedly() {
        let mut scrubber = Scrubber::new(config(), 64);
        scrubber.on_chunk_closed(3, 100, Nanos::ZERO);
        scrubber.on_chunk_closed(9, 64, Nanos::from_secs(5));
        let reads = run(&mut scrubber, Nanos::from_secs(50), EQUAL_WEAR, |_| (0, false));
        let of = |chunk| reads.iter().filter(move |(_, r)| r.chunk == chunk);
        let parts: Vec<_> = of(3).map(|(_, r)| (r.sector, r.sectors)).collect();
        assert_eq!(parts, [(0, 64), (64, 36)]);
        assert!(reads[0].0 == Nanos::from_secs(10) && of(9).all(|(at, _)| at.0 >= 15_000_000_000));
        for pair in reads.windows(2) {
            assert!(pair[1].0.since(pair[0].0).0 >= u64::from(pair[0].1.sectors) * 1_000_000);
        }
        assert_eq!((scrubber.stats().visits, scrubber.stats().sectors), (2, 164));
        assert_eq!(scrubber.recommendations().count(), 0);
        let again = run(&mut scrubber, Nanos::from_secs(130), EQUAL_WEAR, |_| (0, false));
        assert_eq!(again.len(), 3, "{again:?}");
    }

    #[test]
    fn high_ecc_is_recommended_for_relocation_until_the_chunk_is_erased() {
        let mut scrubber = Scrubber::new(config(), 64);
        scrubber.on_chunk_closed(1, 128, Nanos::ZERO);
        scrubber.on_chunk_closed(2, 128, Nanos::ZERO);
        run(&mut scrubber, Nanos::from_secs(50), EQUAL_WEAR, |r| match (r.chunk, r.sector) {
            (1, 64) => (0, true),
            (2, 0) => (0, true),
            (2, _) => (0b110, false),
            _ => (0, false),
        });
        let advice: Vec<_> = scrubber.recommendations().collect();
        let (hard, lost) = (
            RelocationReason::HighEcc { sector: 64 },
            RelocationReason::Uncorrectable { sector: 65, sectors: 2 },
        );
        assert_eq!(advice, [(1, hard), (2, lost)]);
        scrubber.on_chunk_erased(1);
        scrubber.dismiss(2);
        assert_eq!(scrubber.recommendations().count(), 0);
        scrubber.report_error(1, hard);
        assert_eq!(scrubber.recommendations().count(), 0, "an empty chunk is not suspected");
        scrubber.report_error(2, hard);
        assert_eq!(scrubber.recommendations().collect::<Vec<_>>(), [(2, hard)]);
    }

    #[test]
    fn cold_data_on_a_young_block_is_recommended_for_relocation_with_and_without_reads() {
        for sectors_per_sec in [0, 1000] {
            let mut scrubber = Scrubber::new(ScrubConfig { sectors_per_sec, ..config() }, 64);
            scrubber.on_chunk_closed(5, 10, Nanos::ZERO);
            let young = WearInfo { cycles: 10, pu_cycles_max: 60 };
            let reads = run(&mut scrubber, Nanos::from_secs(20), young, |_| (0, false));
            assert_eq!(reads.len(), usize::from(sectors_per_sec > 0));
            let reason = RelocationReason::ColdOnLowWear { cycles: 10, pu_cycles_max: 60 };
            assert_eq!(scrubber.recommendations().collect::<Vec<_>>(), [(5, reason)]);
            let config = ScrubConfig { wear_gap_cycles: None, sectors_per_sec, ..config() };
            let mut scrubber = Scrubber::new(config, 64);
            scrubber.on_chunk_closed(5, 10, Nanos::ZERO);
            run(&mut scrubber, Nanos::from_secs(20), young, |_| (0, false));
            assert_eq!((scrubber.recommendations().count(), scrubber.stats().visits), (0, 1));
        }
    }

    #[test]
    fn a_chunk_that_is_erased_while_it_is_read_is_not_visited() {
        let mut scrubber = Scrubber::new(config(), 4);
        scrubber.on_chunk_closed(7, 8, Nanos::ZERO);
        let now = Nanos::from_secs(10);
        let read = scrubber.next_read(now, &|_| EQUAL_WEAR).unwrap();
        scrubber.on_chunk_erased(7);
        scrubber.read_done(read, 0b1, true);
        assert_eq!(scrubber.next_read(Nanos::from_secs(11), &|_| EQUAL_WEAR), None);
        assert_eq!((scrubber.recommendations().count(), scrubber.deadline()), (0, Nanos::MAX));
        assert_eq!(scrubber.stats().uncorrectable, 0);
    }
}
