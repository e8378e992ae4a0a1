//! Devices for the tests.

use std::fs::File;
use std::sync::Arc;

use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind,
    PuScheduling, TransferConfig, WriteBuffer,
};
use driver::{ConnectOptions, ControllerHandle, UringConfig};
use event::{IdlePolicy, RealClock, RealRunner, StopHandle};
use ftl::FtlConfig;
use media::{CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use tempfile::NamedTempFile;
use time::Nanos;
use user_io::{IoDevice, Limits};

/// A drive on a thread, which stops when its device is dropped.
pub(crate) struct DriveThread {
    stopper: StopHandle,
    thread: Option<std::thread::JoinHandle<Controller>>,
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
        cell: CellType::Slc,
        one_shot: false,
        paired_page_distance: 0,
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
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        transfers: TransferConfig::default(),
        write_buffer: match personality {
            PersonalityKind::Block => WriteBuffer::Volatile { bytes: 0 },
            _ => WriteBuffer::None,
        },
        ftl: FtlConfig { over_provisioning: 0.28, ..DriveConfig::default_ftl() },
        null: NullConfig::default(),
        open_channel: OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
    }
}

/// Starts a drive on its own thread.
pub(crate) fn drive(personality: PersonalityKind) -> IoDevice {
    over(config(personality))
}

/// Starts any drive on its own thread.
pub(crate) fn over(config: DriveConfig) -> IoDevice {
    over_with(config, ConnectOptions::default())
}

/// Starts any drive on its own thread, with connect options.
pub(crate) fn over_with(config: DriveConfig, options: ConnectOptions) -> IoDevice {
    let mut drive = Controller::new(config).unwrap();
    let port = drive.attach().unwrap();
    let clock = RealClock::start();
    let runner = RealRunner::new(clock, IdlePolicy::default()).unwrap();
    port.set_drive_waker(runner.waker()).unwrap();
    let stopper = runner.stop_handle();
    let thread = std::thread::spawn(move || {
        runner.run(&mut drive).unwrap();
        drive
    });
    let keeper = DriveThread { stopper, thread: Some(thread) };
    let patience = 100_000_000;
    let progress = &mut std::thread::yield_now;
    let controller = ControllerHandle::connect_with(Arc::clone(&port), options, progress, patience);
    IoDevice::drive(controller.unwrap(), keeper)
}

/// Opens a temporary file, which exists as long as the second value.
pub(crate) fn file(bytes: u64) -> (IoDevice, NamedTempFile) {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    File::options().write(true).open(file.path()).unwrap().set_len(bytes).unwrap();
    let config = UringConfig { sector_bytes: Some(4096), direct: false, ..UringConfig::default() };
    (IoDevice::file(file.path(), config).unwrap(), file)
}

/// Runs a test on a drive and on a file.
pub(crate) fn everywhere(test: impl Fn(&IoDevice)) {
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
        atomic: block::AtomicLimits::NONE,
    }
}
