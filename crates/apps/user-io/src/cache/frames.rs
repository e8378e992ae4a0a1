//! [`CacheFrames`]: the memory of the cache in blocks, and its eviction order.

use collections::{ClockFrame, ClockFrames};

use super::EvictionPolicy;
use super::invariants::{CacheViolation, require_eq};

/// No frame.
pub(super) const NONE: u32 = u32::MAX;

/// State of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameState {
    /// Empty.
    Free,
    /// Being read from the device.
    Filling,
    /// Holds the data that the device has.
    Clean,
    /// Holds data newer than the device's.
    Dirty,
    /// Holds newer data that is being written to the device. It must not change until the write
    /// completes, or the device might receive a mix of both versions.
    Writing,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) block: u64,
    pub(super) state: FrameState,
    /// The epoch in which the frame became dirty: it belongs to the flush with this number.
    pub(super) epoch: u64,
    /// A request waits for the frame to be written, and (`fua`) to be durable.
    pub(super) write_requested: bool,
    pub(super) fua: bool,
    /// Writeback failed; the next flush retries it.
    pub(super) failed: bool,
    /// Head of the list of waiting requests.
    pub(super) waiters: u32,
    /// Used since the clock hand passed.
    referenced: bool,
    /// Neighbors in the LRU list of clean frames.
    prev: u32,
    next: u32,
}

impl Frame {
    const FREE: Frame = Frame {
        block: 0,
        state: FrameState::Free,
        epoch: 0,
        write_requested: false,
        fua: false,
        failed: false,
        waiters: NONE,
        referenced: false,
        prev: NONE,
        next: NONE,
    };
}

impl ClockFrame for Frame {
    fn is_evictable(&self) -> bool {
        self.state == FrameState::Clean && self.waiters == NONE
    }

    fn take_referenced(&mut self) -> bool {
        std::mem::take(&mut self.referenced)
    }
}

/// A cached block, and its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockFrame {
    pub(super) block: u64,
    pub(super) frame: u32,
}

/// A frame allocated to a block, and the evicted block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AllocatedFrame {
    pub(super) frame: u32,
    pub(super) evicted_block: Option<u64>,
}

/// All frames of a cache.
#[derive(Debug)]
pub(super) struct CacheFrames {
    frames: ClockFrames<Frame>,
    eviction: EvictionPolicy,
    /// Ends of the LRU list: least and most recently used.
    lru: u32,
    mru: u32,
}

impl CacheFrames {
    pub(super) fn new(count: u32, eviction: EvictionPolicy) -> CacheFrames {
        CacheFrames {
            frames: ClockFrames::new(vec![Frame::FREE; count as usize], 0),
            eviction,
            lru: NONE,
            mru: NONE,
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.frames.len()
    }

    #[inline]
    pub(super) fn get(&self, frame: u32) -> &Frame {
        &self.frames[frame]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, frame: u32) -> &mut Frame {
        &mut self.frames[frame]
    }

    /// Records a use of a frame.
    #[inline]
    pub(super) fn touch(&mut self, frame: u32) {
        match self.eviction {
            EvictionPolicy::Clock => self.frames[frame].referenced = true,
            EvictionPolicy::Lru if self.mru == frame => {}
            EvictionPolicy::Lru => self.make_mru(frame),
        }
    }

    /// Makes a clean frame the most recently used, unless it is already.
    #[inline]
    fn make_mru(&mut self, frame: u32) {
        let last = self.mru;
        let Some(f) = self.frames.get_mut(frame) else { return };
        let Frame { prev: before, next: after, .. } = *f;
        if after == NONE {
            // Not in the list: a listed frame without a successor is `mru`.
            return;
        }
        (f.prev, f.next) = (last, NONE);
        match before {
            NONE => self.lru = after,
            before => self.frames[before].next = after,
        }
        self.frames[after].prev = before;
        self.frames[last].next = frame;
        self.mru = frame;
    }

    fn link(&mut self, frame: u32) {
        let before = self.mru;
        let f = &mut self.frames[frame];
        (f.prev, f.next) = (before, NONE);
        match before {
            NONE => self.lru = frame,
            before => self.frames[before].next = frame,
        }
        self.mru = frame;
    }

    fn unlink(&mut self, frame: u32) {
        let f = &mut self.frames[frame];
        let (before, after) = (f.prev, f.next);
        (f.prev, f.next) = (NONE, NONE);
        match before {
            NONE => self.lru = after,
            before => self.frames[before].next = after,
        }
        match after {
            NONE => self.mru = before,
            after => self.frames[after].prev = before,
        }
    }

    /// Changes the state of a frame.
    pub(super) fn set_state(&mut self, frame: u32, state: FrameState) {
        let old = std::mem::replace(&mut self.frames[frame].state, state);
        if self.eviction == EvictionPolicy::Lru {
            match (old == FrameState::Clean, state == FrameState::Clean) {
                (true, false) => self.unlink(frame),
                (false, true) => self.link(frame),
                _ => {}
            }
        } else if state == FrameState::Clean {
            self.frames[frame].referenced = true;
        }
        if state == FrameState::Free && old != FrameState::Free {
            self.frames[frame] = Frame::FREE;
            self.frames.release(frame);
        }
    }

    /// Allocates a frame: a free one, or one whose clean block is evicted. Returns `None` if every
    /// block is dirty, in flight, or waited for.
    pub(super) fn allocate(&mut self) -> Option<AllocatedFrame> {
        if let Some(frame) = self.frames.take_free() {
            return Some(AllocatedFrame { frame, evicted_block: None });
        }
        let frame = match self.eviction {
            EvictionPolicy::Lru => {
                let mut at = self.lru;
                while at != NONE && self.frames[at].waiters != NONE {
                    at = self.frames[at].next;
                }
                Some(at).filter(|at| *at != NONE)
            }
            EvictionPolicy::Clock => self.frames.pick_victim(2 * self.count(), |_| true),
        }?;
        let evicted_block = Some(self.frames[frame].block);
        self.set_state(frame, FrameState::Free);
        // `set_state` pushed the evicted frame to the free list.
        self.frames.take_free();
        Some(AllocatedFrame { frame, evicted_block })
    }

    pub(super) fn check_invariants(&self) -> Result<(), CacheViolation> {
        let free = self.frames.iter().filter(|f| f.state == FrameState::Free).count();
        require_eq!(
            Blocks,
            "a free frame is listed",
            "all frames",
            free,
            self.frames.free_indices().len()
        );
        for frame in self.frames.free_indices() {
            require_eq!(
                Blocks,
                "a listed frame is free",
                format_args!("frame {frame}"),
                FrameState::Free,
                self.get(*frame).state
            );
        }
        if self.eviction != EvictionPolicy::Lru {
            return Ok(());
        }
        let (mut before, mut at, mut listed) = (NONE, self.lru, 0);
        while at != NONE && listed <= self.count() as usize {
            let f = self.get(at);
            let subject = format_args!("frame {at}");
            require_eq!(Blocks, "the LRU list is linked both ways", subject, before, f.prev);
            require_eq!(
                Blocks,
                "a frame of the LRU list is clean",
                subject,
                FrameState::Clean,
                f.state
            );
            (before, at, listed) = (at, f.next, listed + 1);
        }
        require_eq!(Blocks, "the end of the LRU list", "all frames", before, self.mru);
        let clean = self.frames.iter().filter(|f| f.state == FrameState::Clean).count();
        require_eq!(Blocks, "a clean frame is in the LRU list", "all frames", clean, listed);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn break_lru(&mut self) {
        self.mru = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(replace: EvictionPolicy) -> CacheFrames {
        let mut frames = CacheFrames::new(4, replace);
        for unit in 0..4 {
            let AllocatedFrame { frame, evicted_block } = frames.allocate().unwrap();
            assert_eq!(evicted_block, None);
            frames.get_mut(frame).block = unit;
            frames.set_state(frame, FrameState::Filling);
            frames.set_state(frame, FrameState::Clean);
        }
        frames
    }

    fn evicted_block(frames: &mut CacheFrames) -> Option<u64> {
        let AllocatedFrame { frame, evicted_block } = frames.allocate()?;
        frames.get_mut(frame).block = 99;
        frames.set_state(frame, FrameState::Filling);
        evicted_block
    }

    #[test]
    fn what_was_used_last_stays_longest() {
        let mut frames = filled(EvictionPolicy::Lru);
        frames.touch(0);
        frames.touch(2);
        let order: Vec<_> = std::iter::from_fn(|| evicted_block(&mut frames)).collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    fn the_hand_passes_what_was_used() {
        let mut frames = filled(EvictionPolicy::Clock);
        // All frames were used when they were filled; the first sweep clears the bits.
        assert_eq!(evicted_block(&mut frames), Some(0));
        frames.touch(1);
        assert_eq!(evicted_block(&mut frames), Some(2));
        assert_eq!(evicted_block(&mut frames), Some(3));
        assert_eq!(evicted_block(&mut frames), Some(1));
        assert_eq!(evicted_block(&mut frames), None);
    }

    #[test]
    fn what_is_dirty_on_its_way_or_waited_for_stays() {
        for replace in [EvictionPolicy::Lru, EvictionPolicy::Clock] {
            let mut frames = filled(replace);
            frames.set_state(0, FrameState::Dirty);
            frames.set_state(1, FrameState::Dirty);
            frames.set_state(1, FrameState::Writing);
            frames.get_mut(2).waiters = 7;
            assert_eq!(evicted_block(&mut frames), Some(3));
            assert_eq!(evicted_block(&mut frames), None);
            frames.set_state(1, FrameState::Clean);
            assert_eq!(evicted_block(&mut frames), Some(1));
        }
    }
}
