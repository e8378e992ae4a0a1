//! The write buffer (LightNVM paper section 4.2.1): a ring of write units between acknowledgement
//! and the media.
//!
//! Entries go in at the head, in order; a unit that is full is mapped and programmed as a whole,
//! possibly out of order; `persisted` and `released` follow in order. A unit is *persisted* when it
//! is programmed, and *released* when it can be read from the media, that is when its paired pages
//! are programmed too; only then are its slots used again.

use crate::Shape;

/// One slot's metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The logical sector plus 1; 0 for padding.
    pub(crate) lba_plus_1: u32,
    /// The sector's data was lost.
    pub(crate) poison: bool,
    /// The newest copy on the media as long as this one is not there; [`NONE`](crate::lines::NONE)
    /// if there is none. Of a moved sector: where it comes from.
    pub(crate) under: u32,
    /// Every unit with a smaller number holds no newer copy than `under`.
    pub(crate) under_sequence: u64,
    /// Names the trim that it comes after and that the drive's own map was not told of, as long as no
    /// copy since is on the media; 0 for none.
    pub(crate) trim: u64,
}

impl Entry {
    /// Padding.
    pub(crate) const PADDING: Entry = Entry {
        lba_plus_1: 0,
        poison: false,
        under: crate::lines::NONE,
        under_sequence: 0,
        trim: 0,
    };

    /// The logical sector, and whether its data was lost.
    #[inline]
    pub(crate) fn written(&self) -> (Option<u32>, bool) {
        (self.lba_plus_1.checked_sub(1), self.poison)
    }

    /// What is written beside the sector in a write unit of this number.
    pub fn oob(&self, sequence: u64) -> crate::Oob {
        crate::Oob {
            lba: self.lba_plus_1.checked_sub(1),
            poison: self.poison,
            metadata: false,
            sequence,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UnitState {
    /// Being filled, or waiting for reads into it.
    Filling,
    /// A program is outstanding.
    Mapped,
    /// On the media, not readable there yet.
    Persisted,
    /// On the media and readable.
    Released,
}

/// One write unit of the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    pub(crate) state: UnitState,
    /// Entries whose data is still being read.
    pub(crate) pending: u32,
    pub(crate) chunk: u32,
    pub(crate) sector: u32,
    /// Its number in the order in which units were first given a place.
    pub(crate) sequence: u64,
    /// Next unit of the same chunk that holds its slots.
    pub(crate) next: u32,
    /// The line that it is on the media in, if it is written once more; else [`NONE`](crate::lines::NONE).
    /// That line stays as it is until this is durable elsewhere.
    pub(crate) from: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct WriteRing {
    unit: u32,
    count: u64,
    /// First slot number: slots of all rings are numbered together.
    base: u32,
    entries: Box<[Entry]>,
    pub(crate) units: Box<[Unit]>,
    /// The unit being filled, and how far.
    head: u64,
    fill: u32,
    /// Its place in the ring: `head % count`, which is a division that every sector would pay for.
    filling: u32,
    /// The next unit to map, the first not persisted, the first not released.
    mapped: u64,
    persisted: u64,
    released: u64,
}

impl WriteRing {
    pub(crate) fn new(shape: &Shape, units: u32, base: u32) -> WriteRing {
        let blank = Unit {
            state: UnitState::Filling,
            pending: 0,
            chunk: 0,
            sector: 0,
            sequence: 0,
            next: crate::lines::NONE,
            from: crate::lines::NONE,
        };
        WriteRing {
            unit: shape.unit,
            count: units.into(),
            base,
            entries: vec![Entry::default(); (units * shape.unit) as usize].into(),
            units: vec![blank; units as usize].into(),
            head: 0,
            fill: 0,
            filling: 0,
            mapped: 0,
            persisted: 0,
            released: 0,
        }
    }

    /// Slots.
    pub(crate) fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Slots that can be filled now.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        let units = (self.count - (self.head - self.released)) as u32;
        units * self.unit - self.fill
    }

    /// Slots that hold something not released yet.
    pub(crate) fn used(&self) -> u32 {
        self.capacity() - self.free()
    }

    /// A position that grows with every entry: everything before it has been filled.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.head * u64::from(self.unit) + u64::from(self.fill)
    }

    /// Everything before this position is durable.
    #[inline]
    pub(crate) fn durable(&self) -> u64 {
        self.persisted * u64::from(self.unit)
    }

    /// The slot that [`push`](WriteRing::push) fills next.
    #[inline]
    pub(crate) fn next_slot(&self) -> u32 {
        self.base + self.filling * self.unit + self.fill
    }

    /// Fills the next slot; `pending` if its data is still to be read. The caller has checked
    /// [`free`](WriteRing::free).
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry, pending: bool) -> u32 {
        debug_assert!(self.free() > 0);
        let at = self.filling * self.unit + self.fill;
        self.entries[at as usize] = entry;
        if self.fill == 0 {
            let unit = &mut self.units[self.filling as usize];
            unit.state = UnitState::Filling;
            unit.pending = 0;
            unit.from = crate::lines::NONE;
        }
        if pending {
            self.units[self.filling as usize].pending += 1;
        }
        self.fill += 1;
        if self.fill == self.unit {
            self.fill = 0;
            self.head += 1;
            self.filling += 1;
            if u64::from(self.filling) == self.count {
                self.filling = 0;
            }
        }
        self.base + at
    }

    /// Slots missing to a full unit; 0 if no unit is begun.
    pub(crate) fn missing(&self) -> u32 {
        if self.fill == 0 { 0 } else { self.unit - self.fill }
    }

    /// What has been put into the unit that is being filled.
    pub(crate) fn begun(&self) -> &[Entry] {
        let first = (self.head % self.count) as usize * self.unit as usize;
        &self.entries[first..first + self.fill as usize]
    }

    /// The next unit to program, if it is full and all its data is there.
    #[inline]
    pub(crate) fn ready(&self) -> Option<u32> {
        if self.mapped == self.head {
            return None;
        }
        let unit = (self.mapped % self.count) as u32;
        (self.units[unit as usize].pending == 0).then_some(unit)
    }

    /// The chunk of the oldest unit, if that is on the media and waits for its pair with more than
    /// half of the ring behind it.
    #[inline]
    pub(crate) fn lagging(&self) -> Option<u32> {
        if 2 * (self.mapped - self.released) <= self.count {
            return None;
        }
        let oldest = &self.units[(self.released % self.count) as usize];
        (oldest.state == UnitState::Persisted).then_some(oldest.chunk)
    }

    /// How many units have been given a place: the next one's name in order.
    #[inline]
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Write units that can be given a place before the one of this name, or the oldest one, must be
    /// released.
    #[inline]
    pub(crate) fn placeable_behind(&self, name: u64) -> u64 {
        self.count - (self.mapped - name.clamp(self.released, self.mapped))
    }

    /// The chunks of the oldest `count` units that are on the media and wait for their pairs, under the
    /// same condition.
    pub(crate) fn laggards(&self, count: u32) -> impl Iterator<Item = u32> {
        let late = 2 * (self.mapped - self.released) > self.count;
        let under_way = if late { self.released..self.mapped } else { 0..0 };
        under_way
            .map(|at| &self.units[(at % self.count) as usize])
            .filter(|unit| unit.state == UnitState::Persisted)
            .map(|unit| unit.chunk)
            .take(count as usize)
    }

    /// The chunk whose next write unit would free slots, if there are too few and nothing waits to
    /// be programmed.
    #[inline]
    pub(crate) fn stuck_on(&self) -> Option<u32> {
        let stuck =
            self.free() < self.unit && self.released < self.mapped && self.ready().is_none();
        let oldest = &self.units[(self.released % self.count) as usize];
        (stuck && oldest.state == UnitState::Persisted).then_some(oldest.chunk)
    }

    /// The next unit is being programmed.
    #[inline]
    pub(crate) fn advance_mapped(&mut self) {
        self.mapped += 1;
    }

    /// Whether a unit's program is under way, or to be repeated.
    pub(crate) fn is_programming(&self) -> bool {
        self.persisted < self.mapped
    }

    /// Whether a unit with a number above this one, whose program is under way or to be repeated, holds a
    /// logical sector.
    pub(crate) fn is_being_written(&self, lba: u32, above: u64) -> bool {
        let mut under_way = self.persisted..self.mapped;
        under_way.any(|at| {
            let unit = (at % self.count) as u32;
            let u = &self.units[unit as usize];
            u.state == UnitState::Mapped
                && u.sequence > above
                && self.entries(unit).iter().any(|e| e.lba_plus_1 == lba + 1)
        })
    }

    /// Sectors that wait for a place on the media.
    #[inline]
    pub(crate) fn unmapped(&self) -> u64 {
        self.position() - self.mapped * u64::from(self.unit)
    }

    /// Moves `persisted` and `released` over everything that is.
    #[inline]
    pub(crate) fn settle(&mut self) {
        while self.persisted < self.mapped
            && self.units[(self.persisted % self.count) as usize].state >= UnitState::Persisted
        {
            self.persisted += 1;
        }
        while self.released < self.persisted
            && self.units[(self.released % self.count) as usize].state == UnitState::Released
        {
            self.released += 1;
        }
    }

    #[inline]
    pub(crate) fn slot_of_unit(&self, unit: u32) -> u32 {
        self.base + unit * self.unit
    }

    #[inline]
    pub(crate) fn unit_of_slot(&self, slot: u32) -> usize {
        ((slot - self.base) / self.unit) as usize
    }

    /// A slot's place among those of its write unit.
    #[inline]
    pub(crate) fn place_in_unit(&self, slot: u32) -> u32 {
        (slot - self.base) % self.unit
    }

    #[inline]
    pub(crate) fn entries(&self, unit: u32) -> &[Entry] {
        let first = (unit * self.unit) as usize;
        &self.entries[first..first + self.unit as usize]
    }

    #[inline]
    pub(crate) fn entry(&self, slot: u32) -> &Entry {
        &self.entries[(slot - self.base) as usize]
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, slot: u32) -> &mut Entry {
        &mut self.entries[(slot - self.base) as usize]
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;

    use super::*;

    fn ring() -> WriteRing {
        let shape = Shape::of(&Geometry {
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
        WriteRing::new(&shape, 4, 100)
    }

    #[test]
    fn units_become_ready_when_full_and_free_when_released_in_order() {
        let mut r = ring();
        assert_eq!((r.free(), r.missing(), r.ready()), (16, 0, None));
        for i in 0..5 {
            assert_eq!(r.push(Entry::default(), false), 100 + i);
        }
        assert_eq!((r.free(), r.missing(), r.ready()), (11, 3, Some(0)));
        r.advance_mapped();
        assert_eq!(r.ready(), None, "the second unit is not full");
        for _ in 0..3 {
            r.push(Entry::default(), true);
        }
        assert_eq!(r.ready(), None, "its data is not there");
        r.units[1].pending = 0;
        assert_eq!(r.ready(), Some(1));
        r.advance_mapped();
        r.units[1].state = UnitState::Released;
        r.settle();
        assert_eq!((r.durable(), r.free()), (0, 8), "unit 0 comes first");
        assert_eq!(r.laggards(4).count(), 0, "no more than half of it waits");
        r.units[0].state = UnitState::Persisted;
        r.settle();
        assert_eq!((r.durable(), r.free()), (8, 8), "durable, but not readable");
        r.units[0].state = UnitState::Released;
        r.settle();
        assert_eq!((r.durable(), r.free(), r.position()), (8, 16, 8));
    }
}
