//! [`ShrinkPolicy`]: decides when a queue releases memory.
//!
//! The number of entries in a staging queue follows the outstanding load, and resizing costs more
//! than keeping enough entries ([SYSTOR13 §3.2]). A queue therefore grows by doubling. It shrinks
//! only after it has been much larger than needed for many requests. Shrinking takes constant time
//! per request, and a queue of steady length is never resized.

/// Number of requests taken between two checks.
const WINDOW: u32 = 1024;
/// Minimum capacity to which a queue shrinks.
pub(super) const CAPACITY_MIN: usize = 64;
/// Ratio of capacity to peak use from which a queue shrinks.
const SHRINK_RATIO: usize = 4;

/// Records how much of a queue's capacity is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShrinkPolicy {
    /// Maximum number of entries in use since the last check.
    peak: usize,
    /// Number of requests to be taken until the next check.
    remaining: u32,
}

impl ShrinkPolicy {
    pub(super) fn new() -> ShrinkPolicy {
        ShrinkPolicy { peak: 0, remaining: WINDOW }
    }

    /// Records that a request is about to be taken from a queue of `len` entries with a capacity of
    /// `room`. Returns the capacity to which the queue must shrink after taking it, if any.
    #[inline]
    pub(super) fn on_take(&mut self, len: usize, room: usize) -> Option<usize> {
        // A queue is longest just before a request is taken. Growth after that is seen at the next
        // one.
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
