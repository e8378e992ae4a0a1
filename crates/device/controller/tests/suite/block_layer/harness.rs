//! [`Harness`]: a drive, a block layer over its queue pairs, and a load on every core, in virtual time.

use block::{BlockLayer, BlockLayerConfig, QueueModel, QueueTopology, StagingScope, Timeouts};
use controller::{Controller, DriveConfig, PersonalityKind};
use driver::{Features, Limits, LowLevelDriver, NvmeDevice, NvmeQueue};
use media::{DataStore, MediaConfig, NandConfig, NandGeometry, NandTiming};
use mem::AddressSpace;
use rng::Rng;
use time::{Component, Nanos};

use super::common;
use super::load::{Load, SECTOR};

/// A drive with four parallel units and space for eight loads.
pub(crate) fn nand() -> DriveConfig {
    let geometry =
        NandGeometry { channels: 2, pus: 2, chunks: 64, pages: 32, ..common::nand().geometry };
    let (us, ms) = (Nanos::from_micros, Nanos::from_millis);
    let timing = NandTiming::uniform(us(20), us(60), ms(1), 2_000_000_000);
    let nand = NandConfig { geometry, timing, data: DataStore::Memory, ..common::nand() };
    let write_buffer = controller::WriteBuffer::Volatile { bytes: 1 << 20 };
    DriveConfig { write_buffer, ..common::drive(nand) }
}

pub(crate) fn null() -> DriveConfig {
    let media = MediaConfig::Null { bytes: 8192 * SECTOR as u64, sector_bytes: SECTOR as u32 };
    let null = controller::NullConfig { latency: Nanos::from_micros(8), bytes_per_sec: 0 };
    DriveConfig { personality: PersonalityKind::Null, media, null, ..nand() }
}

pub(crate) fn multi(staging: StagingScope) -> QueueModel {
    QueueModel::MultiQueue { staging }
}

pub(crate) fn config(layout: QueueModel, cores: u16) -> BlockLayerConfig {
    BlockLayerConfig {
        queue_model: layout,
        topology: QueueTopology::flat(cores),
        queue_depth: 64,
        ..BlockLayerConfig::default()
    }
}

pub(crate) fn timeouts(command: u64, abort: u64, retries: u16) -> Timeouts {
    let us = Nanos::from_micros;
    Timeouts { command: us(command), abort: us(abort), retries }
}

/// A drive whose commands transfer at most 24 sectors; the emulated drive has no limit.
pub(crate) struct Narrow(pub(crate) NvmeDevice);

impl LowLevelDriver for Narrow {
    type Queue = NvmeQueue;
    fn limits(&self) -> Limits {
        Limits { max_sectors: 24, ..self.0.limits() }
    }
    fn features(&self) -> Features {
        self.0.features()
    }
    fn queues(&self) -> u16 {
        self.0.queues()
    }
    fn memory(&self) -> &AddressSpace {
        self.0.memory()
    }
    fn take_queue(&mut self, index: u16) -> Option<NvmeQueue> {
        self.0.take_queue(index)
    }
}

pub(crate) struct Harness {
    pub(crate) drive: Controller,
    pub(crate) layer: BlockLayer,
    pub(crate) loads: Vec<Load>,
    pub(crate) now: Nanos,
    /// Whether the drive hangs: the harness does not poll it.
    pub(crate) hung: bool,
    rng: Rng,
}

impl Harness {
    pub(crate) fn new(
        drive: DriveConfig,
        queues: u16,
        depth: u16,
        config: &BlockLayerConfig,
    ) -> Harness {
        let keeps_data = drive.personality == PersonalityKind::Block;
        let mut drive = Controller::new(drive).unwrap();
        let (controller, _) = common::attach(&mut drive);
        let progress = &mut || {
            drive.poll(Nanos::ZERO);
        };
        let emulated = NvmeDevice::open(controller, queues, depth, false, progress).unwrap();
        let (layer, ends) = BlockLayer::open(&mut Narrow(emulated), config).unwrap();
        let loads = ends.into_iter().map(|queue| Load::new(queue, keeps_data, 7)).collect();
        Harness { drive, layer, loads, now: Nanos(1), hung: false, rng: Rng::new(3) }
    }

    /// Runs all work at the present time.
    pub(crate) fn settle(&mut self) {
        let mut looks = 0;
        loop {
            let mut moved = !self.hung && self.drive.poll(self.now);
            for load in &mut self.loads {
                moved |= load.queue.poll(self.now);
                moved |= load.reap() > 0;
            }
            if !moved {
                return;
            }
            looks += 1;
            assert!(looks < 100_000, "the harness does not become idle at {}", self.now);
        }
    }

    /// Returns the time of the next event.
    fn next(&self) -> Nanos {
        let drive = if self.hung { Nanos::MAX } else { self.drive.deadline() };
        self.loads.iter().map(|load| load.queue.deadline()).fold(drive, Nanos::min)
    }

    /// Submits random requests at intervals of at most `spread` nanoseconds, and runs events at
    /// their times.
    pub(crate) fn submit(&mut self, rounds: u32, spread: u64) {
        for _ in 0..rounds {
            for load in &mut self.loads {
                for _ in 0..self.rng.below(6) {
                    load.submit(self.now);
                }
            }
            let until = self.now + Nanos(self.rng.below(spread));
            self.run_to(until);
        }
    }

    pub(crate) fn run_to(&mut self, until: Nanos) {
        loop {
            self.settle();
            let next = self.next();
            if next > until {
                break;
            }
            self.now = self.now.max(next);
            // A deadline that has not passed may equal the present time only once.
            self.settle();
            assert!(self.next() > self.now, "a deadline in the past at {}", self.now);
        }
        self.now = self.now.max(until);
    }

    /// Runs until every request has completed; returns the time that it took.
    pub(crate) fn drain(&mut self) -> Nanos {
        let since = self.now;
        while self.outstanding() > 0 {
            self.settle();
            if self.outstanding() == 0 {
                break;
            }
            let next = self.next();
            assert!(next != Nanos::MAX, "{} requests do not complete", self.outstanding());
            assert!(next > self.now, "a deadline in the past at {}", self.now);
            self.now = next;
        }
        for load in &self.loads {
            assert_eq!((load.queue.outstanding(), load.queue.stats().in_flight()), (0, 0));
            assert_eq!(load.queue.stats().spurious.get(), 0);
        }
        self.now.since(since)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.loads.iter().map(|load| load.outstanding.len()).sum()
    }

    pub(crate) fn completed(&self) -> u64 {
        self.loads.iter().map(|load| load.completed).sum()
    }

    pub(crate) fn failed(&self) -> Vec<nvme::Status> {
        self.loads.iter().flat_map(|load| load.failed.clone()).collect()
    }

    /// Returns the sum of a counter over all dispatch queues.
    pub(crate) fn count(&self, of: impl Fn(&block::DispatchStats) -> u64) -> u64 {
        self.layer.dispatch().iter().map(|stats| of(stats)).sum()
    }
}
