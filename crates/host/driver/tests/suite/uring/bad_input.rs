//! Invalid input returns a specific error and changes nothing.

use std::fs;
use std::os::unix::net::UnixListener;

use mem::{AddressSpace, Iova};
use nvme::Status;
use sluice_driver::{
    BindError, HardwareQueue, LowLevelDriver, Payload, Polling, Request, Segment, Tag, TagError,
    TagState, TaskWork, Uring, UringConfig, UringError,
};
use time::Nanos;

use super::fixture::{Disk, Fixture};

fn refused(path: &std::path::Path, config: UringConfig) -> UringError {
    match Uring::open(path, config) {
        Ok(_) => panic!("{} was opened with {config:?}", path.display()),
        Err(error) => error,
    }
}

#[test]
fn what_has_no_sectors_is_refused() {
    let disk = Disk::new(4096);
    let default = UringConfig::default();
    let missing = refused(&disk.sibling_path("missing"), default);
    assert!(matches!(&missing, UringError::Open { path, .. } if path.ends_with("missing")));
    assert!(missing.to_string().contains("No such file"), "{missing}");
    let directory = refused(disk.path.parent().unwrap(), default);
    assert!(matches!(directory, UringError::Kind { kind: "a directory", .. }), "{directory}");
    let null = refused("/dev/null".as_ref(), default);
    assert!(matches!(null, UringError::Kind { kind: "a character device", .. }), "{null}");
    let socket = disk.sibling_path("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    assert!(matches!(refused(&socket, default), UringError::Kind { kind: "a socket", .. }));
    let empty = disk.sibling_path("empty");
    fs::write(&empty, []).unwrap();
    assert!(matches!(refused(&empty, default), UringError::Empty { .. }));
    let odd = disk.sibling_path("odd");
    for (bytes, sector_bytes) in [(1000, None), (513, Some(512)), (4608, Some(4096)), (1, None)] {
        fs::write(&odd, vec![0; bytes]).unwrap();
        let error = refused(&odd, UringConfig { sector_bytes, ..default });
        let UringError::Size { bytes: said, sector, .. } = error else { panic!("{error}") };
        assert_eq!(said, bytes as u64);
        assert!(sector_bytes.is_none_or(|s| s == sector));
    }
}

#[test]
fn what_a_ring_cannot_be_is_refused() {
    let disk = Disk::new(1 << 20);
    let default = UringConfig::default();
    let no = |config| refused(&disk.path, config);
    assert!(matches!(no(UringConfig { queues: 0, ..default }), UringError::NoQueues));
    assert!(matches!(no(UringConfig { submit_batch: 0, ..default }), UringError::NoBatch));
    for depth in [0, UringConfig::DEPTH_MAX + 1, u16::MAX] {
        let error = no(UringConfig { depth, ..default });
        assert!(matches!(error, UringError::Depth { depth: d } if d == depth), "{error}");
    }
    let segments = no(UringConfig { segments: 1025, ..default });
    assert!(matches!(segments, UringError::Segments { segments: 1025 }));
    for bytes in [0, 1, 256, 513, 1000, 131_072, u32::MAX] {
        let error = no(UringConfig { sector_bytes: Some(bytes), ..default });
        assert!(matches!(error, UringError::Sector { asked, .. } if asked == bytes), "{error}");
    }
    for bytes in [0, 511, 513, UringConfig::TRANSFER_BYTES_MAX + 512] {
        let config = UringConfig { transfer_bytes_max: bytes, sector_bytes: Some(512), ..default };
        assert!(matches!(no(config), UringError::Transfer { .. }), "{bytes}");
    }
    for config in [
        UringConfig { polling: Polling::Required, direct: false, ..default },
        UringConfig {
            submission_thread: Some(Default::default()),
            task_work: TaskWork::Deferred,
            ..default
        },
    ] {
        assert!(matches!(no(config), UringError::Conflict(_)));
    }
    let mut deep = Uring::open(&disk.path, UringConfig { depth: 32_768, ..default }).unwrap();
    assert_eq!(deep.limits().queue_depth, 32_768);
    assert!(deep.take_queue(1).is_none(), "the device has only one queue");
    assert!(deep.take_queue(0).is_some());
    assert!(deep.take_queue(0).is_none(), "the queue was already taken");
}

#[test]
fn polling_is_refused_or_detected_where_the_device_has_none() {
    let disk = Disk::new(1 << 20);
    let config = UringConfig { polling: Polling::WhereSupported, ..UringConfig::default() };
    let mut harness = Fixture::open(&disk.path, config);
    assert_eq!(harness.device.is_polled(), harness.queue.is_polled());
    harness.ok(Request::read(0, 8, Payload::Contiguous(harness.memory.at(0)), 0));
    harness.ok(Request::flush(0));
    let required = UringConfig { polling: Polling::Required, ..UringConfig::default() };
    match Uring::open(&disk.path, required) {
        Ok(device) => assert!(device.is_polled() && harness.device.is_polled()),
        Err(error @ UringError::NoPolling { .. }) => {
            assert!(!harness.device.is_polled());
            assert!(error.to_string().contains("poll_queues"), "{error}");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_device_for_reading_only_is_not_written() {
    let disk = Disk::new(1 << 20);
    let mut harness =
        Fixture::open(&disk.path, UringConfig { read_only: true, ..UringConfig::default() });
    let features = harness.device.features();
    assert!(!features.fua && !features.discard && !features.write_zeroes);
    let at = Payload::Contiguous(harness.memory.at(0));
    for request in [
        Request::write(0, 1, at, 0),
        Request::discard(0, 1, 0),
        Request::write_zeroes(0, 1, true, 0),
        Request::write_zeroes(0, 1, false, 0),
    ] {
        assert_eq!(harness.run_refused(request), Status::WRITE_PROTECTED);
    }
    harness.ok(Request::read(0, 8, at, 0));
    harness.ok(Request::flush(0));
}

#[test]
fn memory_that_is_not_registered_is_not_touched() {
    let disk = Disk::new(1 << 20);
    let mut harness =
        Fixture::open(&disk.path, UringConfig { segments: 4, ..UringConfig::default() });
    let s = harness.sector() as u32;
    let end = harness.memory.at(1 << 20);
    let last = harness.memory.at((1 << 20) - s as usize);
    for at in [Iova(0), Iova(4096), Iova(u64::MAX), end, last.offset(1), Iova(last.0 + (1 << 40))] {
        let request = Request::read(0, 1, Payload::Contiguous(at), 0);
        let status = harness.run_refused(request);
        assert_eq!(status, Status::DATA_TRANSFER_ERROR, "{at}");
    }
    assert_eq!(
        harness.run_refused(Request::read(0, 2, Payload::Contiguous(last), 0)),
        Status::DATA_TRANSFER_ERROR,
        "the request exceeds the memory by one sector"
    );
    let good = Segment { at: Some(harness.memory.at(0)), bytes: s };
    for (pieces, status) in [
        (vec![good, Segment { at: Some(end), bytes: s }], Status::DATA_TRANSFER_ERROR),
        (vec![good], Status::SGL_LENGTH_INVALID),
        (vec![good; 5], Status::SGL_LENGTH_INVALID),
        (vec![], Status::SGL_LENGTH_INVALID),
        (vec![Segment { at: None, bytes: 0 }; 3], Status::SGL_LENGTH_INVALID),
    ] {
        let payload = harness.memory.table(65_536, &pieces);
        assert_eq!(harness.run_refused(Request::read(0, 2, payload, 0)), status, "{pieces:?}");
    }
    let wild = Payload::Scattered { table: end, segments: 2 };
    assert_eq!(harness.run_refused(Request::read(0, 2, wild, 0)), Status::DATA_TRANSFER_ERROR);
    harness.memory.region.fill(65_536, 64, 0xff);
    let garbage = Payload::Scattered { table: harness.memory.at(65_536), segments: 2 };
    assert_eq!(harness.run_refused(Request::read(0, 2, garbage, 0)), Status::SGL_TYPE_INVALID);
    assert_eq!(harness.queue.stats().entries, 0, "refused requests must not reach the kernel");
    // A table at an odd address is valid.
    let payload = harness.memory.table(65_536 + 3, &[good, good]);
    harness.ok(Request::read(0, 2, payload, 0));
}

#[test]
fn direct_transfers_need_aligned_memory() {
    let disk = Disk::new(1 << 20);
    let mut harness = Fixture::open(&disk.path, UringConfig::default());
    let align = harness.device.memory_alignment();
    assert!(align.is_power_of_two());
    if align > 1 {
        let odd = harness.memory.at(align as usize / 2);
        let status = harness.run_refused(Request::read(0, 1, Payload::Contiguous(odd), 0));
        assert_eq!(status, Status::PRP_OFFSET_INVALID);
        let s = harness.sector() as u32;
        let payload = harness.memory.table(65_536, &[Segment { at: Some(odd), bytes: s }]);
        assert_eq!(
            harness.run_refused(Request::write(0, 1, payload, 0)),
            Status::PRP_OFFSET_INVALID
        );
    }
    harness.ok(Request::read(0, 1, Payload::Contiguous(harness.memory.at(align as usize)), 0));
    // Through the page cache, every alignment is valid.
    let mut cached =
        Fixture::open(&disk.path, UringConfig { direct: false, ..UringConfig::default() });
    assert_eq!(cached.device.memory_alignment(), 1);
    cached.ok(Request::read(0, 1, Payload::Contiguous(cached.memory.at(1)), 0));
}

#[test]
fn ranges_that_are_not_there_are_refused() {
    let disk = Disk::new(1 << 20);
    let mut harness = Fixture::open(&disk.path, UringConfig::default());
    let (sectors, longest) = (harness.queue.limits().sectors, harness.queue.limits().max_sectors);
    let bucket = Payload::BitBucket;
    for (request, status) in [
        (Request::write(sectors, 1, bucket, 0), Status::LBA_OUT_OF_RANGE),
        (Request::write(u64::MAX, 2, bucket, 0), Status::LBA_OUT_OF_RANGE),
        (Request::write_zeroes(sectors - 1, 2, false, 0), Status::LBA_OUT_OF_RANGE),
        (Request::discard(0, u32::MAX, 0), Status::LBA_OUT_OF_RANGE),
        (Request::read(0, 0, bucket, 0), Status::INVALID_FIELD),
        (Request::extents(0, 1, harness.memory.at(0), 0), Status::INVALID_OPCODE),
    ] {
        assert_eq!(harness.run_refused(request), status, "{request:?}");
    }
    assert!(!harness.device.features().extents);
    let config = UringConfig { transfer_bytes_max: 65_536, ..UringConfig::default() };
    let mut harness = Fixture::open(&disk.path, config);
    assert!(harness.queue.limits().max_sectors < longest);
    let request = Request::read(0, harness.queue.limits().max_sectors + 1, bucket, 0);
    assert_eq!(harness.run_refused(request), Status::INVALID_FIELD);
    assert_eq!(fs::metadata(&disk.path).unwrap().len(), 1 << 20, "the file must not grow");
}

#[test]
fn a_tag_out_of_turn_changes_nothing() {
    let disk = Disk::new(1 << 20);
    let config = UringConfig { depth: 3, ..UringConfig::default() };
    let mut harness = Fixture::open(&disk.path, config);
    let queue = &mut harness.queue;
    let read = Request::read(0, 1, Payload::BitBucket, 9);
    let mut tags = [Tag(0); 8];
    assert_eq!(queue.get_free_tags(&mut tags), 3);
    assert_eq!(queue.get_free_tags(&mut tags[3..]), 0, "all tags are taken");
    let state = |found, wanted| TagError::State { tag: tags[0], found, wanted };
    queue.release_tags(&tags[..1]).unwrap();
    assert_eq!(
        queue.bind_tag_cmd(tags[0], &read, Nanos(1)),
        Err(BindError::Tag(state(TagState::Free, TagState::Taken)))
    );
    assert_eq!(
        queue.bind_tag_cmd(Tag(3), &read, Nanos(1)),
        Err(BindError::Tag(TagError::OutOfRange { tag: Tag(3), count: 3 }))
    );
    assert!(!queue.issue_tags(), "no command is bound");
    assert!(queue.abort_tag(tags[1], Nanos(1)).is_err(), "the tag has no issued command");
    assert!(queue.abort_tag(Tag(99), Nanos(1)).is_err());
    queue.bind_tag_cmd(tags[1], &read, Nanos(1)).unwrap();
    assert!(queue.bind_tag_cmd(tags[1], &read, Nanos(1)).is_err(), "the tag is already bound");
    assert!(!queue.check_event(), "a bound command is not issued yet");
    // The command is freed before it was issued, so it never reaches the kernel.
    queue.detach_tag_cmd(tags[1]).unwrap();
    assert!(queue.issue_tags());
    assert_eq!(queue.stats().entries, 0);
    queue.release_tags(&tags[1..3]).unwrap();
    assert_eq!(harness.queue.tags().free(), 3);
    harness.ok(read);
}

#[test]
fn registrations_of_several_devices_can_be_shared() {
    let (one, two) = (Disk::new(1 << 20), Disk::new(1 << 20));
    let memory = AddressSpace::default();
    let mut first = Fixture::open(&one.path, UringConfig::default());
    let config = UringConfig::default();
    let mut second = Uring::open_with(&two.path, config, first.device.memory().clone()).unwrap();
    first.memory.region.fill(0, 4096, 0x77);
    let mut queue = second.take_queue(0).unwrap();
    let write = Request::write(0, 1, Payload::Contiguous(first.memory.at(0)), 0);
    assert!(super::fixture::run(&mut queue, write).is_success());
    first.ok(Request::read(0, 1, Payload::Contiguous(first.memory.at(8192)), 0));
    assert_eq!(fs::read(&two.path).unwrap()[..8], [0x77; 8]);
    drop(memory);
}
