//! [`Again`]: write units that are written once more, at another place (LightNVM paper sections 4.2.1
//! and 4.2.3).
//!
//! # Which, and what number they have there
//!
//! | a unit | on the media | its number |
//! |---|---|---|
//! | of the users, whose program failed | no | the same: it is still under way |
//! | of moved data, whose program failed | no | taken back: it gets one with its place |
//! | of either, rescued | yes | a new one, with its place |
//!
//! [Rescued](Ftl::rescue) is what is on the media and cannot be read there yet, because its pair is not
//! programmed: on a chunk that has gone, is [renewed](Ftl::renew), or is of a line that
//! [ends](crate::ending). Its old number has ended, and map pages made since say that nothing older is to be
//! found. The number of moved data is taken back so that nobody who trims waits for it.
//!
//! A power cut makes no unit of this kind. Recovery writes nothing again: it takes of all copies the one
//! with the largest number, which is why the numbers matter.
//!
//! # The rule
//!
//! *A unit holds nothing that is older than what has a number already, from when it gets its own.* One that
//! keeps its number is in order whatever was written since, and stays what it is. Of one that gets a number
//! ([`drop_outdated`](Ftl::drop_outdated)) that becomes padding which was trimmed, or which is not the newest
//! copy with a number; and of moved data what has been overwritten at all. That is the one difference between
//! moved and rescued data: where the first comes from can be read, and it is not needed once more before its
//! overwriter is there; the rescued copy may be the only one.
//!
//! # What counts meanwhile
//!
//! * As long as the unit is not on the media, [`Entry::under`](crate::Entry): of moved data where it comes
//!   from, of rescued data where it was, of users' data what it overwrites. The line that this is in is not
//!   erased before the unit is on the media: it has `moves`, or `programs`, or an `after` position.
//! * Of what has become padding the same copy, until the trim or the overwriter is durable: its line waits
//!   for that (`after`, `trimmed`).
//! * No flush ends while a rescued unit is not on the media; nor, if what became padding was on a chunk that
//!   has gone, before everything is that was numbered by then, the overwriter among it
//!   ([`holds`](Again::holds)).
//! * A place whose program failed says nothing: the reverse map and the line's list forget it.

use crate::ftl::{GC, USER};
use crate::lines::NONE;
use crate::program::parts;
use crate::write_ring::UnitState;
use crate::{Entry, Ftl, Location};

/// What is owed to those who wait for durability.
#[derive(Clone, Debug, Default)]
pub(crate) struct Again {
    /// Rescued units that are not on the media elsewhere.
    rescuing: u32,
    /// The position of the users' ring that must be durable for what became padding.
    owed: u64,
}

impl Again {
    /// Whether rescued units are on their way.
    pub(crate) fn rescues(&self) -> bool {
        self.rescuing > 0
    }

    /// Whether requests for durability must not end when this position of the users' ring is durable.
    #[inline]
    pub(crate) fn holds(&self, durable: u64) -> bool {
        self.rescuing > 0 || self.owed > durable
    }
}

impl Ftl {
    /// The program of a unit has failed: it goes elsewhere, ahead of everything newer.
    pub(crate) fn repeat(&mut self, name: u32) {
        let unit = *self.unit_mut(name);
        // Nobody says that it is there. (A rescued one is where it was: its line says so, and is kept.)
        let first_psn = self.shape.first_psn(unit.chunk) + unit.sector;
        for psn in first_psn..first_psn + self.shape.unit {
            self.reverse.set(psn, None, false);
        }
        let line = self.lines.line_of[unit.chunk as usize];
        if let Some(list) = &mut self.lines.lines[line as usize].list {
            list.strike(self.lines.chunks[unit.chunk as usize].place, unit.sector);
        }
        if parts(name).0 == GC {
            self.unit_mut(name).state = UnitState::Filling;
            self.issued.end(unit.sequence);
        }
        self.go_elsewhere(name);
    }

    /// Has every unit that is on a chunk, but not yet readable there and so still in the write buffer,
    /// written again elsewhere. Until it is durable there its line is not closed, and so not erased: this
    /// copy is what a power cut leaves.
    pub(crate) fn rescue(&mut self, chunk: u32) {
        let line = self.lines.line_of[chunk as usize];
        let mut at = self.lines.chunks[chunk as usize].first;
        while at != NONE {
            let unit = *self.unit_mut(at);
            let name = std::mem::replace(&mut at, unit.next);
            if unit.state != UnitState::Persisted {
                continue;
            }
            let (ring, index) = parts(name);
            let first_slot = self.rings[ring].slot_of_unit(index);
            let first_psn = self.shape.first_psn(chunk) + unit.sector;
            // As long as there is no other, this copy is the newest, whoever can read it.
            let sequence = self.issued.next();
            for i in 0..self.shape.unit {
                let entry = self.rings[ring].entry_mut(first_slot + i);
                (entry.under, entry.under_sequence) = (first_psn + i, sequence);
                // Valid is what is on its way.
                self.reverse.invalidate(first_psn + i);
            }
            let unit = self.unit_mut(name);
            (unit.state, unit.from) = (UnitState::Filling, line);
            self.lines.lines[line as usize].programs += 1;
            self.again.rescuing += 1;
            self.stats.rescued += u64::from(self.shape.unit);
            self.go_elsewhere(name);
        }
    }

    /// A rescued unit is on the media: the line that it was in may close, when the map points at what can be
    /// read now, and requests that were held may end, when its ring has settled.
    pub(crate) fn rescued(&mut self, line: u32) {
        self.again.rescuing -= 1;
        self.lines.lines[line as usize].programs -= 1;
    }

    /// A unit that is not where it was given a place is given another one.
    fn go_elsewhere(&mut self, name: u32) {
        let chunk = self.unit_mut(name).chunk;
        self.unlink(name, chunk);
        self.retry.push_back(parts(name));
    }

    /// Makes padding of what is outdated in a unit that gets a number now; the [rule](crate::again). What it
    /// leaves of it on the media counts until what outdated it is durable.
    pub(crate) fn drop_outdated(&mut self, ring: usize, unit: u32) {
        let first_slot = self.rings[ring].slot_of_unit(unit);
        for slot in first_slot..first_slot + self.shape.unit {
            let entry = *self.rings[ring].entry(slot);
            let Some(lba) = entry.lba_plus_1.checked_sub(1) else { continue };
            let now = self.map.get(lba);
            if now == Location::Buffer(slot) || self.is_needed_still(ring, unit, &entry, now) {
                continue;
            }
            let chunk = self.shape.chunk_of(entry.under);
            let after = Some(self.rings[USER].position()).filter(|_| now != Location::Unmapped);
            self.lines.lines[self.lines.line_of[chunk as usize] as usize].outlives(after);
            if self.lines.chunks[chunk as usize].offline {
                let numbered = self.rings[USER].mapped() * u64::from(self.shape.unit);
                self.again.owed = self.again.owed.max(numbered);
            }
            // Where it comes from is still noted: its line has it among its moves.
            let entry = self.rings[ring].entry_mut(slot);
            (entry.lba_plus_1, entry.poison) = (0, false);
            self.map.let_go(lba);
        }
    }

    /// Whether a rescued copy that has been overwritten in the buffer is still the newest with a number: the
    /// overwriter has none, and between them there was no other, on the media (it may come from there
    /// itself) or on its way.
    fn is_needed_still(&self, ring: usize, unit: u32, entry: &Entry, now: Location) -> bool {
        let rescued = &self.rings[ring].units[unit as usize];
        match now {
            Location::Buffer(at) if rescued.from != NONE => {
                self.unit_of(at).state == UnitState::Filling
                    && self.newest_on_media(now).0 == entry.under
                    && !self.rings[USER].is_being_written(entry.lba_plus_1 - 1, rescued.sequence)
            }
            Location::Buffer(_) | Location::Unmapped | Location::Flash(_) | Location::Lost => false,
        }
    }
}
