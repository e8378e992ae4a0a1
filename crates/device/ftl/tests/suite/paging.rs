//! A map larger than its cache: the cache size, its cost, requests that wait for a map page, and
//! unreadable map pages. The tests in `oracle.rs` cover power cuts.

// guarantee: D-35, D-36

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use common::{TestFlash, geometry, map_cache_min};
use ftl::{
    CapacityError, ChunkReport, FlashGeometry, Ftl, FtlConfig, FtlStats, NewFtlError, WriteSeq,
};
use nvme::{ChunkId, PhysSector, Status};
use rng::{Rng, Zipf};
use time::Nanos;

const NOW: Nanos = Nanos(0);

/// Logical sectors per map page, with sectors of 512 bytes.
const PAGE: u64 = 112;

/// An FTL over flash with sectors of 512 bytes; a map page has 112 entries.
struct Harness {
    ftl: Ftl,
    flash: TestFlash,
    config: FtlConfig,
    tag: u64,
}

impl Harness {
    fn new(shape: FlashGeometry, config: FtlConfig, keeps: bool) -> Harness {
        let ftl = Ftl::new(shape, config, |_| ChunkReport::Free)
            .expect("the configuration fits the geometry");
        let flash = TestFlash::new(shape, keeps, ftl.slots(), 7);
        Harness { ftl, flash, config, tag: 0 }
    }

    fn wait(&mut self, tag: u64) -> Status {
        loop {
            while let Some(done) = self.ftl.pop_completion() {
                if done.tag == tag {
                    return done.status;
                }
            }
            assert!(self.flash.step(&mut self.ftl), "stuck: {}", self.ftl.debug_state());
        }
    }

    fn write(&mut self, lba: u64, value: u64) {
        self.tag += 1;
        self.flash.requests.insert(self.tag, vec![value]);
        self.ftl.write(self.tag, lba, 1, false);
        self.ftl.kick(NOW, &mut self.flash);
        assert!(self.wait(self.tag).is_success());
        self.flash.requests.remove(&self.tag);
    }

    fn read(&mut self, lba: u64) -> Result<u64, Status> {
        self.tag += 1;
        self.flash.requests.insert(self.tag, vec![u64::MAX]);
        self.ftl.read(NOW, self.tag, lba, 1, &mut self.flash);
        let status = self.wait(self.tag);
        let values = self.flash.requests.remove(&self.tag).unwrap();
        if status.is_success() { Ok(values[0]) } else { Err(status) }
    }

    fn flush(&mut self) {
        self.tag += 1;
        self.ftl.flush(NOW, self.tag, &mut self.flash);
        assert!(self.wait(self.tag).is_success());
    }

    /// Makes all data and a checkpoint durable.
    fn settle(&mut self) {
        self.flush();
        self.ftl.checkpoint();
        self.flash.settle(&mut self.ftl);
        assert!(self.ftl.is_idle(), "{}", self.ftl.debug_state());
    }

    fn restart(&mut self) {
        self.ftl = self.flash.power_cut(self.config);
    }
}

fn small() -> FlashGeometry {
    FlashGeometry::from_geometry(&geometry(1, 1, 60, 64, 1, 0))
}

fn capacity_error(shape: FlashGeometry, config: FtlConfig) -> CapacityError {
    match Ftl::new(shape, config, |_| ChunkReport::Free) {
        Err(NewFtlError::Capacity(e)) => e,
        other => panic!("{:?}", other.map(|_| "it works")),
    }
}

#[test]
fn a_map_of_a_hundred_times_its_memory_works_and_stays_in_it() {
    let shape = FlashGeometry::from_geometry(&geometry(1, 1, 1_500, 100, 1, 0));
    let config =
        FtlConfig { over_provisioning: 0.15, gc_queue_depth_units: 1, ..FtlConfig::default() };
    let map_cache_sectors = map_cache_min(&shape, &config);
    let mut harness = Harness::new(shape, FtlConfig { map_cache_sectors, ..config }, true);
    let sectors = harness.ftl.sectors();
    let pages = harness.ftl.capacity_plan().map_pages;
    assert!(pages >= 100 * map_cache_sectors, "{pages} pages, {map_cache_sectors} frames");
    let mut model: Vec<u64> = (1..=sectors).collect();
    for lba in 0..sectors {
        harness.write(lba, model[lba as usize]);
    }
    let mut rng = Rng::new(3);
    for i in 0..30_000 {
        let lba = rng.below(sectors);
        if i % 3 == 0 {
            assert_eq!(harness.read(lba), Ok(model[lba as usize]), "sector {lba}");
        } else {
            model[lba as usize] = sectors + i;
            harness.write(lba, sectors + i);
        }
        let cache = harness.ftl.map_cache();
        assert!(cache.resident <= cache.frames && cache.pinned <= cache.frames, "{cache:?}");
    }
    let (stats, cache) = (*harness.ftl.stats(), harness.ftl.map_cache());
    assert!(stats.lines_reclaimed > 100 && stats.map_page_writes > 20_000, "{stats:?}");
    assert_eq!((cache.resident_max, cache.frames), (map_cache_sectors - 1, map_cache_sectors - 1));
    // The whole map would take more than 60 times as much. Most of the memory used is for the
    // locations of the map pages.
    assert!(cache.bytes * 35 < 4 * (sectors + u64::from(pages)), "{cache:?}");
    let memory = u64::from(cache.frames + 1) * 4 * 112 + u64::from(pages) * 8 + 1_000;
    assert!(cache.bytes <= memory, "{cache:?}");
    harness.flush();
    harness.restart();
    for _ in 0..3_000 {
        let lba = rng.below(sectors);
        assert_eq!(harness.read(lba), Ok(model[lba as usize]), "sector {lba} after a restart");
    }
    harness.flash.settle(&mut harness.ftl);
    let cache = harness.ftl.map_cache();
    assert!(cache.resident_max <= cache.frames, "{cache:?}");
    assert_eq!(harness.ftl.stats().map_mismatches, 0);
}

#[test]
fn a_restart_reads_no_page_and_counts_the_same_as_one_that_reads_all() {
    let config = FtlConfig { over_provisioning: 0.4, ..FtlConfig::default() };
    let mut harness = Harness::new(small(), config, true);
    let sectors = harness.ftl.sectors();
    let mut rng = Rng::new(5);
    for value in 1..2_500 {
        harness.write(rng.below(sectors * 3 / 4), value);
    }
    harness.settle();
    harness.restart();
    harness.flash.settle(&mut harness.ftl);
    let lines = |ftl: &Ftl| ftl.debug_state().split_once("; lines: ").unwrap().1.to_string();
    let (mapped, of_whole) = (harness.ftl.mapped(), lines(&harness.ftl));
    let read = harness.flash.recoveries.last().unwrap().data_sectors;
    for more in [0, 4, 1_000] {
        let map_cache_sectors = map_cache_min(&small(), &config) + more;
        harness.config = FtlConfig { map_cache_sectors, ..config };
        harness.restart();
        let pages = u64::from(harness.ftl.capacity_plan().map_pages);
        let jobs = harness.flash.recoveries.last().unwrap().data_sectors;
        assert!(jobs + pages * 3 / 4 <= read, "{jobs} {read}");
        assert!(harness.ftl.mapped() >= mapped && !harness.ftl.is_idle());
        assert!(harness.ftl.mapped() <= mapped + pages * 112);
        harness.flash.settle(&mut harness.ftl);
        assert!(harness.ftl.is_idle());
        let stats = harness.ftl.stats();
        assert!(stats.map_page_reads <= pages && stats.map_mismatches == 0, "{stats:?}");
        assert_eq!((harness.ftl.mapped(), lines(&harness.ftl)), (mapped, of_whole.clone()));
    }
}

#[test]
fn a_read_that_waits_for_its_page_blocks_no_other_and_sees_completed_writes() {
    let config = FtlConfig { over_provisioning: 0.4, ..FtlConfig::default() };
    let map_cache_sectors = map_cache_min(&small(), &config);
    let mut harness = Harness::new(small(), FtlConfig { map_cache_sectors, ..config }, true);
    for lba in 0..harness.ftl.sectors() {
        harness.write(lba, lba + 1);
    }
    harness.settle();
    harness.restart();
    harness.flash.settle(&mut harness.ftl);
    // A write brings page 20 into the cache and pins it.
    harness.write(20 * 112, 77);
    for tag in [1_001, 1_002] {
        harness.flash.requests.insert(tag, vec![0]);
    }
    harness.ftl.read(NOW, 1_001, 112, 1, &mut harness.flash);
    assert!(!harness.ftl.has_completion(), "its map page is not in the cache");
    harness.ftl.read(NOW, 1_002, 20 * 112, 1, &mut harness.flash);
    assert_eq!(harness.ftl.pop_completion().map(|d| d.tag), Some(1_002));
    assert_eq!(harness.flash.requests[&1_002], [77]);
    // A read that waits for its map page, and a later write of the sector: the read may return
    // either value.
    harness.flash.requests.insert(1_003, vec![88]);
    harness.ftl.write(1_003, 112, 1, false);
    harness.ftl.kick(NOW, &mut harness.flash);
    assert!(harness.wait(1_001).is_success());
    assert!([88, 113].contains(&harness.flash.requests[&1_001][0]));
    // A read submitted after the write completed returns its value, wherever the map page is.
    harness.flash.settle(&mut harness.ftl);
    for page in 2..20 {
        assert_eq!(harness.read(page * 112 + 5), Ok(page * 112 + 6));
    }
    assert_eq!(harness.read(112), Ok(88));
    let stats = harness.ftl.stats();
    assert!(stats.map_misses >= 18 && stats.map_hits >= 1, "{stats:?}");
}

/// Returns the configuration without line metadata, with it and the P2L in memory, and with the P2L
/// on the media.
fn kinds(shape: &FlashGeometry, config: FtlConfig) -> [FtlConfig; 3] {
    let with = common::with_metadata(shape, &config);
    [config, with, FtlConfig { p2l_location: ftl::P2lLocation::Media, ..with }].map(|config| {
        let map_cache_sectors = map_cache_min(shape, &config);
        FtlConfig { map_cache_sectors, ..config }
    })
}

#[test]
fn a_page_that_cannot_be_read_is_rebuilt_of_what_its_sectors_say() {
    let shape = FlashGeometry::from_geometry(&geometry(1, 2, 60, 64, 1, 0));
    for config in kinds(&shape, FtlConfig { over_provisioning: 0.6, ..FtlConfig::default() }) {
        for restarts in [true, false] {
            let mut harness = Harness::new(shape, config, true);
            let sectors = harness.ftl.sectors();
            let mut model: Vec<u64> = (1..=sectors).collect();
            let mut rng = Rng::new(12);
            for lba in 0..sectors {
                harness.write(lba, lba + 1);
            }
            for value in sectors..3 * sectors {
                let lba = rng.below(sectors);
                model[lba as usize] = value;
                harness.write(lba, value);
            }
            harness.settle();
            if restarts {
                harness.restart();
            }
            // Several pages at once need one scan.
            for page in 3..9 {
                let at =
                    harness.flash.newest((sectors + page) as u32).expect("every page was written");
                harness.flash.unreadable.insert(at);
            }
            let before = *harness.ftl.stats();
            for lba in 0..sectors {
                assert_eq!(harness.read(lba), Ok(model[lba as usize]), "sector {lba}, {config:?}");
            }
            harness.flash.settle(&mut harness.ftl);
            let stats = harness.ftl.stats().since(&before);
            assert_eq!(stats.map_pages_lost, 0, "{stats:?}");
            let exact = !restarts && config.p2l_location == ftl::P2lLocation::Memory;
            if restarts {
                assert!(stats.pages_rebuilt >= 6, "{stats:?}");
            }
            assert_eq!(stats.rebuild_reads == 0, exact || stats.pages_rebuilt == 0, "{stats:?}");
            harness.settle();
            harness.flash.unreadable.clear();
            // After they were written again, the pages are as reliable as before.
            for value in 0..10_000 {
                let lba = rng.below(sectors);
                model[lba as usize] = value;
                harness.write(lba, value);
            }
            harness.settle();
            harness.restart();
            for lba in 0..sectors {
                assert_eq!(harness.read(lba), Ok(model[lba as usize]), "sector {lba}, {config:?}");
            }
        }
    }
}

/// Returns the sectors whose loss cannot be decided from what is readable. Their map page is on a
/// die that failed, and their latest version is on another die. `dead` are the chunks of the failed
/// die.
///
/// For such a sector, some location on the die is named by no remaining map page, however old, and
/// by no footer (each line's footer has a part on each die). The unit there is sequenced after the
/// latest remaining version, and after what the newest remaining map page covers. If there had been
/// a newer version of the sector, every readable bit would be the same.
fn undecided(flash: &TestFlash, sectors: u64, dead: &Range<u32>) -> BTreeSet<u64> {
    let shape = flash.geometry;
    let place = |lba: u64| flash.newest(lba as u32);
    let gone =
        |lba: u64| place(lba).is_some_and(|p| dead.contains(&shape.chunk_of(PhysSector(p)).get()));
    let chunks = (0..shape.total_chunks()).filter(|chunk| !dead.contains(chunk));
    let (mut named, mut lows, mut numbers) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    for (phys, number, lba) in chunks.flat_map(|chunk| flash.written_in(chunk)) {
        let Some(lba) = lba.map(u64::from) else { continue };
        if place(lba) == Some(phys) {
            numbers.insert(lba, number);
        }
        let Some(bytes) = flash.bytes_at(phys).filter(|_| lba >= sectors) else { continue };
        // The layout is that of `TranslationPage`.
        let low = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        let newest: &mut u64 = lows.entry(lba).or_default();
        *newest = low.max(*newest);
        let words = bytes[32 + PAGE as usize / 8..][..4 * PAGE as usize].as_chunks::<4>().0;
        named.extend(words.iter().filter_map(|w| u32::from_le_bytes(*w).checked_sub(1)));
    }
    // The journal holds the locations of the latest map pages.
    let is_page = |phys, lba| lba >= sectors && place(lba) == Some(phys);
    let there = dead.clone().flat_map(|chunk| flash.written_in(chunk));
    let unnamed = there.filter(|&(phys, _, lba)| {
        lba.is_some_and(|lba| !named.contains(&phys) && !is_page(phys, lba.into()))
    });
    let newest = unnamed.map(|(_, number, _)| number).max().unwrap_or(0);
    let lost = (0..sectors).filter(|lba| gone(sectors + lba / PAGE) && !gone(*lba));
    let known = |lba: &u64| {
        let low = lows.get(&(sectors + lba / PAGE)).copied().unwrap_or(0);
        low.max(numbers.get(lba).map_or(u64::MAX, |number| number + 1))
    };
    lost.filter(|lba| known(lba) <= newest).collect()
}

#[test]
fn a_die_that_goes_takes_its_sectors_and_no_others_whatever_pages_of_the_map_it_had() {
    let shape = FlashGeometry::from_geometry(&geometry(1, 4, 60, 64, 1, 0));
    for config in kinds(&shape, FtlConfig { over_provisioning: 0.9, ..FtlConfig::default() }) {
        for while_off in [true, false] {
            let mut harness = Harness::new(shape, config, true);
            let sectors = harness.ftl.sectors();
            let mut rng = Rng::new(13);
            let mut model: Vec<u64> = (1..=sectors).collect();
            for lba in 0..sectors {
                harness.write(lba, lba + 1);
            }
            for value in sectors..3 * sectors {
                let lba = rng.below(sectors);
                model[lba as usize] = value;
                harness.write(lba, value);
            }
            harness.settle();
            let die = 2;
            let chunks = die * shape.chunks_per_pu..(die + 1) * shape.chunks_per_pu;
            let on_it = |flash: &TestFlash, lba: u64| {
                flash
                    .newest(lba as u32)
                    .is_some_and(|p| chunks.contains(&(p / shape.sectors_per_chunk)))
            };
            let lost: Vec<bool> = (0..sectors).map(|lba| on_it(&harness.flash, lba)).collect();
            let pages = u64::from(harness.ftl.capacity_plan().map_pages);
            let pages = (sectors..sectors + pages).filter(|p| on_it(&harness.flash, *p)).count();
            assert!(pages > 1, "the die held only {pages} map pages");
            let undecided = undecided(&harness.flash, sectors, &chunks);
            chunks.clone().for_each(|chunk| {
                harness.flash.kill(chunk);
            });
            if while_off {
                harness.restart();
            } else {
                chunks.clone().for_each(|chunk| {
                    harness.ftl.chunk_offline(ChunkId(chunk));
                });
                harness.ftl.kick(NOW, &mut harness.flash);
                harness.flush();
            }
            for _ in 0..2 {
                let mut errors = BTreeSet::new();
                for lba in 0..sectors {
                    match harness.read(lba) {
                        Ok(value) => {
                            assert!(!lost[lba as usize], "sector {lba}: {value}, {config:?}");
                            assert_eq!(value, model[lba as usize], "sector {lba}, {config:?}");
                        }
                        Err(_) if lost[lba as usize] => {}
                        Err(_) => _ = errors.insert(lba),
                    }
                }
                let beside = errors.difference(&undecided).count();
                println!(
                    "{} of {sectors} on other dies are errors, {beside} of them beside the {} that \
                     nothing tells of, with {pages} pages there and {} in memory; off {while_off}, {config:?}",
                    errors.len(),
                    undecided.len(),
                    harness.ftl.map_cache().frames
                );
                // While power is on and the P2L is in memory, the FTL knows every valid sector.
                // Otherwise it depends on what is readable: a lost unit with a still larger
                // sequence number cannot be told from no unit.
                let exact = !while_off && config.p2l_location == ftl::P2lLocation::Memory;
                let most = if exact { 0 } else { errors.len() / 100 };
                assert!(!exact || errors.is_empty(), "{errors:?}");
                assert!(beside <= most, "{errors:?}, {undecided:?}");
                harness.flash.settle(&mut harness.ftl);
                harness.flush();
                let stats = harness.ftl.stats();
                assert_eq!(stats.map_pages_lost, 0, "{stats:?}");
                harness.restart();
            }
        }
    }
}

#[test]
fn collection_goes_on_after_pages_were_lost_that_had_been_counted() {
    let config = FtlConfig { over_provisioning: 0.4, ..FtlConfig::default() };
    let map_cache_sectors = map_cache_min(&small(), &config);
    let mut harness = Harness::new(small(), FtlConfig { map_cache_sectors, ..config }, true);
    let sectors = harness.ftl.sectors();
    for lba in 0..sectors {
        harness.write(lba, lba + 1);
    }
    // Any page may be lost at any time: one fetch in two hundred fails three times in a row.
    harness.flash.read_fail = 0.17;
    let mut rng = Rng::new(10);
    let mut errors = 0;
    for value in 0..20_000 {
        let lba = rng.below(sectors);
        if value % 2 == 0 {
            harness.write(lba, value);
        } else {
            errors += u32::from(harness.read(lba).is_err());
        }
    }
    let stats = *harness.ftl.stats();
    assert_eq!(stats.map_pages_lost, 0, "{stats:?}");
    assert!(stats.pages_rebuilt > 5 && stats.lines_reclaimed > 100, "{stats:?}");
    assert!(errors > 1_000, "{errors}");
    harness.flash.read_fail = 0.0;
    for lba in 0..sectors {
        harness.write(lba, lba);
    }
    harness.settle();
    harness.restart();
    assert!((0..sectors).all(|lba| harness.read(lba) == Ok(lba)));
}

#[test]
fn a_trim_of_everything_passes_through_a_few_frames() {
    let config = FtlConfig { over_provisioning: 0.4, ..FtlConfig::default() };
    let map_cache_sectors = map_cache_min(&small(), &config);
    let mut harness = Harness::new(small(), FtlConfig { map_cache_sectors, ..config }, true);
    let sectors = harness.ftl.sectors();
    for lba in 0..sectors {
        harness.write(lba, lba + 1);
    }
    harness.tag += 1;
    harness.ftl.trim(harness.tag, 1, sectors as u32 - 1);
    harness.ftl.kick(NOW, &mut harness.flash);
    assert!(harness.wait(harness.tag).is_success());
    harness.flush();
    assert_eq!(harness.ftl.stats().trimmed, sectors - 1);
    harness.restart();
    assert_eq!(harness.read(0), Ok(1));
    assert!((1..sectors).all(|lba| harness.read(lba) == Ok(0)), "a flushed trim must persist");
    harness.flash.settle(&mut harness.ftl);
    assert_eq!(harness.ftl.mapped() - u64::from(harness.ftl.capacity_plan().map_pages), 1);
}

#[test]
fn memory_that_is_too_small_is_refused_with_the_least_that_works() {
    let (shape, config) = (small(), FtlConfig::default());
    let least = map_cache_min(&shape, &config);
    let layout = *Ftl::new(shape, config, |_| ChunkReport::Free).unwrap().capacity_plan();
    assert_eq!(least, layout.host_buffer_units + layout.gc_buffer_units + 3);
    let with = |map_cache_sectors| FtlConfig { map_cache_sectors, ..config };
    for sectors in 1..least {
        let e = capacity_error(shape, with(sectors));
        assert_eq!(e, CapacityError::MapCacheTooSmall { sectors, sectors_min: least });
        assert!(e.to_string().contains(&format!("make it {least} or more")), "{e}");
    }
    for sectors in [least, least + 1, u32::MAX] {
        let ftl = Ftl::new(shape, with(sectors), |_| ChunkReport::Free).unwrap();
        assert_eq!(ftl.map_cache().frames, (sectors - 1).min(layout.map_pages));
        assert_eq!(
            ftl.capacity_plan().logical,
            layout.logical,
            "the cache size must not change the capacity"
        );
    }
    // Without spare sectors, there is no space to write map pages.
    let none = FtlConfig { over_provisioning: 0.0, ..with(least) };
    assert!(matches!(
        capacity_error(shape, none),
        CapacityError::MapCacheWithoutSpace { needed: 1.., spare: 0 }
    ));
    // A map that is completely cached needs no spare sectors, because no page is evicted.
    let all = FtlConfig { map_cache_sectors: u32::MAX, ..none };
    assert!(Ftl::new(shape, all, |_| ChunkReport::Free).is_ok());
    let of_drive = Ftl::new_with_device_l2p(shape, with(least), |_| ChunkReport::Free, WriteSeq(1));
    assert!(matches!(of_drive, Err(NewFtlError::Capacity(CapacityError::MapCacheOnDeviceL2p))));
}

/// Costs of requests with a given share of the map in memory.
#[derive(Debug)]
struct Cost {
    /// Share of host reads that hit the map cache.
    hits: f64,
    /// Media reads per host read.
    reads: f64,
    /// Sectors programmed per sector that the host wrote.
    amplification: f64,
}

fn cost(share: f64, zipf: bool) -> Cost {
    let shape = FlashGeometry::from_geometry(&geometry(1, 1, 800, 100, 1, 0));
    let config = FtlConfig { over_provisioning: 0.28, ..FtlConfig::default() };
    let pages = Ftl::new(shape, config, |_| ChunkReport::Free).unwrap().capacity_plan().map_pages;
    let map_cache_sectors = (f64::from(pages) * share) as u32 + 1;
    let mut harness = Harness::new(shape, FtlConfig { map_cache_sectors, ..config }, true);
    let sectors = harness.ftl.sectors();
    let (draw, mut rng) = (Zipf::new(sectors, 0.99).unwrap(), Rng::new(11));
    // Neighboring sectors are about equally popular, as in files.
    let mut lba = || if zipf { draw.sample(&mut rng) } else { rng.below(sectors) };
    for lba in 0..sectors {
        harness.write(lba, lba);
    }
    for value in 0..60_000 {
        harness.write(lba(), value);
    }
    let since = |harness: &Harness, before: &FtlStats| harness.ftl.stats().since(before);
    let before = *harness.ftl.stats();
    for value in 0..40_000 {
        harness.write(lba(), value);
    }
    let amplification = since(&harness, &before).write_amplification().unwrap();
    harness.flash.settle(&mut harness.ftl);
    for _ in 0..5_000 {
        harness.read(lba()).unwrap();
    }
    let before = *harness.ftl.stats();
    for _ in 0..20_000 {
        harness.read(lba()).unwrap();
    }
    let s = since(&harness, &before);
    let hits = s.map_hits as f64 / (s.map_hits + s.map_misses) as f64;
    let media = s.host_reads - s.buffer_hits - s.unmapped_reads + s.map_page_reads;
    Cost { hits, reads: media as f64 / s.host_reads as f64, amplification }
}

#[test]
fn what_less_memory_costs_follows_from_how_much_of_the_map_is_used() {
    let mut last: Option<Cost> = None;
    for (share, zipf) in
        [(1.0, false), (0.25, false), (0.05, false), (1.0, true), (0.25, true), (0.05, true)]
    {
        let now = cost(share, zipf);
        println!("{:4.0} % of the map, zipf {zipf}: {now:.3?}", share * 100.0);
        if share == 1.0 {
            assert!(now.hits == 1.0 && now.reads <= 1.0, "{now:?}");
        } else {
            // A miss costs one media read and nothing else.
            assert!((now.reads - (2.0 - now.hits)).abs() < 0.02, "{now:?}");
            let before = last.as_ref().expect("a larger cache was measured before");
            assert!(now.hits < before.hits && now.amplification >= before.amplification);
            if zipf {
                assert!(now.hits > 1.5 * share, "popular pages must stay in the cache: {now:?}");
            } else {
                assert!((now.hits - share).abs() < 0.03, "{now:?}");
            }
        }
        last = Some(now);
    }
}
