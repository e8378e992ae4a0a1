//! Atomic writes of a drive: what Identify says, and power cuts during writes.

// guarantee: D-59

use std::sync::Arc;

use block::{BlockDevice, Payload, Raw, Request};
use controller::{Controller, DriveConfig};
use driver::AtomicLimits;
use ftl::FtlConfig;
use media::{DataStore, NandConfig, NandGeometry};
use mem::{Iova, SharedRegion};
use nvme::Status;
use rng::Rng;
use testkit::atomicity::{AtomicityModel, AtomicityViolation};
use time::{Component, Nanos, VirtualRunner};

use crate::common::{self, drive, nand};

const SECTOR: usize = 4096;
/// Sectors of a write unit: two planes of 16 KiB.
const UNIT: u32 = 8;
const SLOTS: usize = 24;

fn config(atomic_writes: bool) -> DriveConfig {
    let geometry = NandGeometry {
        channels: 2,
        pus: 2,
        planes: 2,
        chunks: 24,
        pages: 16,
        page_bytes: 16_384,
        ..nand().geometry
    };
    let base = drive(NandConfig { geometry, data: DataStore::Memory, ..nand() });
    DriveConfig { ftl: FtlConfig { atomic_writes, ..base.ftl }, ..base }
}

struct Host {
    drive: Option<Controller>,
    raw: Raw,
    runner: VirtualRunner,
    memory: Arc<SharedRegion>,
    at: Iova,
    /// By slot, the sectors of the request in flight.
    in_flight: Vec<Option<(u64, u32)>>,
}

impl Host {
    fn new(mut drive: Controller) -> Host {
        let raw = common::raw(&mut drive, 64);
        let memory = SharedRegion::anonymous(SLOTS * 64 * SECTOR).unwrap();
        let at = raw.memory().register(&memory).unwrap();
        let in_flight = vec![None; SLOTS];
        Host { drive: Some(drive), raw, runner: VirtualRunner::new(), memory, at, in_flight }
    }

    fn slot_bytes(slot: usize) -> usize {
        slot * 64 * SECTOR
    }

    fn payload(&self, slot: usize) -> Payload {
        Payload::Contiguous(self.at.offset(Host::slot_bytes(slot) as u64))
    }

    fn write(&mut self, slot: usize, lba: u64, values: &[u64], atomic: bool) {
        for (i, value) in values.iter().enumerate() {
            let mut bytes = vec![0; SECTOR];
            bytes[..8].copy_from_slice(&value.to_le_bytes());
            self.memory.write(Host::slot_bytes(slot) + i * SECTOR, &bytes);
        }
        let sectors = values.len() as u32;
        let write = Request::write(lba, sectors, self.payload(slot), slot as u64);
        self.raw.submit(self.runner.now(), Request { atomic, ..write }).unwrap();
        self.in_flight[slot] = Some((lba, sectors));
    }

    fn step(&mut self) -> Vec<Status> {
        let drive = self.drive.as_mut().unwrap();
        self.runner.step(&mut [&mut self.raw, drive], Nanos::MAX);
        let now = self.runner.now();
        while drive.poll(now) | self.raw.poll(now) {}
        let mut ended = Vec::new();
        while let Some(done) = self.raw.reap() {
            self.in_flight[done.tag as usize] = None;
            ended.push(done.status);
        }
        ended
    }

    /// Cuts power, and returns the values of all sectors.
    fn cut_power(&mut self) -> Vec<Option<u64>> {
        let drive = self.drive.take().unwrap().power_cut().power_on().unwrap();
        *self = Host::new(drive);
        let sectors = self.raw.limits().sectors;
        let mut found = Vec::new();
        for lba in (0..sectors).step_by(64) {
            let count = (sectors - lba).min(64) as u32;
            let read = Request::read(lba, count, self.payload(0), 0);
            self.raw.submit(self.runner.now(), read).unwrap();
            self.in_flight[0] = Some((lba, count));
            while self.in_flight[0].is_some() {
                let ended = self.step();
                assert!(ended.iter().all(|status| status.is_success()), "{ended:?}");
            }
            let mut bytes = vec![0; count as usize * SECTOR];
            self.memory.read(0, &mut bytes);
            found.extend(bytes.chunks(SECTOR).map(|sector| {
                Some(u64::from_le_bytes(sector[..8].try_into().expect("eight bytes")))
            }));
        }
        found
    }
}

#[test]
fn identify_has_the_length_of_atomic_writes() {
    let limits =
        |config: DriveConfig| Host::new(Controller::new(config).unwrap()).raw.limits().atomic;
    let unbounded = |sectors| AtomicLimits { sectors, boundary_sectors: 0 };
    assert_eq!(limits(config(true)), unbounded(UNIT));
    assert_eq!(limits(config(false)), unbounded(1));
    // Writes of small blocks are divided at the units of the map.
    let small = DriveConfig { lba_bytes: Some(512), ..config(true) };
    assert_eq!(limits(small), AtomicLimits { sectors: 8, boundary_sectors: 8 });
}

#[test]
fn requests_that_must_be_atomic_are_refused_where_they_cannot_be() {
    let mut host = Host::new(Controller::new(config(true)).unwrap());
    for (sectors, status) in
        [(UNIT as usize, Status::SUCCESS), (UNIT as usize + 1, Status::INVALID_FIELD)]
    {
        host.write(0, 3, &vec![7; sectors], true);
        let ended = std::iter::repeat_with(|| host.step()).find(|ended| !ended.is_empty());
        assert_eq!(ended.unwrap(), [status]);
    }
    let mut plain = Host::new(Controller::new(config(false)).unwrap());
    plain.write(0, 3, &[7; 2], true);
    let ended = std::iter::repeat_with(|| plain.step()).find(|ended| !ended.is_empty());
    assert_eq!(ended.unwrap(), [Status::INVALID_FIELD]);
}

/// Writes of random lengths in flight while power is cut. Returns the number of torn writes.
fn cuts(seed: u64, atomic_writes: bool) -> u64 {
    let mut rng = Rng::new(seed);
    let mut host = Host::new(Controller::new(config(atomic_writes)).unwrap());
    let mut model = AtomicityModel::new(host.raw.limits().sectors as usize);
    let (mut value, mut torn) = (0, 0);
    for _ in 0..12 {
        for _ in 0..10 + rng.below(150) {
            let Some(slot) = host.in_flight.iter().position(Option::is_none) else {
                host.step();
                continue;
            };
            let count = 1 + rng.below(u64::from(UNIT)) as u32;
            let lba = rng.below(400);
            let end = lba + u64::from(count);
            // The drive may execute writes in any order.
            let overlaps = |other: &(u64, u32)| lba < other.0 + u64::from(other.1) && other.0 < end;
            if host.in_flight.iter().flatten().any(overlaps) {
                continue;
            }
            let values: Vec<u64> = (1..=u64::from(count)).map(|i| value + i).collect();
            value += u64::from(count);
            model.change(lba as usize, &values, true);
            host.write(slot, lba, &values, atomic_writes);
            for _ in 0..rng.below(4) {
                host.step();
            }
        }
        match model.restart(&host.cut_power()) {
            Ok(()) => {}
            Err(AtomicityViolation::Torn { .. }) if !atomic_writes => torn += 1,
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
    }
    torn
}

#[test]
fn a_drive_tears_writes_only_without_atomic_writes() {
    for seed in 0..40 {
        cuts(seed, true);
    }
    let torn: u64 = (0..10).map(|seed| cuts(seed, false)).sum();
    assert!(torn > 10, "{torn} torn writes");
}
