//! [`Station`]: a resource that commands pass through in order, one at a time or with a fixed delay.

use std::collections::VecDeque;

use clock::Nanos;
use tracepoint::Event;

/// A first-come-first-served resource. Because times at which commands leave never decrease, the
/// queue is a queue and not a heap.
#[derive(Clone, Debug)]
pub(crate) struct ServiceStage {
    kind: tracepoint::StageKind,
    free_at: Nanos,
    queue: VecDeque<(Nanos, u32)>,
}

impl ServiceStage {
    pub(crate) fn new(kind: tracepoint::StageKind) -> ServiceStage {
        ServiceStage { kind, free_at: Nanos::ZERO, queue: VecDeque::new() }
    }

    /// Reports a command's time in the station.
    #[inline(always)]
    fn trace(&self, now: Nanos, id: u32, start: Nanos, end: Nanos) {
        let station = self.kind;
        tracepoint::trace_at(now, || Event::CommandStage { id, stage: station, start, end });
    }

    /// A command takes the resource for `time` as soon as it is free.
    #[inline]
    pub(crate) fn enqueue(&mut self, now: Nanos, time: Nanos, command: u32) {
        let start = self.free_at.max(now);
        self.free_at = start + time;
        self.trace(now, command, start, self.free_at);
        self.queue.push_back((self.free_at, command));
    }

    /// A command is delayed by `time`, the same for all.
    #[inline]
    pub(crate) fn enqueue_delay(&mut self, now: Nanos, time: Nanos, command: u32) {
        self.trace(now, command, now, now + time);
        self.queue.push_back((now + time, command));
    }

    /// When the next command leaves.
    #[inline]
    pub(crate) fn next_at(&self) -> Nanos {
        self.queue.front().map_or(Nanos::MAX, |q| q.0)
    }

    /// The next command that has left by `now`.
    #[inline]
    pub(crate) fn dequeue(&mut self, now: Nanos) -> Option<(Nanos, u32)> {
        if self.next_at() > now {
            return None;
        }
        self.queue.pop_front()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = ServiceStage::new(self.kind);
    }
}
