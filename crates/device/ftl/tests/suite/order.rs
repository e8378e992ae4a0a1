//! Completions that are reported out of order. Several completion queues, or a retry, may reorder
//! them, although a chunk is programmed in order ([`ftl::FlashBackend::program`]).

// guarantee: D-06

use crate::common;
use nvme::ChunkId;

use common::bench::Bench;
use common::geometry;
use ftl::{ChunkReport, FlashGeometry, FtlConfig, LineMetadata};
use rng::Rng;
use time::Nanos;

const NOW: Nanos = Nanos(0);

/// Chunks of 24 units on each of `pus` parallel units, or of 72 units on one. The paired pages of a
/// unit are in the two units after it.
fn shape(pus: u32) -> FlashGeometry {
    FlashGeometry::from_geometry(&geometry(1, pus, 40, if pus == 1 { 288 } else { 96 }, 4, 8))
}

fn bench(pus: u32, line_metadata: LineMetadata, seed: u64) -> Bench {
    let config = FtlConfig { line_metadata, over_provisioning: 0.6, ..FtlConfig::default() };
    let mut b = Bench::new(shape(pus), config, true, seed);
    b.flash.reorder(seed);
    b
}

/// Writes `count` sectors without waiting for the completions, while the FTL has space. The value
/// of each sector is its request's tag.
fn write_on(b: &mut Bench, rng: &mut Rng, values: &mut [u64], count: u64) {
    for _ in 0..count {
        let lba = rng.below(values.len() as u64);
        b.tag += 1;
        values[lba as usize] = b.tag;
        b.flash.requests.insert(b.tag, vec![b.tag]);
        b.ftl.write(b.tag, lba, 1, false);
        b.ftl.kick(NOW, &mut b.flash);
        if rng.chance(0.3) {
            b.flash.step(&mut b.ftl);
        }
    }
}

/// Completes all requests; each must succeed.
fn complete_all(b: &mut Bench) {
    b.flash.settle(&mut b.ftl);
    while let Some(done) = b.ftl.pop_completion() {
        assert!(done.status.is_success(), "{}: {}", done.status, b.ftl.debug_state());
    }
}

fn check(b: &mut Bench, values: &[u64]) {
    for (lba, value) in (0..).zip(values) {
        assert_eq!(b.read(lba), Some(*value), "sector {lba}: {}", b.ftl.debug_state());
    }
}

#[test]
fn chunks_become_whole_however_their_programs_are_reported() {
    for (pus, metadata) in [(1, LineMetadata::Off), (1, LineMetadata::On), (3, LineMetadata::On)] {
        let mut late = 0;
        for seed in 0..4 {
            let (mut b, mut rng) = (bench(pus, metadata, seed), Rng::new(seed));
            let mut values = vec![0; b.ftl.sectors() as usize];
            for _ in 0..3 {
                let count = values.len() as u64;
                write_on(&mut b, &mut rng, &mut values, count);
                complete_all(&mut b);
            }
            assert!(b.flush().is_success());
            complete_all(&mut b);
            assert!(b.ftl.is_idle(), "{}", b.ftl.debug_state());
            assert!(b.ftl.stats().lines_reclaimed > 0, "{:?}", b.ftl.stats());
            check(&mut b, &values);
            late += b.flash.late;
        }
        assert!(late > 1_000, "{late} programs were reported late");
    }
}

#[test]
fn lines_end_with_padding_that_is_reported_in_any_order() {
    let (mut ended, mut late) = (0, 0);
    for seed in 0..25 {
        let (mut b, mut rng) = (bench(2, LineMetadata::On, seed), Rng::new(seed));
        let mut values = vec![0; b.ftl.sectors() as usize / 4];
        for _ in 0..6 {
            write_on(&mut b, &mut rng, &mut values, 60);
            let open: Vec<ChunkId> = b.ftl.open_chunks().map(|(chunk, ..)| chunk).collect();
            for chunk in open {
                b.ftl.refresh(chunk);
            }
            b.ftl.kick(NOW, &mut b.flash);
        }
        complete_all(&mut b);
        assert!(b.flush().is_success());
        assert!(b.ftl.is_idle(), "{}", b.ftl.debug_state());
        check(&mut b, &values);
        (ended, late) = (ended + b.ftl.stats().finished_lines, late + b.flash.late);
    }
    assert!(ended > 20 && late > 500, "{ended} lines finished, {late} programs reported late");
}

/// A chunk with programs in flight fails or goes offline. Its completions are mixed: successes of
/// earlier programs are reported after failures of later ones. Returns the number of such
/// successes.
fn fails_with_programs_in_flight(seed: u64, goes: bool) -> u64 {
    let (mut b, mut rng) = (bench(2, LineMetadata::On, seed), Rng::new(seed ^ 0xfa11));
    let mut values = vec![0; b.ftl.sectors() as usize / 4];
    write_on(&mut b, &mut rng, &mut values, 100 + seed % 100);
    let half_written =
        |b: &Bench, c: &ChunkId| matches!(b.flash.chunk_report(c.get()), ChunkReport::Open(8..));
    let open: Vec<ChunkId> = b.ftl.open_chunks().map(|(chunk, ..)| chunk).collect();
    let Some(chunk) = open.into_iter().find(|c| half_written(&b, c)) else { return 0 };
    if goes {
        // The drive reports the chunk at once. Only sectors without a copy elsewhere are lost.
        let lost = b.flash.kill(chunk.get());
        b.ftl.chunk_offline(chunk);
        b.ftl.kick(NOW, &mut b.flash);
        complete_all(&mut b);
        for (lba, value) in (0..).zip(&values) {
            let found = b.read(lba);
            assert!(found == Some(*value) || found.is_none() && lost.contains(&(lba as u32)));
        }
        // Later writes must not make an older version visible.
        write_on(&mut b, &mut rng, &mut values, 50);
        complete_all(&mut b);
        return b.flash.mixed;
    }
    b.flash.fail(chunk.get());
    write_on(&mut b, &mut rng, &mut values, 50);
    complete_all(&mut b);
    check(&mut b, &values);
    assert!(b.flush().is_success());
    let config = FtlConfig {
        line_metadata: LineMetadata::On,
        over_provisioning: 0.6,
        ..FtlConfig::default()
    };
    b.ftl = b.flash.power_cut(config);
    check(&mut b, &values);
    b.flash.mixed
}

#[test]
fn a_chunk_that_fails_or_goes_takes_nothing_along_that_the_media_has_not_taken() {
    for goes in [false, true] {
        let mixed: u64 = (0..200).map(|seed| fails_with_programs_in_flight(seed, goes)).sum();
        assert!(mixed > 20, "{mixed} successes reported after a later program failed");
    }
}
