//! Emulated drives, each on a thread of its own.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::sync::Arc;

use clock::{Idle, Nanos, RealClock, RealRunner, Stopper};
use direct::Device;
use drive::{
    ControllerConfig, Drive, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind, PuPolicy,
    Transfers, WriteBuffer,
};
use driver::Controller;
use ftl::FtlConfig;
use media::{Cell, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};

/// The thread, which ends with the device that keeps it.
struct DriveThread {
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

fn config(personality: PersonalityKind) -> DriveConfig {
    let geometry = NandGeometry {
        channels: 2,
        pus: 2,
        planes: 1,
        chunks: 16,
        pages: 32,
        page_bytes: 4096,
        sector_bytes: 4096,
        oob_bytes: 16,
    };
    let nand = NandConfig {
        geometry,
        cell: Cell::Slc,
        one_shot: false,
        pair_distance: 0,
        timing: NandTiming::uniform(
            Nanos::from_micros(5),
            Nanos::from_micros(10),
            Nanos::from_micros(20),
            0,
        ),
        errors: ErrorModel::default(),
        data: DataStore::Memory,
        seed: 1,
    };
    DriveConfig {
        name: "capi0".into(),
        personality,
        media: match personality {
            PersonalityKind::Null => MediaConfig::Null { bytes: 64 << 20, sector_bytes: 4096 },
            _ => MediaConfig::Nand(nand),
        },
        controller: ControllerConfig::default(),
        pu_policy: PuPolicy::Fifo,
        page_register: false,
        cache_program: true,
        transfers: Transfers::default(),
        write_buffer: match personality {
            PersonalityKind::Null => WriteBuffer::None,
            _ => WriteBuffer::Volatile { bytes: 0 },
        },
        ftl: FtlConfig { over_provisioning: 0.28, ..DriveConfig::layer() },
        null: NullConfig::default(),
        open_channel: OpenChannelConfig::default(),
    }
}

/// A drive that manages its own flash.
pub(crate) fn block() -> Device {
    over(config(PersonalityKind::Block))
}

/// A drive without data, of which every command takes so long.
pub(crate) fn null(latency: Nanos) -> Device {
    let mut config = config(PersonalityKind::Null);
    config.null.latency = latency;
    over(config)
}

/// Starts a drive, and opens it.
fn over(config: DriveConfig) -> Device {
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
    let controller =
        Controller::attach(Arc::clone(&port), &mut std::thread::yield_now, 100_000_000);
    Device::drive(controller.unwrap(), keeper)
}
