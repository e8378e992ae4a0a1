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
//! [Rescued](Ftl::redispatch_unreadable) is what is on the media and cannot be read there yet, because its pair is not
//! programmed: on a chunk that has gone, is [renewed](Ftl::rewrite_buffered), or is of a line that
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
//! ([`drop_superseded`](Ftl::drop_superseded)) that becomes padding which was trimmed, or which is not the newest
//! copy with a number; and of moved data what has been overwritten at all. That is the one difference between
//! moved and rescued data: where the first comes from can be read, and it is not needed once more before its
//! overwriter is there; the rescued copy may be the only one.
//!
//! # What counts meanwhile
//!
//! * As long as the unit is not on the media, [`BufferEntry::durable_copy`](crate::Entry): of moved data where it comes
//!   from, of rescued data where it was, of users' data what it overwrites. The line that this is in is not
//!   erased before the unit is on the media: it has `moves`, or `programs`, or an `after` position.
//! * Of what has become padding the same copy, until the trim or the overwriter is durable: its line waits
//!   for that (`after`, `trimmed`).
//! * No flush ends while a rescued unit is not on the media; nor, if what became padding was on a chunk that
//!   has gone, before everything is that was numbered by then, the overwriter among it
//!   ([`holds`](RedispatchTracker::defers_flush_at)).
//! * A place whose program failed says nothing: the reverse map and the line's list forget it.

use std::collections::VecDeque;

use crate::buffer::write_ring::UnitState;
use crate::ftl::pipeline::dispatch::split_unit_id;
use crate::ftl::{GC, HOST};
use crate::space::lines::NONE;
use crate::{BufferEntry, Ftl, L2pEntry};

/// A unit that is queued for redispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedUnit {
    pub(crate) ring: usize,
    pub(crate) unit: u32,
}

/// What is owed to those who wait for durability.
#[derive(Clone, Debug, Default)]
pub(crate) struct RedispatchTracker {
    /// Units that get a location before any other, in order.
    queue: VecDeque<QueuedUnit>,
    /// Rescued units that are not on the media elsewhere.
    in_flight: u32,
    /// The position of the users' ring that must be durable for what became padding.
    flush_floor: u64,
}

impl RedispatchTracker {
    /// Appends a unit that needs another location.
    pub(crate) fn push(&mut self, unit: QueuedUnit) {
        self.queue.push_back(unit);
    }

    /// Returns the unit with this position in the queue.
    #[inline]
    pub(crate) fn get(&self, position: usize) -> Option<QueuedUnit> {
        self.queue.get(position).copied()
    }

    /// Removes the unit with this position in the queue, which has been dispatched.
    pub(crate) fn remove(&mut self, position: usize) {
        self.queue.remove(position);
    }

    /// Returns how many units of a ring are queued.
    #[inline]
    pub(crate) fn queued(&self, ring: usize) -> u64 {
        if self.queue.is_empty() {
            return 0;
        }
        self.queue.iter().filter(|unit| unit.ring == ring).count() as u64
    }

    /// Whether a unit is queued.
    pub(crate) fn contains(&self, unit: QueuedUnit) -> bool {
        self.queue.contains(&unit)
    }

    /// Returns the queued units in order.
    pub(crate) fn units(&self) -> impl Iterator<Item = QueuedUnit> {
        self.queue.iter().copied()
    }

    /// Redispatched units that are not durable at their new location.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether rescued units are on their way.
    pub(crate) fn has_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Whether requests for durability must not end when this position of the users' ring is durable.
    #[inline]
    pub(crate) fn defers_flush_at(&self, durable: u64) -> bool {
        self.in_flight > 0 || self.flush_floor > durable
    }
}

impl Ftl {
    /// The program of a unit has failed: it goes elsewhere, ahead of everything newer.
    pub(crate) fn requeue_failed(&mut self, name: u32) {
        let unit = *self.unit_mut(name);
        // Nobody says that it is there. (A rescued one is where it was: its line says so, and is kept.)
        let first_psn = self.env.geometry.first_sector_of(unit.chunk) + unit.sector;
        self.mapping.record_nothing(first_psn, self.env.geometry.ws_opt);
        let line = self.space.lines.line_of[unit.chunk as usize];
        if let Some(list) = &mut self.space.lines.lines[line as usize].p2l {
            list.erase_unit(self.space.lines.chunks[unit.chunk as usize].member_index, unit.sector);
        }
        if split_unit_id(name).0 == GC {
            self.unit_mut(name).state = UnitState::Filling;
            self.buffer.sequencer.retire(unit.sequence);
        }
        self.requeue(name);
    }

    /// Has every unit that is on a chunk, but not yet readable there and so still in the write buffer,
    /// written again elsewhere. Until it is durable there its line is not closed, and so not erased: this
    /// copy is what a power cut leaves.
    pub(crate) fn redispatch_unreadable(&mut self, chunk: u32) {
        let line = self.space.lines.line_of[chunk as usize];
        let mut at = self.space.lines.chunks[chunk as usize].first;
        while at != NONE {
            let unit = *self.unit_mut(at);
            let name = std::mem::replace(&mut at, unit.chain_next);
            if unit.state != UnitState::Persisted {
                continue;
            }
            let (ring, index) = split_unit_id(name);
            let first_slot = self.buffer.rings[ring].slot_of_unit(index);
            let first_psn = self.env.geometry.first_sector_of(chunk) + unit.sector;
            // As long as there is no other, this copy is the newest, whoever can read it.
            let sequence = self.buffer.sequencer.next_seq();
            for i in 0..self.env.geometry.ws_opt {
                let entry = self.buffer.rings[ring].entry_mut(first_slot + i);
                (entry.durable_copy, entry.durable_copy_seq) = (first_psn + i, sequence);
                // Valid is what is on its way.
                self.mapping.invalidate(first_psn + i);
            }
            let unit = self.unit_mut(name);
            (unit.state, unit.redispatch_from) = (UnitState::Filling, line);
            self.space.lines.lines[line as usize].programs_in_flight += 1;
            self.buffer.redispatch.in_flight += 1;
            self.stats.redispatched_sectors += u64::from(self.env.geometry.ws_opt);
            self.requeue(name);
        }
    }

    /// A rescued unit is on the media: the line that it was in may close, when the map points at what can be
    /// read now, and requests that were held may end, when its ring has settled.
    pub(crate) fn redispatch_done(&mut self, line: u32) {
        self.buffer.redispatch.in_flight -= 1;
        self.space.lines.lines[line as usize].programs_in_flight -= 1;
    }

    /// A unit that is not where it was given a place is given another one.
    fn requeue(&mut self, name: u32) {
        let chunk = self.unit_mut(name).chunk;
        self.unlink(name, chunk);
        let (ring, unit) = split_unit_id(name);
        self.buffer.redispatch.push(QueuedUnit { ring, unit });
    }

    /// Makes padding of what is outdated in a unit that gets a number now; the [rule](crate::again). What it
    /// leaves of it on the media counts until what outdated it is durable.
    pub(crate) fn drop_superseded(&mut self, ring: usize, unit: u32) {
        let first_slot = self.buffer.rings[ring].slot_of_unit(unit);
        for slot in first_slot..first_slot + self.env.geometry.ws_opt {
            let entry = *self.buffer.rings[ring].entry(slot);
            let Some(lba) = entry.lba_plus_1.checked_sub(1) else { continue };
            let now = self.mapping.get(lba);
            if now == L2pEntry::Buffer(slot)
                || self.is_still_newest_sequenced(ring, unit, &entry, now)
            {
                continue;
            }
            let chunk = self.env.geometry.chunk_of(entry.durable_copy);
            let after =
                Some(self.buffer.rings[HOST].head_pos()).filter(|_| now != L2pEntry::Unmapped);
            self.space.lines.lines[self.space.lines.line_of[chunk as usize] as usize]
                .erase_must_wait_for(after);
            if self.space.lines.chunks[chunk as usize].offline {
                let numbered =
                    self.buffer.rings[HOST].dispatched() * u64::from(self.env.geometry.ws_opt);
                self.buffer.redispatch.flush_floor =
                    self.buffer.redispatch.flush_floor.max(numbered);
            }
            // Where it comes from is still noted: its line has it among its moves.
            let entry = self.buffer.rings[ring].entry_mut(slot);
            (entry.lba_plus_1, entry.poison) = (0, false);
            self.mapping.unpin(lba);
        }
    }

    /// Whether a rescued copy that has been overwritten in the buffer is still the newest with a number: the
    /// overwriter has none, and between them there was no other, on the media (it may come from there
    /// itself) or on its way.
    fn is_still_newest_sequenced(
        &self,
        ring: usize,
        unit: u32,
        entry: &BufferEntry,
        now: L2pEntry,
    ) -> bool {
        let rescued = &self.buffer.rings[ring].units[unit as usize];
        match now {
            L2pEntry::Buffer(at) if rescued.redispatch_from != NONE => {
                self.buffer.unit_of(at).state == UnitState::Filling
                    && self.buffer.durable_copy_of(&self.env.geometry, now).0 == entry.durable_copy
                    && !self.buffer.rings[HOST]
                        .is_being_written(entry.lba_plus_1 - 1, rescued.sequence)
            }
            L2pEntry::Buffer(_) | L2pEntry::Unmapped | L2pEntry::Flash(_) | L2pEntry::Lost => false,
        }
    }
}
