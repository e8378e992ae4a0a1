//! Data that ages, data that is read repeatedly, and chunks that fail, for each FTL: sharded pblk,
//! rrpc, and the drive itself. (`real/health.rs` covers pblk alone.)

// guarantee: D-28, D-29

mod harness;

use driver::MediaEvent;
use lnvm::ScrubConfig;
use media::{ChunkId, ErrorModel, InjectedFault};
use nvme::PuId;
use nvme::{Address, ChunkNotificationKind, ChunkNotificationScope};
use time::Nanos;

use harness::{Harness, Kind};

/// All FTLs; shards with separate parallel units, and with shared ones.
const ALL: [Kind; 4] = [Kind::Shards(2), Kind::Shards(3), Kind::Rrpc, Kind::Drive];

/// A model in which data has twice the bit errors after 40 s, three times after 80 s, and so on. A
/// new sector has 8 bit errors; 40 are corrected.
fn aging() -> ErrorModel {
    ErrorModel {
        rber: 8.0 / 4096.0,
        rber_growth: 1.0,
        ecc_bits: 40,
        retention: Nanos::from_secs(40),
        ..ErrorModel::default()
    }
}

const RATE: u32 = 2_000;

fn scrub_config() -> ScrubConfig {
    ScrubConfig {
        sectors_per_sec: RATE,
        cold_after: Nanos::from_secs(10),
        repeat_after: Nanos::from_secs(10),
        wear_gap_cycles: None,
    }
}

#[test]
fn data_that_is_not_rewritten_is_lost_without_a_scrub_and_relocated_in_time_with_one() {
    for (kind, seed) in ALL.into_iter().flat_map(|kind| [1, 5, 6].map(|seed| (kind, seed))) {
        // Seven times 8 bit errors are 56.
        let after = |patrol: Option<ScrubConfig>| {
            let mut b = Harness::new(kind, aging(), seed, patrol, true);
            b.fill();
            b.wait_until(Nanos::from_secs(240));
            let lost = b.uncorrectable();
            (b, lost)
        };
        let (mut b, lost) = after(None);
        let share = lost.len() as f64 / b.sectors() as f64;
        assert!(share > 0.5, "{kind:?}: {share} of it is lost");
        assert_eq!(b.maintenance_counts().sectors_read, 0, "{kind:?}");
        let (mut b, lost) = after(Some(scrub_config()));
        let (care, stats) = (b.maintenance_counts(), b.ftl_stats());
        println!("{kind:?}: {care:?}, {} lines moved", stats.refreshed_lines);
        // No sector is lost. Data appended to an open line is at most as old as the line stays
        // open, 30 s here (20 s, and one check more). It is read 10 s later, with a mean of 16 bit
        // errors. One sector in eight million then has more than 40 (Poisson). If all of these
        // 6,000 were appended that late, in each of five passes, one in 250 runs would lose one.
        assert!(lost.is_empty(), "{kind:?}, seed {seed}: {lost:?}, {care:?}");
        assert!(
            stats.refreshed_lines > 0 && stats.uncorrectable_sectors == 0,
            "{kind:?}: {stats:?}"
        );
        assert!(stats.finished_lines > 0, "{kind:?}: {stats:?}");
        // Up to one line of each shard is being closed for that, and one is being relocated.
        let waiting = care.relocations - stats.refreshed_lines;
        assert!(
            waiting <= 2 * kind.layers(),
            "{kind:?}: {waiting} of {} lines wait",
            care.relocations
        );
        // Reads and relocations are bounded by time times rate.
        let allowed = kind.layers() * (240 * u64::from(RATE) + 4 * 64);
        assert!(
            care.sectors_read <= allowed && stats.refresh_relocations <= allowed,
            "{kind:?}: {care:?}"
        );
        b.flush();
        if let Kind::Shards(_) = kind {
            let label = b.handles()[0].superblock_health().unwrap();
            println!("{label:?}");
            // Of four locations, two per generation.
            let most = 2 * label.rewrites;
            assert!(label.rewrites > 0 && label.copies == 2 && label.erases <= most, "{label:?}");
            assert!(label.scrub_passes <= 25 && label.copies_lost == 0, "{label:?}");
        }
        b.power_cycle();
        assert_eq!(b.uncorrectable(), lost, "{kind:?}, after a power cut");
    }
}

#[test]
fn the_superblock_of_shards_is_lost_without_a_scrub_and_kept_for_an_hour_with_one() {
    for (shards, seed) in [2, 3].into_iter().flat_map(|s| (0..4).map(move |seed| (s, seed))) {
        let mut b = Harness::new(Kind::Shards(shards), aging(), seed, Some(scrub_config()), true);
        b.write(0, 7);
        b.flush();
        for minute in 1..=60 {
            b.wait_until(Nanos::from_secs(60 * minute));
        }
        let label = b.handles()[0].superblock_health().unwrap();
        // At least one rewrite per 160 s. A pass, and with it an erase of each location, at most
        // once per 10 s.
        assert!(label.rewrites >= 60 * 60 / 160 - 1 && label.scrub_passes <= 362, "{label:?}");
        assert_eq!(
            (label.copies, label.rewrites_blocked, label.copies_lost),
            (2, 0, 0),
            "{label:?}"
        );
        assert!(label.erases <= 2 * label.rewrites, "{label:?}");
        b.power_cycle();
        assert_eq!(b.read(0), Ok(7), "{shards} shards, seed {seed}");
        assert_eq!(b.handles()[0].superblock_health().unwrap().generation, label.generation);
    }
    let mut b = Harness::new(Kind::Shards(2), aging(), 0, None, true);
    b.wait_until(Nanos::from_secs(1_000));
    let label = b.handles()[0].superblock_health().unwrap();
    assert_eq!((label.scrub_passes, label.rewrites, label.reads), (0, 0, 2), "{label:?}");
}

#[test]
fn a_die_with_a_copy_of_the_superblock_fails_and_another_takes_over() {
    for (shards, pu) in [2, 3].into_iter().flat_map(|s| (0..4).map(move |pu| (s, pu))) {
        let mut b = Harness::new(
            Kind::Shards(shards),
            ErrorModel::default(),
            3,
            Some(scrub_config()),
            true,
        );
        b.drive().nand_mut().unwrap().inject(InjectedFault::DieFailure { pu: PuId(pu) }).unwrap();
        let mut rounds = 0;
        while rounds < 40 {
            rounds += 1;
            b.wait_until(b.now + Nanos::from_secs(10));
        }
        let label = b.handles()[0].superblock_health().unwrap();
        // A copy was on the unit, or a later copy was attempted there.
        assert!(label.rewrites > 0 && label.copies == 2, "{shards}, {pu}: {label:?}");
        assert!(label.failures > 0, "{shards}, {pu}: {label:?}");
        // A location that failed is not retried for ever.
        assert!(label.failures <= 8, "{shards}, {pu}: {label:?}");
    }
}

#[test]
fn chunks_that_are_read_repeatedly_are_relocated() {
    let errors = ErrorModel {
        rber: 8.0 / 4096.0,
        rber_growth: 1.0,
        ecc_bits: 40,
        read_retries: 3,
        disturb_reads: 1_000,
        ..ErrorModel::default()
    };
    for kind in ALL {
        let run = |listens: bool| {
            let mut b = Harness::new(kind, errors, 6, None, listens);
            b.fill();
            for i in 0..20_000 {
                let lba = i % 16;
                assert_eq!(b.read(lba), Ok(b.model[lba as usize]), "{kind:?}");
            }
            (b.drive().stats().media.unwrap().retried_reads, b.ftl_stats(), b.maintenance_counts())
        };
        let (with, stats, care) = run(true);
        assert!(care.events > 0 && care.relocations > 0, "{kind:?}: {care:?}");
        assert_eq!(stats.refreshed_lines, care.relocations, "{kind:?}");
        // A drive always handles its own events: it is compared with the shards.
        let deaf = if kind == Kind::Drive { Kind::Shards(2) } else { kind };
        let mut b = Harness::new(deaf, errors, 6, None, false);
        b.fill();
        (0..20_000).for_each(|i| assert_eq!(b.read(i % 16), Ok(b.model[(i % 16) as usize])));
        let without = b.drive().stats().media.unwrap().retried_reads;
        println!("{kind:?}: {with} reads repeated, {without} by who does not listen; {care:?}");
        assert!(with * 4 < without, "{kind:?}: {with} reads repeated, {without} without");
    }
}

#[test]
fn a_chunk_that_fails_is_reported_and_its_sectors_fail_alone() {
    for kind in ALL {
        // On different parallel units and shards.
        let mut heard = 0;
        for nth in [3, 20, 45, 70, 90] {
            let mut b = Harness::new(kind, ErrorModel::default(), 8, None, true);
            b.fill();
            let nand = b.drive().nand_mut().unwrap();
            let full = nand.chunks().filter(|(_, i)| i.write_pointer == 64);
            let full: Vec<ChunkId> = full.map(|(chunk, _)| chunk).collect();
            let chunk = full[nth * full.len() / 100];
            nand.inject(InjectedFault::ChunkBad { chunk }).unwrap();
            let lost = b.uncorrectable();
            assert!(lost.len() <= 64, "{kind:?}, {chunk:?}: {}", lost.len());
            if lost.is_empty() {
                // A chunk of a journal, or with superseded data: it was not read.
                continue;
            }
            b.run_until_idle();
            let (stats, care) = (b.ftl_stats(), b.maintenance_counts());
            assert_eq!((stats.offline_chunks, care.events, care.ignored), (1, 1, 0), "{kind:?}");
            b.flush();
            b.wait_until(b.now + Nanos::from_secs(10));
            let stats = b.ftl_stats();
            assert_eq!(
                (stats.refreshed_lines, stats.retired_chunks),
                (1, 1),
                "{kind:?}: {stats:?}"
            );
            assert_eq!(b.uncorrectable(), lost, "{kind:?}, {chunk:?}");
            b.power_cycle();
            assert_eq!(b.uncorrectable(), lost, "{kind:?}, {chunk:?}, after a power cut");
            heard += 1;
        }
        assert!(heard >= 3, "{kind:?}: {heard} of five chunks had data");
    }
}

#[test]
fn a_die_that_fails_is_reported_to_every_shard_that_has_chunks_there() {
    for kind in ALL {
        let mut b = Harness::new(kind, ErrorModel::default(), 9, None, true);
        b.fill();
        b.drive().nand_mut().unwrap().inject(InjectedFault::DieFailure { pu: PuId(1) }).unwrap();
        let lost = b.uncorrectable();
        let share = lost.len() as f64 / b.sectors() as f64;
        assert!((0.2..0.3).contains(&share), "{kind:?}: {share}");
        b.run_until_idle();
        let stats = b.ftl_stats();
        // All of its 40 chunks except those of journals and superblocks, whose failures are found
        // on access. A drive retires the chunks that it writes to, one for each of up to two
        // streams, and finds the others on access.
        let expected = if kind == Kind::Drive { 1..=2 } else { 30..=40 };
        assert!(expected.contains(&stats.offline_chunks), "{kind:?}: {}", stats.offline_chunks);
        assert_eq!(b.uncorrectable(), lost, "{kind:?}");
    }
}

#[test]
fn an_event_goes_to_the_shard_that_has_the_chunk_and_what_is_nowhere_is_counted() {
    let mut b = Harness::new(Kind::Shards(2), ErrorModel::default(), 9, None, false);
    b.fill();
    let at = |group, pu, chunk, sector| Address { group, pu, chunk, sector };
    let (scope, kind) = (ChunkNotificationScope::Chunk, ChunkNotificationKind::ErrorRateHigh);
    let tell = |b: &mut Harness, address| {
        let event = MediaEvent { count: 1, address, scope, kind, sectors: 0 };
        b.handles()[0].on_media_event(&event);
        b.run_until_idle();
    };
    for address in [at(2, 0, 0, 0), at(0, 2, 0, 0), at(0, 0, 40, 0), at(0, 0, 3, 64)] {
        tell(&mut b, address);
    }
    let health = |b: &mut Harness| {
        b.handles().iter().map(|h| (h.health().events, h.health().ignored)).collect::<Vec<_>>()
    };
    assert_eq!(health(&mut b), [(4, 4), (0, 0)]);
    // Parallel units 0 and 2 in striping order are on channels 0 and 1: each shard has one pair.
    let mut moved = [0, 0];
    for (group, pu) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for chunk in 8..12 {
            let before = health(&mut b);
            tell(&mut b, at(group, pu, chunk, 0));
            let after = health(&mut b);
            let of: Vec<usize> = (0..2).filter(|s| after[*s].0 > before[*s].0).collect();
            let [shard] = of[..] else { panic!("{of:?} heard of it") };
            moved[shard] += 1;
        }
    }
    assert_eq!(moved, [8, 8]);
}
