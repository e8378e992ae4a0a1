//! An emulated in-process drive for the examples: 4 channels of 4 PUs of MLC flash. Time passes
//! only while the caller waits.
#![allow(dead_code, unreachable_pub, reason = "not every example uses all of it")]

use controller::{
    Controller, ControllerConfig, DriveConfig, DriveError, NullConfig, PersonalityKind,
    PuScheduling, WriteBuffer,
};
use media::{CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use time::{Component, Nanos};

/// A drive and its virtual time.
#[derive(Debug)]
pub struct Bench {
    drive: Option<Controller>,
    /// The current time.
    pub now: Nanos,
}

impl Bench {
    /// Creates a drive with power.
    pub fn new() -> Result<Bench, DriveError> {
        let nand = NandConfig {
            geometry: NandGeometry {
                channels: 4,
                pus: 4,
                planes: 2,
                chunks: 32,
                pages: 64,
                page_bytes: 16384,
                sector_bytes: 4096,
                oob_bytes: 16,
            },
            cell: CellType::Mlc,
            one_shot: false,
            paired_page_distance: 4,
            timing: NandTiming::uniform(
                Nanos::from_micros(60),
                Nanos::from_micros(900),
                Nanos::from_millis(4),
                400_000_000,
            ),
            errors: ErrorModel::default(),
            data: DataStore::Memory,
            seed: 1,
        };
        let config = DriveConfig {
            open_channel: controller::OpenChannelConfig::default(),
            lba_bytes: None,
            protection: None,
            pmr: None,
            rules: None,
            name: "example".into(),
            personality: PersonalityKind::OpenChannel,
            media: MediaConfig::Nand(nand),
            controller: ControllerConfig::default(),
            pu_scheduling: PuScheduling::Fifo,
            page_register: false,
            cache_program: true,
            transfers: controller::TransferConfig::default(),
            write_buffer: WriteBuffer::None,
            ftl: ftl::FtlConfig::default(),
            null: NullConfig::default(),
        };
        Ok(Bench { drive: Some(Controller::new(config)?), now: Nanos::ZERO })
    }

    /// Returns the drive.
    pub fn drive(&mut self) -> &mut Controller {
        self.drive.as_mut().expect("switched on")
    }

    /// Runs the drive, or advances the time to its next event. This is the progress of synchronous
    /// calls.
    pub fn turn(&mut self) {
        let now = self.now;
        let drive = self.drive();
        if !drive.poll(now) && drive.deadline() < Nanos::MAX {
            self.now = now.max(drive.deadline());
        }
    }

    /// Cuts the power and restores it.
    pub fn power_cycle(&mut self) -> Result<(), DriveError> {
        let off = self.drive.take().expect("switched on").power_cut();
        self.drive = Some(off.power_on()?);
        Ok(())
    }
}
