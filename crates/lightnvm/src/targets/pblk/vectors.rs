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
use driver::QueuePair;
use ftl::{Flash, Oob, OpId, ReadTarget, WriteUnit};
use nvme::{MAX_VECTOR, Ppa, Status};
use ring::{Iova, Port};
use tracepoint::Event;

use super::memory::{Slots, Trims};
use super::requests::Requests;
use super::split::Splits;
use super::waits::Waits;
use crate::vector::{Addresses, Sectors, VectorEnded, VectorQueue};

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
    /// Telling the drive of trims.
    Trim { status: Status },
    /// Sectors were read to see whether they can be; bit `i` stands for the `i`-th.
    Scrub { failed: u64, high_ecc: bool },
    /// A command that is not the translation layer's.
    Aside(VectorEnded),
}

/// What a command is for: its 64 bits travel with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    /// With its name among the reads that are counted, plus 1; 0 for one that is not.
    Read {
        op: OpId,
        wait: u32,
    },
    Program(OpId),
    Erase(OpId),
    Trim,
    Scrub,
    /// Of somebody beside the layer, who has one under way at most.
    Aside,
    /// A part of a split read, from this address of it on.
    Part {
        split: u32,
        first: u8,
    },
}

/// Bits of a counted read's name: there are no more reads than requests and tags.
const WAIT: u32 = (1 << 30) - 1;

impl Flight {
    fn to_bits(self) -> u64 {
        match self {
            Flight::Read { op, wait } => u64::from(wait & WAIT) << 32 | u64::from(op.0),
            Flight::Program(op) => 1 << 62 | u64::from(op.0),
            Flight::Erase(op) => 2 << 62 | u64::from(op.0),
            Flight::Trim => 2 << 62 | 1 << 61,
            Flight::Scrub => 2 << 62 | 1 << 60,
            Flight::Aside => 2 << 62 | 1 << 59,
            Flight::Part { split, first } => 3 << 62 | u64::from(first) << 32 | u64::from(split),
        }
    }

    fn from_bits(bits: u64) -> Flight {
        let op = OpId(bits as u32);
        match bits >> 62 {
            0 => Flight::Read { op, wait: (bits >> 32) as u32 & WAIT },
            1 => Flight::Program(op),
            2 if bits >> 61 & 1 != 0 => Flight::Trim,
            2 if bits >> 60 & 1 != 0 => Flight::Scrub,
            2 if bits >> 59 & 1 != 0 => Flight::Aside,
            2 => Flight::Erase(op),
            _ => Flight::Part { split: bits as u32, first: (bits >> 32) as u8 },
        }
    }
}

/// Reports a flash operation that the translation layer asks for.
#[inline(always)]
fn trace_op(flight: Flight, op: OpId, request: Option<u64>, unit: Option<&WriteUnit<'_>>) {
    tracepoint::trace(|| Event::TargetOp {
        user: flight.to_bits(),
        cause: op.cause(),
        request,
        lba: unit.and_then(WriteUnit::first_lba),
    });
}

/// The request whose memory a read fills, if it is one's.
#[inline(always)]
fn request_of(target: ReadTarget) -> Option<u64> {
    match target {
        ReadTarget::Request(request) => Some(request),
        ReadTarget::Slots => None,
    }
}

/// A command that does not fit the queue.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    /// Its addresses are the next `count` of [`VectorFlash::waiting_addresses`].
    Read {
        flight: Flight,
        count: usize,
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
    Trim {
        sequence: u64,
    },
}

/// Flash at the other end of a queue pair.
#[derive(Debug)]
pub(crate) struct VectorFlash {
    queue: VectorQueue,
    addresses: Addresses,
    /// The write buffer; none if contents are not kept.
    slots: Option<Slots>,
    /// Trims on their way to the drive's own map; none if it keeps none.
    trims: Option<Trims>,
    /// Whose memory is meant by the layer's tags.
    pub(crate) requests: Requests,
    waiting: VecDeque<Waiting>,
    waiting_addresses: VecDeque<(u32, u32)>,
    splits: Splits,
    /// Users' reads by parallel unit, if somebody asks.
    waits: Option<Waits>,
}

impl VectorFlash {
    /// Takes over what is in the write buffer of flash at rest: of reads and trims nothing is left then.
    /// Returns whether it could.
    pub(super) fn adopt(&mut self, other: &VectorFlash) -> bool {
        let parts = |flash: &VectorFlash| (flash.trims.is_some(), flash.waits.is_some());
        if parts(self) != parts(other) || self.is_waiting() || other.is_waiting() {
            return false;
        }
        match (&self.slots, &other.slots) {
            (Some(slots), Some(others)) => slots.adopt(others),
            (None, None) => true,
            _ => false,
        }
    }

    /// Flash at the other end of `queue`, which has nothing outstanding.
    pub(crate) fn new(
        queue: VectorQueue,
        addresses: Addresses,
        slots: Option<Slots>,
        trims: Option<Trims>,
        requests: Requests,
        waits: Option<Waits>,
    ) -> VectorFlash {
        let tags = usize::from(queue.queue().capacity());
        VectorFlash {
            waiting: VecDeque::with_capacity(tags),
            waiting_addresses: VecDeque::with_capacity(tags),
            splits: Splits::default(),
            waits,
            queue,
            addresses,
            slots,
            trims,
            requests,
        }
    }

    /// The queue pair, for its counters.
    pub(crate) fn queue(&self) -> &QueuePair {
        self.queue.queue()
    }

    /// The connection to the drive.
    pub(crate) fn port(&self) -> &Arc<Port> {
        self.queue.port()
    }

    /// Gives the queue pair back, and the requests that have not ended.
    pub(crate) fn into_parts(self) -> (QueuePair, Requests) {
        (self.queue.into_queue(), self.requests)
    }

    /// Whether commands wait for room in the queue.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Tells the drive of what was submitted, and gives back what was reaped. Returns whether
    /// something was submitted.
    #[inline]
    pub(crate) fn ring(&mut self, reaped: bool) -> bool {
        self.queue.ring(reaped)
    }

    /// Takes the next command that has ended.
    #[inline]
    pub(crate) fn reap(&mut self) -> Option<Ended> {
        let done = self.queue.reap()?;
        let (failed, status) = (done.failed, done.status);
        tracepoint::trace(|| Event::TargetOpEnded { user: done.user });
        Some(match Flight::from_bits(done.user) {
            Flight::Read { op, wait } => {
                self.end_wait(wait);
                Ended::Read { op, failed }
            }
            Flight::Program(op) => Ended::Program { op, status },
            Flight::Erase(op) => Ended::Erase { op, status },
            Flight::Trim => Ended::Trim { status },
            Flight::Scrub => Ended::Scrub { failed, high_ecc: done.high_ecc },
            Flight::Aside => Ended::Aside(done),
            Flight::Part { split, first } => match self.splits.end(split, failed << first) {
                Some((op, wait, failed)) => {
                    self.end_wait(wait);
                    Ended::Read { op, failed }
                }
                None => Ended::Part,
            },
        })
    }

    /// A user's read is no longer under way.
    #[inline]
    fn end_wait(&mut self, wait: u32) {
        if let (Some(waits), Some(id)) = (&mut self.waits, wait.checked_sub(1)) {
            waits.end(id);
        }
    }

    /// Submits what waits, as far as the queue has room.
    pub(crate) fn send_waiting(&mut self) {
        while let Some(&next) = self.waiting.front() {
            let sent = match next {
                Waiting::Read { flight, count, target } => {
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
                Waiting::Trim { sequence } => self.send_trim(sequence),
            };
            if !sent {
                return;
            }
            self.waiting.pop_front();
        }
    }

    #[inline]
    fn send_read(&mut self, flight: Flight, addresses: &[(u32, u32)], target: ReadTarget) -> bool {
        match (addresses, target) {
            (&[(psn, sector)], ReadTarget::Request(request)) => {
                self.send_one(flight, psn, request, sector)
            }
            _ => self.send_many(flight, addresses, target),
        }
    }

    /// One sector, into a request's memory.
    #[inline]
    fn send_one(&mut self, flight: Flight, psn: u32, request: u64, sector: u32) -> bool {
        let data = match self.requests.data(request) {
            (Payload::At(base), spread) => {
                let bytes = u64::from(spread.place(sector)) * u64::from(self.queue.sector_bytes());
                Sectors::Run(base.offset(bytes))
            }
            // Scattered payloads were refused.
            _ => Sectors::Nowhere,
        };
        let ppa = std::iter::once(self.addresses.sector(psn));
        self.queue.read(ppa, data, None, flight.to_bits()).is_ok()
    }

    fn send_many(&mut self, flight: Flight, addresses: &[(u32, u32)], target: ReadTarget) -> bool {
        let mut places = [0; MAX_VECTOR as usize];
        let (mut data, mut oob) = (Sectors::Nowhere, None);
        match (target, &self.slots) {
            // Scattered payloads were refused.
            (ReadTarget::Request(request), _) => {
                if let (Payload::At(base), spread) = self.requests.data(request) {
                    for (to, (_, sector)) in places.iter_mut().zip(addresses) {
                        *to = spread.place(*sector);
                    }
                    data = Sectors::Spread { base, places: &places[..addresses.len()] };
                }
            }
            (ReadTarget::Slots, Some(slots)) => {
                // Consecutive, as `part` has made sure.
                let first = addresses[0].1;
                (data, oob) = (Sectors::Run(slots.data_at(first)), Some(slots.oob_at(first)));
            }
            (ReadTarget::Slots, None) => {}
        }
        let ppas = addresses.iter().map(|(psn, _)| self.addresses.sector(*psn));
        self.queue.read(ppas, data, oob, flight.to_bits()).is_ok()
    }

    /// How many of the addresses one command can read.
    #[inline]
    fn part(&self, addresses: &[(u32, u32)], target: ReadTarget) -> usize {
        let most = addresses.len().min(self.queue.max_sectors() as usize);
        match target {
            ReadTarget::Slots if self.slots.is_some() => {
                let first = addresses[0].1;
                let run = (first..).zip(&addresses[..most]).take_while(|(i, (_, slot))| i == slot);
                run.count()
            }
            _ => most,
        }
    }

    #[inline(always)]
    fn start_read(&mut self, flight: Flight, addresses: &[(u32, u32)], target: ReadTarget) {
        if !self.waiting.is_empty() || !self.send_read(flight, addresses, target) {
            self.waiting.push_back(Waiting::Read { flight, count: addresses.len(), target });
            self.waiting_addresses.extend(addresses);
        }
    }

    #[cold]
    fn read_in_parts(&mut self, op: OpId, wait: u32, addresses: &[(u32, u32)], target: ReadTarget) {
        let (mut parts, mut rest) = (0, addresses);
        while !rest.is_empty() {
            rest = &rest[self.part(rest, target)..];
            parts += 1;
        }
        let split = self.splits.begin(op, wait, parts);
        let mut first = 0;
        while first < addresses.len() {
            let count = self.part(&addresses[first..], target);
            let flight = Flight::Part { split, first: first as u8 };
            trace_op(flight, op, request_of(target), None);
            self.start_read(flight, &addresses[first..first + count], target);
            first += count;
        }
    }

    fn send_program(&mut self, op: OpId, chunk: u32, sector: u32, first_slot: u32) -> bool {
        let shape = self.addresses.shape();
        let (unit, first) = (shape.unit, shape.first_psn(chunk) + sector);
        // A unit is within a chunk, and a sector's number is in the lowest bits of its address.
        let base = self.addresses.sector(first).0;
        let ppas = (0..unit as usize).map(|i| Ppa(base + i as u64));
        let (data, oob) = match &self.slots {
            Some(slots) => {
                (Sectors::Run(slots.data_at(first_slot)), Some(slots.oob_at(first_slot)))
            }
            None => (Sectors::Nowhere, None),
        };
        self.queue.write(ppas, data, oob, Flight::Program(op).to_bits()).is_ok()
    }

    fn send_erase(&mut self, op: OpId, chunk: u32) -> bool {
        let chunk = std::iter::once(self.addresses.chunk(chunk));
        self.queue.reset(chunk, Flight::Erase(op).to_bits()).is_ok()
    }

    /// Reads sectors of a chunk without taking the data. Returns whether there was room for it: it waits
    /// for everybody else.
    pub(super) fn scrub(&mut self, chunk: u32, sector: u32, sectors: u32) -> bool {
        let first = self.addresses.shape().first_psn(chunk) + sector;
        let ppas = (0..sectors as usize).map(|i| self.addresses.sector(first + i as u32));
        self.waiting.is_empty()
            && self.queue.read(ppas, Sectors::Nowhere, None, Flight::Scrub.to_bits()).is_ok()
    }

    /// Lets somebody beside the translation layer submit a command, on chunks that are not the layer's.
    /// `send` is given what the command is to carry, and says whether it was taken. Returns whether there
    /// was room for it: it waits for everybody else.
    pub(super) fn aside(
        &mut self,
        send: impl FnOnce(&mut VectorQueue, &Addresses, u64) -> bool,
    ) -> bool {
        self.waiting.is_empty() && send(&mut self.queue, &self.addresses, Flight::Aside.to_bits())
    }

    /// Sectors of a command at most.
    pub(super) fn sectors_max(&self) -> u32 {
        self.queue.max_sectors()
    }

    /// The chunk and the sector in it that an address names, if there is such a one.
    pub(super) fn find(&self, at: nvme::Address) -> Option<(u32, u32)> {
        let g = self.addresses.geometry();
        let within = at.group < g.groups && at.pu < g.pus && at.chunk < g.chunks;
        let psn = (within && at.sector < g.sectors).then(|| u32::try_from(g.flat(at)).ok())??;
        let chunk = self.addresses.shape().chunk_of(psn);
        Some((chunk, at.sector))
    }

    fn send_trim(&mut self, sequence: u64) -> bool {
        let Some(trims) = &self.trims else { return true };
        let (at, runs) = (trims.at(), trims.runs());
        self.queue.map_trim(at, runs, sequence, Flight::Trim.to_bits()).is_ok()
    }

    /// Where sector number `sector` of a request is, if it is in memory and contents are kept.
    #[inline]
    fn place(&self, request: u64, sector: u32) -> Option<(&Slots, Iova)> {
        let slots = self.slots.as_ref()?;
        let (Payload::At(at), spread) = self.requests.data(request) else { return None };
        let bytes = u64::from(spread.place(sector)) * u64::from(self.queue.sector_bytes());
        Some((slots, at.offset(bytes)))
    }
}

impl Flash for VectorFlash {
    fn keeps_data(&self) -> bool {
        self.slots.is_some()
    }

    fn program(&mut self, _now: Nanos, op: OpId, unit: WriteUnit<'_>) {
        if let Some(slots) = &self.slots {
            slots.describe(&unit);
        }
        trace_op(Flight::Program(op), op, None, Some(&unit));
        let WriteUnit { chunk, sector, first_slot, .. } = unit;
        if !self.waiting.is_empty() || !self.send_program(op, chunk, sector, first_slot) {
            self.waiting.push_back(Waiting::Program { op, chunk, sector, first_slot });
        }
    }

    #[inline]
    fn read(&mut self, _now: Nanos, op: OpId, addresses: &[(u32, u32)], target: ReadTarget) {
        let wait = match (&mut self.waits, target) {
            (Some(waits), ReadTarget::Request(_)) => waits.begin(addresses) + 1,
            _ => 0,
        };
        if addresses.is_empty() || self.part(addresses, target) < addresses.len() {
            return self.read_in_parts(op, wait, addresses, target);
        }
        let flight = Flight::Read { op, wait };
        trace_op(flight, op, request_of(target), None);
        self.start_read(flight, addresses, target);
    }

    #[inline]
    fn reads_waiting(&self, pu: u32) -> u32 {
        self.waits.as_ref().map_or(0, |waits| waits.on(pu))
    }

    fn erase(&mut self, _now: Nanos, op: OpId, chunk: u32) {
        trace_op(Flight::Erase(op), op, None, None);
        if !self.waiting.is_empty() || !self.send_erase(op, chunk) {
            self.waiting.push_back(Waiting::Erase { op, chunk });
        }
    }

    fn forget(&mut self, _now: Nanos, _op: OpId, runs: &[(u32, u32)], sequence: u64) -> bool {
        let Some(trims) = &mut self.trims else { return false };
        trims.put(runs);
        if !self.waiting.is_empty() || !self.send_trim(sequence) {
            self.waiting.push_back(Waiting::Trim { sequence });
        }
        true
    }

    #[inline]
    fn take(&mut self, request: u64, sector: u32, slot: u32) {
        if let Some((slots, from)) = self.place(request, sector) {
            slots.copy_in(self.port().memory(), from, slot);
        }
    }

    #[inline]
    fn give(&mut self, request: u64, sector: u32, slot: u32) {
        if let Some((slots, to)) = self.place(request, sector) {
            slots.copy_out(self.port().memory(), slot, to);
        }
    }

    fn give_zeroes(&mut self, request: u64, sector: u32) {
        if let Some((_, to)) = self.place(request, sector)
            && let Ok(to) = self.port().memory().find(to, self.queue.sector_bytes().into())
        {
            to.region.fill(to.offset, self.queue.sector_bytes() as usize, 0);
        }
    }

    fn store(&mut self, slot: u32, bytes: &[u8]) {
        if let Some(slots) = &self.slots {
            slots.store(slot, bytes);
        }
    }

    fn load(&mut self, slot: u32, out: &mut [u8]) {
        match &self.slots {
            Some(slots) => slots.load(slot, out),
            None => out.fill(0),
        }
    }

    /// The data is where the read put it: in the slot.
    fn moved(&mut self, _psn: u32, _slot: u32) {}

    /// They came with the data.
    fn load_oob(&mut self, _psn: u32, slot: u32, out: &mut [u8; Oob::BYTES]) {
        if let Some(slots) = &self.slots {
            slots.load_oob(slot, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flight_survives_its_bits() {
        for flight in [
            Flight::Read { op: OpId(u32::MAX), wait: 0 },
            Flight::Read { op: OpId(5), wait: WAIT },
            Flight::Program(OpId(1)),
            Flight::Erase(OpId(0)),
            Flight::Trim,
            Flight::Scrub,
            Flight::Aside,
            Flight::Part { split: 7, first: 63 },
        ] {
            assert_eq!(Flight::from_bits(flight.to_bits()), flight);
        }
    }
}
