//! Free space of the journal: how much can still be appended, where a copy continues, when a copy
//! is dropped, and when a snapshot is due.

use super::pending_log::FrameSeq;
use crate::ids::{ToIndex, ToU32};

use super::Journal;
use super::capacity::RECORD_HEADER;
use super::error::WornOut;

/// Attempts to write a snapshot in one copy before another copy is dropped for it.
const SNAPSHOT_ATTEMPTS_MAX: u32 = 4;

/// Returns the largest number of frames that two mirror copies can both get. They have `a` and `b`
/// frames, and each of `chunks` further chunks of `units` frames goes to the copy that has less.
fn common_frames(a: i64, b: i64, chunks: u32, units: u32) -> i64 {
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

/// Result of the search for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextWrite {
    /// The copy has a chunk.
    Ready,
    /// Space was freed; search again.
    Retry,
    /// An operation in flight must end first.
    Wait,
    /// Padding must first make the frames readable.
    PadForPairing,
}

impl Journal {
    /// Returns the largest size of a snapshot in bytes.
    pub fn snapshot_bytes_max(&self) -> u64 {
        self.config.snapshot_bytes
    }

    /// Returns the largest size in bytes of a record that is alone behind the largest snapshot.
    pub fn record_bytes_max(&self) -> u64 {
        let frames = self.capacity.generation_frames(self.pool.usable_count());
        let base = self.capacity.snapshot_frames;
        let cover =
            self.capacity.base_pairing_units(self.pool.usable_count(), base, self.capacity.units);
        let frames = frames.saturating_sub(u64::from(base) + u64::from(cover));
        let bytes = frames.saturating_mul(self.capacity.payload_bytes as u64);
        bytes.saturating_sub(RECORD_HEADER as u64).min(u32::MAX.into())
    }

    /// Returns whether a generation has begun and is not complete.
    pub fn is_snapshot_in_progress(&self) -> bool {
        self.pending_log.base().is_some()
    }

    /// Returns whether a snapshot should be taken soon: three quarters of the generation's capacity
    /// are used, it cannot be continued, or it has fewer copies than the chunks allow. `false` while
    /// a snapshot is in progress.
    pub fn needs_snapshot(&self) -> bool {
        if self.failed.is_some() || self.is_snapshot_in_progress() {
            return false;
        }
        let width = self.capacity.copy_count(self.pool.usable_count()).index();
        let whole = |i: &usize| self.mirrors[*i].live && self.generations.is_complete(*i);
        (0..2).filter(whole).count() < width
            || self.available_frames() * 4 <= self.initial_available_frames
    }

    /// Returns the free frames of the newest generation. The space of the next snapshot is reserved;
    /// failures can still reduce the result.
    pub(super) fn available_frames(&self) -> u64 {
        let newest = self.pending_log.generation();
        let base = self.pending_log.base();
        let first = base.map_or(FrameSeq(0), |base| base.first_seq);
        let takes_part = |i: usize| self.mirrors[i].live && (base.is_none() || i < self.copy_count);
        let (good, units) = (self.pool.usable_count(), self.capacity.units);
        let whole =
            base.map_or(0, |base| self.capacity.base_pairing_units(good, base.frames, units));
        // Frames that fit the chunk of a copy, less those that wait for it; this can be
        // negative.
        let fits = |i: usize| {
            let lane = &self.mirrors[i];
            let is_open = lane.pool_index.is_some() && lane.generation == newest && !lane.failing;
            let left = if is_open { units - lane.next_unit } else { 0 };
            let waiting =
                self.pending_log.end() - lane.next_seq.max(first) + self.pending_log.open_frames();
            // Frames cover the snapshot, or else padding does.
            let of_base =
                base.map_or(0, |base| base.end() - lane.next_seq.clamp(base.first_seq, base.end()));
            let cover = if base.is_some_and(|base| lane.next_seq < base.end()) {
                whole
            } else {
                lane.pairing_remaining
            };
            i64::from(left) - (of_base + (waiting - of_base).max(cover.into())) as i64
        };
        let used = self.pool.in_use_count(newest, None) + self.capacity.reserve_chunks(good);
        let more = good.saturating_sub(used);
        let room = match (takes_part(0), takes_part(1)) {
            (true, true) => common_frames(fits(0), fits(1), more, units),
            (true, false) => fits(0) + i64::from(more) * i64::from(units),
            (false, true) => fits(1) + i64::from(more) * i64::from(units),
            (false, false) => 0,
        };
        room.max(0) as u64
    }

    /// Lets the aborted copies take part in the newest generation.
    pub(super) fn join_newest_generation(&mut self) {
        let Some(first) = self.pending_log.base().map(|base| base.first_seq) else { return };
        if self.mirrors.iter().all(|lane| !lane.live) {
            // No copy can write the older frames; the snapshot supersedes them.
            self.pending_log.discard_older();
        }
        for lane in &mut self.mirrors[..self.copy_count] {
            if !lane.live {
                lane.restart(first);
            }
        }
    }

    /// Finds a chunk for the next frame of copy `i`, which has no program in flight.
    pub(super) fn choose_next_write(&mut self, i: usize, generation: u64, base: bool) -> NextWrite {
        if i >= self.copy_count && generation != self.generations.committed() {
            // The generation has one copy only.
            self.mirrors[i].stop();
            if !self.mirrors[1 - i].live {
                self.join_newest_generation();
            }
            self.advance_durable();
            return NextWrite::Retry;
        }
        if !base {
            if generation != self.generations.committed() {
                return NextWrite::Wait;
            }
            if self.pool.spare_count() <= self.capacity.reserve_chunks(self.pool.usable_count()) {
                if !self.release_previous() {
                    self.abort_copy(i);
                }
                return NextWrite::Retry;
            }
        }
        let beside =
            self.mirrors[1 - i].pool_index.filter(|_| self.mirrors[1 - i].generation == generation);
        if let Some(slot) = self.pool.allocate(generation, i, beside) {
            let lane = &mut self.mirrors[i];
            (lane.pool_index, lane.next_unit, lane.generation) = (Some(slot), 0, generation);
            return NextWrite::Ready;
        }
        if self.pool.has_erase_pending() {
            return NextWrite::Wait;
        }
        // The readable generation is kept until its successor can be read.
        if !self.can_pad_for_pairing() && self.is_paddable(i) {
            return NextWrite::PadForPairing;
        }
        if self.release_previous() {
            return NextWrite::Retry;
        }
        self.free_space_for_base(i, generation)
    }

    /// Aborts copy `i` until the next generation.
    fn abort_copy(&mut self, i: usize) {
        // Programs in flight no longer count.
        let done = self.mirrors[i].done_seq;
        let generation = self.pending_log.segment_at(done).map(|s| s.generation);
        self.mirrors[i].stop();
        self.stats.copies_lost += 1;
        let other = self.mirrors[1 - i];
        if !other.live {
            self.join_newest_generation();
        } else if generation == Some(self.generations.committed()) && other.joined_seq <= done {
            // The missing frames become durable in the other copy.
            self.generations.mark_incomplete(i);
        }
        self.advance_durable();
    }

    /// Frees a chunk for the snapshot of copy `i`. Drops the first of these that exists: the copy
    /// with less progress; this copy's own programmed frames, if failures took a part of them; the
    /// second copy of the old generation. If none exists, the journal fails.
    fn free_space_for_base(&mut self, i: usize, generation: u64) -> NextWrite {
        let other = 1 - i;
        if self.mirrors[other].live {
            let takes_part = other < self.copy_count;
            let is_behind = self.mirrors[other].done_seq < self.mirrors[i].done_seq;
            let behind = if is_behind || !takes_part { other } else { i };
            self.abort_copy(behind);
            let committed = self.generations.committed();
            self.pool.release(|of, lane| of == generation && of != committed && lane == behind);
            return NextWrite::Retry;
        }
        let first = self.pending_log.base().map_or(self.mirrors[i].done_seq, |base| base.first_seq);
        if self.attempts < SNAPSHOT_ATTEMPTS_MAX && self.pool.release(|of, _| of == generation) {
            self.attempts += 1;
            self.mirrors[i].restart(first);
            return NextWrite::Retry;
        }
        // One whole copy of the old generation is kept.
        let committed = self.generations.committed();
        let kept = usize::from(!self.generations.is_complete(0));
        if self.generations.is_complete(kept)
            && self.pool.release(|of, lane| of == committed && lane != kept)
        {
            self.generations.mark_incomplete(1 - kept);
            self.attempts = 0;
            return NextWrite::Retry;
        }
        let frames = self.pending_log.base().map_or(1, |base| base.frames);
        let (reserved, good) = (self.pool.chunks.len().to_u32(), self.pool.usable_count());
        self.failed = Some(WornOut { reserved, good, frames });
        NextWrite::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::common_frames;

    #[test]
    fn chunks_go_to_the_copy_that_has_less() {
        for units in 1..5u32 {
            for (a, b) in (-9..9).flat_map(|a| (-9..9).map(move |b| (a, b))) {
                let mut lanes = [a, b];
                for chunks in 0..12 {
                    let least = lanes[0].min(lanes[1]);
                    assert_eq!(
                        common_frames(a, b, chunks, units),
                        least,
                        "{a} {b} {chunks} {units}"
                    );
                    let lower = usize::from(lanes[1] < lanes[0]);
                    lanes[lower] += i64::from(units);
                }
            }
        }
    }
}
