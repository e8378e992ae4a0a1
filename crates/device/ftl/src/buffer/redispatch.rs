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

use crate::buffer::unit_id::UnitId;

/// What is owed to those who wait for durability.
#[derive(Clone, Debug, Default)]
pub(crate) struct RedispatchTracker {
    /// Units that get a location before any other, in order.
    queue: VecDeque<UnitId>,
    /// Rescued units that are not on the media elsewhere.
    in_flight: u32,
    /// The position of the users' ring that must be durable for what became padding.
    flush_floor: u64,
}

impl RedispatchTracker {
    /// Appends a unit that needs another location.
    pub(super) fn push(&mut self, unit: UnitId) {
        self.queue.push_back(unit);
    }

    /// Returns the unit with this position in the queue.
    #[inline]
    pub(crate) fn get(&self, position: usize) -> Option<UnitId> {
        self.queue.get(position).copied()
    }

    /// Removes the unit with this position in the queue, which has been dispatched.
    pub(super) fn remove(&mut self, position: usize) {
        self.queue.remove(position);
    }

    /// Returns how many units of a ring are queued.
    #[inline]
    pub(crate) fn queued(&self, ring: usize) -> u64 {
        if self.queue.is_empty() {
            return 0;
        }
        self.queue.iter().filter(|unit| unit.ring() == ring).count() as u64
    }

    /// Whether a unit is queued.
    pub(crate) fn contains(&self, unit: UnitId) -> bool {
        self.queue.contains(&unit)
    }

    /// Returns the queued units in order.
    pub(crate) fn units(&self) -> impl Iterator<Item = UnitId> {
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

    /// A durable unit is redispatched.
    pub(super) fn begin_one(&mut self) {
        self.in_flight += 1;
    }

    /// A redispatched unit is durable elsewhere.
    pub(super) fn complete_one(&mut self) {
        self.in_flight -= 1;
    }

    /// Has flushes wait until this position of the host ring is durable.
    pub(super) fn raise_flush_floor(&mut self, position: u64) {
        self.flush_floor = self.flush_floor.max(position);
    }
}
