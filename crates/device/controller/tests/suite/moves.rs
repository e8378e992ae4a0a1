//! Sectors in memory move by reference: how often a drive copies them, and how many buffers it has.

// guarantee: B-53

use std::sync::Arc;

use block::{BlockDevice, Payload, Raw, Request};
use controller::{Controller, DriveConfig, WriteBuffer};
use ftl::FtlConfig;
use media::{DataStore, NandConfig, SectorBufferStats};
use mem::{Iova, PAGE_BYTES, SharedRegion};
use nvme::Status;
use rng::Rng;
use time::{Nanos, VirtualRunner};

use crate::common;

const SECTOR: usize = 4096;
/// Outstanding requests, and sectors per request.
const DEPTH: usize = 24;
const SECTORS: u32 = 4;
/// More slots than the write buffer of the drive has.
const SLOTS_MAX: u32 = 1024;

/// A request in flight.
#[derive(Clone, Copy, Debug)]
enum InFlight {
    Read,
    Write { version: u8 },
    Discard,
}

/// A host that knows the data of every sector: a byte, 0 if it was never written or is trimmed.
struct Host {
    drive: Controller,
    raw: Raw,
    runner: VirtualRunner,
    /// A segment of `SECTORS` sectors per request, and half a page before it.
    memory: Arc<SharedRegion>,
    at: Iova,
    bytes: Vec<u8>,
    busy: Vec<bool>,
    requests: [Option<(u64, u32, InFlight)>; DEPTH],
    rng: Rng,
    /// Sectors written so far.
    written: u64,
}

const SEGMENT: usize = SECTORS as usize * SECTOR + PAGE_BYTES;

impl Host {
    fn new(config: DriveConfig) -> Host {
        let mut drive = Controller::new(config).unwrap();
        let raw = common::raw(&mut drive, 64);
        let memory = SharedRegion::anonymous(DEPTH * SEGMENT).unwrap();
        let at = raw.memory().register(&memory).unwrap();
        let sectors = drive.sectors() as usize;
        Host {
            drive,
            raw,
            runner: VirtualRunner::new(),
            memory,
            at,
            bytes: vec![0; sectors],
            busy: vec![false; sectors],
            requests: [None; DEPTH],
            rng: Rng::new(5),
            written: 0,
        }
    }

    fn stats(&mut self) -> SectorBufferStats {
        self.drive.nand_mut().unwrap().buffer_stats()
    }

    /// Offset of a request's data, which does not start on a page: PRPs then split every sector.
    fn offset(tag: usize) -> usize {
        tag * SEGMENT + PAGE_BYTES / 2
    }

    fn submit(&mut self, tag: usize, lba: u64, count: u32, what: InFlight) {
        let range = lba as usize..lba as usize + count as usize;
        self.busy[range].fill(true);
        let data = Payload::Contiguous(self.at.offset(Host::offset(tag) as u64));
        let request = match what {
            InFlight::Read => Request::read(lba, count, data, tag as u64),
            InFlight::Discard => Request::discard(lba, count, tag as u64),
            InFlight::Write { version } => {
                self.written += u64::from(count);
                for i in 0..count {
                    let byte = version ^ (lba as u8).wrapping_add(i as u8);
                    self.memory.fill(Host::offset(tag) + i as usize * SECTOR, SECTOR, byte);
                }
                Request::write(lba, count, data, tag as u64)
            }
        };
        self.raw.submit(self.runner.now(), request).unwrap();
        self.requests[tag] = Some((lba, count, what));
    }

    fn reap(&mut self) {
        while let Some(done) = self.raw.reap() {
            assert_eq!(done.status, Status::SUCCESS);
            let tag = done.tag as usize;
            let (lba, count, what) = self.requests[tag].take().unwrap();
            for i in 0..count as usize {
                let at = lba as usize + i;
                self.busy[at] = false;
                match what {
                    InFlight::Discard => self.bytes[at] = 0,
                    InFlight::Write { version } => self.bytes[at] = version ^ at as u8,
                    InFlight::Read => {
                        let mut found = [0; SECTOR];
                        self.memory.read(Host::offset(tag) + i * SECTOR, &mut found);
                        assert!(found == [self.bytes[at]; SECTOR], "sector {at}");
                    }
                }
            }
        }
    }

    fn step(&mut self) {
        let moved = self.runner.step(&mut [&mut self.raw, &mut self.drive], Nanos::MAX);
        let waiting = self.requests.iter().flatten().count();
        self.reap();
        let completed = waiting - self.requests.iter().flatten().count();
        assert!(moved || completed > 0, "{waiting} requests do not complete");
    }

    /// Writes, reads and discards at random, `requests` times; no request overlaps another.
    fn work(&mut self, requests: u32) {
        for number in 0..requests {
            let tag = loop {
                match self.requests.iter().position(Option::is_none) {
                    Some(tag) => break tag,
                    None => self.step(),
                }
            };
            let count = 1 + self.rng.below(u64::from(SECTORS)) as u32;
            let lba = self.rng.below(self.bytes.len() as u64 - u64::from(count));
            if self.busy[lba as usize..][..count as usize].contains(&true) {
                continue;
            }
            let what = match self.rng.below(10) {
                0..6 => InFlight::Write { version: number as u8 },
                6..9 => InFlight::Read,
                _ => InFlight::Discard,
            };
            self.submit(tag, lba, count, what);
        }
        self.finish();
    }

    fn finish(&mut self) {
        while self.requests.iter().any(Option::is_some) {
            self.step();
        }
    }

    /// Reads and compares every sector.
    fn read_all(&mut self) {
        for lba in (0..self.bytes.len() as u64).step_by(SECTORS as usize) {
            let count = (self.bytes.len() as u64 - lba).min(SECTORS.into()) as u32;
            self.submit(0, lba, count, InFlight::Read);
            self.finish();
        }
    }
}

fn config() -> DriveConfig {
    let mut nand = NandConfig { data: DataStore::Memory, ..common::nand() };
    (nand.geometry.channels, nand.geometry.pus) = (2, 2);
    (nand.geometry.chunks, nand.geometry.pages) = (24, 16);
    DriveConfig {
        write_buffer: WriteBuffer::Volatile { bytes: 1 << 18 },
        ftl: FtlConfig { over_provisioning: 0.2, ..DriveConfig::default_ftl() },
        ..common::drive(nand)
    }
}

#[test]
fn a_written_sector_is_copied_once_and_collection_copies_nothing() {
    let mut host = Host::new(config());
    let physical = host.drive.nand_mut().unwrap().layout().sector_count();
    let mut in_use = Vec::new();
    for _ in 0..6 {
        host.work(6_000);
        let stats = host.stats();
        assert_eq!(stats.copies, host.written, "one copy per sector written");
        in_use.push(stats.in_use);
    }
    host.read_all();
    let ftl = host.drive.stats().ftl.unwrap();
    assert!(ftl.gc_relocations > host.written / 2, "{} relocations", ftl.gc_relocations);
    // Every program, and every load of a relocated sector, is a move.
    let moves = host.written + 2 * ftl.gc_relocations;
    assert!(host.stats().shares > moves * 9 / 10, "{} of {moves}", host.stats().shares);
    // The buffers of physical sectors and slots; the number does not grow over overwrites.
    assert!(in_use.iter().all(|n| *n <= physical + SLOTS_MAX), "{in_use:?} of {physical}");
    let (first, last) = (in_use[1], in_use[5]);
    assert!(last <= first + first / 50, "the memory grows: {in_use:?}");
}

#[test]
fn the_data_of_relocated_sectors_survives_power_cuts() {
    let mut host = Host::new(config());
    for _ in 0..5 {
        host.work(4_000);
        host.submit(0, 0, 1, InFlight::Write { version: 3 });
        host.finish();
        host.raw.submit(host.runner.now(), Request::flush(0)).unwrap();
        while host.raw.reap().is_none() {
            assert!(host.runner.step(&mut [&mut host.raw, &mut host.drive], Nanos::MAX));
        }
        let drive = std::mem::replace(&mut host.drive, Controller::new(config()).unwrap());
        host.drive = drive.power_cut().power_on().unwrap();
        host.raw = common::raw(&mut host.drive, 64);
        host.at = host.raw.memory().register(&host.memory).unwrap();
        host.read_all();
    }
}
