//! [`CoreFlash`]: the subsystem's own commands on a drive: the journal of the partition table, erases
//! between two owners, and the scrubber's reads.
//!
//! Commands wait here when the queue pair is full, in their order. Nothing is allocated per command
//! once the list of those that wait has grown.

use std::collections::VecDeque;
use std::sync::Arc;

use clock::Nanos;
use ftl::Shape;
use ftl::journal::{JournalFlash, JournalMedia, MAX_OPS};
use nvme::{Address, Geometry, Ppa, Status};
use ring::{Iova, Region};

use crate::vector::{Addresses, MemoryError, Sectors, VectorEnded, VectorQueue, register};

/// What a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A program, an erase or a read of the journal: its operation number.
    Program(u32),
    Erase(u32),
    Read(u32),
    /// A dirty chunk is erased.
    Clean,
    /// Sectors are read to see whether they can be.
    Scrub,
}

/// A command: consecutive sectors of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    pub(super) purpose: Purpose,
    pub(super) chunk: u32,
    pub(super) sector: u32,
    pub(super) sectors: u32,
}

/// A command that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) command: Command,
    pub(super) status: Status,
    pub(super) failed: u64,
    pub(super) high_ecc: bool,
}

/// The flash under the subsystem.
#[derive(Debug)]
pub(super) struct CoreFlash {
    queue: VectorQueue,
    addresses: Addresses,
    /// A write unit per operation of the journal.
    memory: Arc<Region>,
    at: Iova,
    unit_bytes: usize,
    waiting: VecDeque<Command>,
    /// The commands on the drive, by the number that they were given.
    flights: Vec<Option<Command>>,
    /// Programs that were refused instead of carried out.
    refused: VecDeque<Command>,
    /// Whether nothing may be written: programs of the journal fail.
    pub(super) dry: bool,
}

impl CoreFlash {
    pub(super) fn new(queue: VectorQueue, addresses: Addresses) -> Result<CoreFlash, MemoryError> {
        let shape = addresses.shape();
        let unit_bytes = shape.unit as usize * shape.sector_bytes as usize;
        let space = queue.port().memory();
        let (memory, at) = register(space, MAX_OPS * unit_bytes, "the partition table's journal")?;
        let flights = vec![None; queue.queue().capacity().into()];
        Ok(CoreFlash {
            queue,
            addresses,
            memory,
            at,
            unit_bytes,
            waiting: VecDeque::new(),
            flights,
            refused: VecDeque::new(),
            dry: true,
        })
    }

    /// A sector's address, for messages.
    pub(super) fn address(&self, chunk: u32, sector: u32) -> Address {
        let shape = self.shape();
        let (pu, per_group) = (shape.pu_of(chunk), shape.pus / shape.channels.max(1));
        let (group, pu_in_group) = (pu / per_group.max(1), pu % per_group.max(1));
        Address { group, pu: pu_in_group, chunk: chunk - pu * shape.chunks, sector }
    }

    pub(super) fn geometry(&self) -> &Geometry {
        self.addresses.geometry()
    }

    pub(super) fn shape(&self) -> &Shape {
        self.addresses.shape()
    }

    pub(super) fn outstanding(&self) -> u16 {
        self.queue.outstanding()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.outstanding() == 0 && self.waiting.is_empty() && self.refused.is_empty()
    }

    pub(super) fn into_queue(self) -> VectorQueue {
        self.queue
    }

    /// Erases a dirty chunk.
    pub(super) fn clean(&mut self, chunk: u32) {
        self.give(Command { purpose: Purpose::Clean, chunk, sector: 0, sectors: 1 });
    }

    /// Reads sectors without taking the data.
    pub(super) fn scrub(&mut self, chunk: u32, sector: u32, sectors: u32) {
        self.give(Command { purpose: Purpose::Scrub, chunk, sector, sectors });
    }

    /// Addresses of a command at most.
    pub(super) fn sectors_max(&self) -> u32 {
        self.queue.max_sectors()
    }

    fn give(&mut self, command: Command) {
        if !self.waiting.is_empty() || !self.submit(command) {
            self.waiting.push_back(command);
        }
    }

    /// Puts a command on the queue, if there is room.
    fn submit(&mut self, command: Command) -> bool {
        let Some(user) = self.flights.iter().position(Option::is_none) else { return false };
        let Command { purpose, chunk, sector, sectors } = command;
        let first = self.addresses.chunk(chunk).0 | u64::from(sector);
        let ppas = (0..sectors as usize).map(|i| Ppa(first + i as u64));
        let place = |op: u32| Sectors::Run(self.at.offset(op as u64 * self.unit_bytes as u64));
        let tag = user as u64;
        let taken = match purpose {
            Purpose::Program(op) => {
                let place = place(op);
                self.queue.write(ppas, place, None, tag)
            }
            Purpose::Read(op) => {
                let place = place(op);
                self.queue.read(ppas, place, None, tag)
            }
            Purpose::Scrub => self.queue.read(ppas, Sectors::Nowhere, None, tag),
            Purpose::Erase(_) | Purpose::Clean => {
                self.queue.reset(std::iter::once(Ppa(first)), tag)
            }
        };
        if taken.is_ok() {
            self.flights[user] = Some(command);
        }
        taken.is_ok()
    }

    /// The next command that has ended.
    pub(super) fn reap(&mut self) -> Option<Ended> {
        if let Some(command) = self.refused.pop_front() {
            let status = Status::CHUNK_CLOSED_EARLY;
            return Some(Ended { command, status, failed: 1, high_ecc: false });
        }
        let VectorEnded { user, failed, status, high_ecc } = self.queue.reap()?;
        let command = self.flights.get_mut(user as usize)?.take()?;
        Some(Ended { command, status, failed, high_ecc })
    }

    /// Sends what waits and tells the drive; `reaped` says whether anything was. Returns whether
    /// anything was sent.
    pub(super) fn ring(&mut self, reaped: bool) -> bool {
        while let Some(command) = self.waiting.front().copied() {
            if !self.submit(command) {
                break;
            }
            self.waiting.pop_front();
        }
        self.queue.ring(reaped)
    }

    fn slot(&self, op: u32) -> usize {
        (op as usize % MAX_OPS) * self.unit_bytes
    }
}

impl JournalFlash for CoreFlash {
    fn program(&mut self, _now: Nanos, op: u32, chunk: u32, sector: u32, bytes: &[u8]) {
        let sectors = self.shape().unit;
        let command = Command { purpose: Purpose::Program(op), chunk, sector, sectors };
        if self.dry {
            self.refused.push_back(command);
            return;
        }
        let (at, len) = (self.slot(op), bytes.len().min(self.unit_bytes));
        self.memory.write(at, &bytes[..len]);
        self.memory.fill(at + len, self.unit_bytes - len, 0);
        self.give(command);
    }

    fn erase(&mut self, _now: Nanos, op: u32, chunk: u32) {
        self.give(Command { purpose: Purpose::Erase(op), chunk, sector: 0, sectors: 1 });
    }
}

impl JournalMedia for CoreFlash {
    fn read(&mut self, _now: Nanos, op: u32, chunk: u32, sector: u32, sectors: u32) {
        self.give(Command { purpose: Purpose::Read(op), chunk, sector, sectors });
    }

    fn data(&mut self, op: u32, out: &mut [u8]) {
        let at = self.slot(op);
        let len = out.len().min(self.unit_bytes);
        self.memory.read(at, &mut out[..len]);
    }
}
