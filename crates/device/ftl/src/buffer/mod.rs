//! The write buffer: rings of write units, their sequence numbers, and units that are redispatched.

mod check;
pub(crate) mod named_slots;
pub(crate) mod redispatch;
pub(crate) mod sequence;
pub(crate) mod unit_id;
pub(crate) mod write_ring;

use crate::env::Env;
use crate::ftl::{GC, HOST, HOST_RINGS, HOT};
use crate::ids::{LOST_SECTOR, Lba, LineId, NO_SECTOR, SlotId, ToIndex, WriteSeq};
use crate::{BufferEntry, FlashGeometry, L2pEntry};
use named_slots::NamedSlots;
use nvme::{ChunkId, PhysSector};
use redispatch::RedispatchTracker;
use sequence::WriteSequencer;
use serde::{Deserialize, Serialize};
use unit_id::UnitId;
use write_ring::{BufferUnit, UnitState, WriteRing};

/// The units of a chunk that hold their slots, as a linked list, oldest first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Chain {
    first: Option<UnitId>,
    last: Option<UnitId>,
}

/// A unit whose program starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BegunProgram {
    pub(crate) sequence: WriteSeq,
    /// Whether the unit gets a sequence number now. Otherwise it keeps its own.
    pub(crate) is_new: bool,
}

/// A unit that is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DurableUnit {
    pub(crate) sequence: WriteSeq,
    /// The line that a redispatched unit was in before.
    pub(crate) redispatched_from: Option<LineId>,
}

/// The rings of the host and of garbage collection, and the sequence numbers of their units.
///
/// # Positions
///
/// The entries of the host's rings share one count. An entry's position is the number of entries that
/// were put into any of these rings before it. A barrier waits until all entries in front of its position
/// are durable, whatever their ring. So durability has one order, and a stream adds no case to it.
///
/// # Order
///
/// Units get sequence numbers when they are dispatched, ring by ring. So a sector without a sequence
/// number is in one of the host's rings only: a write of a sector goes to the ring that holds an entry of
/// it that has none ([`unsequenced_ring`](WriteBuffer::unsequenced_ring)). Relocated data is compared
/// with the map instead, before it gets a number.
///
/// Invariants: released ≤ persisted ≤ dispatched ≤ head of each ring; units that are programming, and only
/// they, have unfinished sequence numbers; a unit with a location is in the chain of its chunk, which ascends,
/// unless it is queued for redispatch; a sector without a sequence number is in one of the host's rings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WriteBuffer {
    /// By index: [`HOST`], [`GC`], [`HOT`].
    rings: [WriteRing; 3],
    /// The position behind the last entry, and the one up to which everything is durable.
    head_pos: u64,
    durable_pos: u64,
    /// By ring of the host, the units that there were at the last trim of an entry. The map does not name
    /// such entries, which may have no sequence number yet.
    trimmed_until: [u64; HOST_RINGS.len()],
    sequencer: WriteSequencer,
    redispatch: RedispatchTracker,
    /// By chunk.
    chains: Box<[Chain]>,
    named: NamedSlots,
}

impl WriteBuffer {
    /// An empty buffer, whose first unit gets the sequence number `first_seq`.
    pub(crate) fn new(env: &Env, first_seq: WriteSeq) -> WriteBuffer {
        let host = WriteRing::new(HOST, &env.geometry, env.plan.host_buffer_units, SlotId(0));
        let gc =
            WriteRing::new(GC, &env.geometry, env.plan.gc_buffer_units, SlotId(host.capacity()));
        let hot_units = if env.config.hot_stream { env.plan.host_buffer_units } else { 0 };
        let first_hot = SlotId(host.capacity() + gc.capacity());
        let hot = WriteRing::new(HOT, &env.geometry, hot_units, first_hot);
        let chunks = env.geometry.total_chunks().index();
        let slots = host.capacity() + gc.capacity() + hot.capacity();
        let is_named = env.config.addressing.is_named();
        WriteBuffer {
            rings: [host, gc, hot],
            head_pos: 0,
            durable_pos: 0,
            trimmed_until: [0; HOST_RINGS.len()],
            sequencer: WriteSequencer::starting_at(first_seq),
            redispatch: RedispatchTracker::default(),
            chains: vec![Chain { first: None, last: None }; chunks].into(),
            named: if is_named { NamedSlots::new(slots) } else { NamedSlots::default() },
        }
    }

    /// The sectors with names.
    #[inline]
    pub(crate) fn named(&self) -> &NamedSlots {
        &self.named
    }

    /// The sectors with names, to be changed.
    pub(crate) fn named_mut(&mut self) -> &mut NamedSlots {
        &mut self.named
    }

    /// Whether a host unit whose program failed gets another sequence number. If sectors have names, a
    /// number is on the media once. Otherwise the unit keeps its number, and so its age.
    pub(crate) fn renumbers(&self) -> bool {
        self.named.is_used()
    }

    /// Returns the slot of a sector of a chunk in a unit that holds its slots.
    pub(crate) fn slot_at(
        &self,
        geometry: &FlashGeometry,
        chunk: ChunkId,
        sector: u32,
    ) -> Option<SlotId> {
        let mut units = std::iter::successors(self.first_on(chunk), |id| self.unit(*id).chain_next);
        let id = units.find(|id| {
            let first = self.unit(*id).sector;
            (first..first + geometry.ws_opt).contains(&sector)
        })?;
        Some(self.rings[id.ring()].slot_of_unit(id) + (sector - self.unit(id).sector))
    }

    /// Returns the slot of the redispatched copy of a sector.
    pub(crate) fn slot_of_redispatched(&self, phys: PhysSector) -> Option<SlotId> {
        self.rings.iter().find_map(|ring| {
            let redispatched = |id: &UnitId| ring.unit(*id).redispatch_from != LineId::NONE;
            ring.occupied().map(|(id, _)| id).filter(redispatched).find_map(|id| {
                let slots = ring.slot_of_unit(id).ascending();
                let mut entries = slots.zip(ring.entries(id));
                let is_copy = |entry: &BufferEntry| entry.durable_copy == phys;
                entries.find(|(_, entry)| entry.lba().is_some() && is_copy(entry)).map(|e| e.0)
            })
        })
    }

    /// Slots of all rings.
    pub(crate) fn capacity(&self) -> u32 {
        self.rings.iter().map(WriteRing::capacity).sum()
    }

    /// Whether [`HOT`] has slots.
    #[inline]
    fn has_hot(&self) -> bool {
        self.rings[HOT].has_slots()
    }

    /// A ring, read-only.
    #[inline]
    pub(crate) fn ring(&self, ring: usize) -> &WriteRing {
        &self.rings[ring]
    }

    /// The redispatched units, read-only.
    #[inline]
    pub(crate) fn redispatch(&self) -> &RedispatchTracker {
        &self.redispatch
    }

    /// The sequence number of the next unit.
    #[inline]
    pub(crate) fn next_seq(&self) -> WriteSeq {
        self.sequencer.next_seq()
    }

    /// All units with smaller sequence numbers are durable.
    #[inline]
    pub(crate) fn low_watermark(&self) -> WriteSeq {
        self.sequencer.low_watermark()
    }

    /// The position behind the last entry of the host; it grows with every entry.
    #[inline]
    pub(crate) fn head_pos(&self) -> u64 {
        self.head_pos
    }

    /// The position up to which all entries of the host are durable.
    #[inline]
    pub(crate) fn durable_pos(&self) -> u64 {
        self.durable_pos
    }

    /// Appends an entry to a ring and returns its slot; `pending` if its data is still to be read. The
    /// caller has checked that a slot is free.
    #[inline]
    pub(crate) fn push(&mut self, ring: usize, entry: BufferEntry, pending: bool) -> SlotId {
        let slot = self.rings[ring].push(entry, pending, self.head_pos);
        self.head_pos += u64::from(ring != GC);
        slot
    }

    /// Returns the ring of the host that holds an entry of a sector without a sequence number. `at` is
    /// where the map has the sector: in the buffer, or it may have been trimmed since.
    pub(crate) fn unsequenced_ring(&self, lba: Lba, at: L2pEntry) -> Option<usize> {
        if let L2pEntry::Buffer(slot) = at {
            let (ring, unit) = (self.ring_of_slot(slot), self.unit_of(slot));
            return (ring != GC && unit.is_unsequenced()).then_some(ring);
        }
        let trimmed = HOST_RINGS.into_iter().zip(self.trimmed_until);
        let mut may_have = trimmed.filter(|(ring, until)| self.rings[*ring].dispatched() < *until);
        may_have.find(|(ring, until)| self.rings[*ring].has_undispatched(lba, *until)).map(|r| r.0)
    }

    /// Records that the sector of a slot was trimmed.
    pub(crate) fn record_trimmed(&mut self, slot: SlotId) {
        let trimmed_in = self.ring_of_slot(slot);
        for (ring, until) in HOST_RINGS.into_iter().zip(&mut self.trimmed_until) {
            *until = if ring == trimmed_in { self.rings[ring].units_begun() } else { *until };
        }
    }

    /// Returns a ring of the host whose open unit began more than `distance` entries ago.
    pub(crate) fn late_open_unit(&self, distance: u64) -> Option<usize> {
        let is_late = |pos: u64| pos + distance < self.head_pos;
        HOST_RINGS.into_iter().find(|ring| self.rings[*ring].open_unit_pos().is_some_and(is_late))
    }

    /// Records that the data of a slot of the GC ring has been read. It is written as padding unless
    /// its sector is still `wanted`.
    pub(crate) fn fill_done(&mut self, slot: SlotId, wanted: bool, poison: bool) {
        let entry = self.rings[GC].entry_mut(slot);
        if wanted {
            entry.poison = poison;
        } else {
            entry.lba_plus_1 = 0;
        }
        self.rings[GC].fill_done(slot);
    }

    /// Sectors of a ring that wait for a location, for the first time or again.
    #[inline]
    pub(crate) fn undispatched_sectors(&self, geometry: &FlashGeometry, ring: usize) -> u64 {
        let queued = self.redispatch.queued(ring) * u64::from(geometry.ws_opt);
        self.rings[ring].undispatched() + queued
    }

    /// Sectors of the host that wait for a location, for the first time or again. Those of each ring are
    /// rounded up to a multiple of `round_to`.
    #[inline]
    pub(crate) fn undispatched_host_sectors(&self, geometry: &FlashGeometry, round_to: u64) -> u64 {
        let sectors = |ring| self.undispatched_sectors(geometry, ring).next_multiple_of(round_to);
        let host = sectors(HOST);
        if self.has_hot() { host + sectors(HOT) } else { host }
    }

    /// A unit.
    #[inline]
    pub(crate) fn unit(&self, id: UnitId) -> &BufferUnit {
        self.rings[id.ring()].unit(id)
    }

    #[inline]
    fn unit_mut(&mut self, id: UnitId) -> &mut BufferUnit {
        self.rings[id.ring()].unit_mut(id)
    }

    /// Records that the program of a unit starts at a location.
    #[inline]
    pub(crate) fn begin_program(
        &mut self,
        id: UnitId,
        chunk: ChunkId,
        sector: u32,
    ) -> BegunProgram {
        // Behind the chunk's other units, so that they are released in order.
        let chain = &mut self.chains[chunk.index()];
        match chain.last.replace(id) {
            None => chain.first = Some(id),
            Some(last) => self.unit_mut(last).chain_next = Some(id),
        }
        let is_new = self.unit(id).state == UnitState::Filling;
        // A unit that was programming already keeps its sequence number, and so its age.
        let assigned = is_new.then(|| self.sequencer.assign());
        let unit = self.unit_mut(id);
        let sequence = assigned.unwrap_or(unit.sequence);
        unit.sequence = sequence;
        (unit.state, unit.chunk, unit.sector) = (UnitState::Programming, chunk, sector);
        unit.chain_next = None;
        BegunProgram { sequence, is_new }
    }

    /// Records that the next unit of a ring was dispatched.
    #[inline]
    pub(crate) fn advance_dispatched(&mut self, ring: usize) {
        self.rings[ring].advance_dispatched();
    }

    /// Removes a unit from the re-dispatch queue, because it has a location.
    pub(crate) fn remove_redispatched(&mut self, position: usize) {
        self.redispatch.remove(position);
    }

    /// Records that a unit was programmed.
    #[inline]
    pub(crate) fn program_done(&mut self, id: UnitId) -> DurableUnit {
        let unit = self.unit_mut(id);
        unit.state = UnitState::Persisted;
        let (sequence, from) =
            (unit.sequence, std::mem::replace(&mut unit.redispatch_from, LineId::NONE));
        self.sequencer.retire(sequence);
        let redispatched_from = Some(from).filter(|from| *from != LineId::NONE);
        if redispatched_from.is_some() {
            self.redispatch.complete_one();
        }
        DurableUnit { sequence, redispatched_from }
    }

    /// Records that an older copy of a slot's sector is durable at `phys`, in a unit with this
    /// sequence number that came after the trim `trim_dep`.
    #[inline]
    pub(crate) fn older_copy_durable(
        &mut self,
        slot: SlotId,
        trim_dep: u64,
        phys: PhysSector,
        sequence: WriteSeq,
    ) {
        let newer = self.entry_mut(slot);
        if newer.trim_dep == trim_dep {
            newer.trim_dep = 0;
        }
        if newer.durable_copy_seq <= sequence {
            (newer.durable_copy, newer.durable_copy_seq) = (phys, sequence);
        }
    }

    /// Queues a unit whose program failed for redispatch, ahead of all newer ones. Relocated data
    /// returns its sequence number, so that no trim waits for it; so do all sectors with names.
    pub(crate) fn program_failed(&mut self, id: UnitId) {
        if id.ring() == GC || self.renumbers() {
            let unit = self.unit_mut(id);
            unit.state = UnitState::Filling;
            let sequence = unit.sequence;
            self.sequencer.retire(sequence);
        }
        self.requeue(id);
    }

    /// Queues a durable unit of a line, whose first sector is at `first_phys`, for redispatch. Until
    /// it is durable elsewhere, this copy is the newest.
    pub(crate) fn redispatch_durable(&mut self, id: UnitId, line: LineId, first_phys: PhysSector) {
        let sequence = self.next_seq();
        let ring = &mut self.rings[id.ring()];
        for (phys, entry) in first_phys.ascending().zip(ring.entries_mut(id)) {
            (entry.durable_copy, entry.durable_copy_seq) = (phys, sequence);
        }
        let unit = self.unit_mut(id);
        (unit.state, unit.redispatch_from) = (UnitState::Filling, line);
        self.redispatch.begin_one();
        self.requeue(id);
    }

    fn requeue(&mut self, id: UnitId) {
        self.unlink(id);
        self.redispatch.push(id);
    }

    /// Marks the sector of a slot as unreadable.
    pub(crate) fn poison(&mut self, slot: SlotId) {
        self.entry_mut(slot).poison = true;
    }

    /// Marks the sector of a slot as readable.
    pub(crate) fn unpoison(&mut self, slot: SlotId) {
        self.entry_mut(slot).poison = false;
    }

    /// Turns a superseded entry into padding. The copy that it comes from stays recorded.
    pub(crate) fn drop_entry(&mut self, slot: SlotId) {
        let entry = self.entry_mut(slot);
        (entry.lba_plus_1, entry.poison) = (0, false);
    }

    /// Delays flushes until all host units that have a location are durable.
    pub(crate) fn raise_flush_floor(&mut self) {
        let dispatched = HOST_RINGS.map(|ring| self.rings[ring].dispatched());
        self.redispatch.raise_flush_floor(dispatched);
    }

    /// Returns whether flushes must wait for re-dispatched units, or for those that superseded them.
    #[inline]
    pub(crate) fn defers_flushes(&self) -> bool {
        self.redispatch.defers_flush_at(HOST_RINGS.map(|ring| self.rings[ring].persisted()))
    }

    /// Returns whether the copy of a redispatched unit, overwritten in the buffer, is still the
    /// newest one with a sequence number: the overwriting entry has none, and there is no other
    /// between them, on flash (the copy itself may be there) or in flight. `now` is the sector's
    /// location.
    pub(crate) fn is_still_newest(
        &self,
        geometry: &FlashGeometry,
        id: UnitId,
        entry: &BufferEntry,
        now: L2pEntry,
    ) -> bool {
        let unit = self.unit(id);
        let is_being_written = |lba: Lba| {
            let mut rings = HOST_RINGS.into_iter().map(|ring| &self.rings[ring]);
            rings.any(|ring| ring.is_being_written(lba, unit.sequence))
        };
        match now {
            L2pEntry::Buffer(at) if unit.redispatch_from != LineId::NONE => {
                self.unit_of(at).state == UnitState::Filling
                    && self.durable_copy_of(geometry, now).0 == entry.durable_copy
                    && !is_being_written(Lba(entry.lba_plus_1 - 1))
            }
            L2pEntry::Buffer(_) | L2pEntry::Unmapped | L2pEntry::Flash(_) | L2pEntry::Lost => false,
        }
    }

    /// Returns whether a newer version of an entry of a redispatched unit has a sequence number and is
    /// not on the media, or is itself to be written again.
    pub(crate) fn is_newer_in_flight(&self, id: UnitId, entry: &BufferEntry) -> bool {
        let Some(lba) = entry.lba() else { return false };
        let unit = self.unit(id);
        let is_newer = |other: UnitId| {
            let newer = self.unit(other);
            newer.redispatch_from != LineId::NONE && newer.sequence > unit.sequence
        };
        let has_lba = |other: &UnitId| {
            self.rings[other.ring()].entries(*other).iter().any(|e| e.lba() == Some(lba))
        };
        self.rings.iter().any(|ring| ring.is_being_rewritten(lba, unit.sequence))
            || self.redispatch.units().any(|other| is_newer(other) && has_lba(&other))
    }

    /// The oldest unit of a chunk that holds its slots.
    #[inline]
    pub(crate) fn first_on(&self, chunk: ChunkId) -> Option<UnitId> {
        self.chains[chunk.index()].first
    }

    /// Whether every unit of a chunk that holds its slots is durable.
    pub(crate) fn only_waits_for_pairs(&self, chunk: ChunkId) -> bool {
        let mut units = std::iter::successors(self.first_on(chunk), |id| self.unit(*id).chain_next);
        units.all(|id| self.unit(id).state == UnitState::Persisted)
    }

    /// Releases the oldest unit of a chunk if it is durable and readable, that is, ends at or before
    /// `readable_end`. Its entries stay until the watermarks advance and free its slots.
    #[inline]
    pub(crate) fn pop_readable(
        &mut self,
        geometry: &FlashGeometry,
        chunk: ChunkId,
        readable_end: u32,
    ) -> Option<UnitId> {
        let id = self.chains[chunk.index()].first?;
        let unit = self.unit_mut(id);
        if unit.state != UnitState::Persisted || unit.sector + geometry.ws_opt > readable_end {
            return None;
        }
        unit.state = UnitState::Released;
        let next = unit.chain_next;
        let chain = &mut self.chains[chunk.index()];
        chain.first = next;
        if next.is_none() {
            chain.last = None;
        }
        Some(id)
    }

    /// Removes a unit from the chain of its chunk.
    fn unlink(&mut self, id: UnitId) {
        let chunk = self.unit(id).chunk.index();
        let (mut at, mut before) = (self.chains[chunk].first, None);
        while let Some(unit) = at {
            let next = self.unit(unit).chain_next;
            if unit == id {
                match before {
                    None => self.chains[chunk].first = next,
                    Some(before) => self.unit_mut(before).chain_next = next,
                }
                if next.is_none() {
                    self.chains[chunk].last = before;
                }
                return;
            }
            (before, at) = (at, next);
        }
    }

    /// Moves the watermarks of all rings over all units that are durable, and readable.
    #[inline]
    pub(crate) fn advance_watermarks(&mut self) {
        self.rings[HOST].advance_watermarks();
        self.rings[GC].advance_watermarks();
        if self.has_hot() {
            self.advance_hot();
        } else {
            // Every entry of the host is one of this ring's.
            self.durable_pos = self.rings[HOST].persisted_entries();
        }
    }

    /// Moves the watermarks of [`HOT`], after those of [`HOST`].
    #[inline(never)]
    fn advance_hot(&mut self) {
        self.rings[HOT].advance_watermarks();
        let first = |ring: usize| self.rings[ring].first_undurable_pos();
        self.durable_pos = HOST_RINGS.into_iter().filter_map(first).min().unwrap_or(self.head_pos);
    }

    /// Returns the chunks whose next write unit would free slots, in rings full of units that wait
    /// for their paired pages.
    pub(crate) fn pair_blocked_chunks(&self) -> impl Iterator<Item = ChunkId> {
        // The ring without slots, if there is one, is the last.
        let used = if self.has_hot() { &self.rings[..] } else { &self.rings[..HOT] };
        used.iter().filter_map(WriteRing::pair_blocked_chunk)
    }

    #[inline]
    fn ring_of_slot(&self, slot: SlotId) -> usize {
        // The slots of the rings follow each other in the order of their indices.
        usize::from(slot >= self.rings[GC].first_slot())
            + usize::from(slot >= self.rings[HOT].first_slot())
    }

    /// The entry of a slot.
    #[inline]
    pub(crate) fn entry(&self, slot: SlotId) -> &BufferEntry {
        self.rings[self.ring_of_slot(slot)].entry(slot)
    }

    #[inline]
    fn entry_mut(&mut self, slot: SlotId) -> &mut BufferEntry {
        let ring = self.ring_of_slot(slot);
        self.rings[ring].entry_mut(slot)
    }

    /// The write unit of a slot.
    #[inline]
    pub(crate) fn unit_of(&self, slot: SlotId) -> &BufferUnit {
        let ring = &self.rings[self.ring_of_slot(slot)];
        ring.unit(ring.unit_of_slot(slot))
    }

    /// Returns the latest version on flash of a sector that is at this location, [`NO_SECTOR`] or
    /// [`LOST_SECTOR`], and the sequence number below which no unit holds a newer one.
    #[inline]
    pub(crate) fn durable_copy_of(
        &self,
        geometry: &FlashGeometry,
        at: L2pEntry,
    ) -> (PhysSector, WriteSeq) {
        match at {
            L2pEntry::Unmapped => (NO_SECTOR, self.next_seq()),
            L2pEntry::Lost => (LOST_SECTOR, self.next_seq()),
            L2pEntry::Flash(phys) => (phys, self.next_seq()),
            L2pEntry::Buffer(slot) => {
                let ring = &self.rings[self.ring_of_slot(slot)];
                let unit = ring.unit(ring.unit_of_slot(slot));
                if unit.state >= UnitState::Persisted {
                    let phys = geometry.first_sector_of(unit.chunk) + unit.sector;
                    return (phys + ring.offset_in_unit(slot), unit.sequence);
                }
                let entry = ring.entry(slot);
                (entry.durable_copy, entry.durable_copy_seq)
            }
        }
    }
}
