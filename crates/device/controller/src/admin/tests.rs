//! Tests of the answers to admin commands.

use nvme::feature::{self, ErrorRecovery, NumberOfQueues, capability};
use nvme::{
    ChunkDescriptor, DeviceL2pLog, ErrorEntry, FeatureSelect, Geometry, GeometryPage, HealthLog,
    IdentifyController, IdentifyNamespace, MediaTiming, NamespaceList, Status, cns, log_page,
};

use super::*;
use crate::PersonalityKind;

pub(crate) fn identity() -> ControllerIdentity {
    ControllerIdentity {
        name: "unit-7".into(),
        personality: PersonalityKind::Block,
        namespace: NamespaceIdentity {
            nsid: 1,
            generation: 0,
            sectors: 1000,
            sector_bytes: 4096,
            protection: None,
            oob_bytes: 0,
            optimal_sectors: 16,
            unit_sectors: 1,
            atomic: AtomicUnit::SECTOR,
            write_protected: false,
            block_commands: 0,
            first_sector: 0,
        },
        max_transfer_bytes: 1 << 20,
        volatile_cache: true,
        geometry: None,
        timing: MediaTiming::default(),
        max_open_chunks: (0, 0),
        io_queues: 4,
        queue_depth: 1024,
        extensions: VendorExtensions::default(),
        protected_cmb: false,
        optional: OptionalCommands {
            doorbell_buffer: false,
            get_lba_status: true,
            lba_status: true,
            keep_alive: true,
            format: true,
            namespaces: false,
            sanitize: true,
            rules: true,
            names: false,
            namespace_notices: true,
        },
        arbitration: feature::Arbitration { burst_log2: 3, low: 1, medium: 2, high: 4 },
    }
}

fn block() -> AdminState {
    AdminState::new(identity()).unwrap()
}

fn open_channel() -> AdminState {
    let geometry = Geometry {
        groups: 2,
        pus: 3,
        chunks: 5,
        sectors: 96,
        sector_bytes: 4096,
        oob_bytes: 16,
        ws_min: 8,
        ws_opt: 24,
        mw_cunits: 48,
    };
    let sectors = geometry.total_sectors();
    let geometry = Some(geometry);
    let personality = PersonalityKind::OpenChannel;
    let max_open_chunks = (12, 2);
    let facts = ControllerIdentity {
        personality,
        namespace: NamespaceIdentity { sectors, oob_bytes: 16, ..identity().namespace },
        geometry,
        max_open_chunks,
        ..identity()
    };
    AdminState::new(facts).unwrap()
}

fn log(a: &AdminState, page: (u8, u32), offset: u64, bytes: u64) -> Result<Vec<u8>, Status> {
    a.log_page(
        LogPageId { lid: page.0, nsid: page.1 },
        offset,
        bytes,
        &HealthCounters::default(),
        &mut |n| ChunkDescriptor { wp: n.into(), ..ChunkDescriptor::default() },
        DeviceL2pSource { entry: &mut |n| n * 3, totals: &DeviceL2pLog::default },
    )
}

#[test]
fn identifies_itself() {
    let a = block();
    let c = IdentifyController::from_bytes(*a.identify(cns::CONTROLLER, 0, 0).unwrap());
    assert_eq!((c.serial().as_str(), c.model().as_str()), ("unit-7", "Sluice block drive"));
    assert_eq!((c.mdts, c.sqes, c.cqes, c.nn.get(), c.vwc), (8, 0x66, 0x44, 1, 0b111));
    assert_eq!(c.max_transfer(4096), Some(1 << 20));
    assert!(c.subnqn.starts_with(b"nqn.2026-01.io.sluice:unit-7\0"));
    let n = IdentifyNamespace::from_bytes(*a.identify(cns::NAMESPACE, 1, 77).unwrap());
    assert_eq!((n.nsze.get(), n.ncap.get(), n.nuse.get()), (1000, 1000, 77));
    assert_eq!((n.block_bytes(), n.optimal_write()), (Some(4096), 16));
    assert!(!n.is_open_channel());
    let l = NamespaceList::from_bytes(*a.identify(cns::ACTIVE_NAMESPACES, 0, 0).unwrap());
    assert_eq!(l.iter().collect::<Vec<_>>(), [1]);
    for (cns, nsid, status) in [
        (cns::NAMESPACE, 0, Status::INVALID_NAMESPACE),
        (cns::NAMESPACE, 2, Status::INVALID_NAMESPACE),
        (cns::ACTIVE_NAMESPACES, ALL_NAMESPACES - 1, Status::INVALID_NAMESPACE),
        (0x77, 1, Status::INVALID_FIELD),
    ] {
        assert_eq!(a.identify(cns, nsid, 0).unwrap_err(), status);
    }
    assert_eq!(a.geometry(1).unwrap_err(), Status::INVALID_OPCODE);
}

#[test]
fn small_blocks_have_the_granularity_of_units() {
    let namespace = NamespaceIdentity {
        sector_bytes: 512,
        optimal_sectors: 128,
        unit_sectors: 8,
        ..identity().namespace
    };
    let a = AdminState::new(ControllerIdentity { namespace, ..identity() }).unwrap();
    let n = IdentifyNamespace::from_bytes(*a.identify(cns::NAMESPACE, 1, 77).unwrap());
    assert_eq!((n.block_bytes(), n.optimal_write()), (Some(512), 128));
    let unit = [n.npwg, n.npwa, n.npdg, n.npda].map(|field| field.get());
    assert_eq!(unit, [7; 4], "writes and deallocations of 8 blocks, numbered from 0");
    let n = IdentifyNamespace::from_bytes(*block().identify(cns::NAMESPACE, 1, 77).unwrap());
    assert_eq!([n.npwg, n.npwa, n.npdg, n.npda].map(|field| field.get()), [15, 0, 0, 0]);
}

#[test]
fn an_open_channel_drive_tells_its_geometry() {
    let a = open_channel();
    let page = GeometryPage::from_bytes(*a.geometry(1).unwrap());
    assert_eq!(Some(page.geometry(4096, 16).unwrap().0), a.identity.geometry);
    assert_eq!((page.maxoc.get(), page.maxocpu.get()), (12, 2));
    assert_eq!(a.geometry(2).unwrap_err(), Status::INVALID_NAMESPACE);
    let n = IdentifyNamespace::from_bytes(*a.identify(cns::NAMESPACE, 1, 0).unwrap());
    assert!(n.is_open_channel());
    assert_eq!(n.format().ms.get(), 16);
    // 1 + 2 + 3 + 7 bits of address.
    assert_eq!((n.nsze.get(), n.ncap.get()), (1 << 13, 2880));
}

#[test]
fn chunk_information_is_read_in_any_ranges() {
    let a = open_channel();
    let page = (log_page::CHUNK_INFORMATION, 1);
    let all = log(&a, page, 0, u64::MAX).unwrap();
    assert_eq!(all.len(), 30 * 32);
    for (offset, bytes) in [(0, 4), (28, 8), (32, 32), (36, 60), (956, 4), (960, 4), (8, 952)] {
        let end = (offset + bytes).min(all.len());
        let piece = log(&a, page, offset as u64, bytes as u64).unwrap();
        assert_eq!(piece, all[offset..end], "{offset} {bytes}");
    }
    assert_eq!(log(&a, page, 964, 4), Err(Status::INVALID_FIELD));
    assert_eq!(log(&a, page, u64::MAX - 3, 4), Err(Status::INVALID_FIELD));
    assert_eq!(log(&a, (page.0, 2), 0, 4), Err(Status::INVALID_NAMESPACE));
    assert_eq!(log(&block(), page, 0, 4), Err(Status::INVALID_LOG_PAGE));
}

#[test]
fn health_warns() {
    let a = block();
    let mut chunk = |_| ChunkDescriptor::default();
    let counters = HealthCounters {
        bytes_written: 512_001,
        busy: Nanos::from_secs(121),
        spare_percent: 9,
        used_percent: 120,
        read_only: true,
        ..HealthCounters::default()
    };
    let page = {
        let health = LogPageId { lid: log_page::HEALTH, nsid: ALL_NAMESPACES };
        let map = DeviceL2pSource { entry: &mut |_| 0, totals: &DeviceL2pLog::default };
        a.log_page(health, 0, 512, &counters, &mut chunk, map).unwrap()
    };
    assert_eq!(page[0], 0b1101);
    let (log, _) = page.as_chunks::<{ HealthLog::BYTES }>();
    let log = HealthLog::from_bytes(log[0]);
    assert_eq!((log.data_units_written.get(), log.busy_minutes.get()), (2, 2));
    assert_eq!((log.percentage_used, log.temperature.get()), (120, TEMPERATURE));
}

#[test]
fn the_error_log_keeps_the_newest() {
    let mut a = block();
    for location in 1..=100 {
        let failed = FailedCommand { sqid: 1, cid: 2, location, lba: 3, nsid: 4, detail: 5 };
        a.log_error(Status::WRITE_FAULT, &failed);
    }
    let page = log(&a, (log_page::ERROR, ALL_NAMESPACES), 0, 1 << 20).unwrap();
    let (entries, _) = page.as_chunks::<{ ErrorEntry::BYTES }>();
    assert_eq!(entries.len(), ERROR_LOG_ENTRIES);
    let newest = ErrorEntry::from_bytes(entries[0]);
    assert_eq!((newest.count.get(), newest.location.get()), (100, 100));
    assert_eq!((newest.sqid.get(), newest.cid.get(), newest.lba.get()), (1, 2, 3));
    assert_eq!((newest.nsid.get(), newest.command_specific.get()), (4, 5));
    assert_eq!(newest.status(), Status::WRITE_FAULT);
    assert_eq!(ErrorEntry::from_bytes(entries[ERROR_LOG_ENTRIES - 1]).count.get(), 37);
    assert_eq!(log(&a, (0x77, ALL_NAMESPACES), 0, 4), Err(Status::INVALID_LOG_PAGE));
}

#[test]
fn features_change_as_they_say() {
    use FeatureSelect::{Capabilities, Current, Default, Saved};
    let mut a = block();
    for fid in 0..=255 {
        let Ok(can) = a.get_feature(fid, Capabilities, 0) else {
            assert_eq!(a.set_feature(fid, false, 0, false), Err(Status::INVALID_FIELD));
            continue;
        };
        let default = a.get_feature(fid, Default, 0).unwrap();
        assert_eq!(a.get_feature(fid, Current, 0), Ok(default), "feature {fid:#x}");
        assert_eq!(a.get_feature(fid, Saved, 0), Ok(default));
        assert_eq!(a.set_feature(fid, true, default, false), Err(Status::FEATURE_NOT_SAVEABLE));
        let set = a.set_feature(fid, false, default, false);
        assert_eq!(set.is_ok(), can & capability::CHANGEABLE != 0, "feature {fid:#x}");
    }
    assert!(a.cache_enabled());
    a.set_feature(feature::VOLATILE_WRITE_CACHE, false, 0, false).unwrap();
    assert!(!a.cache_enabled());
    a.set_feature(feature::ARBITRATION, false, 0xff01_0007, false).unwrap();
    assert_eq!((a.arbitration().burst_log2, a.arbitration().high), (7, 256));
    let dulbe = ErrorRecovery { time_limit: 0, unwritten_is_error: true }.to_value();
    assert_eq!(
        a.set_feature(feature::ERROR_RECOVERY, false, dulbe, false),
        Err(Status::INVALID_FIELD)
    );
    let durable = ControllerIdentity { volatile_cache: false, ..identity() };
    let a = AdminState::new(durable).unwrap();
    assert!(a.get_feature(feature::VOLATILE_WRITE_CACHE, Current, 0).is_err());
    assert!(a.get_feature(feature::INTERRUPT_VECTOR, Current, 4).is_ok());
    assert!(a.get_feature(feature::INTERRUPT_VECTOR, Current, 5).is_err());
}

#[test]
fn queues_are_granted_and_checked() {
    let mut a = block();
    let fid = feature::NUMBER_OF_QUEUES;
    let counts = |submission, completion| NumberOfQueues { submission, completion };
    let mut ask = |c: NumberOfQueues, exist| a.set_feature(fid, false, c.to_value(), exist);
    assert_eq!(ask(counts(100, 2), false), Ok(counts(4, 2).to_value()));
    assert_eq!(ask(counts(3, 3), true), Err(Status::COMMAND_SEQUENCE));
    assert_eq!(a.set_feature(fid, false, 0xffff, false), Err(Status::INVALID_FIELD));

    assert_eq!(a.check_create_cq(2, 1024, Some(4)), Ok(()));
    assert_eq!(a.check_create_cq(3, 1024, None), Err(Status::INVALID_QID));
    assert_eq!(a.check_create_cq(0, 1024, None), Err(Status::INVALID_QID));
    assert_eq!(a.check_create_cq(1, 1025, None), Err(Status::INVALID_QUEUE_SIZE));
    assert_eq!(a.check_create_cq(1, 1, None), Err(Status::INVALID_QUEUE_SIZE));
    assert_eq!(a.check_create_cq(1, 2, Some(5)), Err(Status::INVALID_VECTOR));
    assert_eq!(a.check_create_sq(4, 64, 2), Ok(()));
    assert_eq!(a.check_create_sq(5, 64, 1), Err(Status::INVALID_QID));
    assert_eq!(a.check_create_sq(4, 64, 3), Err(Status::INVALID_QID));
    assert_eq!(a.check_create_sq(4, 65_536, 1), Err(Status::INVALID_QUEUE_SIZE));
}

#[test]
fn a_shape_that_the_page_cannot_tell_is_refused() {
    let mut facts = identity();
    facts.geometry = open_channel().identity.geometry.map(|g| Geometry { groups: 70_000, ..g });
    assert!(AdminState::new(facts).is_err());
}

#[test]
fn atomic_writes_have_their_length_and_their_boundaries() {
    let of = |atomic, first_sector| {
        let namespace = NamespaceIdentity { atomic, first_sector, ..identity().namespace };
        let a = AdminState::new(ControllerIdentity { namespace, ..identity() }).unwrap();
        let c = IdentifyController::from_bytes(*a.identify(cns::CONTROLLER, 0, 0).unwrap());
        let n = IdentifyNamespace::from_bytes(*a.identify(cns::NAMESPACE, 1, 0).unwrap());
        assert_eq!(c.awun, c.awupf);
        assert_eq!((n.nawun, n.nabsn), (n.nawupf, n.nabspf));
        (c.awupf.get(), n.nsfeat & IdentifyNamespace::NSFEAT_ATOMIC != 0, n)
    };
    let (awupf, is_own, n) = of(AtomicUnit::SECTOR, 0);
    assert_eq!((awupf, is_own, n.atomic_write(0)), (0, false, (1, 0)));
    let (awupf, is_own, n) = of(AtomicUnit { sectors: 16, boundary: 0 }, 0);
    assert_eq!((awupf, is_own, n.atomic_write(0)), (15, true, (16, 0)));
    let bounded = AtomicUnit { sectors: 16, boundary: 1 << 16 };
    assert_eq!(of(bounded, 0).2.atomic_write(0), (16, 1 << 16));
    assert_eq!(of(bounded, 1 << 17).2.atomic_write(0), (16, 1 << 16));
    // Boundaries of a part of a drive that begins between two of them.
    let (_, _, n) = of(AtomicUnit { sectors: 8, boundary: 8 }, 19);
    assert_eq!((n.nabo.get(), n.atomic_write(0)), (5, (1, 0)));
}
