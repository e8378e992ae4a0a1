//! [`ClockFrames`]: cache frames with CLOCK replacement, also called second chance (Corbató, "A
//! paging experiment with the Multics system", 1968).
//!
//! The hand visits frames in a circle. It passes a frame that cannot be evicted, and a frame that
//! was used since its last visit; the latter loses its mark. Every other frame is thus chosen
//! within two rounds.

use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

use crate::Slab;

/// The state of a frame that replacement needs.
pub trait ClockFrame {
    /// Returns whether the frame holds something, and nothing keeps it there.
    fn is_evictable(&self) -> bool;

    /// Returns whether the frame was used since the last call, and clears the mark.
    fn take_referenced(&mut self) -> bool;
}

/// The frames of a cache, its free frames and the clock hand. What is in which frame is the
/// caller's to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClockFrames<F> {
    frames: Slab<F>,
    /// The frame that the hand visits next.
    hand: u32,
}

impl<F: ClockFrame> ClockFrames<F> {
    /// Creates free frames; the lowest index is used first, and the hand starts at frame `hand`.
    pub fn new(frames: impl IntoIterator<Item = F>, hand: u32) -> ClockFrames<F> {
        ClockFrames { frames: Slab::with_free(frames), hand }
    }

    /// Takes a free frame; `None` if all are in use.
    #[inline]
    pub fn take_free(&mut self) -> Option<u32> {
        self.frames.take()
    }

    /// Frees a frame.
    #[inline]
    pub fn release(&mut self, frame: u32) {
        self.frames.release(frame);
    }

    /// Moves the hand to the next victim that `may_evict` accepts, and returns it; `None` if there
    /// is none within `steps` frames. The hand stays behind the victim.
    #[inline]
    pub fn pick_victim(&mut self, steps: u32, may_evict: impl Fn(&F) -> bool) -> Option<u32> {
        let count = self.len();
        for _ in 0..steps {
            let at = self.hand;
            self.hand = if at + 1 >= count { 0 } else { at + 1 };
            let frame = &mut self.frames[at];
            if frame.is_evictable() && !frame.take_referenced() && may_evict(frame) {
                return Some(at);
            }
        }
        None
    }

    /// Returns the number of frames.
    #[inline]
    pub fn len(&self) -> u32 {
        self.frames.len() as u32
    }

    /// Returns whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the number of frames in use.
    #[inline]
    pub fn in_use(&self) -> u32 {
        self.frames.in_use() as u32
    }

    /// Returns the free frames.
    pub fn free_indices(&self) -> &[u32] {
        self.frames.free_indices()
    }

    /// Returns a frame, in use or free; `None` for an index beyond the last one.
    #[inline]
    pub fn get(&self, frame: u32) -> Option<&F> {
        self.frames.get(frame)
    }

    /// Returns a frame, in use or free; `None` for an index beyond the last one.
    #[inline]
    pub fn get_mut(&mut self, frame: u32) -> Option<&mut F> {
        self.frames.get_mut(frame)
    }

    /// Returns all frames, in use or free, in the order of their indices.
    pub fn iter(&self) -> std::slice::Iter<'_, F> {
        self.frames.iter()
    }
}

impl<F> Index<u32> for ClockFrames<F> {
    type Output = F;

    #[inline]
    fn index(&self, frame: u32) -> &F {
        &self.frames[frame]
    }
}

impl<F> IndexMut<u32> for ClockFrames<F> {
    #[inline]
    fn index_mut(&mut self, frame: u32) -> &mut F {
        &mut self.frames[frame]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Frame {
        pinned: bool,
        referenced: bool,
    }

    impl ClockFrame for Frame {
        fn is_evictable(&self) -> bool {
            !self.pinned
        }

        fn take_referenced(&mut self) -> bool {
            std::mem::take(&mut self.referenced)
        }
    }

    #[test]
    fn the_hand_passes_pinned_frames_always_and_used_frames_once() {
        let mut clock = ClockFrames::new([Frame { pinned: false, referenced: true }; 4], 0);
        (0..4).for_each(|frame| assert_eq!(clock.take_free(), Some(frame)));
        assert_eq!((clock.take_free(), clock.in_use()), (None, 4));
        clock[1].pinned = true;
        assert_eq!(clock.pick_victim(4, |_| true), None, "all were used");
        clock[2].referenced = true;
        assert_eq!(clock.pick_victim(8, |_| true), Some(0));
        assert_eq!(clock.pick_victim(8, |_| true), Some(3));
        assert_eq!(clock.pick_victim(3, |_| true), Some(0));
        assert_eq!(clock.pick_victim(8, |f| f.referenced), None, "the caller refuses all");
        clock.release(2);
        assert_eq!(clock.free_indices(), [2]);
        assert_eq!(clock.take_free(), Some(2));
    }
}
