//! Room: what may still be appended, where a lane goes on, when a copy is given up, and when a
//! snapshot is due.

use super::capacity::RECORD_HEADER;
use super::{Journal, JournalError};

/// Times that a snapshot is begun anew in one copy before more is given up for it.
const ATTEMPTS: u32 = 4;

/// The most that two lanes can both have: `a` and `b` frames, and so many more chunks of `units` frames,
/// each of which goes to the lane that has less.
fn share(a: i64, b: i64, chunks: u32, units: u32) -> i64 {
    let (low, high) = (a.min(b), a.max(b));
    let (chunks, units) = (i64::from(chunks), i64::from(units));
    // Chunks that bring the one up to the other.
    let level = (high - low + units - 1) / units;
    if chunks < level {
        return low + chunks * units;
    }
    let (pairs, odd) = ((chunks - level) / 2, (chunks - level) % 2);
    (low + (level + pairs) * units).min(high + (pairs + odd) * units)
}

/// What came of looking for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The lane has one.
    Found,
    /// Not yet, but something was given up; look again.
    Changed,
    /// Something must end first.
    Wait,
    /// Padding makes what is there readable first.
    Cover,
}

impl Journal {
    /// Bytes of a snapshot at most.
    pub fn snapshot_bytes_max(&self) -> u64 {
        self.config.snapshot_bytes
    }

    /// Bytes of one record at most, were it the only one behind the largest snapshot.
    pub fn record_bytes_max(&self) -> u64 {
        let frames = self.capacity.generation_frames(self.pool.good());
        let base = self.capacity.snapshot_frames;
        let cover = self.capacity.cover_units(self.pool.good(), base, self.capacity.units);
        let frames = frames.saturating_sub(u64::from(base) + u64::from(cover));
        let bytes = frames.saturating_mul(self.capacity.payload_bytes as u64);
        bytes.saturating_sub(RECORD_HEADER as u64).min(u32::MAX.into())
    }

    /// Whether a generation has begun that is not complete.
    pub fn snapshot_is_under_way(&self) -> bool {
        self.backlog.base().is_some()
    }

    /// Whether a snapshot should be taken soon: three quarters of the generation's room are used, it
    /// cannot be continued, or it has fewer copies than there are chunks for. Not while one is
    /// under way.
    pub fn wants_snapshot(&self) -> bool {
        if self.failed.is_some() || self.snapshot_is_under_way() {
            return false;
        }
        let width = self.capacity.copies(self.pool.good()) as usize;
        let whole = |i: &usize| self.lanes[*i].live && self.copies[*i];
        (0..2).filter(whole).count() < width || self.room() * 4 <= self.room_at_first
    }

    /// Frames that the newest generation has room for beyond those it was given. Holds back what the
    /// next snapshot needs; failures can still make it less.
    pub(super) fn room(&self) -> u64 {
        let newest = self.backlog.generation();
        let base = self.backlog.base();
        let first = base.map_or(0, |base| base.first);
        let takes_part = |i: usize| self.lanes[i].live && (base.is_none() || i < self.width);
        let (good, units) = (self.pool.good(), self.capacity.units);
        let whole = base.map_or(0, |base| self.capacity.cover_units(good, base.frames, units));
        // Frames that fit what a lane has, less those that wait for it: less than none, perhaps.
        let fits = |i: usize| {
            let lane = &self.lanes[i];
            let is_open = lane.slot.is_some() && lane.generation == newest && !lane.failing;
            let left = if is_open { units - lane.unit } else { 0 };
            let waiting = self.backlog.end() - lane.next.max(first) + self.backlog.open_frames();
            // Frames cover the snapshot, or else padding does.
            let of_base =
                base.map_or(0, |base| base.end() - lane.next.clamp(base.first, base.end()));
            let cover = if base.is_some_and(|base| lane.next < base.end()) {
                whole
            } else {
                lane.uncovered
            };
            i64::from(left) - (of_base + (waiting - of_base).max(cover.into())) as i64
        };
        let used = self.pool.held(newest, None) + self.capacity.reserve(good);
        let more = good.saturating_sub(used);
        let room = match (takes_part(0), takes_part(1)) {
            (true, true) => share(fits(0), fits(1), more, units),
            (true, false) => fits(0) + i64::from(more) * i64::from(units),
            (false, true) => fits(1) + i64::from(more) * i64::from(units),
            (false, false) => 0,
        };
        room.max(0) as u64
    }

    /// Lets the lanes that have given up take part in the newest generation.
    pub(super) fn enter_newest(&mut self) {
        let Some(first) = self.backlog.base().map(|base| base.first) else { return };
        if self.lanes.iter().all(|lane| !lane.live) {
            // What is in front can be written nowhere; the snapshot stands for it.
            self.backlog.forget_older();
        }
        for lane in &mut self.lanes[..self.width] {
            if !lane.live {
                lane.restart(first);
            }
        }
    }

    /// Finds a chunk for the next frame of lane `i`, which has nothing under way.
    pub(super) fn place(&mut self, i: usize, generation: u64, base: bool) -> Place {
        if i >= self.width && generation != self.committed {
            // The generation has one copy only.
            self.lanes[i].stop();
            if !self.lanes[1 - i].live {
                self.enter_newest();
            }
            self.settle();
            return Place::Changed;
        }
        if !base {
            if generation != self.committed {
                return Place::Wait;
            }
            if self.pool.spare() <= self.capacity.reserve(self.pool.good()) {
                if !self.let_go() {
                    self.give_up(i);
                }
                return Place::Changed;
            }
        }
        let beside = self.lanes[1 - i].slot.filter(|_| self.lanes[1 - i].generation == generation);
        if let Some(slot) = self.pool.take(generation, i, beside) {
            let lane = &mut self.lanes[i];
            (lane.slot, lane.unit, lane.generation) = (Some(slot), 0, generation);
            return Place::Found;
        }
        if self.pool.on_their_way() {
            return Place::Wait;
        }
        // What can be read must not go before what comes after it can be.
        if !self.covers() && self.is_coverable(i) {
            return Place::Cover;
        }
        if self.let_go() {
            return Place::Changed;
        }
        self.make_room_for_base(i, generation)
    }

    /// Gives lane `i` up until the next generation.
    fn give_up(&mut self, i: usize) {
        // Programs that are under way no longer count.
        let done = self.lanes[i].done;
        let generation = self.backlog.at(done).map(|s| s.generation);
        self.lanes[i].stop();
        self.stats.copies_lost += 1;
        let other = self.lanes[1 - i];
        if !other.live {
            self.enter_newest();
        } else if generation == Some(self.committed) && other.joined <= done {
            // What this copy lacks becomes durable in the other.
            self.copies[i] = false;
        }
        self.settle();
    }

    /// Nothing is free for the snapshot of lane `i`: gives up, in this order, the copy that is less
    /// far; what this copy has programmed, of which failures have taken a part; the second copy of
    /// the old generation; and the journal.
    fn make_room_for_base(&mut self, i: usize, generation: u64) -> Place {
        let other = 1 - i;
        if self.lanes[other].live {
            let takes_part = other < self.width;
            let is_behind = self.lanes[other].done < self.lanes[i].done;
            let behind = if is_behind || !takes_part { other } else { i };
            self.give_up(behind);
            let committed = self.committed;
            self.pool.release(|of, lane| of == generation && of != committed && lane == behind);
            return Place::Changed;
        }
        let first = self.backlog.base().map_or(self.lanes[i].done, |base| base.first);
        if self.attempts < ATTEMPTS && self.pool.release(|of, _| of == generation) {
            self.attempts += 1;
            self.lanes[i].restart(first);
            return Place::Changed;
        }
        // One whole copy of the old generation is kept.
        let (committed, kept) = (self.committed, usize::from(!self.copies[0]));
        if self.copies[kept] && self.pool.release(|of, lane| of == committed && lane != kept) {
            self.copies[1 - kept] = false;
            self.attempts = 0;
            return Place::Changed;
        }
        let frames = self.backlog.base().map_or(1, |base| base.frames);
        let (reserved, good) = (self.pool.slots.len() as u32, self.pool.good());
        self.failed = Some(JournalError::WornOut { reserved, good, frames });
        Place::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn chunks_go_to_the_lane_that_has_less() {
        for units in 1..5u32 {
            for (a, b) in (-9..9).flat_map(|a| (-9..9).map(move |b| (a, b))) {
                let mut lanes = [a, b];
                for chunks in 0..12 {
                    let least = lanes[0].min(lanes[1]);
                    assert_eq!(share(a, b, chunks, units), least, "{a} {b} {chunks} {units}");
                    let lower = usize::from(lanes[1] < lanes[0]);
                    lanes[lower] += i64::from(units);
                }
            }
        }
    }
}
