//! Lines with header and footer metadata [LightNVM17 §4.2.2, §4.2.4]: the reads that recovery
//! saves, recovery without metadata, and garbage collection that reads the victim's P2L from its
//! metadata.

// guarantee: D-09, D-10

use crate::common;

use std::collections::BTreeSet;

use common::{TestFlash, geometry, map_cache_min};
use ftl::{
    CapacityError, CapacityPlan, ChunkReport, FlashGeometry, Ftl, FtlConfig, LineMetadata,
    NewFtlError, P2lLocation, Recovery, RecoveryError, WriteSeq,
};
use nvme::{ChunkId, Status};
use rng::Rng;
use time::Nanos;

const NOW: Nanos = Nanos(0);

/// No checkpoint except the first, so that recovery reads all lines.
const MEDIA: FtlConfig = FtlConfig {
    over_provisioning: 0.25,
    active_pus: 0,
    victim_policy: ftl::VictimPolicyKind::Greedy,
    hot_cold: true,
    hot_stream: false,
    gc_low_watermark_lines: 2,
    gc_high_watermark_lines: 2,
    // In this flash, a parallel unit may run far ahead of the others.
    write_buffer_sectors: 400,
    checkpoint_sectors: u32::MAX,
    gc_queue_depth_units: 80,
    map_cache_sectors: 0,
    instance_id: 0,
    dynamic_wear_leveling: false,
    line_metadata: LineMetadata::On,
    p2l_location: P2lLocation::Media,
    static_wear_leveling: 0,
    rate_limiter: ftl::RateLimiterKind::Proportional,
    gc_read_priority: ftl::GcReadPriority::Off,
    vector_copy: false,
    atomic_writes: false,
    owner_bytes: 0,
    addressing: ftl::SectorAddressing::Logical,
};
const MEMORY: FtlConfig = FtlConfig { p2l_location: P2lLocation::Memory, ..MEDIA };
const WITHOUT: FtlConfig = FtlConfig { line_metadata: LineMetadata::Off, ..MEMORY };

/// An FTL, and the values of its sectors.
struct Harness {
    ftl: Ftl,
    flash: TestFlash,
    config: FtlConfig,
    values: Vec<u64>,
    rng: Rng,
    tag: u64,
}

fn shape() -> FlashGeometry {
    FlashGeometry::from_geometry(&geometry(2, 2, 48, 128, 4, 8))
}

impl Harness {
    fn new(config: FtlConfig, seed: u64) -> Harness {
        Harness::with_geometry(shape(), config, seed)
    }

    fn with_geometry(shape: FlashGeometry, config: FtlConfig, seed: u64) -> Harness {
        let ftl = Ftl::new(shape, config, |_| ChunkReport::Free).unwrap();
        let mut flash = TestFlash::new(shape, true, ftl.slots(), seed);
        if seed % 2 == 1 {
            flash.reorder(seed);
        }
        let values = vec![0; ftl.sectors() as usize];
        Harness { ftl, flash, config, values, rng: Rng::new(seed), tag: 0 }
    }

    fn wait(&mut self) -> Status {
        for _ in 0..100_000 {
            while let Some(done) = self.ftl.pop_completion() {
                if done.tag == self.tag {
                    return done.status;
                }
            }
            self.flash.step(&mut self.ftl);
        }
        panic!("the request does not complete: {}", self.ftl.debug_state());
    }

    fn write(&mut self, lba: u64) {
        self.tag += 1;
        self.values[lba as usize] = self.tag;
        self.flash.requests.insert(self.tag, vec![self.tag]);
        self.ftl.write(self.tag, lba, 1, false);
        self.ftl.kick(NOW, &mut self.flash);
        assert!(self.wait().is_success(), "{:?}", self.ftl.stats());
        self.flash.requests.clear();
    }

    /// Writes every sector once, then `times` as many random sectors, with occasional flushes.
    fn churn(&mut self, times: u64) {
        let sectors = self.values.len() as u64;
        for lba in 0..sectors {
            self.write(lba);
        }
        for i in 0..times * sectors {
            let lba = self.rng.below(sectors);
            self.write(lba);
            if i % 97 == 0 {
                self.flush();
            }
        }
        self.flush();
        self.flash.settle(&mut self.ftl);
    }

    fn flush(&mut self) {
        self.tag += 1;
        self.ftl.flush(NOW, self.tag, &mut self.flash);
        assert!(self.wait().is_success());
    }

    fn read(&mut self, lba: u64) -> (Status, u64) {
        self.tag += 1;
        self.flash.requests.insert(self.tag, vec![u64::MAX]);
        self.ftl.read(NOW, self.tag, lba, 1, &mut self.flash);
        let status = self.wait();
        (status, self.flash.requests.remove(&self.tag).unwrap()[0])
    }

    fn check(&mut self) {
        for lba in 0..self.values.len() as u64 {
            let (status, value) = self.read(lba);
            assert!(status.is_success(), "sector {lba}: {status}");
            assert_eq!(value, self.values[lba as usize], "sector {lba}");
        }
    }

    /// Cuts power and recovers. Returns the statistics of the recovery.
    fn cut(&mut self) -> ftl::RecoveryStats {
        self.ftl = self.flash.power_cut(self.config);
        *self.flash.recoveries.last().unwrap()
    }

    /// Returns the chunks of the journal: the first ones on each parallel unit.
    fn journal(&self) -> BTreeSet<u32> {
        let s = shape();
        (0..self.ftl.capacity_plan().journal.chunks)
            .map(|i| s.chunk_on(s.striped_pu(i % s.pus), i / s.pus).get())
            .collect()
    }
}

#[test]
fn recovery_reads_a_few_sectors_of_a_full_line_and_not_all() {
    let read = |config| {
        let mut harness = Harness::new(config, 7);
        harness.churn(2);
        let stats = harness.cut();
        harness.check();
        assert!(stats.from_checkpoint, "{stats:?}");
        (stats, *harness.ftl.capacity_plan())
    };
    let (by_oob, _) = read(WITHOUT);
    for config in [MEMORY, MEDIA] {
        let (by_metadata, layout) = read(config);
        assert_eq!((by_oob.lines_by_metadata, by_oob.lines_by_oob), (0, by_oob.lines_read));
        // All lines except the open ones, at most two per stream, and those that garbage collection
        // had reclaimed.
        assert!(by_metadata.lines_by_oob <= 8, "{by_metadata:?}");
        assert!(by_metadata.lines_by_metadata > 25, "{by_metadata:?}");
        let last = u64::from((layout.line_metadata_units - 1) * shape().ws_opt);
        let saved = by_oob.oob_sectors - by_metadata.oob_sectors;
        let paid = by_metadata.lines_by_metadata * last;
        println!(
            "{:?}: {} out-of-band bytes of sectors, without metadata {}; {paid} sectors of metadata of \
             {} lines",
            config.p2l_location,
            by_metadata.oob_sectors,
            by_oob.oob_sectors,
            by_metadata.lines_by_metadata
        );
        assert!(saved > 40 * paid, "{saved} saved by {paid}");
        let all = by_metadata.oob_sectors + by_metadata.data_sectors;
        assert!(all * 3 < by_oob.oob_sectors + by_oob.data_sectors, "{all}: {by_metadata:?}");
    }
}

#[test]
fn without_a_journal_lines_are_found_by_their_headers() {
    for config in [MEMORY, MEDIA, WITHOUT] {
        let mut harness = Harness::new(config, 8);
        harness.churn(2);
        for chunk in harness.journal() {
            for sector in 0..shape().sectors_per_chunk {
                harness.flash.lose((shape().first_sector_of(ChunkId(chunk)) + sector).get());
            }
        }
        let stats = harness.cut();
        assert!(!stats.from_checkpoint, "{stats:?}");
        if config.line_metadata == LineMetadata::On {
            assert!(stats.lines_found > 25, "{stats:?}");
            assert!(stats.lines_by_metadata > 25, "{stats:?}");
        } else {
            assert_eq!((stats.lines_found, stats.lines_by_metadata), (0, 0), "{stats:?}");
        }
        harness.check();
        harness.churn(1);
        harness.check();
    }
}

#[test]
fn metadata_that_is_damaged_or_unreadable_makes_nothing_worse() {
    for (config, damage) in [(MEMORY, true), (MEDIA, true), (MEDIA, false)] {
        let mut harness = Harness::new(config, 9);
        harness.churn(2);
        for phys in harness.flash.metadata() {
            if damage { harness.flash.damage(phys) } else { harness.flash.lose(phys) }
        }
        let stats = harness.cut();
        assert_eq!((stats.lines_by_metadata, stats.lines_by_oob), (0, stats.lines_read));
        harness.check();
        // Garbage collection reads these victims by their out-of-band bytes.
        harness.churn(1);
        let by_oob = harness.ftl.stats().victims_read_by_oob;
        assert_eq!(by_oob > 0, config.p2l_location == P2lLocation::Media, "{by_oob}");
        assert_eq!(harness.ftl.stats().uncorrectable_sectors, 0);
        harness.check();
    }
}

#[test]
fn victims_are_read_by_their_metadata_and_by_the_map_if_nothing_else_is_left() {
    let mut harness = Harness::new(MEDIA, 10);
    harness.churn(2);
    let stats = *harness.ftl.stats();
    assert!(stats.victims_read_by_metadata > 20 && stats.victims_read_by_oob == 0, "{stats:?}");
    assert_eq!(stats.lines_without_metadata, 0, "{stats:?}");
    harness.check();
    // With the smallest buffer, a line may close without metadata: the padding at its end is kept
    // short to keep a buffer of that size busy, but in this flash a parallel unit may run any
    // distance ahead.
    let mut least =
        Harness::new(FtlConfig { write_buffer_sectors: 0, gc_queue_depth_units: 0, ..MEDIA }, 10);
    least.churn(2);
    let s = *least.ftl.stats();
    println!("least buffer: {} of {} lines without", s.lines_without_metadata, s.lines_reclaimed);
    assert!(s.lines_without_metadata * 2 < s.lines_reclaimed, "{s:?}");
    least.check();
    // Garbage collection finds damaged metadata while the power stays on.
    for phys in harness.flash.metadata() {
        harness.flash.damage(phys);
    }
    let lost = 5;
    for phys in harness.flash.copies_of(lost) {
        harness.flash.lose(phys);
    }
    let sectors = harness.values.len() as u64;
    for _ in 0..3 * sectors {
        let lba = harness.rng.below(sectors);
        if lba != u64::from(lost) {
            harness.write(lba);
        }
    }
    let after = harness.ftl.stats().since(&stats);
    assert!(after.victims_read_by_oob > 5 && after.uncorrectable_sectors == 1, "{after:?}");
    assert_eq!(
        harness.read(lost.into()).0,
        Status::UNRECOVERED_READ,
        "the lost sector must be reported as uncorrectable"
    );
    harness.write(lost.into());
    harness.flush();
    harness.check();
    harness.cut();
    harness.check();
}

#[test]
fn victims_are_read_with_a_map_larger_than_its_memory() {
    let mut asked = 0;
    for seed in 0..12 {
        let shape = FlashGeometry::from_geometry(&geometry(1, 1, 64, 96 + 4 * seed as u32, 1, 0));
        let mut config = FtlConfig { write_buffer_sectors: 0, gc_queue_depth_units: 2, ..MEDIA };
        config.over_provisioning = 0.35;
        config.map_cache_sectors = map_cache_min(&shape, &config) + seed as u32 % 3;
        let mut harness = Harness::with_geometry(shape, config, seed);
        assert!(
            harness.ftl.capacity_plan().map_pages > 2 * harness.ftl.map_cache().frames,
            "{:?}",
            harness.ftl.capacity_plan()
        );
        harness.churn(2);
        let stats = *harness.ftl.stats();
        assert!(stats.victims_read_by_metadata > 20 && stats.map_page_writes > 1_000, "{stats:?}");
        harness.check();
        let read = harness.cut();
        assert!(read.lines_by_metadata > 0, "{read:?}");
        harness.check();
        harness.flash.settle(&mut harness.ftl);
        assert_eq!(harness.ftl.stats().map_mismatches, 0);
        // Without the metadata, only the map is left, and it is read page by page.
        for phys in harness.flash.metadata() {
            harness.flash.damage(phys);
        }
        let lost = 5 + 112 * seed as u32;
        for phys in harness.flash.copies_of(lost) {
            harness.flash.lose(phys);
        }
        let before = *harness.ftl.stats();
        let sectors = harness.values.len() as u64;
        for _ in 0..3 * sectors {
            let lba = harness.rng.below(sectors);
            if lba != u64::from(lost) {
                harness.write(lba);
            }
        }
        let after = harness.ftl.stats().since(&before);
        assert!(
            after.victims_read_by_oob > 5 && after.uncorrectable_sectors == 1,
            "seed {seed}: {after:?}"
        );
        asked += after.victims_read_by_oob;
        assert_eq!(
            harness.read(lost.into()).0,
            Status::UNRECOVERED_READ,
            "the lost sector must be reported as uncorrectable"
        );
        harness.write(lost.into());
        harness.flush();
        harness.check();
        harness.cut();
        harness.check();
        let cache = harness.ftl.map_cache();
        assert!(cache.resident_max <= cache.frames, "{cache:?}");
    }
    assert!(asked > 0);
}

#[test]
fn what_was_lost_stays_lost_through_the_metadata_of_the_line_it_was_moved_to() {
    for config in [MEMORY, MEDIA] {
        let mut harness = Harness::new(config, 11);
        harness.churn(1);
        for phys in harness.flash.copies_of(5) {
            harness.flash.lose(phys);
        }
        let sectors = harness.values.len() as u64;
        while harness.ftl.stats().uncorrectable_sectors == 0 {
            let lba = 6 + harness.rng.below(sectors - 6);
            harness.write(lba);
        }
        // Fills the line with the poisoned copy, and continues for a while.
        for _ in 0..sectors {
            let lba = 6 + harness.rng.below(sectors - 6);
            harness.write(lba);
        }
        harness.flush();
        harness.flash.settle(&mut harness.ftl);
        assert_eq!(harness.read(5).0, Status::UNRECOVERED_READ);
        let stats = harness.cut();
        assert!(stats.lines_by_metadata > 10, "{stats:?}");
        assert_eq!(harness.read(5).0, Status::UNRECOVERED_READ, "{:?}", config.p2l_location);
    }
}

#[test]
fn failed_chunks_cost_a_line_its_metadata_and_nothing_else() {
    let (mut failures, mut without) = (0, 0);
    for (seed, config) in [(12, MEMORY), (13, MEDIA), (14, MEDIA)] {
        let mut harness = Harness::new(config, seed);
        harness.flash.program_fail = 0.0003;
        harness.churn(2);
        let stats = *harness.ftl.stats();
        (failures, without) =
            (failures + stats.program_failures, without + stats.lines_without_metadata);
        assert!(stats.lines_without_metadata <= stats.program_failures + 2, "{stats:?}");
        harness.flash.program_fail = 0.0;
        harness.check();
        harness.cut();
        harness.check();
        assert_eq!(harness.ftl.stats().uncorrectable_sectors, 0);
    }
    assert!(failures > 8 && without > 8, "{failures} failures, {without} lines without");
}

#[test]
fn every_cut_between_two_operations_of_a_line_that_ends_is_survived() {
    let mut harness = Harness::new(MEDIA, 15);
    harness.churn(1);
    let sectors = harness.values.len() as u64;
    for _ in 0..60 {
        // Writes about one line, so that power is cut close to its end.
        for _ in 0..400 + harness.rng.below(140) {
            let lba = harness.rng.below(sectors);
            harness.write(lba);
        }
        harness.flush();
        for _ in 0..harness.rng.below(12) {
            harness.flash.step(&mut harness.ftl);
        }
        harness.cut();
        harness.check();
    }
    let read: u64 = harness.flash.recoveries.iter().map(|s| s.lines_by_metadata).sum();
    assert!(read > 100, "{read}");
}

#[test]
fn a_flash_without_contents_collects_by_p2l_tables_in_memory() {
    let ftl = Ftl::new(shape(), MEDIA, |_| ChunkReport::Free).unwrap();
    let mut flash = TestFlash::new(shape(), false, ftl.slots(), 1);
    let (mut ftl, mut rng) = (ftl, Rng::new(3));
    for i in 0..4 * ftl.sectors() {
        let lba = if i < ftl.sectors() { i } else { rng.below(ftl.sectors()) };
        ftl.write(i, lba, 1, false);
        ftl.kick(NOW, &mut flash);
        while ftl.pop_completion().is_none() {
            assert!(flash.step(&mut ftl), "stuck: {}", ftl.debug_state());
        }
    }
    let stats = ftl.stats();
    assert!(stats.lines_reclaimed > 50 && stats.uncorrectable_sectors == 0, "{stats:?}");
    assert_eq!((stats.victims_read_by_metadata, stats.victims_read_by_oob), (0, 0));
}

#[test]
fn what_does_not_fit_the_configuration_says_so() {
    let total = shape().total_chunks();
    let off = FtlConfig { line_metadata: LineMetadata::Off, ..MEDIA };
    assert_eq!(
        CapacityPlan::new(&shape(), &off, total, total),
        Err(CapacityError::P2lWithoutLineMetadata { off: true })
    );
    // Chunks of sixteen units of one sector, on one parallel unit.
    let small = FlashGeometry::from_geometry(&geometry(1, 1, 60, 16, 1, 0));
    let refused = |config| {
        let refused = Ftl::new(small, config, |_| ChunkReport::Free).unwrap_err();
        let NewFtlError::Capacity(e) = refused else { panic!("{refused}") };
        e
    };
    let fits = FtlConfig { line_metadata: LineMetadata::Auto, ..MEMORY };
    let e = refused(MEMORY);
    assert!(matches!(e, CapacityError::LineMetadata { of: 16, .. }), "{e:?}");
    assert!(e.to_string().contains("one part in 16"), "{e}");
    let e = refused(FtlConfig { p2l_location: P2lLocation::Media, ..fits });
    assert_eq!(e, CapacityError::P2lWithoutLineMetadata { off: false });
    assert!(e.to_string().contains("does not fit lines of this size"), "{e}");
    assert_eq!(CapacityPlan::new(&small, &fits, 60, 60).unwrap().line_metadata_units, 0);
    // The FTL writes no line metadata if the device keeps the map.
    let of_map =
        |config| Ftl::new_with_device_l2p(shape(), config, |_| ChunkReport::Free, WriteSeq(1));
    let refused = of_map(MEMORY).unwrap_err();
    assert!(
        matches!(refused, NewFtlError::Capacity(CapacityError::LineMetadataOnDeviceL2p)),
        "{refused}"
    );
    assert_eq!(of_map(fits).unwrap().capacity_plan().line_metadata_units, 0);
    let (with, without) =
        [MEMORY, WITHOUT].map(|c| CapacityPlan::new(&shape(), &c, total, total).unwrap()).into();
    assert_eq!((with.line_metadata_units, without.line_metadata_units), (3, 0));
    assert_eq!(with.line_sectors, without.line_sectors - 3 * 4);
    assert!(with.logical < without.logical);
}

#[test]
fn a_layer_with_metadata_is_not_opened_without_and_the_other_way_round() {
    for (written, opened, units) in [(MEMORY, WITHOUT, (3, 0)), (WITHOUT, MEMORY, (0, 3))] {
        let mut harness = Harness::new(written, 16);
        harness.churn(0);
        let found = (0..shape().total_chunks()).map(|c| harness.flash.chunk_report(c)).collect();
        let recovery = Recovery::new(shape(), opened, found, shape().total_chunks()).unwrap();
        let error = harness.flash.execute_all(recovery);
        let Err(RecoveryError::ConfigMismatch(changed)) = error else { panic!("{error:?}") };
        assert!(changed.what.contains("line_metadata"), "{changed}");
        assert_eq!((changed.was, changed.is), units);
        // The location of the P2L does not change the format on the media.
        if written.line_metadata == LineMetadata::On {
            harness.config = MEDIA;
            harness.cut();
            harness.check();
        }
    }
}
