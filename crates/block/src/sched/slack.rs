//! [`Slack`]: when a queue gives memory back.
//!
//! The number of entries in a staging queue grows and shrinks with what is outstanding, and changing
//! it is costly compared to keeping enough of them (SYSTOR'13 section 3.2). So a queue grows by
//! doubling, and shrinks only when it has been much larger than needed for many requests: the work of
//! shrinking is a constant per request, and a queue of steady length never moves.

/// Requests taken between two looks at the room that is needed.
const WINDOW: u32 = 1024;
/// A queue never shrinks below this many entries.
pub(super) const ROOM_MIN: usize = 64;
/// How many times larger than needed a queue must have been.
const MUCH_LARGER: usize = 4;

/// Watches how much of a queue's room is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slack {
    /// The most entries in use since the last look.
    peak: usize,
    /// Requests still to be taken before the next look.
    left: u32,
}

impl Slack {
    pub(super) fn new() -> Slack {
        Slack { peak: 0, left: WINDOW }
    }

    /// A request is about to be taken from a queue of `len` entries with room for `room`. Says to
    /// how much room to shrink; the queue then does so after taking it.
    #[inline]
    pub(super) fn take(&mut self, len: usize, room: usize) -> Option<usize> {
        // A queue is longest just before a request is taken, so looking only here misses nothing
        // but growth that the next request taken will see.
        self.peak = self.peak.max(len);
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        let needed = (2 * self.peak).max(ROOM_MIN);
        let much = room > ROOM_MIN && room > MUCH_LARGER * self.peak;
        *self = Slack::new();
        (much && needed < room).then_some(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(len: usize, room: usize) -> Vec<Option<usize>> {
        let mut slack = Slack::new();
        (0..WINDOW).map(|_| slack.take(len, room)).filter(Option::is_some).collect()
    }

    #[test]
    fn shrinks_only_what_has_been_much_larger_for_a_whole_window() {
        assert_eq!(look(100, 128), []);
        assert_eq!(look(100, 400), []);
        assert_eq!(look(100, 512), [Some(200)]);
        assert_eq!(look(1, 64), []);
        assert_eq!(look(1, 65), [Some(64)]);
        let mut slack = Slack::new();
        let answers: Vec<_> =
            (0..WINDOW).map(|i| slack.take(if i == 7 { 300 } else { 1 }, 1024)).collect();
        assert!(answers.iter().all(Option::is_none), "one peak in the window is enough");
    }
}
