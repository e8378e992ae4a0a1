//! The write buffer: a ring of write units between acknowledgement and the media [LightNVM17
//! §4.2.1].
//!
//! Entries are appended at the head, in order. A full unit is mapped and programmed as a whole,
//! possibly out of order; `persisted` and `released` advance in order. A unit is *persisted* when
//! it is programmed. It is *released* when it is readable from the media, that is, when its paired
//! pages are programmed too. Only then are its slots reused.

use crate::FlashGeometry;
use crate::buffer::unit_id::UnitId;
use crate::check::{Subject, Violation, require, require_eq};
use crate::ids::{Lba, LineId, SlotId, ToIndex, ToU32, WriteSeq};
use crate::mapping::p2l::WrittenSector;
use nvme::{ChunkId, PhysSector};
use serde::{Deserialize, Serialize};

/// One slot's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferEntry {
    /// The logical sector plus 1; 0 for padding.
    pub(crate) lba_plus_1: u32,
    /// Whether the sector's data was lost.
    pub(crate) poison: bool,
    /// Latest version on the media while this one is not, or [`NO_SECTOR`](crate::ids::NO_SECTOR).
    /// For a relocated sector, its source.
    pub(crate) durable_copy: PhysSector,
    /// No unit with a smaller sequence number holds a newer copy than `durable_copy`.
    pub(crate) durable_copy_seq: WriteSeq,
    /// Identifies the pending trim that this entry follows, while no later copy is on the media; 0
    /// for none.
    pub(crate) trim_dep: u64,
    /// The sector on the media that has the data, which is not in the slot; else
    /// [`NO_SECTOR`](crate::ids::NO_SECTOR). It is not erased before the entry's slot is free.
    pub(crate) source: PhysSector,
}

impl BufferEntry {
    /// Padding.
    pub(crate) const PADDING: BufferEntry = BufferEntry {
        lba_plus_1: 0,
        poison: false,
        durable_copy: crate::ids::NO_SECTOR,
        durable_copy_seq: WriteSeq(0),
        trim_dep: 0,
        source: crate::ids::NO_SECTOR,
    };

    /// Returns the sector on the media that has the data, if the drive is to copy it; `None` if the
    /// data is in the slot, is lost, or does not matter.
    #[inline]
    pub fn source(&self) -> Option<PhysSector> {
        Some(self.source).filter(|source| *source != crate::ids::NO_SECTOR && !self.poison)
    }

    /// The logical sector.
    #[inline]
    pub(crate) fn lba(&self) -> Option<Lba> {
        self.lba_plus_1.checked_sub(1).map(Lba)
    }

    /// The contents of the physical sector that the entry is programmed into.
    #[inline]
    pub(crate) fn written(&self) -> WrittenSector {
        WrittenSector { lba: self.lba(), poison: self.poison }
    }

    /// Returns the out-of-band bytes of the sector in a write unit with this sequence number.
    pub fn oob(&self, sequence: WriteSeq) -> crate::Oob {
        crate::Oob { lba: self.lba(), poison: self.poison, metadata: false, sequence }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum UnitState {
    /// Being filled, or waiting for the data of its slots.
    Filling,
    /// Its program is in flight.
    Programming,
    /// On the media, not readable there yet.
    Persisted,
    /// On the media and readable.
    Released,
}

/// One write unit of the ring.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct BufferUnit {
    pub(crate) state: UnitState,
    /// Entries whose data is still being read.
    pub(crate) fills_pending: u32,
    /// Position of its first entry, in a ring of the host.
    pub(crate) first_pos: u64,
    pub(crate) chunk: ChunkId,
    pub(crate) sector: u32,
    /// Its sequence number.
    pub(crate) sequence: WriteSeq,
    /// Next unit of the same chunk that holds its slots.
    pub(crate) chain_next: Option<UnitId>,
    /// The line of its former location if it is redispatched; else
    /// [`LineId::NONE`]. That line is not erased until this unit is durable
    /// elsewhere.
    pub(crate) redispatch_from: LineId,
}

impl BufferUnit {
    /// Whether it has never had a sequence number.
    #[inline]
    pub(crate) fn is_unsequenced(&self) -> bool {
        self.state == UnitState::Filling && self.redispatch_from == LineId::NONE
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WriteRing {
    /// Its number in the buffer.
    ring: usize,
    ws_opt: u32,
    unit_count: u64,
    /// Number of the first slot. The slots of all rings share one numbering.
    base: SlotId,
    entries: Box<[BufferEntry]>,
    units: Box<[BufferUnit]>,
    /// The unit being filled, and the number of its filled slots.
    head: u64,
    fill_sectors: u32,
    /// Its index in the ring, `head % count`, kept so that no division is needed per sector.
    head_index: u32,
    /// The next unit to map, the first not persisted, the first not released.
    dispatched: u64,
    persisted: u64,
    released: u64,
}

impl WriteRing {
    /// An empty ring: number `ring` of the buffer, with slots from `base` on.
    pub(crate) fn new(ring: usize, shape: &FlashGeometry, units: u32, base: SlotId) -> WriteRing {
        let blank = BufferUnit {
            state: UnitState::Filling,
            fills_pending: 0,
            first_pos: 0,
            chunk: ChunkId(0),
            sector: 0,
            sequence: WriteSeq(0),
            chain_next: None,
            redispatch_from: LineId::NONE,
        };
        WriteRing {
            ring,
            ws_opt: shape.ws_opt,
            unit_count: units.into(),
            base,
            entries: vec![BufferEntry::PADDING; (units * shape.ws_opt).index()].into(),
            units: vec![blank; units.index()].into(),
            head: 0,
            fill_sectors: 0,
            head_index: 0,
            dispatched: 0,
            persisted: 0,
            released: 0,
        }
    }

    /// The first slot.
    #[inline]
    pub(super) fn first_slot(&self) -> SlotId {
        self.base
    }

    /// Whether it has slots.
    #[inline]
    pub(super) fn has_slots(&self) -> bool {
        self.unit_count > 0
    }

    /// Whether a slot is one of the ring's.
    #[inline]
    pub(crate) fn has_slot(&self, slot: SlotId) -> bool {
        (self.base..self.base + self.capacity()).contains(&slot)
    }

    /// Slots.
    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        self.entries.len().to_u32()
    }

    /// Slots that can be filled now.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        let units = (self.unit_count - (self.head - self.released)).to_u32();
        units * self.ws_opt - self.fill_sectors
    }

    /// Returns the number of slots that are not released.
    pub(crate) fn used(&self) -> u32 {
        self.capacity() - self.free()
    }

    /// Returns the number of units that are durable, with all units before them.
    #[inline]
    pub(crate) fn persisted(&self) -> u64 {
        self.persisted
    }

    /// Returns the number of entries of these units.
    #[inline]
    pub(super) fn persisted_entries(&self) -> u64 {
        self.persisted * u64::from(self.ws_opt)
    }

    /// Returns the position of the first entry that is not durable.
    #[inline]
    pub(crate) fn first_undurable_pos(&self) -> Option<u64> {
        let has_some = self.persisted < self.head || self.fill_sectors > 0;
        has_some.then(|| self.units[(self.persisted % self.unit_count).index()].first_pos)
    }

    /// Returns the position of the first entry of the unit that is being filled.
    #[inline]
    pub(crate) fn open_unit_pos(&self) -> Option<u64> {
        (self.fill_sectors > 0).then(|| self.units[self.head_index.index()].first_pos)
    }

    /// The slot that [`push`](WriteRing::push) fills next.
    #[inline]
    pub(crate) fn next_slot(&self) -> SlotId {
        self.base + self.head_index * self.ws_opt + self.fill_sectors
    }

    /// Fills the next slot; `pending` if its data is still to be read. The entry is at position `pos`.
    /// The caller has checked [`free`](WriteRing::free).
    #[inline]
    pub(super) fn push(&mut self, entry: BufferEntry, pending: bool, pos: u64) -> SlotId {
        debug_assert!(self.free() > 0);
        let at = self.head_index * self.ws_opt + self.fill_sectors;
        self.entries[at.index()] = entry;
        if self.fill_sectors == 0 {
            let unit = &mut self.units[self.head_index.index()];
            unit.state = UnitState::Filling;
            unit.fills_pending = 0;
            unit.first_pos = pos;
            unit.redispatch_from = LineId::NONE;
        }
        if pending {
            self.units[self.head_index.index()].fills_pending += 1;
        }
        self.fill_sectors += 1;
        if self.fill_sectors == self.ws_opt {
            self.fill_sectors = 0;
            self.head += 1;
            self.head_index += 1;
            if u64::from(self.head_index) == self.unit_count {
                self.head_index = 0;
            }
        }
        self.base + at
    }

    /// The unit at a position, counted in units.
    #[inline]
    fn unit_at(&self, position: u64) -> UnitId {
        UnitId::new(self.ring, (position % self.unit_count).to_u32())
    }

    /// A unit.
    #[inline]
    pub(crate) fn unit(&self, id: UnitId) -> &BufferUnit {
        debug_assert_eq!(id.ring(), self.ring);
        &self.units[id.index().index()]
    }

    #[inline]
    pub(super) fn unit_mut(&mut self, id: UnitId) -> &mut BufferUnit {
        debug_assert_eq!(id.ring(), self.ring);
        &mut self.units[id.index().index()]
    }

    /// Records that the data of a slot has been read.
    #[inline]
    pub(super) fn fill_done(&mut self, slot: SlotId) {
        let id = self.unit_of_slot(slot);
        self.unit_mut(id).fills_pending -= 1;
    }

    /// Returns the number of free slots of the open unit; 0 if no unit is open.
    pub(crate) fn free_in_unit(&self) -> u32 {
        if self.fill_sectors == 0 { 0 } else { self.ws_opt - self.fill_sectors }
    }

    /// Returns the entries of the unit that is being filled.
    pub(crate) fn open_entries(&self) -> &[BufferEntry] {
        let first = self.head_index.index() * self.ws_opt.index();
        &self.entries[first..first + self.fill_sectors.index()]
    }

    /// Returns the next unit to program, if it is full and all its data has been read.
    #[inline]
    pub(crate) fn ready(&self) -> Option<UnitId> {
        if self.dispatched == self.head {
            return None;
        }
        let id = self.unit_at(self.dispatched);
        (self.unit(id).fills_pending == 0).then_some(id)
    }

    /// Returns the chunk of the oldest unit, if that is programmed and waits for its paired page
    /// with more than half of the ring behind it.
    #[inline]
    pub(crate) fn oldest_unreadable_chunk(&self) -> Option<ChunkId> {
        if 2 * (self.dispatched - self.released) <= self.unit_count {
            return None;
        }
        let oldest = &self.units[(self.released % self.unit_count).index()];
        (oldest.state == UnitState::Persisted).then_some(oldest.chunk)
    }

    /// Returns the number of units that have a location, which is the number of the next one.
    #[inline]
    pub(crate) fn dispatched(&self) -> u64 {
        self.dispatched
    }

    /// Returns the number of units that can get a location before this one, or the oldest one, must
    /// be released.
    #[inline]
    pub(crate) fn dispatchable_after(&self, name: u64) -> u64 {
        self.unit_count - (self.dispatched - name.clamp(self.released, self.dispatched))
    }

    /// Returns the chunks of the oldest `count` units that are programmed and wait for their paired
    /// pages, under the same condition.
    pub(crate) fn unreadable_chunks(&self, count: u32) -> impl Iterator<Item = ChunkId> {
        let late = 2 * (self.dispatched - self.released) > self.unit_count;
        let under_way = if late { self.released..self.dispatched } else { 0..0 };
        under_way
            .map(|at| &self.units[(at % self.unit_count).index()])
            .filter(|unit| unit.state == UnitState::Persisted)
            .map(|unit| unit.chunk)
            .take(count.index())
    }

    /// Returns the chunk whose next write unit would free slots, if there are too few and no unit
    /// waits to be programmed.
    #[inline]
    pub(crate) fn pair_blocked_chunk(&self) -> Option<ChunkId> {
        if self.free() >= self.ws_opt || self.released == self.dispatched || self.ready().is_some()
        {
            return None;
        }
        let oldest = &self.units[(self.released % self.unit_count).index()];
        (oldest.state == UnitState::Persisted).then_some(oldest.chunk)
    }

    /// Returns the number of units so far, the one that is being filled included.
    pub(super) fn units_begun(&self) -> u64 {
        self.head + u64::from(self.fill_sectors > 0)
    }

    /// Returns whether one of the first `until` units, without a location, holds a logical sector.
    pub(super) fn has_undispatched(&self, lba: Lba, until: u64) -> bool {
        let is_it = |at: u64| {
            let filled = if at < self.head { self.ws_opt } else { self.fill_sectors };
            let entries = &self.entries(self.unit_at(at))[..filled.index()];
            entries.iter().any(|entry| entry.lba() == Some(lba))
        };
        (self.dispatched..until).any(is_it)
    }

    /// Records that the next unit is being programmed.
    #[inline]
    pub(super) fn advance_dispatched(&mut self) {
        self.dispatched += 1;
    }

    /// Returns the units from the first one on whose program is in flight or to be repeated.
    pub(crate) fn programming_units(&self) -> u64 {
        self.dispatched - self.persisted
    }

    /// Returns whether a unit with a number above this one, whose program is in flight or to be
    /// repeated, holds a logical sector.
    pub(crate) fn is_being_written(&self, lba: Lba, above: WriteSeq) -> bool {
        self.is_being_written_from(self.persisted, lba, above)
    }

    /// As [`is_being_written`](WriteRing::is_being_written), redispatched units included.
    pub(crate) fn is_being_rewritten(&self, lba: Lba, above: WriteSeq) -> bool {
        self.is_being_written_from(self.released, lba, above)
    }

    fn is_being_written_from(&self, first: u64, lba: Lba, above: WriteSeq) -> bool {
        (first..self.dispatched).any(|at| {
            let id = self.unit_at(at);
            let unit = self.unit(id);
            unit.state == UnitState::Programming
                && unit.sequence > above
                && self.entries(id).iter().any(|e| e.lba_plus_1 == lba.get() + 1)
        })
    }

    /// Returns the number of sectors without a location on the media.
    #[inline]
    pub(crate) fn undispatched(&self) -> u64 {
        (self.head - self.dispatched) * u64::from(self.ws_opt) + u64::from(self.fill_sectors)
    }

    /// Advances `persisted` and `released` over all persisted and released units.
    #[inline(always)]
    pub(super) fn advance_watermarks(&mut self) {
        while self.persisted < self.dispatched
            && self.units[(self.persisted % self.unit_count).index()].state >= UnitState::Persisted
        {
            self.persisted += 1;
        }
        while self.released < self.persisted
            && self.units[(self.released % self.unit_count).index()].state == UnitState::Released
        {
            self.released += 1;
        }
    }

    /// Units in use, oldest first, with the number of filled entries of each.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (UnitId, u32)> {
        let full = (self.released..self.head).map(|at| (self.unit_at(at), self.ws_opt));
        let open = (self.fill_sectors > 0).then(|| (self.unit_at(self.head), self.fill_sectors));
        full.chain(open)
    }

    /// Checks the order of the watermarks and the unit states between them. `renumbers` says that a unit
    /// whose program failed has no sequence number.
    pub(crate) fn check(&self, renumbers: bool) -> Result<(), Violation> {
        let subject = Subject::Ring(self.ring);
        let order = [self.released, self.persisted, self.dispatched, self.head];
        require!(
            order.is_sorted(),
            Buffer,
            "released ≤ persisted ≤ dispatched ≤ head",
            subject,
            "ascending",
            format_args!("{order:?}")
        );
        let in_use = self.head - self.released + u64::from(self.fill_sectors > 0);
        require!(
            in_use <= self.unit_count,
            Buffer,
            "units in use fit the ring",
            subject,
            format_args!("at most {}", self.unit_count),
            in_use
        );
        require_eq!(
            Buffer,
            "the unit at the head",
            subject,
            self.head.checked_rem(self.unit_count).unwrap_or(0),
            u64::from(self.head_index)
        );
        for at in self.released..self.head {
            let id = self.unit_at(at);
            let u = self.unit(id);
            let redispatched = u.redispatch_from != LineId::NONE;
            let legal = match u.state {
                UnitState::Filling => {
                    at >= self.dispatched
                        || redispatched
                        || (self.ring == crate::ftl::GC || renumbers) && at >= self.persisted
                }
                UnitState::Programming => {
                    (self.persisted..self.dispatched).contains(&at)
                        || redispatched && at < self.dispatched
                }
                UnitState::Persisted => at < self.dispatched && at != self.persisted,
                UnitState::Released => {
                    at < self.dispatched && at != self.persisted && at != self.released
                }
            };
            require!(
                legal,
                Buffer,
                "a unit's state is one of its position",
                Subject::Unit(id),
                format_args!("one for {at} of {order:?}"),
                format_args!("{:?}", u.state)
            );
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn slot_of_unit(&self, id: UnitId) -> SlotId {
        self.base + id.index() * self.ws_opt
    }

    #[inline]
    pub(crate) fn unit_of_slot(&self, slot: SlotId) -> UnitId {
        UnitId::new(self.ring, (slot - self.base) / self.ws_opt)
    }

    /// Returns the index of a slot in its write unit.
    #[inline]
    pub(crate) fn offset_in_unit(&self, slot: SlotId) -> u32 {
        (slot - self.base) % self.ws_opt
    }

    #[inline]
    pub(crate) fn entries(&self, id: UnitId) -> &[BufferEntry] {
        let first = (id.index() * self.ws_opt).index();
        &self.entries[first..first + self.ws_opt.index()]
    }

    #[inline]
    pub(super) fn entries_mut(&mut self, id: UnitId) -> &mut [BufferEntry] {
        let first = (id.index() * self.ws_opt).index();
        &mut self.entries[first..first + self.ws_opt.index()]
    }

    #[inline]
    pub(crate) fn entry(&self, slot: SlotId) -> &BufferEntry {
        &self.entries[(slot - self.base).index()]
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, slot: SlotId) -> &mut BufferEntry {
        &mut self.entries[(slot - self.base).index()]
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;

    use super::*;

    fn ring() -> WriteRing {
        let shape = FlashGeometry::from_geometry(&Geometry {
            groups: 1,
            pus: 1,
            chunks: 4,
            sectors: 16,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 4,
            ws_opt: 4,
            mw_cunits: 0,
        });
        WriteRing::new(0, &shape, 4, SlotId(100))
    }

    #[test]
    fn units_become_ready_when_full_and_free_when_released_in_order() {
        let mut r = ring();
        assert_eq!((r.free(), r.free_in_unit(), r.ready()), (16, 0, None));
        for i in 0..5 {
            assert_eq!(r.push(BufferEntry::PADDING, false, 7 + u64::from(i)), SlotId(100 + i));
        }
        assert_eq!((r.free(), r.free_in_unit(), r.ready()), (11, 3, Some(UnitId::new(0, 0))));
        r.advance_dispatched();
        assert_eq!(r.ready(), None, "the second unit is not full");
        for _ in 0..3 {
            r.push(BufferEntry::PADDING, true, 30);
        }
        assert_eq!(r.ready(), None, "its data is not there");
        r.units[1].fills_pending = 0;
        assert_eq!(r.ready(), Some(UnitId::new(0, 1)));
        r.advance_dispatched();
        r.units[1].state = UnitState::Released;
        r.advance_watermarks();
        assert_eq!((r.persisted(), r.free()), (0, 8), "unit 0 comes first");
        assert_eq!(r.first_undurable_pos(), Some(7));
        assert_eq!(r.unreadable_chunks(4).count(), 0, "no more than half of it waits");
        r.units[0].state = UnitState::Persisted;
        r.advance_watermarks();
        assert_eq!((r.persisted(), r.free()), (2, 8), "durable, but not readable");
        r.units[0].state = UnitState::Released;
        r.advance_watermarks();
        assert_eq!((r.persisted(), r.free(), r.first_undurable_pos()), (2, 16, None));
        r.push(BufferEntry::PADDING, false, 50);
        assert_eq!((r.first_undurable_pos(), r.open_unit_pos()), (Some(50), Some(50)));
    }
}
