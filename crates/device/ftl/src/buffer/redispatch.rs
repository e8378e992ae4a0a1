//! Re-dispatch: write units that are written a second time, at another location [LightNVM17 §4.2.1,
//! §4.2.3].
//!
//! # Cases
//!
//! | unit | on the media | sequence number |
//! |---|---|---|
//! | of the host, its program failed | no | kept: the unit is still in flight |
//! | a relocation of GC, its program failed | no | returned: the unit gets a new one with its new location |
//! | either, re-dispatched because it is unreadable | yes | a new one, with its new location |
//!
//! A unit is [re-dispatched as unreadable](Ftl::redispatch_unreadable) when it is on the media, its
//! paired page has not been programmed, and its chunk has gone offline, is
//! [rewritten](Ftl::rewrite_buffered) or belongs to a line that is [finished
//! early](crate::ftl::pipeline::health::finish_line). Its old sequence number is retired, and map
//! pages written since then may rely on that. GC returns the sequence number of a failed relocation
//! so that no trim waits for it.
//!
//! A power cut creates no unit of this kind. Recovery rewrites nothing: it takes the version with
//! the largest sequence number, so the numbers must be right.
//!
//! # Ordering invariant
//!
//! When a write unit is assigned a sequence number, it contains no sector version older than one
//! already sequenced. A unit retried under its old number satisfies this and is not changed. When a
//! unit gets a *new* number, [`drop_superseded`](Ftl::drop_superseded) replaces entries with
//! padding if the sector was trimmed or has a newer sequenced version. GC relocations also drop
//! entries overwritten in the buffer, because their source is still readable; re-dispatched units
//! keep them, because they may be the only copy.
//!
//! # Until the unit is on the media
//!
//! * [`BufferEntry::durable_copy`](crate::BufferEntry) names the copy that the unit replaces: the
//!   source of a relocation, the old location of a re-dispatched sector, or the version that a host
//!   write overwrites. The line with that copy is not erased before the unit is durable: its counts
//!   of programs and relocations in flight, or its `erase_after` position, prevent it.
//! * For an entry replaced by padding, the line with the durable copy waits until the trim or the
//!   overwriting unit is durable.
//! * No flush completes while a re-dispatched unit is in flight. If padding replaced entries of an
//!   offline chunk, a flush also waits until everything sequenced by then is durable, the
//!   overwriting unit included ([`defers_flush_at`](RedispatchTracker::defers_flush_at)).
//! * With atomic writes, a unit of an offline chunk waits until newer versions of its sectors are on the
//!   media, and its trimmed entries become zeros instead of padding, so that no write is torn
//!   ([`admit`](crate::ftl::pipeline::admit)).
//! * A location whose program failed holds nothing: the reverse map and the line's P2L table drop
//!   it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::buffer::unit_id::UnitId;
use crate::ftl::HOST_RINGS;

/// Re-dispatched units, and the position that flushes must wait for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RedispatchTracker {
    /// Units that get a location before any other, in order.
    queue: VecDeque<UnitId>,
    /// Re-dispatched units that are not durable at their new location.
    in_flight: u32,
    /// By ring of the host, the units that must be durable because of entries replaced by padding.
    flush_floor: [u64; HOST_RINGS.len()],
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
        self.queue.iter().filter(|unit| unit.ring() == ring).map(|_| 1).sum()
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

    /// Returns whether re-dispatched units are in flight.
    pub(crate) fn has_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Returns whether flushes must wait although these units of each ring of the host are durable.
    #[inline]
    pub(crate) fn defers_flush_at(&self, durable: [u64; HOST_RINGS.len()]) -> bool {
        self.in_flight > 0 || self.flush_floor.iter().zip(durable).any(|(floor, at)| *floor > at)
    }

    /// Records that a durable unit is redispatched.
    pub(super) fn begin_one(&mut self) {
        self.in_flight += 1;
    }

    /// Records that a redispatched unit is durable elsewhere.
    pub(super) fn complete_one(&mut self) {
        self.in_flight -= 1;
    }

    /// Delays flushes until these units of each ring of the host are durable.
    pub(super) fn raise_flush_floor(&mut self, units: [u64; HOST_RINGS.len()]) {
        for (floor, units) in self.flush_floor.iter_mut().zip(units) {
            *floor = units.max(*floor);
        }
    }
}
