//! Drives whose logical blocks are smaller than the units that their FTL maps.

// guarantee: B-79, B-80

use std::sync::Arc;

use crate::ppa::events::RawHost;
use crate::{common, full};

use block::{BlockDevice, Payload, Raw, Request};
use common::{drive, job, nand, precondition, run};
use controller::{
    Controller, DriveConfig, DriveError, DriveStats, Fault, FaultSector, NullConfig,
    PersonalityKind, ReadModifyWriteStats, WriteBuffer,
};
use media::{DataStore, MediaConfig, NandConfig};
use mem::{Iova, SharedRegion};
use nvme::{AdminCommand, ErrorEntry, Status, log_page};
use time::{Component, Nanos, VirtualRunner};

/// Time of a read of a unit: the array, and the transfer of 4 KiB over a channel of 400 MB/s.
const READ: Nanos = Nanos(50_000 + 10_240);

/// A drive with units of 4 KiB and blocks of 512 bytes.
fn small_blocks(data: DataStore) -> DriveConfig {
    DriveConfig { lba_bytes: Some(512), ..drive(NandConfig { data, ..nand() }) }
}

/// Requests in flight at most.
const SLOTS: usize = 256;
/// Bytes of each request at most.
const SLOT_BYTES: usize = 16 * 512;

struct Host {
    drive: Controller,
    raw: Raw,
    runner: VirtualRunner,
    memory: Arc<SharedRegion>,
    at: Iova,
    in_flight: usize,
}

impl Host {
    fn new(config: DriveConfig) -> Host {
        let mut drive = Controller::new(config).unwrap();
        let raw = common::raw(&mut drive, 1024);
        let memory = SharedRegion::anonymous(SLOTS * SLOT_BYTES).unwrap();
        let at = raw.memory().register(&memory).unwrap();
        Host { drive, raw, runner: VirtualRunner::new(), memory, at, in_flight: 0 }
    }

    fn data(&self, slot: usize) -> Payload {
        Payload::Contiguous(self.at.offset((slot * SLOT_BYTES) as u64))
    }

    fn submit(&mut self, request: Request) {
        self.raw.submit(self.runner.now(), request).unwrap();
        self.in_flight += 1;
    }

    /// Waits for all requests, and returns their tags and statuses.
    fn wait(&mut self) -> Vec<(u64, Status)> {
        let mut done = Vec::new();
        loop {
            // Completions are reaped before time advances.
            let now = self.runner.now();
            while self.drive.poll(now) | self.raw.poll(now) {}
            while let Some(completion) = self.raw.reap() {
                done.push((completion.tag, completion.status));
            }
            assert_eq!(self.drive.check_invariants(), Ok(()));
            if done.len() == self.in_flight {
                break;
            }
            let moved = self.runner.step(&mut [&mut self.raw, &mut self.drive], Nanos::MAX);
            assert!(moved, "{} of {}", done.len(), self.in_flight);
        }
        self.in_flight = 0;
        done
    }

    fn run(&mut self, request: Request) -> Status {
        self.submit(request);
        self.wait()[0].1
    }

    /// Writes blocks from `lba` on, all bytes of the `i`-th of them with `value + i`.
    fn write(&mut self, lba: u64, blocks: u32, value: u8) -> Status {
        for i in 0..blocks as usize {
            self.memory.fill(i * 512, 512, value + i as u8);
        }
        self.run(Request::write(lba, blocks, self.data(0), 0))
    }

    /// Reads blocks. Returns the status, and the value of the bytes of each block.
    fn read(&mut self, lba: u64, blocks: u32) -> Result<Vec<u8>, Status> {
        self.memory.fill(0, SLOT_BYTES, 0xee);
        match self.run(Request::read(lba, blocks, self.data(0), 0)) {
            Status::SUCCESS => {}
            status => return Err(status),
        }
        let mut bytes = vec![0; blocks as usize * 512];
        self.memory.read(0, &mut bytes);
        let value = |block: &[u8]| {
            assert!(block.iter().all(|byte| *byte == block[0]), "a block has two values");
            block[0]
        };
        Ok(bytes.chunks(512).map(value).collect())
    }

    fn partial(&self) -> ReadModifyWriteStats {
        self.drive.stats().read_modify_write.expect("the blocks are smaller than units")
    }
}

#[test]
fn identify_tells_of_blocks_and_of_units() {
    let host = Host::new(small_blocks(DataStore::None));
    let units = host.drive.ftl().unwrap().sectors();
    let limits = *host.raw.limits();
    assert_eq!((limits.sector_bytes, limits.sectors), (512, units * 8));
    assert_eq!(host.drive.sectors(), units * 8);
    // The optimal write is a write unit: here a page of 4 KiB.
    assert_eq!(limits.optimal_sectors, 8);
}

/// A write of a part of a unit that is on the flash takes a read of the unit longer.
#[test]
fn a_part_of_a_unit_costs_a_read_of_the_unit() {
    for buffer in [WriteBuffer::Volatile { bytes: 0 }, WriteBuffer::None] {
        let latency = |bs: &str| {
            let mut runner = VirtualRunner::new();
            let config = small_blocks(DataStore::None);
            let mut d = Controller::new(DriveConfig { write_buffer: buffer, ..config }).unwrap();
            precondition(&mut d, &mut runner, 0.0);
            let pairs = [("rw", "write"), ("bs", bs), ("io_size", bs), ("size", "16m")];
            let result = run(&mut d, &mut runner, vec![job(&pairs)]);
            (result.jobs[0].directions[1].lat.mean(), d.stats().read_modify_write.unwrap())
        };
        let ((whole, none), (part, one)) = (latency("4k"), latency("512"));
        assert_eq!(none, ReadModifyWriteStats::default());
        assert_eq!((one.units, one.sectors_read, one.waits, one.failures), (1, 1, 0, 0));
        assert!((part - whole - READ.0 as f64).abs() < 0.5, "{part} {whole} ns, {buffer:?}");
        // Three units, a part of the first and of the last one: both are read at once.
        let (span, two) = latency("8k");
        assert_eq!(two.units, 0, "8k is whole");
        assert!(span >= whole);
    }
}

/// A unit in the write buffer, and one without data, need no read.
#[test]
fn units_in_the_buffer_and_units_without_data_are_not_read() {
    let mut host = Host::new(small_blocks(DataStore::Memory));
    for block in 0..8 {
        assert_eq!(host.write(40 + block, 1, 10 + block as u8), Status::SUCCESS);
    }
    assert_eq!(host.runner.now(), Nanos::ZERO, "the buffer takes no time");
    assert_eq!(host.partial(), ReadModifyWriteStats { units: 8, ..Default::default() });
    assert_eq!(host.read(39, 10).unwrap(), [0, 10, 11, 12, 13, 14, 15, 16, 17, 0]);
    // The host's writes are counted as its bytes.
    assert_eq!(host.drive.stats().bytes_written, 8 * 512);
}

/// Writes of whole units take the time that they take on a drive whose blocks are units.
#[test]
fn whole_units_cost_what_they_cost_on_a_drive_without_small_blocks() {
    let measure = |lba_bytes| {
        let mut runner = VirtualRunner::new();
        let config = DriveConfig { lba_bytes, ..drive(nand()) };
        let mut d = Controller::new(config).unwrap();
        precondition(&mut d, &mut runner, 0.0);
        let pairs = [
            ("rw", "randrw"),
            ("bs", "4k"),
            ("iodepth", "16"),
            ("io_size", "16m"),
            ("fsync", "100"),
        ];
        run(&mut d, &mut runner, vec![job(&pairs)]);
        let trims = [("rw", "randtrim"), ("bs", "64k"), ("io_size", "2m")];
        run(&mut d, &mut runner, vec![job(&trims)]);
        let stats = DriveStats { read_modify_write: None, ..d.stats() };
        (runner.now(), stats)
    };
    assert_eq!(measure(Some(512)), measure(None));
}

/// Many writes to parts of one unit at a time are executed one after the other, in their order.
#[test]
fn concurrent_writes_to_parts_of_a_unit_lose_nothing() {
    for buffer in [WriteBuffer::Volatile { bytes: 0 }, WriteBuffer::None] {
        let config = small_blocks(DataStore::Memory);
        let mut host = Host::new(DriveConfig { write_buffer: buffer, ..config });
        assert_eq!(host.write(80, 8, 100), Status::SUCCESS);
        assert_eq!(host.run(Request::flush(0)), Status::SUCCESS);
        host.drive.reset_stats();
        for slot in 0..SLOTS {
            // One of eight writes the whole unit; the others write a block of it.
            let (lba, blocks) = if slot % 8 == 3 { (80, 8) } else { (80 + slot as u64 % 8, 1) };
            host.memory.fill(slot * SLOT_BYTES, SLOT_BYTES, slot as u8);
            host.submit(Request::write(lba, blocks, host.data(slot), slot as u64));
        }
        let done = host.wait();
        assert!(done.iter().all(|(_, status)| status.is_success()), "{done:?}");
        // The last write to the whole unit was number 251, and 252 to 255 wrote blocks 4 to 7.
        assert_eq!(host.read(80, 8).unwrap(), [251, 251, 251, 251, 252, 253, 254, 255]);
        let stats = host.partial();
        assert_eq!((stats.units, stats.failures), (SLOTS as u64 * 7 / 8, 0));
        assert!(stats.waits > 200, "{stats:?}");
    }
}

/// A part of a unit that cannot be read is not written, and nothing else fails. A write of the whole
/// unit repairs it.
#[test]
fn a_part_of_an_unreadable_unit_fails() {
    let mut host = Host::new(small_blocks(DataStore::Memory));
    for unit in 0..16 {
        assert_eq!(host.write(unit * 8, 8, 8 * unit as u8), Status::SUCCESS);
    }
    assert_eq!(host.run(Request::flush(0)), Status::SUCCESS);
    let mut admin = RawHost::new(&mut host.drive);
    let sector = FaultSector::lba(43);
    host.drive.inject_fault(host.runner.now(), Fault::Uncorrectable { sector }).unwrap();
    assert_eq!(host.write(45, 1, 1), Status::UNRECOVERED_READ);
    assert_eq!(host.partial().failures, 1);
    assert_eq!(host.read(46, 4), Err(Status::UNRECOVERED_READ));
    assert_eq!(host.read(36, 8), Err(Status::UNRECOVERED_READ));
    // The error log names the first block in error: of this read the first one of the unit.
    admin.now = host.runner.now();
    let (lid, nsid) = (log_page::ERROR, u32::MAX);
    let command = AdminCommand::GetLogPage { lid, nsid, bytes: 64, offset: 0, retain: false };
    assert_eq!(admin.run(&mut host.drive, command).status, Status::SUCCESS);
    let mut bytes = [0; 64];
    admin.memory.read(0, &mut bytes);
    assert_eq!(ErrorEntry::from_bytes(bytes).lba.get(), 40);
    // The units beside it, also those of a write that covers parts of both.
    assert_eq!(host.write(39, 1, 1), Status::SUCCESS);
    assert_eq!(host.write(38, 4, 60), Status::UNRECOVERED_READ);
    assert_eq!(host.read(32, 8).unwrap(), [32, 33, 34, 35, 36, 37, 60, 61]);
    assert_eq!(host.read(48, 8).unwrap(), [48, 49, 50, 51, 52, 53, 54, 55]);
    assert_eq!(host.write(40, 8, 90), Status::SUCCESS);
    assert_eq!(host.write(43, 1, 1), Status::SUCCESS);
    assert_eq!(host.read(40, 8).unwrap(), [90, 91, 92, 1, 94, 95, 96, 97]);
}

/// Only whole units are deallocated, and zeroing of a part of a unit keeps the rest.
#[test]
fn trims_keep_parts_of_units_and_zeroing_does_not() {
    let mut host = Host::new(small_blocks(DataStore::Memory));
    assert_eq!(host.write(0, 16, 1), Status::SUCCESS);
    assert_eq!(host.run(Request::discard(1, 7, 0)), Status::SUCCESS);
    assert_eq!(host.drive.stats().ftl.unwrap().trimmed, 0);
    assert_eq!(host.read(0, 8).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(host.run(Request::discard(7, 9, 0)), Status::SUCCESS);
    assert_eq!(host.drive.stats().ftl.unwrap().trimmed, 1);
    assert_eq!(host.read(0, 16).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    for deallocate in [false, true] {
        assert_eq!(host.write(16, 16, 1), Status::SUCCESS);
        let zeroes = Request::write_zeroes(18, 12, deallocate, 0);
        assert_eq!(host.run(zeroes), Status::SUCCESS);
        assert_eq!(host.read(16, 16).unwrap(), [1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 16]);
    }
    // A write to a part of a deallocated unit leaves zeros beside it.
    assert_eq!(host.write(10, 1, 5), Status::SUCCESS);
    assert_eq!(host.read(8, 8).unwrap(), [0, 0, 5, 0, 0, 0, 0, 0]);
}

#[test]
fn ranges_beyond_the_last_block_are_refused_whole() {
    let mut host = Host::new(small_blocks(DataStore::Memory));
    let end = host.drive.sectors();
    let out = Status::LBA_OUT_OF_RANGE;
    assert_eq!(host.write(end - 1, 1, 7), Status::SUCCESS);
    let before = host.partial();
    for (lba, blocks) in [(end, 1), (end - 1, 2), (end - 12, 16)] {
        // The block layer refuses most of them; the drive refuses those of other hosts.
        let mut raw = full::Host::new(small_blocks(DataStore::None));
        for request in [
            Request::write(lba, blocks, Payload::BitBucket, 0),
            Request::read(lba, blocks, Payload::BitBucket, 0),
            Request::write_zeroes(lba, blocks, false, 0),
            Request::discard(lba, blocks, 0),
        ] {
            assert!(raw.run(request).is(out), "{request:?}");
        }
        assert!(host.write(lba, blocks, 9).is(out));
    }
    assert_eq!(host.partial(), before);
    assert_eq!(host.read(end - 1, 1).unwrap(), [7]);
}

#[test]
fn a_block_that_no_drive_can_have_is_refused() {
    let refused = |config: DriveConfig, says: &str| {
        let error = Controller::new(config).unwrap_err();
        assert!(matches!(error, DriveError::Config { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    };
    for lba_bytes in [0, 256, 768, 8192] {
        let config = DriveConfig { lba_bytes: Some(lba_bytes), ..drive(nand()) };
        refused(config, "a power of two from 512 to the sector of the media (4096)");
    }
    let open = DriveConfig {
        personality: PersonalityKind::OpenChannel,
        write_buffer: WriteBuffer::None,
        ..small_blocks(DataStore::Memory)
    };
    refused(open.clone(), "the host of an open-channel drive addresses physical sectors of 4096");
    assert!(Controller::new(DriveConfig { lba_bytes: Some(4096), ..open }).is_ok());
    let pcm = media::PcmConfig {
        channels: 1,
        pus: 1,
        bytes: 1 << 20,
        sector_bytes: 4096,
        read: Nanos(1_000),
        write: Nanos(3_000),
        channel_bytes_per_sec: 0,
        data: DataStore::None,
    };
    let media = MediaConfig::Pcm(pcm);
    let config = DriveConfig { media, ..small_blocks(DataStore::None) };
    refused(config, "phase-change memory is written in place in sectors of 4096 bytes");
    // A drive without media has no units: its blocks are as small as it says.
    let media = MediaConfig::Null { bytes: 1 << 20, sector_bytes: 4096 };
    let null = DriveConfig {
        media,
        personality: PersonalityKind::Null,
        write_buffer: WriteBuffer::None,
        null: NullConfig::default(),
        ..small_blocks(DataStore::None)
    };
    let mut host = full::Host::new(null);
    assert_eq!(host.drive.sectors(), 2048);
    assert_eq!(host.write(2047), Status::SUCCESS);
    assert_eq!(host.drive.stats().bytes_written, 512);
}
