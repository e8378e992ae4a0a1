//! [`VectorBackend`]: implements [`ftl::FlashBackend`] with vector commands on a queue pair.
//!
//! Owns the queue pair, the registered memory of commands, and the table of requests whose memory
//! the FTL reads and writes.
//!
//! Invariants:
//! - Commands are submitted in the order in which the FTL requests them. The drive executes the
//!   commands of a queue in order on each parallel unit, so an erase never overtakes a read or a
//!   program.
//! - Commands that do not fit the queue are deferred, not lost.
//! - Every operation is reported exactly once.
//!
//! [LightNVM17 §4.2] (vector commands from the write buffer), [LightNVM17 §3.3] (vector I/O), [OC20
//! §4].

mod drive_copies;
mod invariants;

use std::collections::VecDeque;
use std::sync::Arc;

use block::Payload;
use driver::QueuePair;
use ftl::{
    FlashBackend, LbaRun, Oob, OpToken, ReadAddress, ReadDest, SlotId, VictimDecision, VictimLines,
    WriteSeq, WriteUnit,
};
use mem::Iova;
use nvme::{ChunkId, Geometry, MAX_VECTOR_ADDRESSES, PhysSector, Ppa, PuId, Status};
use time::Nanos;
use tracepoint::Event;
use transport::Port;

use self::drive_copies::DriveCopies;
use super::buffer_memory::{SlotContents, SlotMemory, TrimRanges};
use super::read_split::SplitReads;
use super::read_tracker::PuReadTracker;
use super::requests::PblkRequestTable;
use super::rules::TargetRules;
use ocssd::vector::{Addresses, DataSegments, VectorCompletion, VectorQueue};

/// A completed command or operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BackendEvent {
    /// A command of an operation that has further ones.
    InProgress,
    /// A read; bit `i` of `failed` stands for its `i`-th address.
    Read { op: OpToken, failed: u64 },
    /// A program.
    Program { op: OpToken, status: Status },
    /// A program whose sources the drive could not copy. They were read into its slots; bit `i` of
    /// `failed` stands for the `i`-th one, which could not be read.
    CopyFailed { op: OpToken, failed: u64 },
    /// An erase.
    Erase { op: OpToken, status: Status },
    /// A trim of the device L2P.
    Trim { status: Status },
    /// A scrub read; bit `i` of `failed` stands for the `i`-th sector.
    Scrub { failed: u64, high_ecc: bool },
    /// A command on the superblock, which the FTL does not know.
    Superblock(VectorCompletion),
}

/// Purpose of a command, encoded in its 64-bit user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandTag {
    /// A read. `tracker_id` is its id in the read tracker plus 1, or 0 if it is not tracked.
    Read {
        op: OpToken,
        tracker_id: u32,
    },
    Program(OpToken),
    /// A program whose data the drive copies.
    Copy(OpToken),
    /// A read of the sources of a copy that has failed.
    CopySources(OpToken),
    Erase(OpToken),
    Trim,
    Scrub,
    /// A command on the superblock; at most one is in flight.
    Superblock,
    /// A fragment of a split read; `first` is the index of its first address in the read.
    ReadFragment {
        split: u32,
        first: u8,
    },
}

/// Mask of the tracker id: the number of tracked reads is bounded by requests and tags.
const TRACKER_ID_MASK: u32 = (1 << 30) - 1;

impl CommandTag {
    fn to_bits(self) -> u64 {
        match self {
            CommandTag::Read { op, tracker_id: wait } => {
                u64::from(wait & TRACKER_ID_MASK) << 32 | u64::from(op.0)
            }
            CommandTag::Program(op) => 1 << 62 | u64::from(op.0),
            CommandTag::Copy(op) => 1 << 62 | 1 << 61 | u64::from(op.0),
            CommandTag::CopySources(op) => 1 << 62 | 1 << 60 | u64::from(op.0),
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
            1 if bits >> 61 & 1 != 0 => CommandTag::Copy(op),
            1 if bits >> 60 & 1 != 0 => CommandTag::CopySources(op),
            1 => CommandTag::Program(op),
            2 if bits >> 61 & 1 != 0 => CommandTag::Trim,
            2 if bits >> 60 & 1 != 0 => CommandTag::Scrub,
            2 if bits >> 59 & 1 != 0 => CommandTag::Superblock,
            2 => CommandTag::Erase(op),
            _ => CommandTag::ReadFragment { split: bits as u32, first: (bits >> 32) as u8 },
        }
    }
}

/// Traces a flash operation of the FTL.
#[inline(always)]
fn trace_op(flight: CommandTag, op: OpToken, request: Option<u64>, unit: Option<&WriteUnit<'_>>) {
    tracepoint::trace(|| Event::TargetOp {
        user: flight.to_bits(),
        cause: op.cause(),
        request,
        lba: unit.and_then(WriteUnit::first_lba).map(|lba| lba.get().into()),
    });
}

/// Returns the request whose memory a read fills, if any.
#[inline(always)]
fn target_request(target: ReadDest) -> Option<u64> {
    match target {
        ReadDest::Host(request) => Some(request),
        ReadDest::Buffer => None,
    }
}

/// A command that did not fit the queue.
#[derive(Clone, Copy, Debug)]
enum DeferredCommand {
    /// A read of the next `count` addresses of [`VectorBackend::deferred_addresses`].
    Read {
        tag: CommandTag,
        count: usize,
        target: ReadDest,
    },
    Program {
        op: OpToken,
        chunk: ChunkId,
        sector: u32,
        first_slot: SlotId,
    },
    Copy {
        op: OpToken,
    },
    Erase {
        op: OpToken,
        chunk: ChunkId,
    },
    Trim {
        sequence: WriteSeq,
    },
}

/// The flash of a drive, accessed through a queue pair.
#[derive(Debug)]
pub(crate) struct VectorBackend {
    queue: VectorQueue,
    addresses: Addresses,
    /// The write buffer; `None` if contents are not stored.
    memory: Option<SlotMemory>,
    /// Ranges to be trimmed in the device L2P; `None` if the drive has none.
    trim_ranges: Option<TrimRanges>,
    /// The outstanding requests, by the tags that the FTL uses.
    pub(crate) requests: PblkRequestTable,
    deferred: VecDeque<DeferredCommand>,
    deferred_addresses: VecDeque<ReadAddress>,
    split_reads: SplitReads,
    /// Host reads per parallel unit, if garbage collection avoids busy units.
    read_tracker: Option<PuReadTracker>,
    /// The copies inside of the drive, if garbage collection uses them.
    drive_copies: Option<DriveCopies>,
    /// The rules that decide about requests and victims, if a program is installed.
    pub(crate) rules: Option<Box<TargetRules>>,
}

impl VectorBackend {
    /// Returns the write buffer, to be copied or saved; `None` if contents are not stored.
    pub(super) fn buffer_contents(&self) -> Option<SlotContents> {
        self.memory.as_ref().map(SlotMemory::contents)
    }

    /// Copies the contents of another device's write buffer. Returns `false`, and copies nothing,
    /// if the sizes differ.
    pub(super) fn restore_buffer(&self, contents: Option<&SlotContents>) -> bool {
        match (&self.memory, contents) {
            (Some(slots), Some(contents)) => slots.copy_from(contents),
            (None, None) => true,
            _ => false,
        }
    }

    /// Creates a backend on `queue`, which has no outstanding commands.
    pub(crate) fn new(
        queue: VectorQueue,
        addresses: Addresses,
        memory: Option<SlotMemory>,
        trim_ranges: Option<TrimRanges>,
        requests: PblkRequestTable,
        read_tracker: Option<PuReadTracker>,
        copies_in_drive: bool,
    ) -> VectorBackend {
        let tags = usize::from(queue.queue().capacity());
        VectorBackend {
            deferred: VecDeque::with_capacity(tags),
            deferred_addresses: VecDeque::with_capacity(tags),
            split_reads: SplitReads::default(),
            read_tracker,
            drive_copies: copies_in_drive.then(DriveCopies::default),
            rules: None,
            queue,
            addresses,
            memory,
            trim_ranges,
            requests,
        }
    }

    /// Returns the queue pair, for its counters.
    pub(crate) fn queue(&self) -> &QueuePair {
        self.queue.queue()
    }

    /// Returns the connection to the drive.
    pub(crate) fn port(&self) -> &Arc<Port> {
        self.queue.port()
    }

    /// Returns the queue pair, and the requests that have not completed.
    pub(crate) fn into_parts(self) -> (QueuePair, PblkRequestTable) {
        (self.queue.into_queue(), self.requests)
    }

    /// Returns whether commands wait for queue entries.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Rings the doorbells for submitted commands and reaped completions. Returns whether commands
    /// were submitted.
    #[inline]
    pub(crate) fn ring(&mut self, reaped: bool) -> bool {
        self.queue.ring(reaped)
    }

    /// Reaps the next completed command.
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
            CommandTag::Copy(op) => self.on_copied(op, status),
            CommandTag::CopySources(op) => self.on_copy_sources_read(op, failed),
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
                    None => BackendEvent::InProgress,
                }
            }
        })
    }

    /// Removes a completed host read from the read tracker.
    #[inline]
    fn untrack_read(&mut self, wait: u32) {
        if let (Some(waits), Some(id)) = (&mut self.read_tracker, wait.checked_sub(1)) {
            waits.complete(id);
        }
    }

    /// Submits deferred commands until the queue is full.
    pub(crate) fn submit_deferred(&mut self) {
        while let Some(&next) = self.deferred.front() {
            let sent = match next {
                DeferredCommand::Read { tag: flight, count, target } => {
                    let blank = ReadAddress { phys: PhysSector(0), place: 0 };
                    let mut addresses = [blank; MAX_VECTOR_ADDRESSES as usize];
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
                DeferredCommand::Copy { op } => self.send_copy(op),
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
        addresses: &[ReadAddress],
        target: ReadDest,
    ) -> bool {
        match (addresses, target) {
            (&[ReadAddress { phys, place }], ReadDest::Host(request)) => {
                self.send_one(flight, phys, request, place)
            }
            _ => self.send_many(flight, addresses, target),
        }
    }

    /// Submits a read of one sector to the memory of a request.
    #[inline]
    fn send_one(
        &mut self,
        flight: CommandTag,
        phys: PhysSector,
        request: u64,
        sector: u32,
    ) -> bool {
        let data = match self.requests.payload(request) {
            (Payload::Contiguous(base), spread) => {
                let bytes =
                    u64::from(spread.memory_sector(sector)) * u64::from(self.queue.sector_bytes());
                DataSegments::Contiguous(base.offset(bytes))
            }
            // Scattered payloads are rejected at submission.
            _ => DataSegments::BitBucket,
        };
        let ppa = std::iter::once(self.addresses.sector(phys));
        self.queue.read(ppa, data, None, flight.to_bits()).is_ok()
    }

    fn send_many(
        &mut self,
        flight: CommandTag,
        addresses: &[ReadAddress],
        target: ReadDest,
    ) -> bool {
        let mut places = [0; MAX_VECTOR_ADDRESSES as usize];
        let (mut data, mut oob) = (DataSegments::BitBucket, None);
        match (target, &self.memory) {
            // Scattered payloads are rejected at submission.
            (ReadDest::Host(request), _) => {
                if let (Payload::Contiguous(base), spread) = self.requests.payload(request) {
                    for (to, address) in places.iter_mut().zip(addresses) {
                        *to = spread.memory_sector(address.place);
                    }
                    data = DataSegments::Scattered { base, indices: &places[..addresses.len()] };
                }
            }
            (ReadDest::Buffer, Some(slots)) => {
                // The slots are consecutive, see `fragment_len`.
                let first = SlotId(addresses[0].place);
                (data, oob) =
                    (DataSegments::Contiguous(slots.data_at(first)), Some(slots.oob_at(first)));
            }
            (ReadDest::Buffer, None) => {}
        }
        let ppas = addresses.iter().map(|address| self.addresses.sector(address.phys));
        self.queue.read(ppas, data, oob, flight.to_bits()).is_ok()
    }

    /// Returns how many of the addresses one command can read.
    #[inline]
    fn fragment_len(&self, addresses: &[ReadAddress], target: ReadDest) -> usize {
        let most = addresses.len().min(self.queue.max_sectors() as usize);
        match target {
            ReadDest::Buffer if self.memory.is_some() => {
                let slots = (addresses[0].place..).zip(&addresses[..most]);
                slots.take_while(|(slot, address)| *slot == address.place).count()
            }
            _ => most,
        }
    }

    #[inline(always)]
    fn start_read(&mut self, flight: CommandTag, addresses: &[ReadAddress], target: ReadDest) {
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
        addresses: &[ReadAddress],
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

    #[inline]
    fn start_program(&mut self, op: OpToken, chunk: ChunkId, sector: u32, first_slot: SlotId) {
        if !self.deferred.is_empty() || !self.send_program(op, chunk, sector, first_slot) {
            self.deferred.push_back(DeferredCommand::Program { op, chunk, sector, first_slot });
        }
    }

    fn send_program(
        &mut self,
        op: OpToken,
        chunk: ChunkId,
        sector: u32,
        first_slot: SlotId,
    ) -> bool {
        let shape = self.addresses.shape();
        let (unit, first) = (shape.ws_opt, shape.first_sector_of(chunk) + sector);
        // A unit lies within one chunk, and the sector index occupies the lowest bits of a PPA.
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

    fn send_erase(&mut self, op: OpToken, chunk: ChunkId) -> bool {
        let chunk = std::iter::once(self.addresses.chunk(chunk));
        self.queue.reset(chunk, CommandTag::Erase(op).to_bits()).is_ok()
    }

    /// Submits a read of sectors of a chunk without data transfer. Returns `false` if commands are
    /// deferred or the queue is full; other commands have precedence.
    pub(super) fn submit_scrub_read(&mut self, chunk: ChunkId, sector: u32, sectors: u32) -> bool {
        let first = self.addresses.shape().first_sector_of(chunk) + sector;
        let ppas = (0..sectors as usize).map(|i| self.addresses.sector(first + i as u32));
        self.deferred.is_empty()
            && self
                .queue
                .read(ppas, DataSegments::BitBucket, None, CommandTag::Scrub.to_bits())
                .is_ok()
    }

    /// Submits a command on chunks that do not belong to the FTL. `send` receives the user data of
    /// the command and returns whether it was submitted. Returns `false` if commands are deferred
    /// or the queue is full; other commands have precedence.
    pub(super) fn submit_superblock_command(
        &mut self,
        send: impl FnOnce(&mut VectorQueue, &Addresses, u64) -> bool,
    ) -> bool {
        self.deferred.is_empty()
            && send(&mut self.queue, &self.addresses, CommandTag::Superblock.to_bits())
    }

    /// Returns the geometry of the drive.
    pub(super) fn geometry(&self) -> &Geometry {
        self.addresses.geometry()
    }

    /// Returns the maximum number of sectors of a command.
    pub(super) fn sectors_max(&self) -> u32 {
        self.queue.max_sectors()
    }

    /// Returns the chunk index and the sector within the chunk, or `None` if the address is outside
    /// the geometry.
    pub(super) fn locate(&self, at: nvme::Address) -> Option<(ChunkId, u32)> {
        let g = self.addresses.geometry();
        let within = at.group < g.groups && at.pu < g.pus && at.chunk < g.chunks;
        let phys = (within && at.sector < g.sectors)
            .then(|| u32::try_from(g.flat(at)).ok().map(PhysSector))??;
        let chunk = self.addresses.shape().chunk_of(phys);
        Some((chunk, at.sector))
    }

    fn send_trim(&mut self, sequence: WriteSeq) -> bool {
        let Some(trims) = &self.trim_ranges else { return true };
        let (at, runs) = (trims.at(), trims.count());
        self.queue.map_trim(at, runs, sequence.get(), CommandTag::Trim.to_bits()).is_ok()
    }

    /// Returns the address of sector `sector` of a request, if the request has memory and contents
    /// are stored.
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

    #[inline]
    fn choose_victim(&mut self, _now: Nanos, lines: &VictimLines<'_>) -> VictimDecision {
        let is_idle = self.requests.outstanding() == 0;
        match &mut self.rules {
            Some(rules) => rules.choose_victim(is_idle, lines),
            None => VictimDecision::Policy,
        }
    }

    fn program(&mut self, _now: Nanos, op: OpToken, unit: WriteUnit<'_>) {
        if let Some(slots) = &self.memory {
            slots.write_oob(&unit);
        }
        if self.drive_copies.is_some() {
            return self.start_or_hold(op, &unit);
        }
        trace_op(CommandTag::Program(op), op, None, Some(&unit));
        let WriteUnit { chunk, sector, first_slot, .. } = unit;
        self.start_program(op, chunk, sector, first_slot);
    }

    #[inline]
    fn copies_in_drive(&self) -> bool {
        self.drive_copies.is_some()
    }

    #[inline]
    fn read(&mut self, _now: Nanos, op: OpToken, addresses: &[ReadAddress], target: ReadDest) {
        let wait = match (&mut self.read_tracker, target) {
            (Some(waits), ReadDest::Host(_)) => {
                waits.begin(addresses.iter().map(|address| address.phys)) + 1
            }
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
    fn host_reads_in_flight(&self, pu: PuId) -> u32 {
        self.read_tracker.as_ref().map_or(0, |waits| waits.reads_on(pu))
    }

    fn erase(&mut self, _now: Nanos, op: OpToken, chunk: ChunkId) {
        trace_op(CommandTag::Erase(op), op, None, None);
        if !self.deferred.is_empty() || !self.send_erase(op, chunk) {
            self.deferred.push_back(DeferredCommand::Erase { op, chunk });
        }
    }

    fn device_trim(
        &mut self,
        _now: Nanos,
        _op: OpToken,
        runs: &[LbaRun],
        sequence: WriteSeq,
    ) -> bool {
        let Some(trims) = &mut self.trim_ranges else { return false };
        trims.set(runs);
        if !self.deferred.is_empty() || !self.send_trim(sequence) {
            self.deferred.push_back(DeferredCommand::Trim { sequence });
        }
        true
    }

    #[inline]
    fn copy_from_host(&mut self, request: u64, sector: u32, slot: SlotId) {
        if let Some((slots, from)) = self.request_location(request, sector) {
            slots.copy_in(self.port().memory(), from, slot);
        }
    }

    #[inline]
    fn copy_to_host(&mut self, request: u64, sector: u32, slot: SlotId) {
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

    fn write_slot(&mut self, slot: SlotId, bytes: &[u8]) {
        if let Some(slots) = &self.memory {
            slots.store(slot, bytes);
        }
    }

    fn read_slot(&mut self, slot: SlotId, out: &mut [u8]) {
        match &self.memory {
            Some(slots) => slots.load(slot, out),
            None => out.fill(0),
        }
    }

    /// Does nothing: the read wrote the data to the slot.
    fn sync_slot(&mut self, _phys: PhysSector, _slot: SlotId) {}

    /// Reads them from the slot, where the read command put them.
    fn read_slot_oob(&mut self, _phys: PhysSector, slot: SlotId, out: &mut [u8; Oob::BYTES]) {
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
            CommandTag::Copy(OpToken(u32::MAX)),
            CommandTag::CopySources(OpToken(u32::MAX)),
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
