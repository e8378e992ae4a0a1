//! [`BlockBackedDrive`]: the drive's end of a queue pair of vector commands, which it executes on a
//! block device. Physical sectors are mapped to the device's sectors, chunk by chunk.
//!
//! It serves to measure the cost of an FTL and does not store data. Requests use one buffer of the
//! device, so no data moves between the host's memory and the device. Chunks are reset immediately,
//! and no error of a medium is emulated. A command completes when the device has completed all of
//! its fragments.

use std::collections::VecDeque;
use std::sync::Arc;

use block::{BlockDevice, Payload, Request};
use driver::ControllerInfo;
use mem::Iova;
use nvme::{Cqe, Geometry, IoCommand, Ppa, PpaFormat, PpaList, Sqe, Status};
use time::Nanos;
use transport::{CqProducer, Port, SqConsumer};

use crate::BenchError;
use crate::echo::QueuePairMemory;
use crate::lightnvm::setup;

/// Maximum number of sectors of a vector command.
const VECTOR_SECTORS_MAX: usize = nvme::MAX_VECTOR_ADDRESSES as usize;

/// An in-flight command.
#[derive(Clone, Copy, Debug)]
struct Command {
    cid: u16,
    opcode: u8,
    /// Number of its requests that have not completed.
    requests_remaining: u32,
    status: Status,
}

/// A drive for vector commands on a block device.
#[derive(Debug)]
pub struct BlockBackedDrive<D> {
    sq: SqConsumer,
    cq: CqProducer,
    qid: u16,
    port: Arc<Port>,
    geometry: Geometry,
    format: PpaFormat,
    device: D,
    /// Buffer of the device's requests.
    data: Payload,
    /// Number of device sectors per drive sector.
    sectors_ratio: u64,
    /// Maximum number of drive sectors per request.
    sectors_max: u64,
    commands: Vec<Command>,
    free: Vec<u32>,
    /// Requests that the device had no capacity for.
    backlog: VecDeque<Request>,
    completed: VecDeque<Cqe>,
    /// Opcode and status of the first failed command.
    failed: Option<(u8, Status)>,
}

impl<D: BlockDevice> BlockBackedDrive<D> {
    /// Returns the other end of `wire` as the drive that `info` describes. `data` is memory of the
    /// device for the longest command.
    ///
    /// # Errors
    /// [`BenchError`] if the device is too small, or if its sectors are too large.
    pub fn new(
        wire: &QueuePairMemory,
        info: &ControllerInfo,
        device: D,
        data: Payload,
    ) -> Result<BlockBackedDrive<D>, BenchError> {
        let Some(media) = &info.open_channel else { return Err(setup("no physical addresses")) };
        let limits = *device.limits();
        let ratio = u64::from(info.sector_bytes / limits.sector_bytes.max(1));
        if ratio == 0 || media.geometry.total_sectors() * ratio > limits.sectors {
            return Err(setup("the device is too small, or its sectors are over 4096 bytes"));
        }
        let longest = u64::from(limits.max_sectors) / ratio;
        if longest == 0 {
            return Err(setup("the device transfers less than 4096 bytes at a time"));
        }
        let (sq, cq) = wire.drive_rings()?;
        let slots = u32::from(wire.depth());
        let none = Command { cid: 0, opcode: 0, requests_remaining: 0, status: Status::SUCCESS };
        Ok(BlockBackedDrive {
            sq,
            cq,
            qid: wire.qid(),
            port: wire.port().clone(),
            geometry: media.geometry,
            format: media.format,
            device,
            data,
            sectors_ratio: ratio,
            sectors_max: longest,
            commands: vec![none; slots as usize],
            free: (0..slots).rev().collect(),
            backlog: VecDeque::with_capacity(slots as usize),
            completed: VecDeque::with_capacity(slots as usize),
            failed: None,
        })
    }

    /// Returns the opcode and the status of the first failed command.
    pub fn failed(&self) -> Option<(u8, Status)> {
        self.failed
    }

    /// Fetches commands and completes those that are done. Returns whether it made progress.
    pub fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        // A queue with an invalid doorbell stops; the fault is the host's.
        if self.sq.read_tail().is_ok() {
            while let Some(slot) = self.free.last().copied() {
                let Some(sqe) = self.sq.fetch() else { break };
                self.free.pop();
                self.begin(slot, &sqe);
                moved = true;
            }
        }
        while let Some(request) = self.backlog.front() {
            if self.device.submit(now, *request).is_err() {
                break;
            }
            self.backlog.pop_front();
            moved = true;
        }
        moved |= self.device.poll(now);
        while let Some(done) = self.device.reap() {
            self.complete_request(done.tag as u32, done.status);
            moved = true;
        }
        while let Some(cqe) = self.completed.front() {
            if self.cq.post(*cqe).is_err() {
                break;
            }
            self.completed.pop_front();
            moved = true;
        }
        moved
    }

    fn begin(&mut self, slot: u32, sqe: &Sqe) {
        // One fragment stands for the command itself, so that it does not complete before all
        // fragments are known.
        self.commands[slot as usize] = Command {
            cid: sqe.cid.get(),
            opcode: sqe.opcode,
            requests_remaining: 1,
            status: Status::SUCCESS,
        };
        let mut sectors = [0; VECTOR_SECTORS_MAX];
        let status = match self.sectors(sqe, &mut sectors) {
            Ok((count, writes)) => {
                self.send(slot, &sectors[..count], writes);
                Status::SUCCESS
            }
            Err(status) => status,
        };
        self.complete_request(slot, status);
    }

    /// Returns the drive sectors of a command, their number, and whether it writes them.
    fn sectors(
        &self,
        sqe: &Sqe,
        into: &mut [u64; VECTOR_SECTORS_MAX],
    ) -> Result<(usize, bool), Status> {
        let flat = |ppa| {
            let address = self.geometry.address(&self.format, ppa);
            address.map(|a| self.geometry.flat(a)).map_err(|_| Status::LBA_OUT_OF_RANGE)
        };
        let run = |slba, nlb: u32, into: &mut [u64; VECTOR_SECTORS_MAX]| {
            let (first, count) = (flat(Ppa(slba))?, nlb as usize);
            let into = into.get_mut(..count).ok_or(Status::INVALID_FIELD)?;
            into.iter_mut().zip(first..).for_each(|(sector, at)| *sector = at);
            Ok(count)
        };
        let list = |list: PpaList, into: &mut [u64; VECTOR_SECTORS_MAX]| {
            let count = usize::from(list.count());
            for (i, sector) in into.iter_mut().take(count).enumerate() {
                let ppa = match list {
                    PpaList::One(ppa) => ppa,
                    PpaList::List { at, .. } => {
                        let mut word = [0; 8];
                        let at = Iova(at).offset(i as u64 * 8);
                        let read = self.port.memory().read(at, &mut word);
                        read.map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                        Ppa(u64::from_le_bytes(word))
                    }
                };
                *sector = flat(ppa)?;
            }
            Ok(count)
        };
        match IoCommand::parse(sqe)? {
            IoCommand::VectorRead { addresses, .. } => Ok((list(addresses, into)?, false)),
            IoCommand::VectorWrite { addresses, .. } => Ok((list(addresses, into)?, true)),
            IoCommand::Read { slba, nlb, .. } => Ok((run(slba, nlb, into)?, false)),
            IoCommand::Write { slba, nlb, .. } => Ok((run(slba, nlb, into)?, true)),
            // These commands need no request to the device.
            IoCommand::Flush
            | IoCommand::VectorReset { .. }
            | IoCommand::DatasetManagement { .. } => Ok((0, false)),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Submits requests for the sectors; contiguous sectors are merged.
    fn send(&mut self, slot: u32, sectors: &[u64], writes: bool) {
        let mut rest = sectors;
        while let Some(first) = rest.first().copied() {
            let follows = |(i, sector): (usize, &u64)| *sector == first + i as u64;
            let run = rest.iter().enumerate().take_while(|(i, s)| follows((*i, s))).count() as u64;
            let run = run.min(self.sectors_max);
            let (lba, count) = (first * self.sectors_ratio, (run * self.sectors_ratio) as u32);
            self.backlog.push_back(match writes {
                false => Request::read(lba, count, self.data, slot.into()),
                true => Request::write(lba, count, self.data, slot.into()),
            });
            self.commands[slot as usize].requests_remaining += 1;
            rest = &rest[run as usize..];
        }
    }

    fn complete_request(&mut self, slot: u32, status: Status) {
        let Some(command) = self.commands.get_mut(slot as usize) else { return };
        if !status.is_success() {
            command.status = status;
            self.failed = self.failed.or(Some((command.opcode, status)));
        }
        command.requests_remaining -= 1;
        if command.requests_remaining == 0 {
            let Command { cid, status, .. } = *command;
            let sq_head = self.sq.head();
            self.completed.push_back(Cqe { result: 0, sq_head, sq_id: self.qid, cid, status });
            self.free.push(slot);
        }
    }
}
