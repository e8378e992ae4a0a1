//! Names that are refused, and configurations.

// guarantee: D-66

use ftl::{
    CapacityError, CapacityPlan, ChunkReport, Ftl, FtlConfig, LineMetadata, P2lLocation,
    SectorAddressing, SectorName, SectorNameError,
};
use nvme::Status;
use time::Nanos;

use super::{HostSector, NamedHost, named_config, small};
use crate::common::bench::Bench;

#[test]
fn a_written_sector_is_read_by_its_name_and_its_tag_alone() {
    let mut host = NamedHost::new(small(), named_config(0.5), true, 1);
    // The sectors do not fill their last unit, which is padded.
    host.write((0..41).map(|i| HostSector { tag: 100 + i, value: 1000 + i }));
    assert_eq!(host.sectors.len(), 41);
    // Some are in units that are not readable from the media yet.
    host.verify();
    let buffered = host.ftl.stats().buffer_hits;
    assert!(buffered > 0 && buffered < 41, "{buffered}");
    for (name, sector) in host.sectors.clone() {
        let foreign = host.read(name, sector.tag + 1);
        let status = Status::APPLICATION_TAG_CHECK;
        assert!(
            foreign == Err(SectorNameError::ForeignTag)
                || foreign.is_ok_and(|read| read.is_err_and(|found| found.is(status))),
            "{foreign:?}"
        );
    }
    let name = host.name_at(4);
    let sector = host.sectors[&name];
    host.free(name);
    assert_eq!(host.read(name, sector.tag), Err(SectorNameError::NotValid));
    assert_eq!(host.ftl.free_named(name), Err(SectorNameError::NotValid));
    assert_eq!(host.ftl.confirm_move(name), Err(SectorNameError::NotMoved));
    host.verify();
    let stats = host.ftl.named_stats().unwrap();
    assert_eq!((stats.writes, stats.frees, stats.stale_reads, stats.foreign_reads), (41, 1, 1, 41));
    assert_eq!(host.ftl.mapped(), 40);
}

#[test]
fn forged_names_are_refused() {
    let mut host = NamedHost::new(small(), named_config(0.5), true, 2);
    assert_eq!(host.read(SectorName(0), 0), Err(SectorNameError::NeverWritten));
    host.write((0..8).map(|i| HostSector { tag: i, value: i }));
    let sectors = small().total_sectors();
    let mut rng = rng::Rng::new(3);
    let known = host.sectors.clone();
    for i in 0..20_000u64 {
        let name = match i % 3 {
            0 => SectorName(rng.below(u64::MAX)),
            1 => SectorName(rng.below(1 << 16)),
            // A name with one bit changed.
            _ => SectorName(host.name_at(rng.below(8)).0 ^ 1 << rng.below(64)),
        };
        if !known.contains_key(&name) {
            let refused = host.read(name, rng.below(8)).expect_err("it is no name");
            let is_past =
                matches!(refused, SectorNameError::PastEnd { sectors: n, .. } if n == sectors);
            let is_wrong = matches!(
                refused,
                SectorNameError::NeverWritten | SectorNameError::Stale | SectorNameError::NotValid
            );
            assert!(is_past || is_wrong, "{refused:?}");
            host.ftl.free_named(name).expect_err("it is no name");
        }
    }
    host.verify();
}

#[test]
fn logical_commands_and_named_ones_exclude_each_other() {
    let mut host = NamedHost::new(small(), named_config(0.5), true, 4);
    assert!(host.ftl.sectors() > 0);
    host.ftl.write(1, 0, 1, false);
    host.ftl.trim(2, 0, 1);
    host.ftl.read(Nanos(0), 3, 0, 1, &mut host.flash);
    for tag in 1..=3 {
        let done = host.ftl.pop_completion().unwrap();
        assert!(done.tag == tag && done.status.is(Status::LBA_OUT_OF_RANGE), "{done:?}");
    }
    let mut bench = Bench::new(small(), FtlConfig::default(), true, 4);
    bench.ftl.write_named(7, 0);
    let done = bench.ftl.pop_completion().unwrap();
    assert!(done.tag == 7 && done.status.is(Status::INVALID_OPCODE), "{done:?}");
    let name = SectorName(1);
    assert_eq!(bench.ftl.free_named(name), Err(SectorNameError::Logical));
    assert_eq!(bench.ftl.confirm_move(name), Err(SectorNameError::Logical));
    let read = bench.ftl.read_named(Nanos(0), 8, name, 0, &mut bench.flash);
    assert_eq!(read, Err(SectorNameError::Logical));
    assert_eq!(bench.ftl.named_stats(), None);
}

#[test]
fn settings_that_need_a_map_are_refused() {
    let named = named_config(0.5);
    let total = small().total_chunks();
    for (config, setting) in [
        (FtlConfig { map_cache_sectors: 100, ..named }, "map_cache_sectors"),
        (FtlConfig { p2l_location: P2lLocation::Media, ..named }, "reverse_map = \"media\""),
        (FtlConfig { line_metadata: LineMetadata::On, ..named }, "line_metadata"),
        (FtlConfig { hot_stream: true, ..named }, "hot_stream"),
        (FtlConfig { atomic_writes: true, ..named }, "atomic"),
        (
            FtlConfig { addressing: SectorAddressing::Named { unconfirmed_lines_max: 0 }, ..named },
            "unconfirmed_lines_max = 0",
        ),
    ] {
        let refused = CapacityPlan::new(&small(), &config, total, total);
        assert_eq!(refused, Err(CapacityError::NamedWith { setting }));
    }
    let narrow = crate::common::geometry(1, 4, 24, 16, 2, 0);
    let narrow = ftl::FlashGeometry::from_geometry(&narrow);
    let refused = CapacityPlan::new(&narrow, &named, total, total);
    assert!(matches!(refused, Err(CapacityError::NamedWith { .. })), "{refused:?}");
    let device = named.for_device_l2p();
    assert!(matches!(device, Err(CapacityError::NamedWith { .. })), "{device:?}");
}

#[test]
fn the_host_gets_no_more_sectors_than_the_capacity() {
    let mut host = NamedHost::new(small(), named_config(0.5), true, 5);
    let capacity = host.ftl.sectors();
    host.write((0..capacity + 10).map(|i| HostSector { tag: i, value: i }));
    assert_eq!((host.sectors.len() as u64, host.failed), (capacity, 10));
    let name = host.name_at(0);
    host.free(name);
    host.write([HostSector { tag: 1 << 40, value: 7 }]);
    assert_eq!((host.sectors.len() as u64, host.failed), (capacity, 10));
    host.settle();
    host.verify();
}

#[test]
fn a_name_has_no_map_in_memory() {
    // By sector, one bit instead of the eight bytes of L2P and P2L.
    let shape = small();
    let size = |config| {
        let ftl = Ftl::new(shape, config, |_| ChunkReport::Free).unwrap();
        ftl.capacity_plan().map_pages
    };
    assert_eq!((size(named_config(0.5)), size(FtlConfig::default()) > 0), (0, true));
}
