//! [`VectorBackend`]: [`ftl::Flash`] by vector commands on a queue pair.
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
use ftl::{FlashBackend, Oob, OpToken, ReadDest, WriteUnit};
use nvme::{MAX_VECTOR_ADDRESSES, Ppa, Status};
use ring::{Iova, Port};
use tracepoint::Event;

use super::buffer_memory::{SlotMemory, TrimRanges};
use super::read_split::SplitReads;
use super::read_tracker::PuReadTracker;
use super::requests::PblkRequestTable;
use crate::vector::{Addresses, DataSegments, VectorCompletion, VectorQueue};

/// What has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BackendEvent {
    /// Part of a read.
    ReadFragment,
    /// A read; bit `i` stands for its `i`-th address.
    Read { op: OpToken, failed: u64 },
    /// A program.
    Program { op: OpToken, status: Status },
    /// An erase.
    Erase { op: OpToken, status: Status },
    /// Telling the drive of trims.
    Trim { status: Status },
    /// Sectors were read to see whether they can be; bit `i` stands for the `i`-th.
    Scrub { failed: u64, high_ecc: bool },
    /// A command that is not the translation layer's.
    Superblock(VectorCompletion),
}

/// What a command is for: its 64 bits travel with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandTag {
    /// With its name among the reads that are counted, plus 1; 0 for one that is not.
    Read {
        op: OpToken,
        tracker_id: u32,
    },
    Program(OpToken),
    Erase(OpToken),
    Trim,
    Scrub,
    /// Of somebody beside the layer, who has one under way at most.
    Superblock,
    /// A part of a split read, from this address of it on.
    ReadFragment {
        split: u32,
        first: u8,
    },
}

/// Bits of a counted read's name: there are no more reads than requests and tags.
const TRACKER_ID_MASK: u32 = (1 << 30) - 1;

impl CommandTag {
    fn to_bits(self) -> u64 {
        match self {
            CommandTag::Read { op, tracker_id: wait } => {
                u64::from(wait & TRACKER_ID_MASK) << 32 | u64::from(op.0)
            }
            CommandTag::Program(op) => 1 << 62 | u64::from(op.0),
            CommandTag::Erase(op) => 2 << 62 | u64::from(op.0),
            CommandTag::Trim => 2 << 62 | 1 << 61,
            CommandTag::Scrub => 2 << 62 | 1 << 60,
            CommandTag::Superblock => 2 << 62 | 1 << 59,
            CommandTag::ReadFragment { split, first } => {
                3 << 62 | u64::from(first) << 32 | u64::from(split)
            }
        }
    }

    fn from_bits(bits: u64) -> CommandTag {
        let op = OpToken(bits as u32);
        match bits >> 62 {
            0 => CommandTag::Read { op, tracker_id: (bits >> 32) as u32 & TRACKER_ID_MASK },
            1 => CommandTag::Program(op),
            2 if bits >> 61 & 1 != 0 => CommandTag::Trim,
            2 if bits >> 60 & 1 != 0 => CommandTag::Scrub,
            2 if bits >> 59 & 1 != 0 => CommandTag::Superblock,
            2 => CommandTag::Erase(op),
            _ => CommandTag::ReadFragment { split: bits as u32, first: (bits >> 32) as u8 },
        }
    }
}

/// Reports a flash operation that the translation layer asks for.
#[inline(always)]
fn trace_op(flight: CommandTag, op: OpToken, request: Option<u64>, unit: Option<&WriteUnit<'_>>) {
    tracepoint::trace(|| Event::TargetOp {
        user: flight.to_bits(),
        cause: op.cause(),
        request,
        lba: unit.and_then(WriteUnit::first_lba),
    });
}

/// The request whose memory a read fills, if it is one's.
#[inline(always)]
fn target_request(target: ReadDest) -> Option<u64> {
    match target {
        ReadDest::Host(request) => Some(request),
        ReadDest::Buffer => None,
    }
}

/// A command that does not fit the queue.
#[derive(Clone, Copy, Debug)]
enum DeferredCommand {
    /// Its addresses are the next `count` of [`VectorBackend::deferred_addresses`].
    Read {
        tag: CommandTag,
        count: usize,
        target: ReadDest,
    },
    Program {
        op: OpToken,
        chunk: u32,
        sector: u32,
        first_slot: u32,
    },
    Erase {
        op: OpToken,
        chunk: u32,
    },
    Trim {
        sequence: u64,
    },
}

/// Flash at the other end of a queue pair.
#[derive(Debug)]
pub(crate) struct VectorBackend {
    queue: VectorQueue,
    addresses: Addresses,
    /// The write buffer; none if contents are not kept.
    memory: Option<SlotMemory>,
    /// Trims on their way to the drive's own map; none if it keeps none.
    trim_ranges: Option<TrimRanges>,
    /// Whose memory is meant by the layer's tags.
    pub(crate) requests: PblkRequestTable,
    deferred: VecDeque<DeferredCommand>,
    deferred_addresses: VecDeque<(u32, u32)>,
    split_reads: SplitReads,
    /// Users' reads by parallel unit, if somebody asks.
    read_tracker: Option<PuReadTracker>,
}

impl VectorBackend {
    /// Takes over what is in the write buffer of flash at rest: of reads and trims nothing is left then.
    /// Returns whether it could.
    pub(super) fn clone_state_from(&mut self, other: &VectorBackend) -> bool {
        let parts =
            |flash: &VectorBackend| (flash.trim_ranges.is_some(), flash.read_tracker.is_some());
        if parts(self) != parts(other) || self.has_deferred() || other.has_deferred() {
            return false;
        }
        match (&self.memory, &other.memory) {
            (Some(slots), Some(others)) => slots.copy_from(others),
            (None, None) => true,
            _ => false,
        }
    }

    /// Flash at the other end of `queue`, which has nothing outstanding.
    pub(crate) fn new(
        queue: VectorQueue,
        addresses: Addresses,
        memory: Option<SlotMemory>,
        trim_ranges: Option<TrimRanges>,
        requests: PblkRequestTable,
        read_tracker: Option<PuReadTracker>,
    ) -> VectorBackend {
        let tags = usize::from(queue.queue().capacity());
        VectorBackend {
            deferred: VecDeque::with_capacity(tags),
            deferred_addresses: VecDeque::with_capacity(tags),
            split_reads: SplitReads::default(),
            read_tracker,
            queue,
            addresses,
            memory,
            trim_ranges,
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
    pub(crate) fn into_parts(self) -> (QueuePair, PblkRequestTable) {
        (self.queue.into_queue(), self.requests)
    }

    /// Whether commands wait for room in the queue.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Tells the drive of what was submitted, and gives back what was reaped. Returns whether
    /// something was submitted.
    #[inline]
    pub(crate) fn ring(&mut self, reaped: bool) -> bool {
        self.queue.ring(reaped)
    }

    /// Takes the next command that has ended.
    #[inline]
    pub(crate) fn reap(&mut self) -> Option<BackendEvent> {
        let done = self.queue.reap()?;
        let (failed, status) = (done.failed, done.status);
        tracepoint::trace(|| Event::TargetOpCompleted { user: done.user_data });
        Some(match CommandTag::from_bits(done.user_data) {
            CommandTag::Read { op, tracker_id: wait } => {
                self.untrack_read(wait);
                BackendEvent::Read { op, failed }
            }
            CommandTag::Program(op) => BackendEvent::Program { op, status },
            CommandTag::Erase(op) => BackendEvent::Erase { op, status },
            CommandTag::Trim => BackendEvent::Trim { status },
            CommandTag::Scrub => BackendEvent::Scrub { failed, high_ecc: done.high_ecc },
            CommandTag::Superblock => BackendEvent::Superblock(done),
            CommandTag::ReadFragment { split, first } => {
                match self.split_reads.complete_fragment(split, failed << first) {
                    Some((op, wait, failed)) => {
                        self.untrack_read(wait);
                        BackendEvent::Read { op, failed }
                    }
                    None => BackendEvent::ReadFragment,
                }
            }
        })
    }

    /// A user's read is no longer under way.
    #[inline]
    fn untrack_read(&mut self, wait: u32) {
        if let (Some(waits), Some(id)) = (&mut self.read_tracker, wait.checked_sub(1)) {
            waits.complete(id);
        }
    }

    /// Submits what waits, as far as the queue has room.
    pub(crate) fn submit_deferred(&mut self) {
        while let Some(&next) = self.deferred.front() {
            let sent = match next {
                DeferredCommand::Read { tag: flight, count, target } => {
                    let mut addresses = [(0, 0); MAX_VECTOR_ADDRESSES as usize];
                    for (to, from) in
                        addresses.iter_mut().zip(self.deferred_addresses.range(..count))
                    {
                        *to = *from;
                    }
                    let sent = self.send_read(flight, &addresses[..count], target);
                    if sent {
                        self.deferred_addresses.drain(..count);
                    }
                    sent
                }
                DeferredCommand::Program { op, chunk, sector, first_slot } => {
                    self.send_program(op, chunk, sector, first_slot)
                }
                DeferredCommand::Erase { op, chunk } => self.send_erase(op, chunk),
                DeferredCommand::Trim { sequence } => self.send_trim(sequence),
            };
            if !sent {
                return;
            }
            self.deferred.pop_front();
        }
    }

    #[inline]
    fn send_read(
        &mut self,
        flight: CommandTag,
        addresses: &[(u32, u32)],
        target: ReadDest,
    ) -> bool {
        match (addresses, target) {
            (&[(psn, sector)], ReadDest::Host(request)) => {
                self.send_one(flight, psn, request, sector)
            }
            _ => self.send_many(flight, addresses, target),
        }
    }

    /// One sector, into a request's memory.
    #[inline]
    fn send_one(&mut self, flight: CommandTag, psn: u32, request: u64, sector: u32) -> bool {
        let data = match self.requests.payload(request) {
            (Payload::Contiguous(base), spread) => {
                let bytes =
                    u64::from(spread.memory_sector(sector)) * u64::from(self.queue.sector_bytes());
                DataSegments::Contiguous(base.offset(bytes))
            }
            // Scattered payloads were refused.
            _ => DataSegments::BitBucket,
        };
        let ppa = std::iter::once(self.addresses.sector(psn));
        self.queue.read(ppa, data, None, flight.to_bits()).is_ok()
    }

    fn send_many(
        &mut self,
        flight: CommandTag,
        addresses: &[(u32, u32)],
        target: ReadDest,
    ) -> bool {
        let mut places = [0; MAX_VECTOR_ADDRESSES as usize];
        let (mut data, mut oob) = (DataSegments::BitBucket, None);
        match (target, &self.memory) {
            // Scattered payloads were refused.
            (ReadDest::Host(request), _) => {
                if let (Payload::Contiguous(base), spread) = self.requests.payload(request) {
                    for (to, (_, sector)) in places.iter_mut().zip(addresses) {
                        *to = spread.memory_sector(*sector);
                    }
                    data = DataSegments::Scattered { base, indices: &places[..addresses.len()] };
                }
            }
            (ReadDest::Buffer, Some(slots)) => {
                // Consecutive, as `part` has made sure.
                let first = addresses[0].1;
                (data, oob) =
                    (DataSegments::Contiguous(slots.data_at(first)), Some(slots.oob_at(first)));
            }
            (ReadDest::Buffer, None) => {}
        }
        let ppas = addresses.iter().map(|(psn, _)| self.addresses.sector(*psn));
        self.queue.read(ppas, data, oob, flight.to_bits()).is_ok()
    }

    /// How many of the addresses one command can read.
    #[inline]
    fn fragment_len(&self, addresses: &[(u32, u32)], target: ReadDest) -> usize {
        let most = addresses.len().min(self.queue.max_sectors() as usize);
        match target {
            ReadDest::Buffer if self.memory.is_some() => {
                let first = addresses[0].1;
                let run = (first..).zip(&addresses[..most]).take_while(|(i, (_, slot))| i == slot);
                run.count()
            }
            _ => most,
        }
    }

    #[inline(always)]
    fn start_read(&mut self, flight: CommandTag, addresses: &[(u32, u32)], target: ReadDest) {
        if !self.deferred.is_empty() || !self.send_read(flight, addresses, target) {
            self.deferred.push_back(DeferredCommand::Read {
                tag: flight,
                count: addresses.len(),
                target,
            });
            self.deferred_addresses.extend(addresses);
        }
    }

    #[cold]
    fn read_fragmented(
        &mut self,
        op: OpToken,
        wait: u32,
        addresses: &[(u32, u32)],
        target: ReadDest,
    ) {
        let (mut parts, mut rest) = (0, addresses);
        while !rest.is_empty() {
            rest = &rest[self.fragment_len(rest, target)..];
            parts += 1;
        }
        let split = self.split_reads.begin(op, wait, parts);
        let mut first = 0;
        while first < addresses.len() {
            let count = self.fragment_len(&addresses[first..], target);
            let flight = CommandTag::ReadFragment { split, first: first as u8 };
            trace_op(flight, op, target_request(target), None);
            self.start_read(flight, &addresses[first..first + count], target);
            first += count;
        }
    }

    fn send_program(&mut self, op: OpToken, chunk: u32, sector: u32, first_slot: u32) -> bool {
        let shape = self.addresses.shape();
        let (unit, first) = (shape.ws_opt, shape.first_sector_of(chunk) + sector);
        // A unit is within a chunk, and a sector's number is in the lowest bits of its address.
        let base = self.addresses.sector(first).0;
        let ppas = (0..unit as usize).map(|i| Ppa(base + i as u64));
        let (data, oob) = match &self.memory {
            Some(slots) => (
                DataSegments::Contiguous(slots.data_at(first_slot)),
                Some(slots.oob_at(first_slot)),
            ),
            None => (DataSegments::BitBucket, None),
        };
        self.queue.write(ppas, data, oob, CommandTag::Program(op).to_bits()).is_ok()
    }

    fn send_erase(&mut self, op: OpToken, chunk: u32) -> bool {
        let chunk = std::iter::once(self.addresses.chunk(chunk));
        self.queue.reset(chunk, CommandTag::Erase(op).to_bits()).is_ok()
    }

    /// Reads sectors of a chunk without taking the data. Returns whether there was room for it: it waits
    /// for everybody else.
    pub(super) fn submit_scrub_read(&mut self, chunk: u32, sector: u32, sectors: u32) -> bool {
        let first = self.addresses.shape().first_sector_of(chunk) + sector;
        let ppas = (0..sectors as usize).map(|i| self.addresses.sector(first + i as u32));
        self.deferred.is_empty()
            && self
                .queue
                .read(ppas, DataSegments::BitBucket, None, CommandTag::Scrub.to_bits())
                .is_ok()
    }

    /// Lets somebody beside the translation layer submit a command, on chunks that are not the layer's.
    /// `send` is given what the command is to carry, and says whether it was taken. Returns whether there
    /// was room for it: it waits for everybody else.
    pub(super) fn submit_superblock_command(
        &mut self,
        send: impl FnOnce(&mut VectorQueue, &Addresses, u64) -> bool,
    ) -> bool {
        self.deferred.is_empty()
            && send(&mut self.queue, &self.addresses, CommandTag::Superblock.to_bits())
    }

    /// Sectors of a command at most.
    pub(super) fn sectors_max(&self) -> u32 {
        self.queue.max_sectors()
    }

    /// The chunk and the sector in it that an address names, if there is such a one.
    pub(super) fn locate(&self, at: nvme::Address) -> Option<(u32, u32)> {
        let g = self.addresses.geometry();
        let within = at.group < g.groups && at.pu < g.pus && at.chunk < g.chunks;
        let psn = (within && at.sector < g.sectors).then(|| u32::try_from(g.flat(at)).ok())??;
        let chunk = self.addresses.shape().chunk_of(psn);
        Some((chunk, at.sector))
    }

    fn send_trim(&mut self, sequence: u64) -> bool {
        let Some(trims) = &self.trim_ranges else { return true };
        let (at, runs) = (trims.at(), trims.count());
        self.queue.map_trim(at, runs, sequence, CommandTag::Trim.to_bits()).is_ok()
    }

    /// Where sector number `sector` of a request is, if it is in memory and contents are kept.
    #[inline]
    fn request_location(&self, request: u64, sector: u32) -> Option<(&SlotMemory, Iova)> {
        let slots = self.memory.as_ref()?;
        let (Payload::Contiguous(at), spread) = self.requests.payload(request) else { return None };
        let bytes = u64::from(spread.memory_sector(sector)) * u64::from(self.queue.sector_bytes());
        Some((slots, at.offset(bytes)))
    }
}

impl FlashBackend for VectorBackend {
    fn stores_data(&self) -> bool {
        self.memory.is_some()
    }

    fn program(&mut self, _now: Nanos, op: OpToken, unit: WriteUnit<'_>) {
        if let Some(slots) = &self.memory {
            slots.write_oob(&unit);
        }
        trace_op(CommandTag::Program(op), op, None, Some(&unit));
        let WriteUnit { chunk, sector, first_slot, .. } = unit;
        if !self.deferred.is_empty() || !self.send_program(op, chunk, sector, first_slot) {
            self.deferred.push_back(DeferredCommand::Program { op, chunk, sector, first_slot });
        }
    }

    #[inline]
    fn read(&mut self, _now: Nanos, op: OpToken, addresses: &[(u32, u32)], target: ReadDest) {
        let wait = match (&mut self.read_tracker, target) {
            (Some(waits), ReadDest::Host(_)) => waits.begin(addresses) + 1,
            _ => 0,
        };
        if addresses.is_empty() || self.fragment_len(addresses, target) < addresses.len() {
            return self.read_fragmented(op, wait, addresses, target);
        }
        let flight = CommandTag::Read { op, tracker_id: wait };
        trace_op(flight, op, target_request(target), None);
        self.start_read(flight, addresses, target);
    }

    #[inline]
    fn host_reads_in_flight(&self, pu: u32) -> u32 {
        self.read_tracker.as_ref().map_or(0, |waits| waits.reads_on(pu))
    }

    fn erase(&mut self, _now: Nanos, op: OpToken, chunk: u32) {
        trace_op(CommandTag::Erase(op), op, None, None);
        if !self.deferred.is_empty() || !self.send_erase(op, chunk) {
            self.deferred.push_back(DeferredCommand::Erase { op, chunk });
        }
    }

    fn device_trim(
        &mut self,
        _now: Nanos,
        _op: OpToken,
        runs: &[(u32, u32)],
        sequence: u64,
    ) -> bool {
        let Some(trims) = &mut self.trim_ranges else { return false };
        trims.set(runs);
        if !self.deferred.is_empty() || !self.send_trim(sequence) {
            self.deferred.push_back(DeferredCommand::Trim { sequence });
        }
        true
    }

    #[inline]
    fn copy_from_host(&mut self, request: u64, sector: u32, slot: u32) {
        if let Some((slots, from)) = self.request_location(request, sector) {
            slots.copy_in(self.port().memory(), from, slot);
        }
    }

    #[inline]
    fn copy_to_host(&mut self, request: u64, sector: u32, slot: u32) {
        if let Some((slots, to)) = self.request_location(request, sector) {
            slots.copy_out(self.port().memory(), slot, to);
        }
    }

    fn zero_to_host(&mut self, request: u64, sector: u32) {
        if let Some((_, to)) = self.request_location(request, sector)
            && let Ok(to) = self.port().memory().find(to, self.queue.sector_bytes().into())
        {
            to.region.fill(to.offset, self.queue.sector_bytes() as usize, 0);
        }
    }

    fn write_slot(&mut self, slot: u32, bytes: &[u8]) {
        if let Some(slots) = &self.memory {
            slots.store(slot, bytes);
        }
    }

    fn read_slot(&mut self, slot: u32, out: &mut [u8]) {
        match &self.memory {
            Some(slots) => slots.load(slot, out),
            None => out.fill(0),
        }
    }

    /// The data is where the read put it: in the slot.
    fn sync_slot(&mut self, _psn: u32, _slot: u32) {}

    /// They came with the data.
    fn read_slot_oob(&mut self, _psn: u32, slot: u32, out: &mut [u8; Oob::BYTES]) {
        if let Some(slots) = &self.memory {
            slots.load_oob(slot, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_tag_survives_its_bits() {
        for flight in [
            CommandTag::Read { op: OpToken(u32::MAX), tracker_id: 0 },
            CommandTag::Read { op: OpToken(5), tracker_id: TRACKER_ID_MASK },
            CommandTag::Program(OpToken(1)),
            CommandTag::Erase(OpToken(0)),
            CommandTag::Trim,
            CommandTag::Scrub,
            CommandTag::Superblock,
            CommandTag::ReadFragment { split: 7, first: 63 },
        ] {
            assert_eq!(CommandTag::from_bits(flight.to_bits()), flight);
        }
    }
}
