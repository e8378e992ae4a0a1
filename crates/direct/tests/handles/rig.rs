//! Devices to test with.

use std::fs::File;
use std::sync::Arc;

use clock::{Idle, Nanos, RealClock, RealRunner, Stopper};
use direct::{Device, Limits};
use drive::{
    ControllerConfig, Drive, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind, PuPolicy,
    Transfers, WriteBuffer,
};
use driver::{AttachOptions, Controller, UringConfig};
use ftl::FtlConfig;
use media::{Cell, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use tempfile::NamedTempFile;

/// A drive on a thread, which ends with the device that keeps it.
pub(crate) struct DriveThread {
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<Drive>>,
}

impl Drop for DriveThread {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the drive's thread");
        }
    }
}

fn nand() -> NandConfig {
    NandConfig {
        geometry: NandGeometry {
            channels: 2,
            pus: 2,
            planes: 1,
            chunks: 32,
            pages: 64,
            page_bytes: 4096,
            sector_bytes: 4096,
            oob_bytes: 16,
        },
        cell: Cell::Slc,
        one_shot: false,
        pair_distance: 0,
        timing: NandTiming::uniform(
            Nanos::from_micros(20),
            Nanos::from_micros(50),
            Nanos::from_micros(100),
            0,
        ),
        errors: ErrorModel::default(),
        data: DataStore::Memory,
        seed: 1,
    }
}

pub(crate) fn config(personality: PersonalityKind) -> DriveConfig {
    let nand = MediaConfig::Nand(nand());
    DriveConfig {
        name: "direct0".into(),
        personality,
        media: match personality {
            PersonalityKind::Null => MediaConfig::Null { bytes: 64 << 20, sector_bytes: 4096 },
            _ => nand,
        },
        controller: ControllerConfig::default(),
        pu_policy: PuPolicy::Fifo,
        page_register: false,
        cache_program: true,
        transfers: Transfers::default(),
        write_buffer: match personality {
            PersonalityKind::Block => WriteBuffer::Volatile { bytes: 0 },
            _ => WriteBuffer::None,
        },
        ftl: FtlConfig { over_provisioning: 0.28, ..DriveConfig::layer() },
        null: NullConfig::default(),
        open_channel: OpenChannelConfig::default(),
    }
}

/// A drive on a thread of its own.
pub(crate) fn drive(personality: PersonalityKind) -> Device {
    over(config(personality))
}

/// The same, of any drive.
pub(crate) fn over(config: DriveConfig) -> Device {
    over_with(config, AttachOptions::default())
}

/// The same, brought up in some way.
pub(crate) fn over_with(config: DriveConfig, options: AttachOptions) -> Device {
    let mut drive = Drive::new(config).unwrap();
    let port = drive.attach().unwrap();
    let clock = RealClock::start();
    let runner = RealRunner::new(clock, Idle::default()).unwrap();
    port.set_drive_waker(runner.waker()).unwrap();
    let stopper = runner.stopper();
    let thread = std::thread::spawn(move || {
        runner.run(&mut drive).unwrap();
        drive
    });
    let keeper = DriveThread { stopper, thread: Some(thread) };
    let patience = 100_000_000;
    let pump = &mut std::thread::yield_now;
    let controller = Controller::attach_with(Arc::clone(&port), options, pump, patience);
    Device::drive(controller.unwrap(), keeper)
}

/// A file of the host; it lasts as long as the second value.
pub(crate) fn file(bytes: u64) -> (Device, NamedTempFile) {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    File::options().write(true).open(file.path()).unwrap().set_len(bytes).unwrap();
    let config = UringConfig { sector_bytes: Some(4096), direct: false, ..UringConfig::default() };
    (Device::file(file.path(), config).unwrap(), file)
}

/// Runs a test on a drive and on a file.
pub(crate) fn everywhere(test: impl Fn(&Device)) {
    test(&drive(PersonalityKind::Block));
    let (device, _file) = file(16 << 20);
    test(&device);
}

/// 4 KB sectors, 1 TiB.
pub(crate) fn null_limits(queue_depth: u32) -> Limits {
    Limits {
        sector_bytes: 4096,
        sectors: 1 << 28,
        max_sectors: 256,
        optimal_sectors: 1,
        queue_depth,
        volatile_cache: false,
    }
}
