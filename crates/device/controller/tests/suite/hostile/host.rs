//! [`Host`]: a host with raw rings, and the drives that it is connected to.

use std::sync::Arc;

use controller::{Controller, DriveConfig, NullConfig, PersonalityKind};
use media::{DataStore, MediaConfig, PcmConfig};
use mem::{Iova, PAGE_BYTES, SharedRegion};
use nvme::{AdminCommand, Cqe, QueuePriority, SglDescriptor, Sqe, Status};
use time::{Component, Nanos};
use transport::{CqConsumer, Port, SqProducer};

use crate::common::{drive, nand};

/// A host without a driver, with raw rings.
pub(crate) struct Host {
    pub(crate) port: Arc<Port>,
    pub(crate) memory: Arc<SharedRegion>,
    pub(crate) at: Iova,
    pub(crate) admin: (SqProducer, CqConsumer),
    pub(crate) io: Option<(SqProducer, CqConsumer)>,
    pub(crate) now: Nanos,
    pub(crate) cid: u16,
}

pub(crate) const MEMORY: usize = 64 * PAGE_BYTES;
pub(crate) const DEPTH: u16 = 64;

impl Host {
    pub(crate) fn new(drive: &mut Controller) -> Host {
        Host::on_port(drive.attach().unwrap())
    }

    /// Returns the host of a port that is attached.
    pub(crate) fn on_port(port: Arc<Port>) -> Host {
        let memory = SharedRegion::anonymous(MEMORY).unwrap();
        let at = port.memory().register(&memory).unwrap();
        let (sq, sq_depth) = port.admin_submission();
        let (cq, cq_depth) = port.admin_completion();
        let admin = (
            SqProducer::open(&port, 0, sq, sq_depth).unwrap(),
            CqConsumer::open(&port, 0, cq, cq_depth).unwrap(),
        );
        Host { port, memory, at, admin, io: None, now: Nanos::ZERO, cid: 0 }
    }

    /// Attaches a host with one queue pair.
    pub(crate) fn with_queue(drive: &mut Controller) -> Host {
        let mut host = Host::new(drive);
        let rings = host.create(drive, 1, DEPTH, QueuePriority::Medium);
        host.io = Some(rings);
        host
    }

    pub(crate) fn create(
        &mut self,
        drive: &mut Controller,
        qid: u16,
        depth: u16,
        priority: QueuePriority,
    ) -> (SqProducer, CqConsumer) {
        let ring = SharedRegion::anonymous(8 * PAGE_BYTES).unwrap();
        let at = self.port.memory().register(&ring).unwrap();
        let (entries, cq) = (u32::from(depth), at.offset(4 * PAGE_BYTES as u64));
        let create = AdminCommand::CreateCq { qid, entries, at: cq.0, vector: None };
        assert_eq!(self.admin(drive, create.to_sqe()).status, Status::SUCCESS);
        let create = AdminCommand::CreateSq { qid, entries, at: at.0, cqid: qid, priority };
        assert_eq!(self.admin(drive, create.to_sqe()).status, Status::SUCCESS);
        (
            SqProducer::open(&self.port, qid, at, depth).unwrap(),
            CqConsumer::open(&self.port, qid, cq, depth).unwrap(),
        )
    }

    /// Runs the drive until no event is pending.
    pub(crate) fn drain(&mut self, drive: &mut Controller) {
        loop {
            while drive.poll(self.now) {}
            match drive.deadline() {
                Nanos::MAX => return,
                at => self.now = self.now.max(at),
            }
        }
    }

    /// Executes one admin command.
    pub(crate) fn admin(&mut self, drive: &mut Controller, mut sqe: Sqe) -> Cqe {
        self.cid = self.cid.wrapping_add(1);
        sqe.cid = self.cid.into();
        let (sq, _) = &mut self.admin;
        sq.push(&sqe).unwrap();
        sq.ring();
        self.drain(drive);
        let (sq, cq) = &mut self.admin;
        let cqe = cq.pop().expect("the command completes");
        assert!(cq.pop().is_none(), "the command completes only once");
        cq.release();
        sq.update_head(cqe.sq_head);
        assert_eq!(cqe.cid, self.cid);
        cqe
    }

    pub(crate) fn submit(&mut self, mut sqe: Sqe) -> u16 {
        self.cid = self.cid.wrapping_add(1);
        sqe.cid = self.cid.into();
        let (sq, _) = self.io.as_mut().unwrap();
        sq.push(&sqe).unwrap();
        sq.ring();
        self.cid
    }

    pub(crate) fn reap(&mut self) -> Option<Cqe> {
        let (sq, cq) = self.io.as_mut().unwrap();
        let cqe = cq.pop()?;
        cq.release();
        sq.update_head(cqe.sq_head);
        Some(cqe)
    }

    /// Runs the drive, which refuses the command that was submitted last because of a format or
    /// Sanitize, for the microsecond that this takes. Returns the completion.
    pub(crate) fn reap_refused(&mut self, drive: &mut Controller) -> Cqe {
        while drive.poll(self.now) {}
        assert!(self.reap().is_none(), "a refused command takes a microsecond");
        self.now += Nanos(1_000);
        while drive.poll(self.now) {}
        self.reap().expect("a refused command takes no more than a microsecond")
    }

    /// Executes one I/O command.
    pub(crate) fn io(&mut self, drive: &mut Controller, sqe: Sqe) -> Cqe {
        let cid = self.submit(sqe);
        self.drain(drive);
        let cqe = self.reap().expect("the command completes");
        assert!(self.reap().is_none(), "the command completes only once");
        assert_eq!((cqe.cid, cqe.sq_id), (cid, 1));
        cqe
    }

    pub(crate) fn block(&self, page: u64, length: u32) -> SglDescriptor {
        SglDescriptor::DataBlock { address: self.at.offset(page * PAGE_BYTES as u64).0, length }
    }

    /// Writes and reads a sector, to check that the drive still works.
    pub(crate) fn check_serves(&mut self, drive: &mut Controller) {
        let mut write = Sqe::write(1, 3, 1, false);
        write.set_sgl(self.block(0, 4096));
        assert_eq!(self.io(drive, write).status, Status::SUCCESS);
        let mut read = Sqe::read(1, 3, 1);
        read.set_sgl(self.block(1, 4096));
        assert_eq!(self.io(drive, read).status, Status::SUCCESS);
    }
}

pub(crate) fn block_config() -> DriveConfig {
    let mut config = drive(media::NandConfig { data: DataStore::Memory, ..nand() });
    if let MediaConfig::Nand(nand) = &mut config.media {
        (nand.geometry.chunks, nand.geometry.pages) = (16, 8);
    }
    config
}

pub(crate) fn configs() -> Vec<DriveConfig> {
    let block = block_config();
    let mut open_channel = block_config();
    open_channel.personality = PersonalityKind::OpenChannel;
    let mut null = block_config();
    null.personality = PersonalityKind::Null;
    null.media = MediaConfig::Null { bytes: 1 << 24, sector_bytes: 4096 };
    null.null = NullConfig { latency: Nanos(700), bytes_per_sec: 1_000_000_000 };
    let mut pcm = block_config();
    pcm.media = MediaConfig::Pcm(PcmConfig {
        channels: 2,
        pus: 2,
        bytes: 1 << 22,
        sector_bytes: 4096,
        read: Nanos(200),
        write: Nanos(1_000),
        channel_bytes_per_sec: 1_000_000_000,
        data: DataStore::Memory,
    });
    let small_blocks = DriveConfig { lba_bytes: Some(512), ..block_config() };
    let mut protected =
        DriveConfig { protection: Some(nvme::ProtectionType::Type1), ..small_blocks.clone() };
    if let MediaConfig::Nand(nand) = &mut protected.media {
        nand.geometry.oob_bytes = 80;
    }
    vec![block, open_channel, null, pcm, small_blocks, protected]
}
