//! [`ManagerIo`]: the media manager's own commands: the journal of the partition table, erases
//! between two owners, and scrub reads.
//!
//! Commands are deferred in order while the queue pair is full. Commands allocate nothing once the
//! list of deferred ones has grown.

use std::collections::VecDeque;
use std::sync::Arc;

use ftl::journal::{JournalFlash, JournalMedia, OPS_MAX};
use mem::{Iova, SharedRegion};
use nvme::{Address, ChunkId, FlashGeometry, Geometry, Ppa, Status};
use time::Nanos;

use ocssd::vector::{
    Addresses, DataSegments, MemoryError, VectorCompletion, VectorQueue, register,
};

/// Purpose of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandPurpose {
    /// A program, an erase or a read of the journal, with its operation number.
    Program(u32),
    Erase(u32),
    Read(u32),
    /// Erase of a dirty chunk.
    EraseDirty,
    /// Scrub read: checks that sectors are readable.
    Scrub,
}

/// A command on consecutive sectors of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct ManagerCommand {
    pub(super) purpose: CommandPurpose,
    pub(super) chunk: ChunkId,
    pub(super) sector: u32,
    pub(super) sectors: u32,
}

/// A completed command.
#[derive(Clone, Copy, Debug)]
pub(super) struct ManagerCompletion {
    pub(super) command: ManagerCommand,
    pub(super) status: Status,
    pub(super) failed: u64,
    pub(super) high_ecc: bool,
}

/// The flash of the drive, as the media manager accesses it.
#[derive(Debug)]
pub(super) struct ManagerIo {
    queue: VectorQueue,
    addresses: Addresses,
    /// One write unit per operation of the journal.
    memory: Arc<SharedRegion>,
    at: Iova,
    unit_bytes: usize,
    deferred: VecDeque<ManagerCommand>,
    /// The commands in flight, by index.
    in_flight: Vec<Option<ManagerCommand>>,
    /// Programs that were rejected because the manager is read-only.
    rejected_programs: VecDeque<ManagerCommand>,
    /// Whether writes are forbidden: programs of the journal fail.
    pub(super) read_only: bool,
}

impl ManagerIo {
    pub(super) fn new(queue: VectorQueue, addresses: Addresses) -> Result<ManagerIo, MemoryError> {
        let shape = addresses.shape();
        let unit_bytes = shape.ws_opt as usize * shape.sector_bytes as usize;
        let space = queue.port().memory();
        let (memory, at) = register(space, OPS_MAX * unit_bytes, "the partition table's journal")?;
        let flights = vec![None; queue.queue().capacity().into()];
        Ok(ManagerIo {
            queue,
            addresses,
            memory,
            at,
            unit_bytes,
            deferred: VecDeque::new(),
            in_flight: flights,
            rejected_programs: VecDeque::new(),
            read_only: true,
        })
    }

    /// Returns the address of a sector, for messages.
    pub(super) fn address(&self, chunk: ChunkId, sector: u32) -> Address {
        let shape = self.shape();
        let (pu, per_group) = (shape.pu_of(chunk), shape.pus / shape.channels.max(1));
        let (group, pu_in_group) = (pu.get() / per_group.max(1), pu.get() % per_group.max(1));
        Address { group, pu: pu_in_group, chunk: shape.index_on_pu(chunk), sector }
    }

    pub(super) fn geometry(&self) -> &Geometry {
        self.addresses.geometry()
    }

    pub(super) fn shape(&self) -> &FlashGeometry {
        self.addresses.shape()
    }

    pub(super) fn outstanding(&self) -> u16 {
        self.queue.outstanding()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.outstanding() == 0
            && self.deferred.is_empty()
            && self.rejected_programs.is_empty()
    }

    pub(super) fn into_queue(self) -> VectorQueue {
        self.queue
    }

    /// Erases a dirty chunk.
    pub(super) fn erase_dirty(&mut self, chunk: ChunkId) {
        self.enqueue(ManagerCommand {
            purpose: CommandPurpose::EraseDirty,
            chunk,
            sector: 0,
            sectors: 1,
        });
    }

    /// Reads sectors without data transfer.
    pub(super) fn scrub_read(&mut self, chunk: ChunkId, sector: u32, sectors: u32) {
        self.enqueue(ManagerCommand { purpose: CommandPurpose::Scrub, chunk, sector, sectors });
    }

    /// Returns the maximum number of addresses of a command.
    pub(super) fn sectors_max(&self) -> u32 {
        self.queue.max_sectors()
    }

    fn enqueue(&mut self, command: ManagerCommand) {
        if !self.deferred.is_empty() || !self.submit(command) {
            self.deferred.push_back(command);
        }
    }

    /// Submits a command, unless the queue is full. Returns whether it was submitted.
    fn submit(&mut self, command: ManagerCommand) -> bool {
        let Some(user) = self.in_flight.iter().position(Option::is_none) else { return false };
        let ManagerCommand { purpose, chunk, sector, sectors } = command;
        let first = self.addresses.chunk(chunk).0 | u64::from(sector);
        let ppas = (0..sectors as usize).map(|i| Ppa(first + i as u64));
        let place =
            |op: u32| DataSegments::Contiguous(self.at.offset(op as u64 * self.unit_bytes as u64));
        let tag = user as u64;
        let taken = match purpose {
            CommandPurpose::Program(op) => {
                let place = place(op);
                self.queue.write(ppas, place, None, tag)
            }
            CommandPurpose::Read(op) => {
                let place = place(op);
                self.queue.read(ppas, place, None, tag)
            }
            CommandPurpose::Scrub => self.queue.read(ppas, DataSegments::BitBucket, None, tag),
            CommandPurpose::Erase(_) | CommandPurpose::EraseDirty => {
                self.queue.reset(std::iter::once(Ppa(first)), tag)
            }
        };
        if taken.is_ok() {
            self.in_flight[user] = Some(command);
        }
        taken.is_ok()
    }

    /// Reaps the next completed command.
    pub(super) fn reap(&mut self) -> Option<ManagerCompletion> {
        if let Some(command) = self.rejected_programs.pop_front() {
            let status = Status::CHUNK_CLOSED_EARLY;
            return Some(ManagerCompletion { command, status, failed: 1, high_ecc: false });
        }
        let VectorCompletion { user_data: user, failed, status, high_ecc } = self.queue.reap()?;
        let command = self.in_flight.get_mut(user as usize)?.take()?;
        Some(ManagerCompletion { command, status, failed, high_ecc })
    }

    /// Submits deferred commands and rings the doorbells; `reaped` says whether completions were
    /// reaped. Returns whether anything was submitted.
    pub(super) fn ring(&mut self, reaped: bool) -> bool {
        while let Some(command) = self.deferred.front().copied() {
            if !self.submit(command) {
                break;
            }
            self.deferred.pop_front();
        }
        self.queue.ring(reaped)
    }

    fn op_offset(&self, op: u32) -> usize {
        (op as usize % OPS_MAX) * self.unit_bytes
    }
}

impl JournalFlash for ManagerIo {
    fn program(&mut self, _now: Nanos, op: u32, chunk: ChunkId, sector: u32, bytes: &[u8]) {
        let sectors = self.shape().ws_opt;
        let command =
            ManagerCommand { purpose: CommandPurpose::Program(op), chunk, sector, sectors };
        if self.read_only {
            self.rejected_programs.push_back(command);
            return;
        }
        let (at, len) = (self.op_offset(op), bytes.len().min(self.unit_bytes));
        self.memory.write(at, &bytes[..len]);
        self.memory.fill(at + len, self.unit_bytes - len, 0);
        self.enqueue(command);
    }

    fn erase(&mut self, _now: Nanos, op: u32, chunk: ChunkId) {
        self.enqueue(ManagerCommand {
            purpose: CommandPurpose::Erase(op),
            chunk,
            sector: 0,
            sectors: 1,
        });
    }
}

impl JournalMedia for ManagerIo {
    fn read(&mut self, _now: Nanos, op: u32, chunk: ChunkId, sector: u32, sectors: u32) {
        self.enqueue(ManagerCommand { purpose: CommandPurpose::Read(op), chunk, sector, sectors });
    }

    fn read_data(&mut self, op: u32, out: &mut [u8]) {
        let at = self.op_offset(op);
        let len = out.len().min(self.unit_bytes);
        self.memory.read(at, &mut out[..len]);
    }
}
