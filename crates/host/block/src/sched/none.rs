//! [`NoneScheduler`]: FIFO order.
//!
//! This is the policy of the multi-queue block layer for fast devices ([SYSTOR13 §3.2.1]: "we
//! simply follow a FIFO policy"), and Linux's `none`. It never delays a request.

use time::Nanos;

use super::Scheduler;
use super::fifo::FifoQueue;
use crate::StagedRequest;

/// A FIFO scheduler.
#[derive(Debug)]
pub struct NoneScheduler {
    fifo: FifoQueue,
}

impl NoneScheduler {
    /// Creates an empty scheduler.
    pub fn new() -> NoneScheduler {
        NoneScheduler { fifo: FifoQueue::new() }
    }
}

impl Default for NoneScheduler {
    fn default() -> NoneScheduler {
        NoneScheduler::new()
    }
}

impl Scheduler for NoneScheduler {
    #[inline]
    fn insert(&mut self, _: Nanos, staged: StagedRequest) {
        self.fifo.push_back(staged);
    }

    #[inline]
    fn requeue(&mut self, _: Nanos, staged: StagedRequest) {
        self.fifo.push_front(staged);
    }

    #[inline]
    fn dispatch(&mut self, _: Nanos) -> Option<StagedRequest> {
        self.fifo.pop_front()
    }

    #[inline]
    fn len(&self) -> usize {
        self.fifo.len()
    }

    fn find_merge(
        &mut self,
        newcomer: &StagedRequest,
        visit: &mut dyn FnMut(&mut StagedRequest) -> bool,
    ) -> bool {
        self.fifo.find_merge(newcomer, visit)
    }
}
