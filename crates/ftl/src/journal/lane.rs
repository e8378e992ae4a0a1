//! [`Lane`]: how far one copy of the journal is written.
//!
//! A lane programs its frames strictly in order: several at a time in one chunk, which the flash
//! executes in order, and the first of the next chunk only when the last of this one has ended. So a
//! frame of a copy is on the media only if all before it were programmed too; recovery relies on it.

/// Programs under way per lane at most.
pub(crate) const PROGRAMS: u32 = 4;

/// The place of one copy in the backlog and on the flash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lane {
    /// Whether the copy is being written. One that is not waits for the next generation.
    pub(crate) live: bool,
    /// The chunk being written, as a place in the pool.
    pub(crate) slot: Option<usize>,
    /// The write unit in it that is programmed next.
    pub(crate) unit: u32,
    /// The generation that it belongs to.
    pub(crate) generation: u64,
    /// The frame that this copy begins with: it has skipped those before.
    pub(crate) joined: u64,
    /// The frame that is programmed next.
    pub(crate) next: u64,
    /// All frames before this one are programmed.
    pub(crate) done: u64,
    /// Which frames from `done` on are programmed too.
    ended: u32,
    pub(crate) in_flight: u32,
    /// A program has failed: nothing is issued until all have ended.
    pub(crate) failing: bool,
    /// The frame behind the snapshot of its generation, and how many write units must still be programmed
    /// behind that before all of it can be read: frames, or else padding.
    behind: u64,
    pub(crate) uncovered: u32,
    /// Padding is being programmed.
    pub(crate) padding: bool,
    /// Programs that were issued under another number are of no interest any more.
    pub(crate) epoch: u32,
}

impl Lane {
    /// Goes on with frame number `seq`, in a chunk that is yet to be found; programs under way no
    /// longer matter.
    pub(crate) fn restart(&mut self, seq: u64) {
        *self = Lane {
            live: true,
            generation: self.generation,
            joined: seq,
            next: seq,
            done: seq,
            epoch: self.epoch.wrapping_add(1),
            ..Lane::default()
        };
    }

    /// Gives up until the next generation.
    pub(crate) fn stop(&mut self) {
        let seq = self.done;
        self.restart(seq);
        self.live = false;
    }

    /// A program of frame number `seq` has begun.
    pub(crate) fn issued(&mut self) {
        self.next += 1;
        self.unit += 1;
        self.in_flight += 1;
    }

    /// The last frame of a snapshot has begun, the one before `behind`.
    pub(crate) fn based(&mut self, behind: u64, uncovered: u32) {
        (self.behind, self.uncovered) = (behind, uncovered);
    }

    /// Whether all of a generation's snapshot can be read as it is.
    pub(crate) fn shows(&self, generation: u64) -> bool {
        self.live
            && self.generation == generation
            && self.done >= self.behind
            && self.uncovered == 0
    }

    /// A program of padding has begun.
    pub(crate) fn pads(&mut self) {
        (self.unit, self.padding) = (self.unit + 1, true);
    }

    /// A program of padding has ended. One that failed makes the chunk readable, and those behind it fail
    /// as well.
    pub(crate) fn padded(&mut self, ok: bool) {
        self.padding = false;
        self.uncovered = self.uncovered.saturating_sub(1);
        self.failing |= !ok;
        self.end_failure();
    }

    /// A program of frame number `seq` has ended. When one has failed, and no more is under way,
    /// everything from that frame on goes to another chunk.
    pub(crate) fn ended(&mut self, seq: u64, ok: bool) {
        self.in_flight -= 1;
        if ok {
            self.ended |= 1 << (seq - self.done);
            self.uncovered = self.uncovered.saturating_sub(u32::from(seq >= self.behind));
            while self.ended & 1 != 0 {
                self.ended >>= 1;
                self.done += 1;
            }
        } else {
            self.failing = true;
        }
        self.end_failure();
    }

    fn end_failure(&mut self) {
        if self.failing && self.in_flight == 0 && !self.padding {
            self.failing = false;
            self.uncovered = 0;
            self.slot = None;
            self.next = self.done;
            self.ended = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> Lane {
        Lane { live: true, slot: Some(3), next: 5, done: 5, ..Lane::default() }
    }

    #[test]
    fn what_is_done_is_what_has_ended_without_a_gap() {
        let mut lane = lane();
        (0..4).for_each(|_| lane.issued());
        for (seq, done) in [(7, 5), (5, 6), (6, 8), (8, 9)] {
            lane.ended(seq, true);
            assert_eq!(lane.done, done);
        }
        assert_eq!((lane.next, lane.unit, lane.in_flight, lane.slot), (9, 4, 0, Some(3)));
    }

    #[test]
    fn a_snapshot_shows_when_frames_or_padding_cover_it_and_when_its_chunk_has_failed() {
        let based = || {
            let mut lane = lane();
            lane.issued();
            lane.based(6, 2);
            lane.ended(5, true);
            assert!(!lane.shows(0));
            lane.issued();
            lane.ended(6, true);
            assert!(!lane.shows(0) && lane.uncovered == 1);
            lane.pads();
            lane
        };
        let mut lane = based();
        lane.padded(true);
        assert!(lane.shows(0) && !lane.shows(1) && lane.slot == Some(3));
        assert_eq!((lane.next, lane.done, lane.unit), (7, 7, 3));
        // A frame behind padding that failed goes elsewhere.
        let mut lane = based();
        lane.issued();
        lane.padded(false);
        assert!(lane.failing && lane.slot == Some(3));
        lane.ended(7, false);
        assert!(!lane.failing && lane.shows(0));
        assert_eq!((lane.next, lane.done, lane.slot), (7, 7, None));
    }

    #[test]
    fn after_a_failure_everything_from_there_on_goes_elsewhere() {
        let mut lane = lane();
        (0..4).for_each(|_| lane.issued());
        lane.ended(5, true);
        lane.ended(6, false);
        assert!(lane.failing);
        lane.ended(7, true);
        lane.ended(8, false);
        assert!(!lane.failing);
        assert_eq!((lane.done, lane.next, lane.slot), (6, 6, None));
        // And frame 7, which is programmed again, counts again.
        lane.issued();
        lane.ended(6, true);
        assert_eq!(lane.done, 7);
    }
}
