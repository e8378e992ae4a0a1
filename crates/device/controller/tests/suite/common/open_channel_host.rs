//! A host of a drive: submits raw entries, and returns completions with their times.
#![allow(dead_code, unreachable_pub, reason = "not every test uses all of it")]

use std::sync::Arc;

use controller::{Controller, DriveConfig, PersonalityKind};
use driver::{ControllerInfo, OpenChannelInfo, QueuePair};
use media::{DataStore, NandConfig};
use mem::{Iova, PAGE_BYTES, SharedRegion};
use nvme::{Address, Ppa, PpaList, SglDescriptor, Sqe, Status};
use time::{Component, Nanos};
use transport::Port;

/// A completed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedCommand {
    pub user: u64,
    pub status: Status,
    pub result: u64,
    pub at: Nanos,
}

pub struct OpenChannelHost {
    pub drive: Controller,
    pub queue: QueuePair,
    pub port: Arc<Port>,
    pub info: ControllerInfo,
    pub memory: Arc<SharedRegion>,
    pub at: Iova,
    pub now: Nanos,
    pub completed: Vec<CompletedCommand>,
}

/// Offsets in the host's memory: data, metadata, address lists.
pub const DATA: usize = 0;
pub const META: usize = 256 * PAGE_BYTES;
pub const LIST: usize = 288 * PAGE_BYTES;
pub const OTHER_LIST: usize = 289 * PAGE_BYTES;
const MEMORY: usize = 320 * PAGE_BYTES;

pub fn open_channel(nand: NandConfig) -> DriveConfig {
    let nand = NandConfig { data: DataStore::Memory, ..nand };
    DriveConfig { personality: PersonalityKind::OpenChannel, ..super::drive(nand) }
}

impl OpenChannelHost {
    pub fn new(config: DriveConfig) -> OpenChannelHost {
        OpenChannelHost::from_drive(Controller::new(config).unwrap())
    }

    pub fn from_drive(mut drive: Controller) -> OpenChannelHost {
        let (mut controller, port) = super::attach(&mut drive);
        let mut progress = || {
            drive.poll(Nanos::ZERO);
        };
        let queue = controller.create_queue_pair(256, None, &mut progress).unwrap();
        let memory = SharedRegion::anonymous(MEMORY).unwrap();
        let at = port.memory().register(&memory).unwrap();
        let info = controller.info().clone();
        OpenChannelHost {
            drive,
            queue,
            port,
            info,
            memory,
            at,
            now: Nanos::ZERO,
            completed: vec![],
        }
    }

    pub fn open_channel(&self) -> OpenChannelInfo {
        self.info.open_channel.unwrap()
    }

    /// Returns the address of a sector.
    pub fn ppa(&self, group: u32, pu: u32, chunk: u32, sector: u32) -> Ppa {
        self.open_channel().format.pack(Address { group, pu, chunk, sector })
    }

    /// Stores addresses in memory at `offset`, unless there is only one.
    pub fn list_at(&self, offset: usize, ppas: &[Ppa]) -> PpaList {
        if let [one] = ppas {
            return PpaList::One(*one);
        }
        for (i, ppa) in ppas.iter().enumerate() {
            self.memory.write(offset + i * 8, &ppa.0.to_le_bytes());
        }
        PpaList::List { at: self.at.offset(offset as u64).0, count: ppas.len() as u8 }
    }

    pub fn list(&self, ppas: &[Ppa]) -> PpaList {
        self.list_at(LIST, ppas)
    }

    /// Sets the data pointer of an entry.
    pub fn with_data(&self, mut sqe: Sqe, sectors: usize) -> Sqe {
        let length = sectors as u32 * self.info.sector_bytes;
        sqe.set_sgl(SglDescriptor::DataBlock { address: self.at.offset(DATA as u64).0, length });
        sqe
    }

    /// Sets the metadata pointer of an entry.
    pub fn with_meta(&self, mut sqe: Sqe) -> Sqe {
        sqe.mptr = self.at.offset(META as u64).0.into();
        sqe
    }

    pub fn send(&mut self, sqe: Sqe, user: u64) {
        self.queue.submit(sqe, user).unwrap();
        self.queue.ring();
        self.settle();
    }

    fn settle(&mut self) {
        while self.drive.poll(self.now) {}
        while let Some(done) = self.queue.reap() {
            let (user, status, result) = (done.user, done.status, done.result);
            self.completed.push(CompletedCommand { user, status, result, at: self.now });
        }
    }

    /// Advances time to `until`.
    pub fn run_to(&mut self, until: Nanos) {
        self.settle();
        while self.drive.deadline() <= until {
            self.now = self.now.max(self.drive.deadline());
            self.settle();
        }
        self.now = until;
        self.settle();
    }

    /// Runs until all commands have completed; returns the completions since the last call.
    pub fn wait(&mut self) -> Vec<CompletedCommand> {
        self.settle();
        while self.queue.outstanding() > 0 {
            assert_ne!(self.drive.deadline(), Nanos::MAX, "a command does not complete");
            self.now = self.now.max(self.drive.deadline());
            self.settle();
        }
        std::mem::take(&mut self.completed)
    }

    /// Executes one command; returns its completion and the time that it took.
    pub fn run(&mut self, sqe: Sqe) -> (CompletedCommand, Nanos) {
        let start = self.now;
        self.send(sqe, 77);
        let ended = self.wait();
        assert_eq!(ended.len(), 1);
        (ended[0], ended[0].at.since(start))
    }

    pub fn write(&mut self, ppas: &[Ppa]) -> CompletedCommand {
        let sqe = self.with_data(Sqe::vector_write(1, self.list(ppas)), ppas.len());
        self.run(sqe).0
    }

    pub fn read(&mut self, ppas: &[Ppa]) -> CompletedCommand {
        let sqe = self.with_data(Sqe::vector_read(1, self.list(ppas)), ppas.len());
        self.run(sqe).0
    }

    pub fn reset(&mut self, ppas: &[Ppa]) -> CompletedCommand {
        let sqe = Sqe::vector_reset(1, self.list(ppas));
        self.run(sqe).0
    }

    /// Writes the first `units` write units of a chunk.
    pub fn fill(&mut self, group: u32, pu: u32, chunk: u32, units: u32) {
        let unit = self.open_channel().geometry.ws_min;
        for u in 0..units {
            let ppas: Vec<Ppa> =
                (u * unit..(u + 1) * unit).map(|s| self.ppa(group, pu, chunk, s)).collect();
            assert_eq!(self.write(&ppas).status, Status::SUCCESS);
        }
    }
}
