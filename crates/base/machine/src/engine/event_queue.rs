//! [`EventQueue`]: what happens next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use time::Nanos;

use super::task::TaskId;

/// Something that happens at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EngineEvent {
    /// The present piece of a task ends. Void if the task's generation has changed.
    Resume { task: TaskId, generation: u32 },
    /// A thread starts.
    Start { task: TaskId },
    /// The time until which a task sleeps or spins may have come.
    Deadline { task: TaskId },
    /// A wake-up arrives at another core.
    Wake { task: TaskId },
    /// The time slice of a core's thread ends. Void if the core's generation has changed.
    Slice { core: usize, generation: u32 },
}

/// Order of the events of one instant: a look comes last, so that it finds what the others did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventOrder {
    Normal,
    Spin,
}

/// Events by time, then by order, then in the sequence in which they were scheduled; looks in the
/// order of the tasks.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<(Nanos, EventOrder, u64, EngineEvent)>>,
    sequence: u64,
}

impl EventQueue {
    pub(crate) fn push(&mut self, at: Nanos, order: EventOrder, event: EngineEvent) {
        self.sequence += 1;
        let sequence = match (order, event) {
            // Whether looks are executed one by one must not matter.
            (
                EventOrder::Spin,
                EngineEvent::Resume { task, .. } | EngineEvent::Deadline { task },
            ) => task.0.into(),
            _ => self.sequence,
        };
        self.heap.push(Reverse((at, order, sequence, event)));
    }

    /// Returns the time of the next event; [`Nanos::MAX`] without one.
    #[inline]
    pub(crate) fn next_time(&self) -> Nanos {
        self.heap.peek().map_or(Nanos::MAX, |Reverse((at, ..))| *at)
    }

    pub(crate) fn pop(&mut self) -> Option<(Nanos, EngineEvent)> {
        self.heap.pop().map(|Reverse((at, _, _, event))| (at, event))
    }
}
