//! Garbage collection of sectors with names: moves, their confirmation, and write amplification.

// guarantee: M-15

use std::collections::{BTreeSet, HashMap};

use ftl::{Blocker, ChunkReport, FlashGeometry, Ftl, FtlConfig, SectorAddressing, SectorNameError};
use rng::Rng;
use time::Nanos;

use super::{HostSector, NamedHost, named_config, small};
use crate::common::{TestFlash, check, geometry};
use crate::write_amplification::a;

/// Fills the host's capacity, and overwrites sectors: frees one and writes another, `batch` at a time.
fn overwrite(host: &mut NamedHost, rng: &mut Rng, batch: u64, total: u64) {
    let mut written = 0;
    while written < total {
        for _ in 0..batch {
            let name = host.name_at(rng.below(u64::MAX));
            let tag = host.sectors[&name].tag;
            host.free(name);
            host.submit(HostSector { tag, value: rng.below(u64::MAX - 1) + 1 });
        }
        host.complete_writes();
        written += batch;
    }
}

fn fill(host: &mut NamedHost) {
    let capacity = host.ftl.sectors();
    for first in (0..capacity).step_by(16) {
        host.write((first..capacity.min(first + 16)).map(|i| HostSector { tag: i, value: i + 1 }));
    }
}

#[test]
fn moved_sectors_have_the_names_that_are_reported() {
    for seed in 0..4 {
        let mut host = NamedHost::new(small(), named_config(0.5), true, seed);
        host.flash.reorder(seed);
        fill(&mut host);
        let mut rng = Rng::new(seed);
        let capacity = host.ftl.sectors();
        overwrite(&mut host, &mut rng, 8, 6 * capacity);
        assert_eq!((host.sectors.len() as u64, host.failed), (capacity, 0));
        host.settle();
        let stats = host.ftl.named_stats().unwrap();
        assert!(stats.moves > 100, "{stats:?}");
        assert_eq!(stats.moves, stats.confirmed_moves);
        assert_eq!(stats.moves, host.moves.len() as u64);
        host.verify();
        // All the old names are stale, and never lead to other data.
        for moved in host.moves.clone() {
            if !host.sectors.contains_key(&moved.old) {
                host.read(moved.old, moved.tag).expect_err("it has been moved");
            }
            assert_ne!(host.ftl.confirm_move(moved.old), Ok(()), "confirmed twice");
        }
    }
}

#[test]
fn an_old_name_is_good_until_its_move_is_confirmed() {
    let mut host = NamedHost::new(small(), named_config(0.5), true, 9);
    host.confirms = false;
    fill(&mut host);
    let mut rng = Rng::new(9);
    while host.moves.is_empty() {
        overwrite(&mut host, &mut rng, 8, 8);
    }
    host.settle();
    let is_live = |host: &NamedHost, new| host.sectors.get(&new).copied();
    let moves: Vec<_> = host.moves.clone();
    let mut freed = 0;
    for moved in &moves {
        let Some(sector) = is_live(&host, moved.new) else { continue };
        assert_eq!(host.read(moved.old, sector.tag), Ok(Ok(sector.value)));
        if freed == 0 {
            // Both names are those of one sector.
            host.ftl.free_named(moved.old).unwrap();
            host.sectors.remove(&moved.new);
            assert_eq!(host.read(moved.new, sector.tag), Err(SectorNameError::NotValid));
            assert_eq!(host.read(moved.old, sector.tag), Err(SectorNameError::NotValid));
            freed += 1;
        }
    }
    assert_eq!(freed, 1);
    check(&host.ftl);
    for moved in &moves {
        host.ftl.confirm_move(moved.old).unwrap();
        assert_eq!(host.ftl.confirm_move(moved.old).ok(), None, "confirmed twice");
        host.read(moved.old, moved.tag).expect_err("it is confirmed");
    }
    host.settle();
    host.verify();
}

#[test]
fn an_owner_that_does_not_confirm_keeps_a_bounded_number_of_lines() {
    let addressing = SectorAddressing::Named { unconfirmed_lines_max: 3 };
    let config = FtlConfig { addressing, ..named_config(1.0) };
    let mut host = NamedHost::new(small(), config, true, 11);
    host.confirms = false;
    fill(&mut host);
    let mut rng = Rng::new(11);
    let capacity = host.ftl.sectors();
    // Collection goes on with other lines, until there is no space.
    loop {
        let name = host.name_at(rng.below(u64::MAX));
        let tag = host.sectors[&name].tag;
        host.free(name);
        host.submit(HostSector { tag, value: rng.below(1 << 40) + 1 });
        if !host.try_writes() {
            break;
        }
        assert!(host.ftl.named_stats().unwrap().writes < 20 * capacity, "it does not stop");
    }
    let stall = host.ftl.explain_stall().expect("a write waits");
    let is_unconfirmed = |blocker: &&Blocker| matches!(blocker, Blocker::UnconfirmedMoves { .. });
    let blocker = stall.blockers.iter().find(is_unconfirmed);
    // The bound may be exceeded by the victims that were being relocated when it was reached.
    assert!(matches!(blocker, Some(Blocker::UnconfirmedMoves { lines: 3..=5 })), "{stall}");
    check(&host.ftl);
    assert!(host.ftl.named_stats().unwrap().writes > capacity);
    // Reads and frees go on.
    let written = std::mem::take(&mut host.writing);
    host.verify();
    host.writing = written;
    // The write continues when the moves are confirmed.
    for moved in std::mem::take(&mut host.moves) {
        host.ftl.confirm_move(moved.old).unwrap();
    }
    host.confirms = true;
    host.settle();
    overwrite(&mut host, &mut rng, 8, 2 * capacity);
    host.settle();
    assert_eq!((host.sectors.len() as u64, host.failed), (capacity, 0));
    host.verify();
}

#[test]
fn writes_fail_while_the_owner_cannot_confirm_moves() {
    let addressing = SectorAddressing::Named { unconfirmed_lines_max: 3 };
    let config = FtlConfig { addressing, ..named_config(1.0) };
    for seed in 0..20 {
        let mut host = NamedHost::new(small(), config, true, seed);
        host.confirms = false;
        fill(&mut host);
        let mut rng = Rng::new(seed);
        let capacity = host.ftl.sectors();
        let mut replace = |host: &mut NamedHost| {
            let name = host.name_at(rng.below(u64::MAX));
            let tag = host.sectors[&name].tag;
            host.free(name);
            host.submit(HostSector { tag, value: rng.below(1 << 40) + 1 });
            host.try_writes()
        };
        while replace(&mut host) {}
        // Writes fail when the reserve is used up, too.
        host.ftl.set_moves_stuck();
        assert!(host.try_writes(), "{:?}", host.ftl.explain_stall());
        while host.failed < 10 {
            assert!(replace(&mut host), "{:?}", host.ftl.explain_stall());
        }
        check(&host.ftl);
        host.verify();
        // They succeed when the moves are confirmed.
        let moves = std::mem::take(&mut host.moves);
        for moved in moves {
            host.ftl.confirm_move(moved.old).unwrap();
        }
        host.confirms = true;
        host.settle();
        let (failed, live) = (host.failed, host.sectors.len() as u64);
        for tag in 0..capacity - live {
            host.submit(HostSector { tag: 1 << 40 | tag, value: tag + 1 });
            assert!(host.try_writes(), "{:?}", host.ftl.explain_stall());
        }
        host.settle();
        assert_eq!((host.sectors.len() as u64, host.failed), (capacity, failed), "seed {seed}");
        host.verify();
    }
}

/// Returns the sectors of a batch: in order until all are written, then random ones.
fn choose(written: u64, capacity: u64, batch: u64, rng: &mut Rng) -> BTreeSet<u64> {
    let mut chosen = BTreeSet::new();
    while (chosen.len() as u64) < batch {
        let next = written + chosen.len() as u64;
        chosen.insert(if next < capacity { next } else { rng.below(capacity) });
    }
    chosen
}

/// Returns the write amplification of uniform overwrites in batches.
fn steady_named(shape: FlashGeometry, config: FtlConfig, batch: u64) -> f64 {
    let mut host = NamedHost::new(shape, config, false, 1);
    let mut rng = Rng::new(7);
    let capacity = host.ftl.sectors();
    // By sector of the host, its name; and the other way round.
    let mut names = vec![None; capacity as usize];
    let mut owners = HashMap::new();
    let mut before = *host.ftl.stats();
    let mut written = 0;
    while written < 6 * capacity {
        if written / (3 * capacity) == 1 && before.host_writes == 0 {
            before = *host.ftl.stats();
        }
        let at = choose(written, capacity, batch, &mut rng);
        for &at in &at {
            if let Some(name) = names[at as usize].take() {
                owners.remove(&name);
                host.ftl.free_named(name).unwrap();
            }
            host.ftl.write_named(at, 0);
        }
        host.ftl.kick(Nanos(0), &mut host.flash);
        let mut left = at.len();
        while left > 0 {
            host.flash.step(&mut host.ftl);
            while let Some(moved) = host.ftl.pop_moved() {
                if let Some(at) = owners.remove(&moved.old) {
                    names[at as usize] = Some(moved.new);
                    owners.insert(moved.new, at);
                }
                host.ftl.confirm_move(moved.old).unwrap();
                host.ftl.kick(Nanos(0), &mut host.flash);
            }
            while let Some(done) = host.ftl.pop_named_write() {
                names[done.request as usize] = Some(done.name);
                owners.insert(done.name, done.request);
            }
            while let Some(done) = host.ftl.pop_completion() {
                assert!(done.status.is_success(), "{done:?}");
                left -= 1;
            }
        }
        written += at.len() as u64;
    }
    host.ftl.stats().since(&before).write_amplification().unwrap()
}

/// Returns the write amplification of the same workload with a map, without the map pages.
fn steady_logical(shape: FlashGeometry, config: FtlConfig, batch: u64) -> f64 {
    let mut ftl = Ftl::new(shape, config, |_| ChunkReport::Free).unwrap();
    let mut flash = TestFlash::new(shape, false, ftl.slots(), 1);
    let (capacity, mut rng) = (ftl.sectors(), Rng::new(7));
    let mut before = *ftl.stats();
    let mut written = 0;
    while written < 6 * capacity {
        if written / (3 * capacity) == 1 && before.host_writes == 0 {
            before = *ftl.stats();
        }
        let at = choose(written, capacity, batch, &mut rng);
        at.iter().for_each(|at| ftl.write(*at, *at, 1, false));
        ftl.kick(Nanos(0), &mut flash);
        let mut left = at.len();
        loop {
            while ftl.pop_completion().is_some() {
                left -= 1;
            }
            if left == 0 {
                break;
            }
            flash.step(&mut ftl);
        }
        written += at.len() as u64;
    }
    let s = ftl.stats().since(&before);
    let written = s.host_writes + s.metadata;
    (written + s.gc_relocations + s.padding) as f64 / written as f64
}

#[test]
fn write_amplification_is_that_of_greedy_collection_with_a_map() {
    let shape = FlashGeometry::from_geometry(&geometry(1, 1, 2048, 64, 4, 0));
    let k = 1.0 + 1.0 / 128.0;
    for over_provisioning in [0.11, 0.28] {
        let config = FtlConfig {
            gc_high_watermark_lines: 1,
            gc_low_watermark_lines: 1,
            hot_cold: false,
            line_metadata: ftl::LineMetadata::Off,
            ..named_config(over_provisioning)
        };
        let named = steady_named(shape, config, 64);
        let logical = FtlConfig { addressing: SectorAddressing::Logical, ..config };
        let logical = steady_logical(shape, logical, 64);
        let analysis = a(k * (1.0 + over_provisioning)) / k;
        println!(
            "over-provisioning {over_provisioning}: names {named:.3}, map {logical:.3}, analysis \
             {analysis:.3}"
        );
        assert!(named < 1.03 * logical, "{named} {logical}");
        assert!((named / analysis - 1.0).abs() < 0.03, "{named} {analysis}");
    }
}
