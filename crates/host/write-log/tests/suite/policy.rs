//! The policy: logged and passed requests, destaging, errors of the device.

// guarantee: B-50

use block::{BlockDevice, Op, Payload, Request};
use mem::Iova;
use nvme::Status;
use time::{Component, Nanos};
use write_log::WriteLogConfig;

use crate::common::{Parts, SECTOR, Sequential, config, parts_of, sector_of, value_of};

const SECTORS: u64 = 48;
const BYTES: usize = 8192;

fn log_of(bytes: usize) -> Sequential {
    Sequential::new(Parts::new(SECTORS, bytes, 1).open(config(bytes)).unwrap())
}

#[test]
fn small_writes_stay_in_the_log_until_it_is_idle() {
    let mut log = log_of(BYTES);
    assert_eq!(log.log.limits().sectors, SECTORS, "the last sector has the label");
    let empty = log.log.used_bytes();
    assert!(log.write(3, 2, 10, true).status.is_success());
    assert!(log.write(7, 1, 20, false).status.is_success());
    assert!(log.flush().status.is_success());
    assert!(log.flush().status.is_success());
    let stats = log.log.stats();
    assert_eq!((empty, log.log.used_bytes()), (0, 64 + 1024 + 64 + 512));
    assert_eq!((stats.logged_writes, stats.logged_sectors, stats.passed_changes), (2, 3, 0));
    assert_eq!((stats.absorbed_flushes, stats.device_flushes, stats.persists), (2, 0, 2));
    assert_eq!(stats.lines, 1 + 16 + 1 + 8);
    assert_eq!([3, 4, 5, 7].map(|lba| log.read(lba)), [10, 11, 0, 20]);
    assert_eq!(log.log.stats().read_sectors, 3);
    log.wait(4_000);
    let stats = log.log.stats();
    assert_eq!((log.log.used_bytes(), stats.destaged_sectors), (0, 3));
    assert_eq!([3, 4, 7].map(|lba| log.read(lba)), [10, 11, 20]);
    assert_eq!(log.log.stats().read_sectors, 3, "the device has the sectors");
    let parts = parts_of(log.log);
    assert_eq!(parts.device.device.durable[3 * SECTOR..4 * SECTOR], sector_of(10));
}

#[test]
fn a_read_of_logged_and_other_sectors_has_both() {
    let mut log = log_of(BYTES);
    assert!(log.write(0, 16, 100, false).status.is_success());
    assert!(log.write(4, 2, 200, true).status.is_success());
    assert!(log.write(15, 1, 300, true).status.is_success());
    let (_region, at) = log.log.memory().allocate_registered(16 * SECTOR).unwrap();
    let read = Request::read(0, 16, Payload::Contiguous(at), 9);
    assert!(log.run(read).status.is_success());
    let mut data = vec![0; 16 * SECTOR];
    log.log.memory().read(at, &mut data).unwrap();
    let found: Vec<u64> = data.chunks(SECTOR).map(value_of).collect();
    let mut expected: Vec<u64> = (100..116).collect();
    (expected[4], expected[5], expected[15]) = (200, 201, 300);
    assert_eq!(found, expected);
    assert!(log.run(Request::read(0, 16, Payload::BitBucket, 9)).status.is_success());
}

#[test]
fn large_writes_and_discards_pass_and_supersede_logged_sectors() {
    let mut log = log_of(16_384);
    assert!(log.write(2, 4, 10, true).status.is_success());
    assert!(log.write(0, 16, 100, false).status.is_success());
    assert_eq!(log.read(3), 103);
    assert_eq!((log.log.stats().passed_changes, log.log.stats().superseded_records), (1, 0));
    assert!(log.flush().status.is_success());
    let stats = log.log.stats();
    assert_eq!((stats.device_flushes, stats.superseded_records), (1, 1));
    assert!(log.flush().status.is_success());
    assert_eq!(log.log.stats().absorbed_flushes, 1, "nothing has passed since");
    // With FUA the record is there before the write completes.
    assert!(log.write(2, 1, 20, true).status.is_success());
    assert!(log.write(0, 16, 200, true).status.is_success());
    assert_eq!((log.read(2), log.log.stats().superseded_records), (202, 2));
    assert!(log.write(2, 1, 30, true).status.is_success());
    assert!(log.run(Request::discard(0, 16, 1)).status.is_success());
    assert_eq!(log.read(2), 0);
    assert!(log.write(2, 1, 40, true).status.is_success());
    assert!(log.run(Request::write_zeroes(2, 1, true, 1)).status.is_success());
    assert_eq!(log.read(2), 0);
    // A replay finds the flushed contents.
    assert!(log.flush().status.is_success());
    let mut log = Sequential::new(parts_of(log.log).open(config(16_384)).unwrap());
    assert!(log.log.stats().replayed_records > 0);
    assert_eq!([0, 2, 15].map(|lba| log.read(lba)), [0; 3]);
}

#[test]
fn a_log_that_is_full_waits_for_the_device() {
    // Stores that take no time: the device is slower than the log.
    let config = WriteLogConfig { store: Nanos::ZERO, persist: Nanos::ZERO, ..config(4352) };
    let mut log = Sequential::new(Parts::new(SECTORS, 4352, 1).open(config).unwrap());
    let data = log.data();
    for round in 0..50u64 {
        for i in 0..8 {
            let write = Request::write(4 * i, 4, data, round << 8 | i);
            log.log.submit(log.now, Request { fua: true, ..write }).unwrap();
        }
        let mut completed = 0;
        for _ in 0..100_000 {
            log.wait(1);
            while let Some(completion) = log.log.reap() {
                assert!(completion.status.is_success() && completion.tag >> 8 == round);
                completed += 1;
            }
            if completed == 8 {
                break;
            }
        }
        assert_eq!(completed, 8);
    }
    let stats = log.log.stats();
    assert_eq!((stats.logged_writes, stats.passed_changes), (400, 0));
    assert!(stats.space_waits > 0 && stats.destaged_sectors > 0, "{stats:?}");
}

#[test]
fn a_full_log_over_a_device_that_refuses_writes_fails_them_and_keeps_its_data() {
    let mut log = log_of(BYTES);
    let fuse = {
        let parts = parts_of(log.log);
        let fuse = parts.device.fuse.clone();
        log = Sequential::new(parts.open(config(BYTES)).unwrap());
        fuse
    };
    fuse.set_failing(true);
    let mut durable = 0;
    let failed = loop {
        let completion = log.write(durable, 1, 1 + durable, true);
        if !completion.status.is_success() {
            break completion.status;
        }
        durable += 1;
        assert!(durable < SECTORS, "the log is full");
    };
    assert_eq!((failed, durable), (Status::WRITE_FAULT, 14), "8064 bytes of 576 each");
    // A write that passed and failed may be on the device.
    assert_eq!(log.flush().status, Status::WRITE_FAULT);
    assert!(log.log.stats().failed_destages > 0);
    // A large write passes to the device, which fails it.
    assert_eq!(log.write(0, 16, 900, true).status, Status::WRITE_FAULT);
    for lba in 0..durable {
        assert_eq!(log.read(lba), lba + 1);
    }
    log.log.close();
    log.wait(2_000);
    assert_eq!(log.log.close_result(), Some(Err(Status::WRITE_FAULT)));
    // The device has recovered.
    fuse.set_failing(false);
    let contents = log.close().contents();
    for lba in 0..durable {
        let at = lba as usize * SECTOR;
        assert_eq!(contents.device[at..at + SECTOR], sector_of(lba + 1));
    }
}

#[test]
fn after_an_error_the_log_tries_again() {
    let mut log = log_of(BYTES);
    let parts = parts_of(log.log);
    let fuse = parts.device.fuse.clone();
    log = Sequential::new(parts.open(config(BYTES)).unwrap());
    assert!(log.write(1, 1, 5, true).status.is_success());
    fuse.set_failing(true);
    log.wait(6_000);
    let failed = log.log.stats().failed_destages;
    assert!((2..10).contains(&failed), "{failed} attempts, one each 500 ns");
    fuse.set_failing(false);
    log.wait(1_000);
    assert_eq!((log.log.used_bytes(), log.read(1)), (0, 5));
}

#[test]
fn requests_that_the_log_cannot_execute_are_rejected() {
    let mut log = log_of(BYTES);
    let data = log.data();
    let Payload::Contiguous(at) = data else { unreachable!() };
    let scattered = Payload::Scattered { table: at, segments: 1 };
    let missing = Payload::Contiguous(Iova(u64::MAX - 4096));
    for (request, status) in [
        (Request::extents(0, 1, at, 1), Status::INVALID_OPCODE),
        (Request::write(0, 1, scattered, 1), Status::INVALID_FIELD),
        (Request::read(0, 1, scattered, 1), Status::INVALID_FIELD),
        (Request::read(0, 0, data, 1), Status::INVALID_FIELD),
        (Request::write(0, 17, data, 1), Status::INVALID_FIELD),
        (Request::write(SECTORS, 1, data, 1), Status::LBA_OUT_OF_RANGE),
        (Request::discard(SECTORS - 1, 2, 1), Status::LBA_OUT_OF_RANGE),
        (Request::read(u64::MAX, 1, data, 1), Status::LBA_OUT_OF_RANGE),
        (Request::write(0, 1, missing, 1), Status::DATA_TRANSFER_ERROR),
        (Request::write(0, 16, missing, 1), Status::DATA_TRANSFER_ERROR),
        (Request::read(0, 1, missing, 1), Status::DATA_TRANSFER_ERROR),
    ] {
        let completion = log.run(request);
        assert_eq!((completion.tag, completion.status), (1, status), "{request:?}");
    }
    assert_eq!(log.log.stats().logged_writes, 0);
    // Data of no memory is unspecified, and takes its space.
    assert!(log.run(Request::write(0, 2, Payload::BitBucket, 1)).status.is_success());
    assert_eq!(log.log.used_bytes(), 64 + 1024);
}

#[test]
fn as_many_requests_as_the_queue_takes_complete_once() {
    let mut log = log_of(BYTES);
    for round in 0..20 {
        let mut sent = 0;
        let data = log.data();
        let write = |i| Request::write(i, 1, data, round << 8 | i);
        while log.log.submit(log.now, write(sent)).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, 8);
        let mut tags = Vec::new();
        for _ in 0..100_000 {
            log.wait(1);
            tags.extend(std::iter::from_fn(|| log.log.reap()).map(|completion| completion.tag));
            if tags.len() == 8 {
                break;
            }
        }
        tags.sort_unstable();
        assert_eq!(tags, (0..8).map(|i| round << 8 | i).collect::<Vec<_>>());
        assert_eq!(log.log.reap(), None);
    }
}

#[test]
fn over_a_device_without_a_volatile_cache_every_write_is_durable() {
    let mut parts = Parts::new(SECTORS, BYTES, 1);
    parts.device.device.limits.volatile_cache = false;
    let mut log = Sequential::new(parts.open(config(BYTES)).unwrap());
    for i in 0..5 {
        assert!(log.write(i, 1, i + 1, false).status.is_success());
    }
    assert_eq!(log.log.stats().persists, 5);
    assert!(log.write(0, 16, 100, false).status.is_success());
    assert_eq!(log.log.stats().superseded_records, 1, "before the write completes");
}

#[test]
fn nothing_is_due_when_the_log_is_empty() {
    let mut log = log_of(BYTES);
    assert_eq!(log.log.deadline(), Nanos::MAX);
    assert!(log.write(0, 1, 1, false).status.is_success());
    let idle = WriteLogConfig { ..config(BYTES) }.idle;
    let deadline = log.log.deadline();
    assert!(deadline > log.now && deadline <= Nanos(log.now.0 + idle.0), "{deadline:?}");
    log.wait(idle.0 + 1_000);
    assert_eq!((log.log.used_bytes(), log.log.deadline()), (0, Nanos::MAX));
    assert_eq!(log.run(Request { op: Op::Flush, ..Request::flush(4) }).tag, 4);
}

#[test]
fn writes_fail_after_the_memory_was_removed() {
    let mut log = log_of(BYTES);
    let parts = parts_of(log.log);
    let fuse = parts.device.fuse.clone();
    log = Sequential::new(parts.open(config(BYTES)).unwrap());
    assert!(log.write(0, 1, 1, true).status.is_success());
    fuse.remove();
    assert_eq!(log.write(1, 1, 2, true).status, Status::INTERNAL);
    assert_eq!(log.flush().status, Status::INTERNAL);
}
