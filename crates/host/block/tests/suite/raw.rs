//! The raw path against a drive that completes commands at once.

use crate::mock_drive;

use std::sync::Arc;

use driver::{ControllerHandle, HardwareQueue, NvmeDeviceError};
use event::Parker;
use mem::{Iova, PAGE_BYTES, SharedRegion};
use mock_drive::{MockDrive, SECTOR};
use nvme::{Geometry, Status};
use sluice_block::{
    BlockDevice, Completion, Extent, ExtentState, Op, Payload, QueueFull, Raw, Request,
};
use time::{Component, Nanos};
use transport::Port;

const SECTORS: u64 = 1000;
const NOW: Nanos = Nanos::ZERO;

struct Bench {
    drive: MockDrive,
    raw: Raw,
    memory: Arc<SharedRegion>,
    at: Iova,
}

impl Bench {
    fn new(depth: u16) -> Bench {
        let port = Port::new().unwrap();
        let mut drive = MockDrive::new(&port, SECTORS as usize);
        let mut progress = || drive.progress();
        let mut controller = ControllerHandle::connect(port.clone(), &mut progress, 10).unwrap();
        let queue = controller.create_queue_pair(depth, Some(1), &mut progress).unwrap();
        let memory = SharedRegion::anonymous(64 * PAGE_BYTES).unwrap();
        let at = port.memory().register(&memory).unwrap();
        let raw = Raw::from_pair(controller.info(), queue, port).unwrap();
        Bench { drive, raw, memory, at }
    }

    /// Executes one request from submission to completion.
    fn run(&mut self, request: Request) -> Completion {
        self.raw.submit(NOW, request).unwrap();
        assert!(self.raw.poll(NOW), "the poll rings the doorbell or completes the request");
        self.drive.poll();
        self.raw.poll(NOW);
        let completion = self.raw.reap().expect("the request completes");
        assert_eq!(completion.tag, request.tag);
        assert_eq!(self.raw.reap(), None);
        completion
    }

    fn ok(&mut self, request: Request) -> u64 {
        let completion = self.run(request);
        assert_eq!(completion.status, Status::SUCCESS);
        completion.result
    }

    fn extents(&mut self, lba: u64, sectors: u32) -> Vec<Extent> {
        let at = self.at.offset(PAGE_BYTES as u64);
        let count = self.ok(Request::extents(lba, sectors, at, 1));
        (0..count as usize)
            .map(|i| {
                let mut bytes = [0; Extent::BYTES];
                self.memory.read(PAGE_BYTES + i * Extent::BYTES, &mut bytes);
                Extent::decode(bytes)
            })
            .collect()
    }
}

#[test]
fn limits_are_the_drives() {
    let bench = Bench::new(32);
    let limits = bench.raw.limits();
    assert_eq!((limits.sector_bytes, limits.sectors, limits.max_sectors), (4096, SECTORS, 32));
    assert_eq!((limits.queue_depth, limits.volatile_cache), (31, true));
}

#[test]
fn what_is_written_is_read_until_it_is_trimmed_or_zeroed() {
    let mut b = Bench::new(8);
    b.memory.fill(0, 4 * SECTOR, 0xa5);
    let at = Payload::Contiguous(b.at);
    b.ok(Request::write(10, 4, at, 1));
    assert_eq!(b.drive.fua, 0);
    b.ok(Request { fua: true, ..Request::write(20, 4, at, 2) });
    assert_eq!(b.drive.fua, 1);
    b.ok(Request::flush(3));
    assert_eq!(b.drive.flushes, 1);

    let read = |b: &mut Bench, lba| {
        b.memory.fill(0, SECTOR, 0xee);
        b.ok(Request::read(lba, 1, at, 4));
        let mut sector = vec![0; SECTOR];
        b.memory.read(0, &mut sector);
        assert!(sector.iter().all(|x| *x == sector[0]));
        sector[0]
    };
    assert_eq!((read(&mut b, 10), read(&mut b, 9)), (0xa5, 0));
    b.ok(Request::discard(11, 1, 5));
    assert_eq!((read(&mut b, 10), read(&mut b, 11), read(&mut b, 12)), (0xa5, 0, 0xa5));
    b.ok(Request::write_zeroes(20, 1, false, 6));
    b.ok(Request::write_zeroes(21, 1, true, 7));
    assert_eq!((read(&mut b, 20), read(&mut b, 21), read(&mut b, 22)), (0, 0, 0xa5));

    use ExtentState::{Mapped, Unmapped};
    let extent = |lba, sectors, state| Extent { lba, sectors, state };
    assert_eq!(
        b.extents(9, 14),
        [
            extent(9, 1, Unmapped),
            extent(10, 1, Mapped),
            extent(11, 1, Unmapped),
            extent(12, 2, Mapped),
            extent(14, 6, Unmapped),
            extent(20, 1, Mapped),
            extent(21, 1, Unmapped),
            extent(22, 1, Mapped),
        ]
    );
    // Discards the whole device with one trim: it transfers no data, so no transfer limit applies.
    b.ok(Request::discard(0, SECTORS as u32, 8));
    assert_eq!(b.extents(0, SECTORS as u32), [extent(0, SECTORS as u32, Unmapped)]);
}

#[test]
fn bit_buckets_move_no_data() {
    let mut b = Bench::new(8);
    b.ok(Request::write(0, 32, Payload::BitBucket, 1));
    b.ok(Request::read(0, 32, Payload::BitBucket, 2));
}

#[test]
fn requests_that_cannot_be_are_answered_and_not_sent() {
    let mut b = Bench::new(8);
    let bucket = Payload::BitBucket;
    let (end, max) = (SECTORS, u32::MAX);
    for (request, status) in [
        (Request::read(end, 1, bucket, 1), Status::LBA_OUT_OF_RANGE),
        (Request::read(end - 1, 2, bucket, 1), Status::LBA_OUT_OF_RANGE),
        (Request::read(u64::MAX, 1, bucket, 1), Status::LBA_OUT_OF_RANGE),
        (Request::read(u64::MAX, max, bucket, 1), Status::LBA_OUT_OF_RANGE),
        (Request::write(0, max, bucket, 1), Status::LBA_OUT_OF_RANGE),
        (Request::discard(end - 1, 2, 1), Status::LBA_OUT_OF_RANGE),
        (Request::write_zeroes(end, 1, true, 1), Status::LBA_OUT_OF_RANGE),
        (Request::read(0, 0, bucket, 1), Status::INVALID_FIELD),
        (Request::discard(0, 0, 1), Status::INVALID_FIELD),
        (Request::read(0, 33, bucket, 1), Status::INVALID_FIELD),
        (Request { op: Op::Extents, ..Request::read(0, 1, bucket, 1) }, Status::INVALID_FIELD),
    ] {
        assert_eq!(b.run(request), Completion { tag: 1, status, result: 0 }, "{request:?}");
    }
    assert_eq!(b.raw.queue().tags().bound(), 0);
    // The drive rejects unregistered memory.
    let wild = Request::write(0, 1, Payload::Contiguous(Iova(0)), 9);
    assert_eq!(b.run(wild).status, Status::DATA_TRANSFER_ERROR);
}

#[test]
fn media_errors_pass_through() {
    let mut b = Bench::new(8);
    b.drive.faults.fail_io = Some(Status::UNRECOVERED_READ);
    assert_eq!(b.run(Request::read(0, 1, Payload::BitBucket, 1)).status, Status::UNRECOVERED_READ);
}

#[test]
fn one_doorbell_for_many_and_every_request_completes_once() {
    let mut b = Bench::new(16);
    for tag in 0..15 {
        b.raw.submit(NOW, Request::write(tag, 1, Payload::BitBucket, tag)).unwrap();
    }
    assert_eq!(b.raw.submit(NOW, Request::flush(15)), Err(QueueFull));
    assert!(!b.drive.poll(), "the drive sees no command before the poll");
    assert!(b.raw.poll(NOW));
    assert!(!b.raw.poll(NOW), "the doorbell must be rung only once");
    b.drive.poll();
    assert!(b.raw.poll(NOW), "the poll finds a completion");
    assert!(!b.raw.poll(NOW), "a poll finds nothing new while the completions wait to be reaped");
    let mut tags: Vec<u64> = std::iter::from_fn(|| b.raw.reap()).map(|c| c.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..15).collect::<Vec<_>>());
    assert!(!b.raw.poll(NOW));
    assert_eq!(b.raw.deadline(), Nanos::MAX);
}

#[test]
fn refused_requests_push_back_without_reaping() {
    let mut b = Bench::new(4);
    let wrong = Request::read(SECTORS, 1, Payload::BitBucket, 7);
    for _ in 0..3 {
        b.raw.submit(NOW, wrong).unwrap();
    }
    assert_eq!(b.raw.submit(NOW, wrong), Err(QueueFull));
    assert!(b.raw.poll(NOW));
    assert!(!b.raw.poll(NOW));
    assert_eq!(std::iter::from_fn(|| b.raw.reap()).count(), 3);
    b.raw.submit(NOW, wrong).unwrap();
    let (queue, left) = b.raw.into_queue();
    assert_eq!((queue.tags().bound(), left.count()), (0, 1));
}

#[test]
fn the_drive_wakes_a_sleeping_submitter() {
    let mut b = Bench::new(4);
    let parker = Parker::new().unwrap();
    b.raw.set_waker(parker.waker());
    b.raw.submit(NOW, Request::flush(1)).unwrap();
    b.raw.poll(NOW);
    parker.prepare();
    b.drive.poll();
    parker.park(&[], Nanos::MAX).unwrap();
    assert!(b.raw.reap().is_some());
}

#[test]
fn an_open_channel_drive_is_no_block_device() {
    let geometry = Geometry {
        groups: 1,
        pus: 1,
        chunks: 4,
        sectors: 64,
        sector_bytes: 4096,
        oob_bytes: 16,
        ws_min: 8,
        ws_opt: 8,
        mw_cunits: 0,
    };
    let port = Port::new().unwrap();
    let mut drive = MockDrive::open_channel(&port, &geometry);
    let mut progress = || drive.progress();
    let mut controller = ControllerHandle::connect(port.clone(), &mut progress, 10).unwrap();
    let queue = controller.create_queue_pair(4, None, &mut progress).unwrap();
    let error = Raw::from_pair(controller.info(), queue, port).unwrap_err();
    assert!(matches!(error, NvmeDeviceError::OpenChannel { .. }), "{error}");
}
