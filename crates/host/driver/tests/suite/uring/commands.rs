//! The effect of each command on the file.

use std::fs;
use std::process::Command;

use mem::SharedRegion;
use nvme::Status;
use sluice_driver::{LowLevelDriver, Payload, Request, Segment, UringConfig};

use super::fixture::{Disk, Fixture, Loop};

fn plain(harness: &mut Fixture) {
    let s = harness.sector();
    harness.memory.region.fill(0, 4 * s, 0xa1);
    harness.ok(Request::write(3, 4, Payload::Contiguous(harness.memory.at(0)), 1));
    harness.ok(Request::flush(2));
    harness.ok(Request::read(2, 6, Payload::Contiguous(harness.memory.at(65_536)), 3));
    let read = harness.memory.bytes(65_536, 6 * s);
    for (i, sector) in read.chunks(s).enumerate() {
        let byte = if (1..5).contains(&i) { 0xa1 } else { 0 };
        assert!(sector.iter().all(|b| *b == byte), "sector {i}");
    }
    // A write with FUA is durable when it completes.
    harness.memory.region.fill(0, s, 0xb2);
    let fua =
        Request { fua: true, ..Request::write(9, 1, Payload::Contiguous(harness.memory.at(0)), 4) };
    harness.ok(fua);
    // Bit buckets: reads drop the data, and writes store zeros.
    harness.ok(Request::read(0, 8, Payload::BitBucket, 5));
    harness.ok(Request::write(9, 1, Payload::BitBucket, 6));
    harness.ok(Request::read(9, 1, Payload::Contiguous(harness.memory.at(0)), 7));
    assert_eq!(harness.memory.bytes(0, s), vec![0; s]);
}

fn scattered(harness: &mut Fixture) {
    let s = harness.sector();
    let (table, data) = (512 << 10, 0);
    let at = |i: usize| Some(harness.memory.at(data + i * s));
    for i in 0..16 {
        harness.memory.region.fill(data + i * s, s, i as u8 + 1);
    }
    // Segments in descending order, with a bit bucket, an empty segment, and more memory than
    // needed.
    let bytes = s as u32;
    let pieces = [
        Segment { at: at(5), bytes },
        Segment { at: at(2), bytes: 0 },
        Segment { at: at(3), bytes: 2 * bytes },
        Segment { at: None, bytes },
        Segment { at: at(0), bytes: 9 * bytes },
    ];
    let payload = harness.memory.table(table, &pieces);
    harness.ok(Request::write(20, 6, payload, 1));
    let to = 256 << 10;
    harness.ok(Request::read(20, 6, Payload::Contiguous(harness.memory.at(to)), 2));
    for (i, byte) in [6, 4, 5, 0, 1, 2].into_iter().enumerate() {
        let sector = harness.memory.bytes(to + i * s, s);
        assert!(sector.iter().all(|b| *b == byte), "sector {i} is {}, not {byte}", sector[0]);
    }
    // Read back the same layout.
    for i in 0..16 {
        harness.memory.region.fill(data + i * s, s, 0xee);
    }
    harness.ok(Request::read(20, 6, payload, 3));
    for (i, byte) in [(0, 1), (1, 2), (2, 0xee), (3, 4), (4, 5), (5, 6), (6, 0xee)] {
        assert_eq!(harness.memory.bytes(data + i * s, 1), [byte], "sector {i}");
    }
}

fn zeros(harness: &mut Fixture) {
    let s = harness.sector();
    for (tag, request) in [
        Request::discard(32, 16, 0),
        Request::write_zeroes(32, 16, true, 0),
        Request::write_zeroes(32, 16, false, 0),
        Request { fua: true, ..Request::write_zeroes(32, 16, false, 0) },
    ]
    .into_iter()
    .enumerate()
    {
        harness.memory.region.fill(0, 32 * s, 0xc3);
        harness.ok(Request::write(24, 32, Payload::Contiguous(harness.memory.at(0)), 1));
        harness.ok(Request { tag: tag as u64, ..request });
        harness.ok(Request::read(24, 32, Payload::Contiguous(harness.memory.at(0)), 2));
        let read = harness.memory.bytes(0, 32 * s);
        for (i, sector) in read.chunks(s).enumerate() {
            let byte = if (8..24).contains(&i) { 0 } else { 0xc3 };
            assert!(sector.iter().all(|b| *b == byte), "{request:?}: sector {i}");
        }
    }
}

#[test]
fn reads_and_writes_with_every_configuration() {
    let disk = Disk::new(1 << 20);
    let default = UringConfig::default();
    for config in [
        default,
        UringConfig { direct: false, ..default },
        UringConfig { registered_buffers: false, ..default },
        UringConfig { registered_file: false, ..default },
        UringConfig { sector_bytes: Some(4096), ..default },
        UringConfig { submission_thread: Some(Default::default()), ..default },
        UringConfig { task_work: sluice_driver::TaskWork::Cooperative, ..default },
        UringConfig { task_work: sluice_driver::TaskWork::Deferred, ..default },
        UringConfig { submit_batch: 1, ..default },
    ] {
        fs::write(&disk.path, vec![0; 1 << 20]).unwrap();
        let mut harness = Fixture::open(&disk.path, config);
        plain(&mut harness);
        scattered(&mut harness);
        let stats = harness.queue.stats();
        assert_eq!(stats.registered_regions > 0, config.registered_buffers, "{stats:?}");
        assert_eq!(stats.unregistered_transfers == 0, config.registered_buffers, "{stats:?}");
        assert_eq!(stats.completions, stats.entries, "{stats:?}");
        // The data that the driver reports as written is in the file.
        let s = harness.sector();
        drop(harness);
        let file = fs::read(&disk.path).unwrap();
        assert!(file[3 * s..7 * s].iter().all(|b| *b == 0xa1));
    }
}

#[test]
fn memory_that_cannot_be_pinned_is_used_all_the_same() {
    let disk = Disk::new(1 << 20);
    let mut harness = Fixture::open(&disk.path, UringConfig::default());
    harness.memory.region.fill(0, 4096, 0x3c);
    harness.ok(Request::write(0, 1, Payload::Contiguous(harness.memory.at(0)), 0));
    assert_eq!(
        (harness.queue.stats().registered_regions, harness.queue.stats().unregistered_regions),
        (1, 0)
    );
    // More memory than the kernel pins at once; only the data that is read is touched.
    let large = SharedRegion::anonymous((1 << 30) + 4096).unwrap();
    let at = harness.device.memory().register(&large).unwrap();
    for round in 0..3 {
        harness.ok(Request::read(
            0,
            1,
            Payload::Contiguous(at.offset((1 << 30) - 512 + round * 512)),
            0,
        ));
    }
    let stats = harness.queue.stats();
    assert_eq!((stats.registered_regions, stats.unregistered_regions), (1, 1));
    assert_eq!(stats.unregistered_transfers, 3);
    let mut out = [0; 16];
    large.read((1 << 30) - 512, &mut out);
    assert_eq!(out, [0x3c; 16]);
    // Pages of a file: the kernel may refuse to pin them.
    let backing = disk.sibling_path("memory");
    fs::write(&backing, vec![0; 65_536]).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(&backing).unwrap();
    let mapped = SharedRegion::file(file, 65_536).unwrap();
    let at = harness.device.memory().register(&mapped).unwrap();
    harness.ok(Request::read(0, 1, Payload::Contiguous(at.offset(4096)), 0));
    let stats = harness.queue.stats();
    assert_eq!(stats.registered_regions + stats.unregistered_regions, 3, "{stats:?}");
    assert_eq!(fs::read(&backing).unwrap()[4096..4112], [0x3c; 16]);
}

#[test]
fn discarded_and_zeroed_sectors_read_as_zeros() {
    let disk = Disk::new(1 << 20);
    for sector_bytes in [512, 4096] {
        let config = UringConfig { sector_bytes: Some(sector_bytes), ..UringConfig::default() };
        let mut harness = Fixture::open(&disk.path, config);
        if !harness.device.features().discard {
            testkit::skip!("no holes on the file system of {}", disk.path.display());
            return;
        }
        zeros(&mut harness);
    }
    assert_eq!(fs::metadata(&disk.path).unwrap().len(), 1 << 20, "the file keeps its size");
}

#[test]
fn the_same_over_a_loop_device() {
    let disk = Disk::new(8 << 20);
    let Some(device) = Loop::new(&disk, &[]) else { return };
    for config in [
        UringConfig::default(),
        UringConfig { submission_thread: Some(Default::default()), ..UringConfig::default() },
        UringConfig { sector_bytes: Some(4096), ..UringConfig::default() },
    ] {
        let mut harness = Fixture::open(&device.path, config);
        assert_eq!(harness.device.limits().bytes(), 8 << 20);
        assert!(harness.device.features().discard, "loop devices must support discard");
        plain(&mut harness);
        scattered(&mut harness);
        zeros(&mut harness);
        for lba in 0..64 {
            harness.ok(Request::write(lba, 1, Payload::BitBucket, 0));
        }
    }
}

#[test]
fn a_loop_device_has_its_own_sectors_and_its_own_rights() {
    let disk = Disk::new(8 << 20);
    let Some(device) = Loop::new(&disk, &["--sector-size=4096"]) else { return };
    let harness = Fixture::open(&device.path, UringConfig::default());
    assert_eq!(harness.device.limits().sector_bytes, 4096);
    assert_eq!(harness.device.limits().sectors, 2048);
    let small = UringConfig { sector_bytes: Some(512), ..UringConfig::default() };
    let refused =
        sluice_driver::Uring::open(&device.path, UringConfig { exclusive: false, ..small });
    assert!(refused.unwrap_err().to_string().contains("multiple of 4096"));
    let second = sluice_driver::Uring::open(&device.path, UringConfig::default());
    let error = second.unwrap_err();
    assert!(matches!(error, sluice_driver::UringError::InUse { .. }), "{error}");
    let reader = UringConfig { read_only: true, ..UringConfig::default() };
    let mut reader = Fixture::open(&device.path, reader);
    reader.ok(Request::read(0, 1, Payload::BitBucket, 0));
    drop((harness, device));
    let Some(device) = Loop::new(&disk, &["--read-only"]) else { return };
    match sluice_driver::Uring::open(&device.path, UringConfig::default()) {
        // Linux lets root open the device, and rejects the write.
        Ok(first) => {
            drop(first);
            let mut harness = Fixture::open(&device.path, UringConfig::default());
            let status = harness.run_refused(Request::write(0, 1, Payload::BitBucket, 0));
            assert_eq!(status, Status::WRITE_PROTECTED);
        }
        Err(error) => assert!(error.to_string().contains("for reading only"), "{error}"),
    }
}

#[test]
fn the_release_of_a_loop_device_is_waited_for() {
    let disk = Disk::new(1 << 20);
    let Some(device) = Loop::new(&disk, &[]) else { return };
    let held = Fixture::open(&device.path, UringConfig::default());
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(40));
            drop(held);
        });
        Fixture::open(&device.path, UringConfig::default());
    });
}

#[test]
fn a_file_that_shrinks_fails_past_its_end_and_does_not_hang() {
    let disk = Disk::new(64 << 10);
    let mut harness = Fixture::open(&disk.path, UringConfig::default());
    let s = harness.sector() as u64;
    let (at, last) = (Payload::Contiguous(harness.memory.at(0)), (64 << 10) / s - 1);
    let file = fs::OpenOptions::new().write(true).open(&disk.path).unwrap();
    file.set_len(8 * s + 100).unwrap();
    harness.ok(Request::read(0, 8, at, 1));
    assert_eq!(harness.run_refused(Request::read(last, 1, at, 2)), Status::UNRECOVERED_READ);
    assert_eq!(
        harness.run_refused(Request::read(8, 1, at, 3)),
        Status::UNRECOVERED_READ,
        "the file has only 100 bytes of the sector"
    );
    assert_eq!(
        harness.run_refused(Request::read(4, 8, at, 4)),
        Status::UNRECOVERED_READ,
        "the file ends within the request"
    );
    // The file ends at a sector: the driver transfers the existing part, then requests the rest,
    // which is missing.
    file.set_len(8 * s).unwrap();
    assert_eq!(harness.run_refused(Request::read(4, 8, at, 5)), Status::UNRECOVERED_READ);
    assert!(harness.queue.stats().short_transfers > 0);
}

/// A small in-memory file system, unmounted when it is dropped.
struct Mount(std::path::PathBuf);

impl Mount {
    fn new(directory: std::path::PathBuf, options: &str) -> Option<Mount> {
        fs::create_dir(&directory).unwrap();
        let out = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(&directory)
            .output();
        match out {
            Ok(out) if out.status.success() => Some(Mount(directory)),
            _ => {
                testkit::skip!("no file system may be mounted here");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn what_the_file_system_refuses_ends_with_its_status() {
    let disk = Disk::new(0);
    let Some(mount) = Mount::new(disk.sibling_path("small"), "size=64k") else { return };
    let path = mount.0.join("disk");
    fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let config = UringConfig { direct: false, ..UringConfig::default() };
    let mut harness = Fixture::open(&path, config);
    let statuses: Vec<Status> =
        (0..32).map(|i| harness.run(Request::write(i * 4, 4, Payload::BitBucket, 0))).collect();
    assert!(statuses[0].is_success());
    let full = statuses.iter().filter(|s| **s == Status::CAPACITY_EXCEEDED).count();
    assert!(full >= 16, "only 64 requests of 512 KiB may fit: {statuses:?}");
    // Discards free space, and a deallocating Write Zeroes punches a hole; tmpfs does not support
    // zeroing by writing.
    harness.ok(Request::discard(0, 64, 0));
    harness.ok(Request::write(0, 4, Payload::BitBucket, 0));
    harness.ok(Request::write_zeroes(0, 4, true, 0));
    let status = harness.run_refused(Request::write_zeroes(0, 4, false, 0));
    assert_eq!(status, Status::INVALID_OPCODE);
}
