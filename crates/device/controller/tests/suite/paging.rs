//! A drive with a cached map, in virtual time: the cost of a missing translation page.

use crate::common;

use block::{BlockDevice, Payload, Raw, Request};
use common::{drive, nand};
use controller::{Controller, DriveConfig, WriteBuffer};
use media::{DataStore, NandConfig};
use mem::SharedRegion;
use nvme::Status;
use rng::Rng;
use time::{Nanos, VirtualRunner};

const SECTOR: usize = 4096;

struct Host {
    drive: Controller,
    raw: Raw,
    runner: VirtualRunner,
    memory: std::sync::Arc<SharedRegion>,
    at: mem::Iova,
}

impl Host {
    fn from_drive(mut drive: Controller) -> Host {
        let raw = common::raw(&mut drive, 64);
        let memory = SharedRegion::anonymous(SECTOR).unwrap();
        let at = raw.memory().register(&memory).unwrap();
        Host { drive, raw, runner: VirtualRunner::new(), memory, at }
    }

    /// Executes a request; returns the time that it took.
    fn run(&mut self, request: Request) -> Nanos {
        let begin = self.runner.now();
        self.raw.submit(begin, request).unwrap();
        loop {
            let moved = self.runner.step(&mut [&mut self.raw, &mut self.drive], Nanos::MAX);
            if let Some(done) = self.raw.reap() {
                assert_eq!(done.status, Status::SUCCESS, "{request:?}");
                return self.runner.now() - begin;
            }
            assert!(moved, "{request:?} does not complete");
        }
    }

    fn write(&mut self, lba: u64, value: u64) {
        self.memory.write(0, &value.to_le_bytes());
        self.run(Request::write(lba, 1, Payload::Contiguous(self.at), 0));
    }

    fn read(&mut self, lba: u64) -> (u64, Nanos) {
        let took = self.run(Request::read(lba, 1, Payload::Contiguous(self.at), 0));
        let mut bytes = [0; 8];
        self.memory.read(0, &mut bytes);
        (u64::from_le_bytes(bytes), took)
    }
}

/// A map of some 40 translation pages.
fn config(map_cache_sectors: u32) -> DriveConfig {
    let mut nand = NandConfig { data: DataStore::Memory, ..nand() };
    (nand.geometry.channels, nand.geometry.pus, nand.geometry.planes) = (1, 1, 1);
    (nand.geometry.chunks, nand.geometry.pages) = (100, 512);
    let mut config =
        DriveConfig { write_buffer: WriteBuffer::Volatile { bytes: 0 }, ..drive(nand) };
    config.ftl.map_cache_sectors = map_cache_sectors;
    config
}

#[test]
fn a_page_that_is_not_there_costs_a_read_and_comes_back_after_a_power_cut() {
    let mut means = Vec::new();
    for frames in [1_000, 20, 11] {
        let mut h = Host::from_drive(Controller::new(config(frames)).unwrap());
        let sectors = h.drive.sectors();
        for lba in 0..sectors {
            h.write(lba, lba + 1);
        }
        h.run(Request::flush(0));
        let mut rng = Rng::new(2);
        let before = h.drive.stats().ftl.unwrap();
        let (mut sum, count) = (0, 2_000);
        for _ in 0..count {
            let lba = rng.below(sectors);
            let (value, took) = h.read(lba);
            assert_eq!(value, lba + 1);
            sum += took.0;
        }
        let stats = h.drive.stats().ftl.unwrap().since(&before);
        let misses = stats.map_misses as f64 / (stats.map_hits + stats.map_misses) as f64;
        let mean = sum as f64 / f64::from(count);
        println!("{frames} frames: {misses:.3} of the reads miss, mean {mean:.0} ns");
        means.push((misses, mean));
        let Host { drive, .. } = h;
        let mut h = Host::from_drive(drive.power_cut().power_on().unwrap());
        for _ in 0..500 {
            let lba = rng.below(sectors);
            assert_eq!(h.read(lba).0, lba + 1, "after a power cut");
        }
        let stats = h.drive.stats().ftl.unwrap();
        // If all pages fit, no page is written to the media, and fetches find the buffered ones.
        assert!(stats.map_page_reads > 10 || frames == 1_000, "{stats:?}");
        assert_eq!(stats.map_mismatches, 0);
    }
    let (none, whole) = means[0];
    assert_eq!(none, 0.0);
    for &(misses, mean) in &means[1..] {
        assert!(misses > 0.4, "{misses}");
        // The translation page is on the only parallel unit, and is read first.
        let expected = whole * (1.0 + misses);
        assert!((mean / expected - 1.0).abs() < 0.05, "{mean} {expected}");
    }
}
