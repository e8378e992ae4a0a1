//! Compare, Verify, Write Uncorrectable and Copy among the oracle's commands, through a queue pair of
//! their own.

use std::ops::Range;
use std::sync::Arc;

use controller::WriteBuffer;
use driver::QueuePair;
use mem::{Iova, SharedRegion};
use nvme::{CopyRange, SglDescriptor, Sqe, Status};
use rng::Rng;

use super::case::{Case, Medium, SECTORS};
use super::sector::{UNREADABLE, encode};

/// Commands in flight at most.
const SLOTS: usize = 4;

/// A command in flight.
#[derive(Clone, Debug)]
struct CheckInFlight {
    /// Blocks that it reads.
    reads: Vec<Range<usize>>,
    /// Blocks that it changes, and the sequence numbers of their values.
    changes: Range<usize>,
    value_seqs: Vec<u64>,
    durable: bool,
    /// The possible statuses.
    expected: Vec<Status>,
}

/// The counts of what the commands did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CheckCounts {
    pub(crate) mismatches: u64,
    pub(crate) unreadable: u64,
    pub(crate) copies: u64,
}

/// The queue pair and the memory of the commands.
#[derive(Debug)]
pub(crate) struct BlockCommands {
    rng: Rng,
    queue: Option<QueuePair>,
    memory: Arc<SharedRegion>,
    at: Iova,
    in_flight: Vec<Option<CheckInFlight>>,
    pub(crate) counts: CheckCounts,
}

impl BlockCommands {
    pub(super) fn new(seed: u64, sector_bytes: usize) -> BlockCommands {
        BlockCommands {
            rng: Rng::new(seed ^ 0xb10c_c0de),
            queue: None,
            memory: SharedRegion::anonymous(SLOTS * SECTORS as usize * sector_bytes).unwrap(),
            at: Iova(0),
            in_flight: vec![None; SLOTS],
            counts: CheckCounts::default(),
        }
    }

    /// Takes a new queue pair, after the drive was powered on.
    pub(super) fn attach(&mut self, queue: QueuePair, space: &mem::AddressSpace) {
        self.queue = Some(queue);
        self.at = space.register(&self.memory).unwrap();
        self.in_flight.fill(None);
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.in_flight.iter().any(Option::is_some)
    }
}

impl Case {
    /// Draws a command, if commands of these kinds are drawn, and submits it.
    pub(super) fn submit_block_command(&mut self) {
        let Some(mut own) = self.block_commands.take() else { return };
        let slot = own.in_flight.iter().position(Option::is_none);
        if let Some(slot) = slot.filter(|_| own.rng.chance(0.3)) {
            let drawn = match own.rng.below(8) {
                0 | 1 => self.draw_compare(&mut own, slot),
                2 => self.draw_verify(),
                3 | 4 if self.unit_blocks == 1 => self.draw_mark(),
                _ => self.draw_copy(&mut own, slot),
            };
            if let Some((mut sqe, bytes, flight)) = drawn {
                let address = own.at.offset(self.check_slot(slot) as u64).0;
                sqe.set_sgl(SglDescriptor::DataBlock { address, length: bytes as u32 });
                let queue = own.queue.as_mut().unwrap();
                queue.submit(sqe, slot as u64).unwrap();
                queue.ring();
                own.in_flight[slot] = Some(flight);
            }
        }
        self.block_commands = Some(own);
    }

    fn check_slot(&self, slot: usize) -> usize {
        slot * SECTORS as usize * self.sector_bytes
    }

    /// Takes a range that is to be read until the command completes.
    fn take_reads(&mut self) -> Option<Range<usize>> {
        let (lba, n) = self.range(false)?;
        let range = lba as usize..lba as usize + n as usize;
        self.oracle[range.clone()].iter_mut().for_each(|sector| sector.reading += 1);
        Some(range)
    }

    fn has_unreadable(&self, range: &Range<usize>) -> bool {
        self.oracle[range.clone()].iter().any(|sector| sector.model.value() == UNREADABLE)
    }

    fn draw_compare(
        &mut self,
        own: &mut BlockCommands,
        slot: usize,
    ) -> Option<(Sqe, usize, CheckInFlight)> {
        let range = self.take_reads()?;
        let mut bytes = vec![0; self.sector_bytes];
        for (i, lba) in range.clone().enumerate() {
            encode(self.oracle[lba].model.value(), &mut bytes);
            own.memory.write(self.check_slot(slot) + i * self.sector_bytes, &bytes);
        }
        let length = range.len() * self.sector_bytes;
        let mut expected = match self.has_unreadable(&range) {
            true => vec![Status::UNRECOVERED_READ],
            false => vec![Status::SUCCESS],
        };
        if own.rng.chance(0.5) {
            let at = self.check_slot(slot) + own.rng.below(length as u64) as usize;
            let mut byte = [0];
            own.memory.read(at, &mut byte);
            own.memory.write(at, &[byte[0] ^ 1]);
            expected.retain(|status| !status.is_success());
            expected.push(Status::COMPARE_FAILURE);
        }
        let sqe = Sqe::compare(1, range.start as u64, range.len() as u32);
        Some((sqe, length, CheckInFlight::reading(vec![range], expected)))
    }

    fn draw_verify(&mut self) -> Option<(Sqe, usize, CheckInFlight)> {
        let range = self.take_reads()?;
        let expected = match self.has_unreadable(&range) {
            true => Status::UNRECOVERED_READ,
            false => Status::SUCCESS,
        };
        let sqe = Sqe::verify(1, range.start as u64, range.len() as u32);
        Some((sqe, 0, CheckInFlight::reading(vec![range], vec![expected])))
    }

    fn draw_mark(&mut self) -> Option<(Sqe, usize, CheckInFlight)> {
        let (lba, n) = self.range(true)?;
        let range = lba as usize..lba as usize + n as usize;
        let sqe = Sqe::write_uncorrectable(1, lba, n);
        let values = vec![UNREADABLE; range.len()];
        Some((sqe, 0, self.change_flight(vec![], range, &values, false)))
    }

    fn draw_copy(
        &mut self,
        own: &mut BlockCommands,
        slot: usize,
    ) -> Option<(Sqe, usize, CheckInFlight)> {
        let mut sources = vec![];
        for _ in 0..1 + own.rng.below(3) {
            sources.extend(self.take_reads());
        }
        let blocks: usize = sources.iter().map(Range::len).sum();
        let values: Vec<u64> = sources
            .iter()
            .flat_map(|range| &self.oracle[range.clone()])
            .map(|sector| sector.model.value())
            .collect();
        let room = self.oracle.len().checked_sub(blocks).filter(|_| blocks > 0);
        let to = room.map(|room| own.rng.below(room as u64 + 1) as usize);
        let is_free = |to: &usize| {
            let sectors = &self.oracle[*to..*to + blocks];
            sectors.iter().all(|sector| !sector.changing && sector.reading == 0)
        };
        let Some(to) = to.filter(is_free) else {
            self.release_reads(&sources);
            return None;
        };
        for (i, source) in sources.iter().enumerate() {
            let range = CopyRange::new(source.start as u64, source.len() as u32);
            own.memory.write(self.check_slot(slot) + i * CopyRange::BYTES, &range.to_bytes());
        }
        let mut sqe = Sqe::copy(1, to as u64, sources.len() as u16);
        let fua = own.rng.chance(0.2);
        if fua {
            sqe.set_fua();
        }
        let bytes = sources.len() * CopyRange::BYTES;
        let flight = match values.contains(&UNREADABLE) {
            true => CheckInFlight::reading(sources, vec![Status::UNRECOVERED_READ]),
            false => self.change_flight(sources, to..to + blocks, &values, fua),
        };
        Some((sqe, bytes, flight))
    }

    /// Returns a command that changes blocks to these values.
    fn change_flight(
        &mut self,
        reads: Vec<Range<usize>>,
        changes: Range<usize>,
        values: &[u64],
        fua: bool,
    ) -> CheckInFlight {
        let durable = match self.config.write_buffer {
            _ if matches!(self.medium, Medium::CrashedHost { .. }) => fua,
            WriteBuffer::None => true,
            WriteBuffer::Volatile { .. } => fua,
            WriteBuffer::PowerLossProtected { .. } => fua || self.medium == Medium::Memory,
        };
        let mut value_seqs = Vec::with_capacity(values.len());
        for (sector, value) in self.oracle[changes.clone()].iter_mut().zip(values) {
            sector.changing = true;
            value_seqs.push(sector.model.send_next(*value));
        }
        let mut expected = vec![Status::SUCCESS];
        if self.failing {
            expected.push(Status::WRITE_PROTECTED.do_not_retry());
        }
        CheckInFlight { reads, changes, value_seqs, durable, expected }
    }

    fn release_reads(&mut self, reads: &[Range<usize>]) {
        for range in reads {
            self.oracle[range.clone()].iter_mut().for_each(|sector| sector.reading -= 1);
        }
    }

    /// Processes the completions of these commands; with `only_successes`, those that tell of a
    /// change before a power cut. Returns whether there were any.
    pub(super) fn reap_block_commands(&mut self, only_successes: bool) -> bool {
        let Some(mut own) = self.block_commands.take() else { return false };
        let mut ended = false;
        let queue = own.queue.as_mut().unwrap();
        while let Some(done) = queue.reap() {
            ended = true;
            let flight = own.in_flight[done.user as usize].take().unwrap();
            if only_successes && !done.status.is_success() {
                continue;
            }
            assert!(
                flight.expected.contains(&done.status),
                "{}: {flight:?} after {} cuts {:?}",
                done.status,
                self.cuts,
                self.config
            );
            own.counts.mismatches += u64::from(done.status == Status::COMPARE_FAILURE);
            own.counts.unreadable += u64::from(done.status == Status::UNRECOVERED_READ);
            let is_copy = !flight.reads.is_empty() && !flight.changes.is_empty();
            own.counts.copies += u64::from(is_copy && done.status.is_success());
            self.release_reads(&flight.reads);
            self.finish_change(&flight, done.status);
        }
        own.queue.as_mut().unwrap().release();
        self.block_commands = Some(own);
        ended
    }

    fn finish_change(&mut self, flight: &CheckInFlight, status: Status) {
        if !status.is_success() {
            let range = (flight.changes.start as u64, flight.changes.len() as u32);
            return self.failed_ranges.push(range);
        }
        let sectors = self.oracle[flight.changes.clone()].iter_mut();
        for (sector, number) in sectors.zip(&flight.value_seqs) {
            sector.changing = false;
            sector.model.complete_at(*number);
            if flight.durable {
                sector.model.set_durable(*number);
            }
        }
    }
}

impl CheckInFlight {
    fn reading(reads: Vec<Range<usize>>, expected: Vec<Status>) -> CheckInFlight {
        let (changes, value_seqs) = (0..0, vec![]);
        CheckInFlight { reads, changes, value_seqs, durable: false, expected }
    }
}
