//! [`ShrinkPolicy`]: when a queue gives memory back.
//!
//! The number of entries in a staging queue grows and shrinks with what is outstanding, and changing
//! it is costly compared to keeping enough of them (SYSTOR'13 section 3.2). So a queue grows by
//! doubling, and shrinks only when it has been much larger than needed for many requests: the work of
//! shrinking is a constant per request, and a queue of steady length never moves.

/// Requests taken between two looks at the room that is needed.
const WINDOW: u32 = 1024;
/// A queue never shrinks below this many entries.
pub(super) const CAPACITY_MIN: usize = 64;
/// How many times larger than needed a queue must have been.
const SHRINK_RATIO: usize = 4;

/// Watches how much of a queue's room is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShrinkPolicy {
    /// The most entries in use since the last look.
    peak: usize,
    /// Requests still to be taken before the next look.
    remaining: u32,
}

impl ShrinkPolicy {
    pub(super) fn new() -> ShrinkPolicy {
        ShrinkPolicy { peak: 0, remaining: WINDOW }
    }

    /// A request is about to be taken from a queue of `len` entries with room for `room`. Says to
    /// how much room to shrink; the queue then does so after taking it.
    #[inline]
    pub(super) fn on_take(&mut self, len: usize, room: usize) -> Option<usize> {
        // A queue is longest just before a request is taken, so looking only here misses nothing
        // but growth that the next request taken will see.
        self.peak = self.peak.max(len);
        self.remaining -= 1;
        if self.remaining > 0 {
            return None;
        }
        let needed = (2 * self.peak).max(CAPACITY_MIN);
        let much = room > CAPACITY_MIN && room > SHRINK_RATIO * self.peak;
        *self = ShrinkPolicy::new();
        (much && needed < room).then_some(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shrink_steps(len: usize, room: usize) -> Vec<Option<usize>> {
        let mut slack = ShrinkPolicy::new();
        (0..WINDOW).map(|_| slack.on_take(len, room)).filter(Option::is_some).collect()
    }

    #[test]
    fn shrinks_only_what_has_been_much_larger_for_a_whole_window() {
        assert_eq!(shrink_steps(100, 128), []);
        assert_eq!(shrink_steps(100, 400), []);
        assert_eq!(shrink_steps(100, 512), [Some(200)]);
        assert_eq!(shrink_steps(1, 64), []);
        assert_eq!(shrink_steps(1, 65), [Some(64)]);
        let mut slack = ShrinkPolicy::new();
        let answers: Vec<_> =
            (0..WINDOW).map(|i| slack.on_take(if i == 7 { 300 } else { 1 }, 1024)).collect();
        assert!(answers.iter().all(Option::is_none), "one peak in the window is enough");
    }
}
