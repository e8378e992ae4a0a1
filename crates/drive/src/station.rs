//! [`Station`]: a resource that commands pass through in order, one at a time or with a fixed delay.

use std::collections::VecDeque;

use clock::Nanos;

/// A first-come-first-served resource. Because times at which commands leave never decrease, the
/// queue is a queue and not a heap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Station {
    free: Nanos,
    queue: VecDeque<(Nanos, u32)>,
}

impl Station {
    /// A command takes the resource for `time` as soon as it is free.
    #[inline]
    pub(crate) fn serve(&mut self, now: Nanos, time: Nanos, command: u32) {
        self.free = self.free.max(now) + time;
        self.queue.push_back((self.free, command));
    }

    /// A command is delayed by `time`, the same for all.
    #[inline]
    pub(crate) fn delay(&mut self, now: Nanos, time: Nanos, command: u32) {
        self.queue.push_back((now + time, command));
    }

    /// When the next command leaves.
    #[inline]
    pub(crate) fn next_at(&self) -> Nanos {
        self.queue.front().map_or(Nanos::MAX, |q| q.0)
    }

    /// The next command that has left by `now`.
    #[inline]
    pub(crate) fn leave(&mut self, now: Nanos) -> Option<(Nanos, u32)> {
        if self.next_at() > now {
            return None;
        }
        self.queue.pop_front()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Station::default();
    }
}
