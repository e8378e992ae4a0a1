//! [`VectorFlash`]: [`ftl::Flash`] by vector commands on a queue pair.
//!
//! Owns the queue pair, the registered memory of commands, and the table of requests whose memory
//! the translation layer reads and writes. Guarantees: commands go out in the order in which the
//! layer asked for them, so that on every parallel unit, whose commands the drive executes in the
//! order of their queue, an erase never overtakes a read or program; what does not fit the queue
//! waits and is not lost; every operation is reported exactly once.
//!
//! LightNVM paper section 4.2 (vector commands from the write buffer), 3.3 (vector I/O); OC section
//! 4.

use std::collections::VecDeque;
use std::sync::Arc;

use block::Payload;
use clock::Nanos;
use driver::{Completed, QueuePair, Tag};
use ftl::{Entry, Flash, OpId, ReadTarget};
use nvme::{MAX_VECTOR, PpaList, SglDescriptor, Sqe, Status};
use ring::{Iova, Port};

use super::address::Addresses;
use super::memory::{Scratch, Slots};
use super::requests::Requests;
use super::split::{Splits, WHOLE};

/// What has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    /// Part of a read.
    Part,
    /// A read; bit `i` stands for its `i`-th address.
    Read { op: OpId, failed: u64 },
    /// A program.
    Program { op: OpId, status: Status },
    /// An erase.
    Erase { op: OpId, status: Status },
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read,
    Program,
    Erase,
}

/// A command that is outstanding.
#[derive(Clone, Copy, Debug)]
struct Flight {
    op: OpId,
    what: What,
    /// The split read that it is part of, or [`WHOLE`].
    split: u32,
    /// Its first address among those of the read, and how many it has.
    first: u8,
    count: u8,
}

/// A command that does not fit the queue.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    /// Its addresses are the next of [`VectorFlash::waiting_addresses`].
    Read {
        flight: Flight,
        target: ReadTarget,
    },
    Program {
        op: OpId,
        chunk: u32,
        sector: u32,
        first_slot: u32,
    },
    Erase {
        op: OpId,
        chunk: u32,
    },
}

/// Flash at the other end of a queue pair.
#[derive(Debug)]
pub(crate) struct VectorFlash {
    queue: QueuePair,
    port: Arc<Port>,
    nsid: u32,
    addresses: Addresses,
    scratch: Scratch,
    /// The write buffer; none if contents are not kept.
    slots: Option<Slots>,
    /// Whose memory is meant by the layer's tags.
    pub(crate) requests: Requests,
    /// By tag.
    flights: Box<[Flight]>,
    waiting: VecDeque<Waiting>,
    waiting_addresses: VecDeque<(u32, u32)>,
    splits: Splits,
    /// Sectors of one command at most.
    max_sectors: usize,
    sector_bytes: u32,
}

/// Bits of the first `count` addresses.
fn mask(count: u8) -> u64 {
    u64::MAX >> (MAX_VECTOR - count.clamp(1, MAX_VECTOR))
}

/// The addresses of a command that failed: those that the completion names, or all if it failed as a
/// whole. A read that needed much error correction did not fail.
#[inline]
pub(crate) fn failed_addresses(done: &Completed, count: u8) -> u64 {
    if done.status.is(Status::HIGH_ECC) {
        return 0;
    }
    let named = done.result & mask(count);
    if done.status.is_success() || named != 0 && done.status.is_media_error() {
        named
    } else {
        mask(count)
    }
}

impl VectorFlash {
    /// Flash at the other end of `queue`, which has nothing outstanding.
    pub(crate) fn new(
        queue: QueuePair,
        port: Arc<Port>,
        nsid: u32,
        addresses: Addresses,
        (scratch, slots): (Scratch, Option<Slots>),
        requests: Requests,
        max_sectors: u32,
    ) -> VectorFlash {
        let tags = usize::from(queue.capacity());
        let blank = Flight { op: OpId(0), what: What::Read, split: WHOLE, first: 0, count: 0 };
        VectorFlash {
            flights: vec![blank; tags].into(),
            waiting: VecDeque::with_capacity(tags),
            waiting_addresses: VecDeque::with_capacity(tags),
            splits: Splits::default(),
            max_sectors: max_sectors.clamp(1, MAX_VECTOR.into()) as usize,
            sector_bytes: addresses.shape().sector_bytes,
            queue,
            port,
            nsid,
            addresses,
            scratch,
            slots,
            requests,
        }
    }

    /// The queue pair, for its counters.
    pub(crate) fn queue(&self) -> &QueuePair {
        &self.queue
    }

    /// The connection to the drive.
    pub(crate) fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Gives the queue pair back, and the requests that have not ended.
    pub(crate) fn into_parts(self) -> (QueuePair, Requests) {
        (self.queue, self.requests)
    }

    /// Whether commands wait for room in the queue.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Tells the drive of what was submitted, and gives back what was reaped. Returns whether
    /// something was submitted.
    #[inline]
    pub(crate) fn ring(&mut self, reaped: bool) -> bool {
        let rang = self.queue.ring();
        if !rang && reaped {
            self.queue.release();
        }
        rang
    }

    /// Takes the next command that has ended.
    #[inline]
    pub(crate) fn reap(&mut self) -> Option<Ended> {
        let done = self.queue.reap()?;
        // The queue pair returns what it was given: the tag.
        let Flight { op, what, split, first, count } = self.flights[done.user as usize];
        let failed = failed_addresses(&done, count);
        Some(match what {
            What::Read if split == WHOLE => Ended::Read { op, failed },
            What::Read => match self.splits.end(split, failed << first) {
                Some((op, failed)) => Ended::Read { op, failed },
                None => Ended::Part,
            },
            What::Program => Ended::Program { op, status: status(&done, failed) },
            What::Erase => Ended::Erase { op, status: status(&done, failed) },
        })
    }

    /// Submits what waits, as far as the queue has room.
    pub(crate) fn send_waiting(&mut self) {
        while let Some(&next) = self.waiting.front() {
            let sent = match next {
                Waiting::Read { flight, target } => {
                    let count = usize::from(flight.count);
                    let mut addresses = [(0, 0); MAX_VECTOR as usize];
                    for (to, from) in
                        addresses.iter_mut().zip(self.waiting_addresses.range(..count))
                    {
                        *to = *from;
                    }
                    let sent = self.send_read(flight, &addresses[..count], target);
                    if sent {
                        self.waiting_addresses.drain(..count);
                    }
                    sent
                }
                Waiting::Program { op, chunk, sector, first_slot } => {
                    self.send_program(op, chunk, sector, first_slot)
                }
                Waiting::Erase { op, chunk } => self.send_erase(op, chunk),
            };
            if !sent {
                return;
            }
            self.waiting.pop_front();
        }
    }

    #[inline]
    fn submit(&mut self, tag: Tag, sqe: Sqe, flight: Flight) -> bool {
        // The tag is free until the command is taken.
        self.flights[usize::from(tag.0)] = flight;
        self.queue.submit(sqe, tag.0.into()).is_ok()
    }

    #[inline]
    fn bit_bucket(&self, sectors: usize) -> SglDescriptor {
        SglDescriptor::BitBucket { length: sectors as u32 * self.sector_bytes }
    }

    fn send_read(&mut self, flight: Flight, addresses: &[(u32, u32)], target: ReadTarget) -> bool {
        let Some(tag) = self.queue.next_tag() else { return false };
        let ppas = addresses.iter().map(|(psn, _)| self.addresses.sector(*psn));
        let mut sqe = Sqe::vector_read(self.nsid, self.scratch.list(tag.0, ppas));
        let places = addresses.iter().map(|(_, place)| *place);
        let data = match (target, &self.slots) {
            (ReadTarget::Request(request), _) => match self.requests.data(request) {
                Payload::At(at) => self.scratch.spread(tag.0, at, self.sector_bytes, places),
                // Scattered payloads were refused.
                Payload::BitBucket | Payload::Scattered { .. } => self.bit_bucket(addresses.len()),
            },
            (ReadTarget::Slots, Some(slots)) => {
                // Consecutive, as `part` has made sure.
                let first = addresses[0].1;
                sqe.mptr = slots.oob_at(first).0.into();
                let length = addresses.len() as u32 * self.sector_bytes;
                SglDescriptor::DataBlock { address: slots.data_at(first).0, length }
            }
            (ReadTarget::Slots, None) => self.bit_bucket(addresses.len()),
        };
        sqe.set_sgl(data);
        self.submit(tag, sqe, flight)
    }

    /// How many of the addresses one command can read.
    #[inline]
    fn part(&self, addresses: &[(u32, u32)], target: ReadTarget) -> usize {
        let most = addresses.len().min(self.max_sectors);
        match target {
            ReadTarget::Slots if self.slots.is_some() => {
                let first = addresses[0].1;
                let run = (first..).zip(&addresses[..most]).take_while(|(i, (_, slot))| i == slot);
                run.count()
            }
            _ => most,
        }
    }

    #[inline]
    fn start_read(&mut self, flight: Flight, addresses: &[(u32, u32)], target: ReadTarget) {
        if !self.waiting.is_empty() || !self.send_read(flight, addresses, target) {
            self.waiting.push_back(Waiting::Read { flight, target });
            self.waiting_addresses.extend(addresses);
        }
    }

    #[cold]
    fn read_in_parts(&mut self, op: OpId, addresses: &[(u32, u32)], target: ReadTarget) {
        let (mut parts, mut rest) = (0, addresses);
        while !rest.is_empty() {
            rest = &rest[self.part(rest, target)..];
            parts += 1;
        }
        let split = self.splits.begin(op, parts);
        let mut first = 0;
        while first < addresses.len() {
            let count = self.part(&addresses[first..], target);
            let flight =
                Flight { op, what: What::Read, split, first: first as u8, count: count as u8 };
            self.start_read(flight, &addresses[first..first + count], target);
            first += count;
        }
    }

    fn send_program(&mut self, op: OpId, chunk: u32, sector: u32, first_slot: u32) -> bool {
        let Some(tag) = self.queue.next_tag() else { return false };
        let shape = self.addresses.shape();
        let (unit, first) = (shape.unit, shape.first_psn(chunk) + sector);
        let ppas = (0..unit as usize).map(|i| self.addresses.sector(first + i as u32));
        let mut sqe = Sqe::vector_write(self.nsid, self.scratch.list(tag.0, ppas));
        let length = unit * self.sector_bytes;
        let data = match &self.slots {
            Some(slots) => {
                sqe.mptr = slots.oob_at(first_slot).0.into();
                SglDescriptor::DataBlock { address: slots.data_at(first_slot).0, length }
            }
            None => SglDescriptor::BitBucket { length },
        };
        sqe.set_sgl(data);
        let count = unit as u8;
        self.submit(tag, sqe, Flight { op, what: What::Program, split: WHOLE, first: 0, count })
    }

    fn send_erase(&mut self, op: OpId, chunk: u32) -> bool {
        let Some(tag) = self.queue.next_tag() else { return false };
        let sqe = Sqe::vector_reset(self.nsid, PpaList::One(self.addresses.chunk(chunk)));
        self.submit(tag, sqe, Flight { op, what: What::Erase, split: WHOLE, first: 0, count: 1 })
    }

    /// Where sector number `sector` of a request is, if it is in memory and contents are kept.
    #[inline]
    fn place(&self, request: u64, sector: u32) -> Option<(&Slots, Iova)> {
        match (&self.slots, self.requests.data(request)) {
            (Some(slots), Payload::At(at)) => {
                Some((slots, at.offset(u64::from(sector) * u64::from(self.sector_bytes))))
            }
            _ => None,
        }
    }
}

/// The status of a program or erase: one failed address fails it.
fn status(done: &Completed, failed: u64) -> Status {
    if failed != 0 && done.status.is_success() { Status::WRITE_FAULT } else { done.status }
}

impl Flash for VectorFlash {
    fn keeps_data(&self) -> bool {
        self.slots.is_some()
    }

    fn program(
        &mut self,
        _now: Nanos,
        op: OpId,
        chunk: u32,
        sector: u32,
        first_slot: u32,
        entries: &[Entry],
    ) {
        if let Some(slots) = &self.slots {
            slots.describe(first_slot, entries);
        }
        if !self.waiting.is_empty() || !self.send_program(op, chunk, sector, first_slot) {
            self.waiting.push_back(Waiting::Program { op, chunk, sector, first_slot });
        }
    }

    #[inline]
    fn read(&mut self, _now: Nanos, op: OpId, addresses: &[(u32, u32)], target: ReadTarget) {
        if addresses.is_empty() || self.part(addresses, target) < addresses.len() {
            return self.read_in_parts(op, addresses, target);
        }
        let count = addresses.len() as u8;
        let flight = Flight { op, what: What::Read, split: WHOLE, first: 0, count };
        self.start_read(flight, addresses, target);
    }

    fn erase(&mut self, _now: Nanos, op: OpId, chunk: u32) {
        if !self.waiting.is_empty() || !self.send_erase(op, chunk) {
            self.waiting.push_back(Waiting::Erase { op, chunk });
        }
    }

    #[inline]
    fn take(&mut self, request: u64, sector: u32, slot: u32) {
        if let Some((slots, from)) = self.place(request, sector) {
            slots.copy_in(self.port.memory(), from, slot);
        }
    }

    #[inline]
    fn give(&mut self, request: u64, sector: u32, slot: u32) {
        if let Some((slots, to)) = self.place(request, sector) {
            slots.copy_out(self.port.memory(), slot, to);
        }
    }

    fn give_zeroes(&mut self, request: u64, sector: u32) {
        if let Some((_, to)) = self.place(request, sector)
            && let Ok(to) = self.port.memory().find(to, self.sector_bytes.into())
        {
            to.region.fill(to.offset, self.sector_bytes as usize, 0);
        }
    }

    fn store(&mut self, slot: u32, bytes: &[u8]) {
        if let Some(slots) = &self.slots {
            slots.store(slot, bytes);
        }
    }

    /// The data is where the read put it: in the slot.
    fn moved(&mut self, _psn: u32, slot: u32) -> u64 {
        let oob = self.slots.as_ref().and_then(|s| s.described(slot));
        oob.map_or(0, |oob| oob.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_says_which_addresses_failed() {
        let done = |result, status| Completed { user: 0, result, status };
        let failed = |result, status, count| failed_addresses(&done(result, status), count);
        assert_eq!(failed(0, Status::SUCCESS, 64), 0);
        assert_eq!(failed(0b100, Status::UNRECOVERED_READ, 3), 0b100);
        assert_eq!(failed(0b1000, Status::UNRECOVERED_READ, 3), 0b111, "none of its own");
        assert_eq!(failed(0, Status::UNRECOVERED_READ, 64), u64::MAX);
        assert_eq!(failed(1, Status::INVALID_FIELD, 2), 0b11, "refused as a whole");
        assert_eq!(failed(0b1, Status::HIGH_ECC, 2), 0);
        assert_eq!(failed(0b10, Status::SUCCESS, 2), 0b10, "a drive that contradicts itself");
        assert_eq!(status(&done(0b10, Status::SUCCESS), 0b10), Status::WRITE_FAULT);
    }
}
