//! Room: what may still be appended, where a lane goes on, when a copy is given up, and when a
//! snapshot is due.

use super::capacity::RECORD_HEADER;
use super::{Journal, JournalError};

/// Times that a snapshot is begun anew in one copy before more is given up for it.
const ATTEMPTS: u32 = 4;

/// What came of looking for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The lane has one.
    Found,
    /// Not yet, but something was given up; look again.
    Changed,
    /// Something must end first.
    Wait,
}

impl Journal {
    /// Bytes of a snapshot at most.
    pub fn snapshot_bytes_max(&self) -> u64 {
        self.config.snapshot_bytes
    }

    /// Bytes of one record at most, were it the only one behind the largest snapshot.
    pub fn record_bytes_max(&self) -> u64 {
        let frames = self.capacity.generation_frames(self.pool.good());
        let frames = frames.saturating_sub(self.capacity.snapshot_frames.into());
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
        let first = self.backlog.base().map_or(0, |base| base.first);
        let takes_part =
            |i: &usize| self.lanes[*i].live && (!self.snapshot_is_under_way() || *i < self.width);
        let lanes = (0..2).filter(takes_part).count() as u32;
        if lanes == 0 {
            return 0;
        }
        let good = self.pool.good();
        let used = self.pool.held(newest, None) + self.capacity.reserve(good);
        let more = u64::from(good.saturating_sub(used) / lanes) * u64::from(self.capacity.units);
        let room = (0..2).filter(takes_part).map(|i| {
            let lane = &self.lanes[i];
            let is_open = lane.slot.is_some() && lane.generation == newest && !lane.failing;
            let left = if is_open { self.capacity.units - lane.unit } else { 0 };
            let waiting = self.backlog.end() - lane.next.max(first);
            (u64::from(left) + more).saturating_sub(waiting + self.backlog.open_frames())
        });
        room.min().unwrap_or(0)
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
            self.settle();
            return Place::Changed;
        }
        if !base {
            if generation != self.committed {
                return Place::Wait;
            }
            if self.pool.spare() <= self.capacity.reserve(self.pool.good()) {
                self.give_up(i);
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
        self.make_room_for_base(i, generation)
    }

    /// Gives lane `i` up until the next generation.
    fn give_up(&mut self, i: usize) {
        let generation = self.backlog.at(self.lanes[i].next).map(|s| s.generation);
        self.lanes[i].stop();
        self.stats.copies_lost += 1;
        if self.lanes[1 - i].live {
            if generation == Some(self.committed) {
                self.copies[i] = false;
            }
        } else {
            self.enter_newest();
        }
        self.settle();
    }

    /// Nothing is free for the snapshot of lane `i`: gives up, in this order, the copy that is less
    /// far; what this copy has programmed, of which failures have taken a part; the second copy of
    /// the old generation; and the journal.
    fn make_room_for_base(&mut self, i: usize, generation: u64) -> Place {
        let other = 1 - i;
        if self.lanes[other].live {
            let behind = if self.lanes[other].done < self.lanes[i].done { other } else { i };
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
