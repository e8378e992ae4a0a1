//! Sectors with names that cannot be read, chunks that go offline, and a journal that is lost.

// guarantee: D-66

use ftl::{FlashGeometry, SectorName, SectorNameError};
use nvme::{ChunkId, Status};
use rng::Rng;
use time::Nanos;

use super::{HostSector, NamedHost, named_config, small};
use crate::common::check;

fn host(seed: u64, sectors: u64) -> NamedHost {
    let mut host = NamedHost::new(small(), named_config(0.5), true, seed);
    host.write((0..sectors).map(|i| HostSector { tag: i, value: 1000 + i }));
    host
}

fn chunk_of(shape: &FlashGeometry, sector: u32) -> ChunkId {
    shape.chunk_of(nvme::PhysSector(sector))
}

#[test]
fn a_sector_that_cannot_be_read_is_lost_when_it_is_to_be_moved() {
    let mut host = host(1, 200);
    host.settle();
    let name = host.name_at(0);
    let (sector, tag) = (host.sector_of(name), host.sectors[&name].tag);
    host.flash.unreadable.insert(sector);
    let read = host.read(name, tag).unwrap();
    assert!(read.is_err_and(|status| status.is(Status::UNRECOVERED_READ)));
    let chunk = chunk_of(&small(), sector);
    host.ftl.refresh(chunk);
    host.settle();
    assert_eq!(host.lost, [name].into());
    assert_eq!(host.ftl.named_stats().unwrap().lost, 1);
    host.read(name, tag).expect_err("it is lost");
    assert_eq!(host.sectors.len(), 199);
    host.verify();
}

#[test]
fn what_is_in_the_buffer_of_a_chunk_that_goes_offline_is_moved() {
    let (mut moved, mut lost) = (0, 0);
    for seed in 0..20 {
        let mut host = host(seed, 41);
        let shape = small();
        let mut rng = Rng::new(seed);
        let victim = host.name_at(rng.below(u64::MAX));
        let chunk = chunk_of(&shape, host.sector_of(victim));
        let is_there =
            |host: &NamedHost, name: SectorName| chunk_of(&shape, host.sector_of(name)) == chunk;
        host.flash.kill(chunk.get());
        assert!(host.ftl.chunk_offline(chunk));
        // Copies that are not on the media yet are read from the buffer.
        for (name, sector) in host.sectors.clone() {
            match host.read(name, sector.tag) {
                Ok(Ok(value)) => assert_eq!(value, sector.value),
                Ok(Err(status)) => {
                    assert!(status.is(Status::UNRECOVERED_READ) && is_there(&host, name));
                }
                // It was to be moved meanwhile, and is lost.
                Err(error) => assert!(error == SectorNameError::NotValid && is_there(&host, name)),
            }
        }
        let before = host.sectors.len();
        host.settle();
        check(&host.ftl);
        host.verify();
        assert_eq!(host.sectors.len() + host.lost.len(), before);
        assert!(host.lost.iter().all(|name| is_there(&host, *name)));
        lost += host.lost.len();
        moved += host.moves.iter().filter(|moved| is_there(&host, moved.old)).count();
        // The moves are on the media.
        host.cut();
        assert_eq!(host.take_found().len(), host.sectors.len());
        host.verify();
    }
    assert!(moved > 20 && lost > 20, "{moved} sectors were moved, {lost} lost");
}

#[test]
fn names_do_not_depend_on_the_journal() {
    let mut host = host(5, 300);
    for i in 0..300 {
        let name = host.name_at(i * 7);
        host.free(name);
        host.write([HostSector { tag: 1000 + i, value: i + 1 }]);
    }
    host.settle();
    host.ftl.flush(Nanos(0), 0, &mut host.flash);
    while host.ftl.pop_completion().is_none() {
        host.flash.step(&mut host.ftl);
    }
    // The sectors of the journal have bytes; those of the host have a value each.
    let total = small().total_sectors() as u32;
    let journal: Vec<u32> = (0..total)
        .filter(|sector| host.flash.bytes_at(*sector).is_some_and(|b| b.iter().any(|b| *b != 0)))
        .collect();
    assert!(!journal.is_empty());
    journal.into_iter().for_each(|sector| host.flash.lose(sector));
    host.cut();
    assert!(!host.flash.recoveries.last().unwrap().from_checkpoint);
    let found = host.take_found();
    assert!(host.sectors.keys().all(|name| found.contains_key(name)));
    let again = host.take_recovered_moves();
    again.iter().for_each(|moved| host.confirm(moved.old));
    host.verify();
    // New names are new: the host checks each one.
    host.write((0..40).map(|i| HostSector { tag: 5000 + i, value: i + 1 }));
    host.settle();
    host.verify();
}

#[test]
fn writes_without_space_fail_and_frees_make_space() {
    let mut host = host(7, 0);
    let capacity = host.ftl.sectors();
    for first in (0..capacity).step_by(8) {
        host.write((first..capacity.min(first + 8)).map(|i| HostSector { tag: i, value: i + 1 }));
    }
    // From now on no program succeeds on many chunks: they are retired, and the spare space with them.
    let chunks = small().total_chunks();
    (0..chunks).filter(|chunk| chunk % 2 == 0).for_each(|chunk| host.flash.fail(chunk));
    let mut rng = Rng::new(7);
    let mut writes = 0;
    while host.failed == 0 {
        let name = host.name_at(rng.below(u64::MAX));
        let tag = host.sectors[&name].tag;
        host.free(name);
        host.write([HostSector { tag, value: rng.below(1 << 40) + 1 }]);
        writes += 1;
        assert!(writes < 20 * capacity, "there is space without end");
    }
    host.settle();
    host.verify();
    let (used, failed) = (host.sectors.len() as u64, host.failed);
    assert_eq!(used, capacity - failed);
    // With a quarter of the sectors there is space again.
    while host.sectors.len() as u64 > capacity / 4 {
        let name = host.name_at(rng.below(u64::MAX));
        host.free(name);
    }
    host.write((0..8).map(|i| HostSector { tag: i, value: i + 1 }));
    host.settle();
    assert_eq!(host.failed, failed);
    host.verify();
}
