//! [`BlockBackedDrive`]: the drive's end of a queue pair of vector commands, that carries them out on a block
//! device: sectors by physical address are the device's sectors, one chunk behind the other.
//!
//! For what a layer costs, not for what it stores: no data goes from the host's memory to the device or back
//! (requests go to one piece of memory of the device's own), chunks are reset at once, and nothing that
//! a medium would refuse is. Commands end when the device has carried out all of their parts.

use std::collections::VecDeque;
use std::sync::Arc;

use block::{BlockDevice, Payload, Request};
use clock::Nanos;
use driver::ControllerInfo;
use nvme::{Cqe, Geometry, IoCommand, Ppa, PpaFormat, PpaList, Sqe, Status};
use ring::{CqProducer, Iova, Port, SqConsumer};

use super::super::BenchError;
use super::super::echo::QueuePairMemory;
use super::setup;

/// Sectors of a vector command at most.
const VECTOR_SECTORS_MAX: usize = nvme::MAX_VECTOR_ADDRESSES as usize;

/// A command under way.
#[derive(Clone, Copy, Debug)]
struct Command {
    cid: u16,
    opcode: u8,
    /// Requests of it that have not ended.
    requests_remaining: u32,
    status: Status,
}

/// A drive of vector commands on a block device.
#[derive(Debug)]
pub struct BlockBackedDrive<D> {
    sq: SqConsumer,
    cq: CqProducer,
    qid: u16,
    port: Arc<Port>,
    geometry: Geometry,
    format: PpaFormat,
    device: D,
    /// Where the device's requests have their data.
    data: Payload,
    /// Sectors of the device for one of the drive.
    sectors_ratio: u64,
    /// Sectors of the drive in one request at most.
    sectors_max: u64,
    commands: Vec<Command>,
    free: Vec<u32>,
    /// What the device had no room for.
    backlog: VecDeque<Request>,
    completed: VecDeque<Cqe>,
    /// How the first command ended that did not end well, and what it was.
    failed: Option<(u8, Status)>,
}

impl<D: BlockDevice> BlockBackedDrive<D> {
    /// The other end of `wire`, as the drive that `info` describes; `data` is memory of the device for the
    /// longest command.
    ///
    /// # Errors
    /// [`BenchError`]: the device is too small, or its sectors are too large.
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

    /// The opcode of the first command that did not end well, and how it ended.
    pub fn failed(&self) -> Option<(u8, Status)> {
        self.failed
    }

    /// Takes commands, and answers those that have ended. Returns whether anything moved.
    pub fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        // A queue with a wild doorbell stands still; whoever waits for it is at fault.
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
        // One part is the look at the command itself: it has not ended before all parts are known.
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

    /// The sectors of the drive that a command names, how many, and whether it writes them.
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
            // Nothing of the device is to be done for these.
            IoCommand::Flush
            | IoCommand::VectorReset { .. }
            | IoCommand::DatasetManagement { .. } => Ok((0, false)),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Requests for the sectors, of which neighbours go together.
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
