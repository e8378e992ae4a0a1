//! Hosts in virtual time: a port with access rights, its controller, one queue pair, and some
//! memory.

use std::sync::Arc;

use controller::{AccessPolicy, Controller, DriveConfig, NullConfig, PersonalityKind};
use driver::{Completed, ControllerHandle, DriverError, QueuePair};
use media::{DataStore, MediaConfig, NandTiming, PcmConfig};
use mem::{Iova, SharedRegion};
use nvme::{AdminCommand, Cqe, SglDescriptor, Sqe, Status};
use time::{Component, Nanos};
use transport::{CqConsumer, Port, SqProducer};

use crate::common::{drive, nand};

pub const SECTOR: usize = 4096;

/// A drive that stores data: 4 × 4 PUs of 16 chunks of 16 pages, fast enough for real time.
pub fn block() -> DriveConfig {
    let mut config = drive(media::NandConfig { data: DataStore::Memory, ..nand() });
    if let MediaConfig::Nand(nand) = &mut config.media {
        (nand.geometry.chunks, nand.geometry.pages) = (16, 16);
        nand.timing = NandTiming::uniform(
            Nanos::from_micros(5),
            Nanos::from_micros(20),
            Nanos::from_micros(100),
            4_000_000_000,
        );
    }
    config
}

pub fn open_channel() -> DriveConfig {
    DriveConfig { personality: PersonalityKind::OpenChannel, ..block() }
}

pub fn null(latency: Nanos) -> DriveConfig {
    DriveConfig {
        personality: PersonalityKind::Null,
        media: MediaConfig::Null { bytes: 1 << 24, sector_bytes: SECTOR as u32 },
        null: NullConfig { latency, bytes_per_sec: 0 },
        ..block()
    }
}

pub fn pcm() -> DriveConfig {
    let media = MediaConfig::Pcm(PcmConfig {
        channels: 2,
        pus: 2,
        bytes: 1 << 22,
        sector_bytes: SECTOR as u32,
        read: Nanos(200),
        write: Nanos(1_000),
        channel_bytes_per_sec: 1_000_000_000,
        data: DataStore::Memory,
    });
    DriveConfig { media, ..block() }
}

/// Runs the drive until no event is pending.
pub fn drain(drive: &mut Controller, now: &mut Nanos) {
    loop {
        while drive.poll(*now) {}
        match drive.deadline() {
            Nanos::MAX => return,
            at => *now = (*now).max(at),
        }
    }
}

pub struct Host {
    pub port: Arc<Port>,
    pub controller: ControllerHandle,
    pub pair: QueuePair,
    pub memory: Arc<SharedRegion>,
    pub at: Iova,
    pub now: Nanos,
}

impl Host {
    /// Attaches a host with `access`, or with all rights.
    pub fn attach(
        drive: &mut Controller,
        access: Option<AccessPolicy>,
        depth: u16,
        pages: usize,
    ) -> Host {
        let port = match access {
            None => drive.attach().unwrap(),
            Some(access) => {
                let port = Port::new().unwrap();
                drive.attach_as(&port, access).unwrap();
                port
            }
        };
        let mut now = Nanos::ZERO;
        let progress = &mut || drain(drive, &mut now);
        let mut controller = ControllerHandle::connect(port.clone(), progress, 100).unwrap();
        let pair = controller.create_queue_pair(depth, None, progress).unwrap();
        let (memory, at) = port.memory().allocate_registered(pages * SECTOR).unwrap();
        Host { port, controller, pair, memory, at, now }
    }

    pub fn sectors(&self) -> u64 {
        self.controller.info().sectors
    }

    /// Returns the data block descriptor of a page of the host's memory.
    pub fn block(&self, page: usize, sectors: u32) -> SglDescriptor {
        let address = self.at.offset((page * SECTOR) as u64).0;
        SglDescriptor::DataBlock { address, length: sectors * SECTOR as u32 }
    }

    /// Executes one command.
    pub fn io(&mut self, drive: &mut Controller, sqe: Sqe) -> Completed {
        self.pair.submit(sqe, 7).unwrap();
        self.pair.ring();
        drain(drive, &mut self.now);
        let completed = self.pair.reap().expect("the command completes");
        assert!(self.pair.reap().is_none(), "the command completes only once");
        self.pair.release();
        completed
    }

    pub fn write(&mut self, drive: &mut Controller, lba: u64, sectors: u32, byte: u8) -> Status {
        self.memory.fill(0, sectors as usize * SECTOR, byte);
        let mut sqe = Sqe::write(1, lba, sectors, false);
        sqe.set_sgl(self.block(0, sectors));
        self.io(drive, sqe).status
    }

    /// Returns the first byte of every sector.
    pub fn read(
        &mut self,
        drive: &mut Controller,
        lba: u64,
        sectors: u32,
    ) -> Result<Vec<u8>, Status> {
        self.memory.fill(0, sectors as usize * SECTOR, 0xee);
        let mut sqe = Sqe::read(1, lba, sectors);
        sqe.set_sgl(self.block(0, sectors));
        match self.io(drive, sqe).status {
            Status::SUCCESS => Ok((0..sectors as usize).map(|i| self.byte(i * SECTOR)).collect()),
            status => Err(status),
        }
    }

    pub fn byte(&self, offset: usize) -> u8 {
        let mut byte = [0];
        self.memory.read(offset, &mut byte);
        byte[0]
    }

    /// Executes a controller function.
    pub fn ask<T>(
        &mut self,
        drive: &mut Controller,
        what: impl FnOnce(&mut ControllerHandle, &mut dyn FnMut()) -> Result<T, DriverError>,
    ) -> Result<T, Status> {
        let now = &mut self.now;
        match what(&mut self.controller, &mut || drain(drive, now)) {
            Ok(answer) => Ok(answer),
            Err(DriverError::Command { status, .. }) => Err(status),
            Err(other) => panic!("{other}"),
        }
    }
}

/// A host without a driver: its admin queue, with one command at a time.
pub struct Raw {
    pub port: Arc<Port>,
    pub sq: SqProducer,
    pub cq: CqConsumer,
    pub at: Iova,
    pub now: Nanos,
}

impl Raw {
    pub fn attach(drive: &mut Controller, access: AccessPolicy) -> Raw {
        let port = Port::new().unwrap();
        drive.attach_as(&port, access).unwrap();
        let ((sq, depth), (cq, _)) = (port.admin_submission(), port.admin_completion());
        let sq = SqProducer::open(&port, 0, sq, depth).unwrap();
        let cq = CqConsumer::open(&port, 0, cq, depth).unwrap();
        let (_, at) = port.memory().allocate_registered(64 * SECTOR).unwrap();
        Raw { port, sq, cq, at, now: Nanos::ZERO }
    }

    pub fn admin(&mut self, drive: &mut Controller, command: AdminCommand) -> Cqe {
        let mut sqe = command.to_sqe();
        if sqe.data() == Sqe::default().data() {
            sqe.set_prp(self.at.0, self.at.0 + SECTOR as u64);
        }
        self.sq.push(&sqe).unwrap();
        self.sq.ring();
        drain(drive, &mut self.now);
        let cqe = self.cq.pop().expect("the command completes");
        self.cq.release();
        self.sq.update_head(cqe.sq_head);
        cqe
    }
}
