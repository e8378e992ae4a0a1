//! The amount that a recovery reads is bounded by the distance between two checkpoints, not by the
//! size of the flash [LightNVM17 §4.2.2]. The test overwrites flash of two sizes at random, with
//! many writes in flight, and cuts power at different moments between two checkpoints.

// guarantee: D-05

use crate::common;

use common::{TestFlash, geometry};
use ftl::{CapacityPlan, ChunkReport, FlashGeometry, Ftl, FtlConfig, LineMetadata, RecoveryStats};
use rng::Rng;
use time::Nanos;

/// Sectors between two checkpoints.
const INTERVAL: u32 = 2_048;
/// Sectors per write unit, which is one page, and write units per chunk.
const UNIT: u32 = 4;
const UNITS: u32 = 16;
/// Writes in flight.
const WRITERS: usize = 32;
/// Number of moments at which power is cut.
const PHASES: u32 = 16;

struct Harness {
    ftl: Ftl,
    flash: TestFlash,
    config: FtlConfig,
    rng: Rng,
    free: Vec<u64>,
}

impl Harness {
    fn new(chunks: u32, pair_units: u32, config: FtlConfig) -> Harness {
        let mut geometry = geometry(2, 4, chunks, UNIT * UNITS, UNIT, pair_units * UNIT);
        geometry.sector_bytes = 4096;
        let shape = FlashGeometry::from_geometry(&geometry);
        let ftl = Ftl::new(shape, config, |_| ChunkReport::Free).unwrap();
        let mut flash = TestFlash::new(shape, true, ftl.slots(), 3);
        for tag in 0..WRITERS as u64 {
            flash.requests.insert(tag, vec![tag; 64]);
        }
        Harness { ftl, flash, config, rng: Rng::new(9), free: (0..WRITERS as u64).collect() }
    }

    /// Submits writes of `n` sectors at the addresses that `next` returns, with up to `WRITERS` in
    /// flight, until it returns `None` and all have completed.
    fn write(&mut self, n: u32, mut next: impl FnMut(&mut Rng) -> Option<u64>) {
        let mut more = true;
        while more || self.free.len() < WRITERS {
            while more && let Some(tag) = self.free.pop() {
                match next(&mut self.rng) {
                    Some(lba) => self.ftl.write(tag, lba, n, false),
                    None => {
                        self.free.push(tag);
                        more = false;
                    }
                }
            }
            self.ftl.kick(Nanos(0), &mut self.flash);
            let before = self.free.len();
            while let Some(done) = self.ftl.pop_completion() {
                assert!(done.status.is_success());
                self.free.push(done.tag);
            }
            if self.free.len() == before && !self.flash.step(&mut self.ftl) {
                assert!(self.free.len() == WRITERS, "stuck: {}", self.ftl.debug_state());
            }
        }
    }

    /// Writes all sectors sequentially.
    fn fill(&mut self) {
        let (mut at, all) = (0, self.ftl.sectors() / 64 * 64);
        self.write(64, |_| {
            at += 64;
            (at <= all).then(|| at - 64)
        });
    }

    /// Overwrites this many sectors at random addresses, `n` per request.
    fn overwrite(&mut self, sectors: u32, n: u32) {
        let all = self.ftl.sectors();
        let mut left = sectors;
        self.write(n, |rng| {
            left = left.checked_sub(n)?;
            Some(rng.below(all - u64::from(n)))
        });
    }

    fn cut(&mut self) -> RecoveryStats {
        self.flash.cut();
        self.ftl = self.flash.recover(self.config);
        *self.flash.recoveries.last().unwrap()
    }
}

/// Returns the maxima over all recoveries, one per counter.
fn worst_case(
    chunks: u32,
    pair_units: u32,
    config: FtlConfig,
    sectors: u32,
) -> (RecoveryStats, CapacityPlan) {
    let mut harness = Harness::new(chunks, pair_units, config);
    harness.fill();
    let mut most = RecoveryStats::default();
    for phase in 0..PHASES {
        harness.overwrite(2 * INTERVAL + phase * INTERVAL / PHASES, sectors);
        let r = harness.cut();
        assert!(r.from_checkpoint && r.map_mismatches == 0, "{r:?}");
        most.oob_sectors = most.oob_sectors.max(r.oob_sectors);
        most.journal_sectors = most.journal_sectors.max(r.journal_sectors);
        most.page_sectors = most.page_sectors.max(r.page_sectors);
        most.data_sectors = most.data_sectors.max(r.data_sectors);
        most.padding_units = most.padding_units.max(r.padding_units);
        most.lines_read = most.lines_read.max(r.lines_read);
        assert_eq!(
            r.data_sectors,
            r.journal_sectors + r.page_sectors,
            "data reads are journal and map page reads only"
        );
    }
    (most, *harness.ftl.capacity_plan())
}

/// Returns the bound on the sectors read. The interval counts relocations too, so that
/// amplification does not matter. A checkpoint is durable at most half an interval after it began,
/// so the last one began at most one and a half intervals ago. In addition: the map pages of two
/// checkpoints, the units in flight, and the contents of the lines that were open then, two for
/// each of two streams.
fn bound(layout: &CapacityPlan) -> u64 {
    let in_flight = (layout.host_buffer_units + layout.gc_buffer_units) * UNIT;
    u64::from(INTERVAL * 3 / 2 + 2 * layout.map_pages + in_flight + 4 * layout.line_sectors)
}

#[test]
fn what_is_read_depends_on_the_interval_and_not_on_the_size() {
    let config = FtlConfig {
        over_provisioning: 0.25,
        checkpoint_sectors: INTERVAL,
        line_metadata: LineMetadata::Off,
        ..FtlConfig::default()
    };
    for (pair_units, sectors) in [(0, 1), (7, 1), (0, 64)] {
        let mut smallest: Option<RecoveryStats> = None;
        for chunks in [32, 128, 384] {
            let (most, layout) = worst_case(chunks, pair_units, config, sectors);
            println!(
                "{} sectors, pairs of {pair_units} units, writes of {sectors}: {} out of band of {} \
                 lines, bound {}; journal {}, pages {}, padding {} units",
                layout.logical,
                most.oob_sectors,
                most.lines_read,
                bound(&layout),
                most.journal_sectors,
                most.page_sectors,
                most.padding_units
            );
            assert!(most.oob_sectors <= bound(&layout), "{most:?} {layout:?}");
            assert_eq!(most.page_sectors, u64::from(layout.map_pages));
            // Twelve times the size may cost at most a quarter more, plus the map pages of two
            // checkpoints.
            let first = *smallest.get_or_insert(most);
            let pages = 2 * u64::from(layout.map_pages);
            assert!(most.oob_sectors <= first.oob_sectors * 5 / 4 + pages, "{most:?} {first:?}");
            assert!(most.padding_units <= first.padding_units + 4 * u64::from(layout.active_pus));
        }
    }
}
