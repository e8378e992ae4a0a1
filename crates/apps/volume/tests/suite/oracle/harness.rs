//! [`Harness`]: a device with power cuts, and the drive behind it.

use std::fmt::Debug;

use block::{AtomicLimits, BlockDevice, Raw};
use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind,
    PuScheduling, TransferConfig, WriteBuffer,
};
use driver::ControllerHandle;
use ftl::FtlConfig;
use media::{CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use rng::Rng;
use time::{Component, Nanos, VirtualRunner};
use volume::{Mount, MountStatus, Volume};

use crate::common::Ram;

pub(crate) trait Harness: Debug {
    type Device: BlockDevice + Debug;
    /// Returns the device for a mount.
    fn attach(&mut self) -> Self::Device;
    /// Executes one event, and returns the time.
    fn step(&mut self, poll: &mut dyn Component) -> Nanos;
    fn now(&self) -> Nanos;
    /// Cuts and restores the power.
    fn cut(&mut self, device: Self::Device);
}

#[derive(Debug)]
pub(crate) struct RamHarness {
    ram: Option<Ram>,
    now: Nanos,
}

impl RamHarness {
    pub(crate) fn new(seed: u64) -> RamHarness {
        let sector_bytes = if seed.is_multiple_of(2) { 512 } else { 4096 };
        let mut ram = Ram::for_volume(sector_bytes, 512);
        ram.lazy = true;
        ram.rng = Rng::new(seed ^ 0x5eed);
        ram.limits.volatile_cache = true;
        if seed.is_multiple_of(3) {
            ram.limits.max_sectors = 8192 / sector_bytes;
        }
        RamHarness { ram: Some(ram), now: Nanos::ZERO }
    }

    /// Creates a device whose volume has so few blocks that it is often full.
    pub(crate) fn small(seed: u64) -> RamHarness {
        let mut harness = RamHarness::new(seed);
        let sector_bytes = harness.ram.as_ref().unwrap().limits.sector_bytes;
        let mut ram = Ram::for_volume(sector_bytes, 147 + seed % 12);
        (ram.lazy, ram.rng) = (true, Rng::new(seed ^ 0xf011));
        harness.ram = Some(ram);
        harness
    }

    /// Creates a device of a number of blocks with these atomic writes, which loses and reorders what
    /// it may.
    pub(crate) fn with_atomic(seed: u64, blocks: u64, atomic: AtomicLimits) -> RamHarness {
        let mut harness = RamHarness::new(seed);
        let ram = harness.ram.as_mut().unwrap();
        let small = ram.limits.max_sectors;
        let mut larger = Ram::for_volume(ram.limits.sector_bytes, blocks);
        (larger.lazy, larger.rng) = (true, Rng::new(seed ^ 0xa70));
        larger.limits.max_sectors = small.max(atomic.sectors);
        larger.limits.atomic = atomic;
        harness.ram = Some(larger);
        harness
    }
}

impl Harness for RamHarness {
    type Device = Ram;

    fn attach(&mut self) -> Ram {
        self.ram.take().unwrap()
    }

    fn step(&mut self, poll: &mut dyn Component) -> Nanos {
        self.now += Nanos::from_micros(10);
        poll.poll(self.now);
        self.now
    }

    fn now(&self) -> Nanos {
        self.now
    }

    fn cut(&mut self, mut device: Ram) {
        device.power_cut();
        device.forget_memory();
        self.ram = Some(device);
    }
}

#[derive(Debug)]
pub(crate) struct DriveHarness {
    drive: Option<Controller>,
    runner: VirtualRunner,
}

impl DriveHarness {
    pub(crate) fn new(seed: u64) -> DriveHarness {
        DriveHarness::with_units(seed, 4096, false)
    }

    /// Creates a drive whose pages have this many bytes, with atomic writes or without.
    pub(crate) fn with_units(seed: u64, page_bytes: u32, atomic_writes: bool) -> DriveHarness {
        // One program operation writes at most 64 sectors.
        let has_small_sectors = seed.is_multiple_of(2) && page_bytes <= 32768;
        let sector_bytes = if has_small_sectors { 512 } else { 4096 };
        let nand = NandConfig {
            geometry: NandGeometry {
                channels: 2,
                pus: 2,
                planes: 1,
                chunks: 40,
                pages: 16,
                page_bytes,
                sector_bytes,
                oob_bytes: 16,
            },
            cell: CellType::Slc,
            one_shot: false,
            paired_page_distance: 0,
            timing: NandTiming::uniform(
                Nanos::from_micros(20),
                Nanos::from_micros(100),
                Nanos::from_micros(700),
                400_000_000,
            ),
            errors: ErrorModel::default(),
            data: DataStore::Memory,
            seed,
        };
        let config = DriveConfig {
            name: "volume".into(),
            personality: PersonalityKind::Block,
            media: MediaConfig::Nand(nand),
            controller: ControllerConfig::default(),
            pu_scheduling: PuScheduling::Fifo,
            page_register: false,
            cache_program: true,
            transfers: TransferConfig::default(),
            write_buffer: WriteBuffer::Volatile { bytes: 64 << 10 },
            ftl: FtlConfig { over_provisioning: 0.28, atomic_writes, ..FtlConfig::default() },
            null: NullConfig::default(),
            open_channel: OpenChannelConfig::default(),
            lba_bytes: None,
            protection: None,
            pmr: None,
            rules: None,
        };
        DriveHarness { drive: Some(Controller::new(config).unwrap()), runner: VirtualRunner::new() }
    }
}

impl Harness for DriveHarness {
    type Device = Raw;

    fn attach(&mut self) -> Raw {
        let (drive, now) = (self.drive.as_mut().unwrap(), self.runner.now());
        let port = drive.attach().unwrap();
        let mut progress = || {
            drive.poll(now);
        };
        let mut controller =
            ControllerHandle::connect(port.clone(), &mut progress, 1_000_000).unwrap();
        let queue = controller.create_queue_pair(64, None, &mut progress).unwrap();
        Raw::from_pair(controller.info(), queue, port).unwrap()
    }

    fn step(&mut self, poll: &mut dyn Component) -> Nanos {
        let drive: &mut dyn Component = self.drive.as_mut().unwrap();
        self.runner.step(&mut [poll, drive], Nanos::MAX);
        self.runner.now()
    }

    fn now(&self) -> Nanos {
        self.runner.now()
    }

    fn cut(&mut self, device: Raw) {
        drop(device);
        let drive = self.drive.take().unwrap();
        self.drive = Some(drive.power_cut().power_on().unwrap());
    }
}

/// A device as a component.
pub(crate) struct DeviceComponent<'a, D>(pub(crate) &'a mut D);

impl<D: BlockDevice> Component for DeviceComponent<'_, D> {
    fn poll(&mut self, now: Nanos) -> bool {
        self.0.poll(now)
    }
    fn deadline(&self) -> Nanos {
        self.0.deadline()
    }
}

/// A mount as a component.
pub(crate) struct MountComponent<'a, D> {
    pub(crate) mount: &'a mut Mount<D>,
    pub(crate) ready: Option<Box<Volume<D>>>,
}

impl<D: BlockDevice> Component for MountComponent<'_, D> {
    fn poll(&mut self, now: Nanos) -> bool {
        if self.ready.is_some() {
            return false;
        }
        match self.mount.poll(now) {
            Ok(MountStatus::Pending) => false,
            Ok(MountStatus::Ready(store)) => {
                self.ready = Some(store);
                true
            }
            Err(error) => panic!("opening: {error}"),
        }
    }
    fn deadline(&self) -> Nanos {
        self.mount.deadline()
    }
}
