//! [`MirrorCopy`]: the progress of one copy of the journal.
//!
//! A copy programs its frames strictly in order: several at a time in one chunk, which the flash
//! executes in order, and the first of the next chunk only after the last of this one has
//! completed. So a frame is on the media only if all earlier frames of its copy were programmed
//! too. Recovery relies on it.

use serde::{Deserialize, Serialize};

use super::pending_log::FrameSeq;

/// Maximum number of programs in flight per copy.
pub(crate) const PROGRAMS_MAX: u32 = 4;

/// The position of one copy in the pending log and on the flash.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MirrorCopy {
    /// Whether the copy is being written. Otherwise it waits for the next generation.
    pub(crate) live: bool,
    /// The chunk being written, as an index in the pool.
    pub(crate) pool_index: Option<usize>,
    /// The write unit in it that is programmed next.
    pub(crate) next_unit: u32,
    /// The generation that it belongs to.
    pub(crate) generation: u64,
    /// The frame that this copy begins with: it has skipped those before.
    pub(crate) joined_seq: FrameSeq,
    /// The frame that is programmed next.
    pub(crate) next_seq: FrameSeq,
    /// All frames before this one are programmed.
    pub(crate) done_seq: FrameSeq,
    /// Frames from `done_seq` on that are programmed too; one bit each.
    programmed_bits: u32,
    pub(crate) in_flight: u32,
    /// Whether a program failed: no program is issued until all in flight have ended.
    pub(crate) failing: bool,
    /// The frame behind the snapshot of its generation, and the number of write units, frames or
    /// padding, still to be programmed behind it before all of the snapshot can be read.
    base_end: FrameSeq,
    pub(crate) pairing_remaining: u32,
    /// Padding is being programmed.
    pub(crate) padding: bool,
    /// Completions of programs issued in another epoch are ignored.
    pub(crate) epoch: u32,
}

impl MirrorCopy {
    /// Continues with frame `seq` in a chunk that is chosen later. Programs in flight are ignored.
    pub(crate) fn restart(&mut self, seq: FrameSeq) {
        *self = MirrorCopy {
            live: true,
            generation: self.generation,
            joined_seq: seq,
            next_seq: seq,
            done_seq: seq,
            epoch: self.epoch.wrapping_add(1),
            ..MirrorCopy::default()
        };
    }

    /// Stops this copy until the next generation.
    pub(crate) fn stop(&mut self) {
        let seq = self.done_seq;
        self.restart(seq);
        self.live = false;
    }

    /// Records that the program of frame `seq` was started.
    pub(crate) fn on_program_issued(&mut self) {
        self.next_seq += 1;
        self.next_unit += 1;
        self.in_flight += 1;
    }

    /// Records that the program of a snapshot's last frame, the one before `behind`, was started.
    pub(crate) fn base_written(&mut self, behind: FrameSeq, uncovered: u32) {
        (self.base_end, self.pairing_remaining) = (behind, uncovered);
    }

    /// Returns whether a generation's snapshot can be read without padding.
    pub(crate) fn is_readable_without_padding(&self, generation: u64) -> bool {
        self.live
            && self.generation == generation
            && self.done_seq >= self.base_end
            && self.pairing_remaining == 0
    }

    /// Records that a program of padding was started.
    pub(crate) fn on_pad_issued(&mut self) {
        (self.next_unit, self.padding) = (self.next_unit + 1, true);
    }

    /// Records the end of a program of padding. A failed one closes the chunk, which makes it
    /// readable.
    pub(crate) fn on_pad_complete(&mut self, ok: bool) {
        self.padding = false;
        self.pairing_remaining = self.pairing_remaining.saturating_sub(1);
        self.failing |= !ok;
        self.complete_failure();
    }

    /// Records the end of the program of frame `seq`. After a failure, and with no other program in
    /// flight, all frames from the failed one on go to another chunk.
    pub(crate) fn on_program_complete(&mut self, seq: FrameSeq, ok: bool) {
        self.in_flight -= 1;
        if ok {
            self.programmed_bits |= 1 << (seq - self.done_seq);
            self.pairing_remaining =
                self.pairing_remaining.saturating_sub(u32::from(seq >= self.base_end));
            while self.programmed_bits & 1 != 0 {
                self.programmed_bits >>= 1;
                self.done_seq += 1;
            }
        } else {
            self.failing = true;
        }
        self.complete_failure();
    }

    fn complete_failure(&mut self) {
        if self.failing && self.in_flight == 0 && !self.padding {
            self.failing = false;
            self.pairing_remaining = 0;
            self.pool_index = None;
            self.next_seq = self.done_seq;
            self.programmed_bits = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror_copy() -> MirrorCopy {
        MirrorCopy {
            live: true,
            pool_index: Some(3),
            next_seq: FrameSeq(5),
            done_seq: FrameSeq(5),
            ..MirrorCopy::default()
        }
    }

    #[test]
    fn what_is_done_is_what_has_ended_without_a_gap() {
        let mut lane = mirror_copy();
        (0..4).for_each(|_| lane.on_program_issued());
        for (seq, done) in [(7, 5), (5, 6), (6, 8), (8, 9)] {
            lane.on_program_complete(FrameSeq(seq), true);
            assert_eq!(lane.done_seq, FrameSeq(done));
        }
        assert_eq!(
            (lane.next_seq, lane.next_unit, lane.in_flight, lane.pool_index),
            (FrameSeq(9), 4, 0, Some(3))
        );
    }

    #[test]
    fn a_snapshot_shows_when_frames_or_padding_cover_it_and_when_its_chunk_has_failed() {
        let based = || {
            let mut lane = mirror_copy();
            lane.on_program_issued();
            lane.base_written(FrameSeq(6), 2);
            lane.on_program_complete(FrameSeq(5), true);
            assert!(!lane.is_readable_without_padding(0));
            lane.on_program_issued();
            lane.on_program_complete(FrameSeq(6), true);
            assert!(!lane.is_readable_without_padding(0) && lane.pairing_remaining == 1);
            lane.on_pad_issued();
            lane
        };
        let mut lane = based();
        lane.on_pad_complete(true);
        assert!(
            lane.is_readable_without_padding(0)
                && !lane.is_readable_without_padding(1)
                && lane.pool_index == Some(3)
        );
        assert_eq!((lane.next_seq, lane.done_seq, lane.next_unit), (FrameSeq(7), FrameSeq(7), 3));
        // A frame behind padding that failed goes elsewhere.
        let mut lane = based();
        lane.on_program_issued();
        lane.on_pad_complete(false);
        assert!(lane.failing && lane.pool_index == Some(3));
        lane.on_program_complete(FrameSeq(7), false);
        assert!(!lane.failing && lane.is_readable_without_padding(0));
        assert_eq!(
            (lane.next_seq, lane.done_seq, lane.pool_index),
            (FrameSeq(7), FrameSeq(7), None)
        );
    }

    #[test]
    fn after_a_failure_everything_from_there_on_goes_elsewhere() {
        let mut lane = mirror_copy();
        (0..4).for_each(|_| lane.on_program_issued());
        lane.on_program_complete(FrameSeq(5), true);
        lane.on_program_complete(FrameSeq(6), false);
        assert!(lane.failing);
        lane.on_program_complete(FrameSeq(7), true);
        lane.on_program_complete(FrameSeq(8), false);
        assert!(!lane.failing);
        assert_eq!(
            (lane.done_seq, lane.next_seq, lane.pool_index),
            (FrameSeq(6), FrameSeq(6), None)
        );
        // And frame 7, which is programmed again, counts again.
        lane.on_program_issued();
        lane.on_program_complete(FrameSeq(6), true);
        assert_eq!(lane.done_seq, FrameSeq(7));
    }
}
