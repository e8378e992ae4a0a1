//! [`QueueStack`]: a queue of the C interface: a hardware queue, alone or behind a scheduler, owned or
//! shared.

use std::fmt::Debug;

use user_io::{GroupedSubmit, Queue, QueueHandle, QueueStats, Scheduled};

/// A queue, whose handle makes one dynamic call.
pub(crate) trait QueueStack: GroupedSubmit + Debug + Send {
    /// Returns the counters of the hardware queue; for a shared queue, those of all its handles.
    fn stats(&self) -> QueueStats;
}

impl QueueStack for Queue {
    fn stats(&self) -> QueueStats {
        Queue::stats(self)
    }
}

impl QueueStack for Scheduled<Queue> {
    fn stats(&self) -> QueueStats {
        self.device().stats()
    }
}

impl QueueStack for QueueHandle<Box<dyn QueueStack>> {
    fn stats(&self) -> QueueStats {
        self.with_device(|queue| queue.stats())
    }
}
