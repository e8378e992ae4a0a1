//! [`FlushMachine`]: combines flushes, with one flush command in flight at a time.
//!
//! A flush makes durable what had completed when the *device* received it. A flush that arrives
//! while another is in flight therefore waits for the next command, which serves all waiting
//! flushes. Every added request is returned exactly once.

use std::collections::VecDeque;

use crate::StagedRequest;

#[derive(Debug, Default)]
pub(crate) struct FlushMachine {
    /// Requests for the next flush command.
    waiting: VecDeque<StagedRequest>,
    /// Requests that the in-flight flush command serves.
    in_flight: VecDeque<StagedRequest>,
}

impl FlushMachine {
    pub(crate) fn add(&mut self, flush: StagedRequest) {
        self.waiting.push_back(flush);
    }

    /// Returns the flush to issue, if one waits and none is in flight.
    pub(crate) fn next(&self) -> Option<StagedRequest> {
        if self.in_flight.is_empty() { self.waiting.front().copied() } else { None }
    }

    /// Marks the flush as issued, on behalf of all waiting requests. Returns how many others it
    /// serves.
    pub(crate) fn begin(&mut self) -> u64 {
        std::mem::swap(&mut self.waiting, &mut self.in_flight);
        self.in_flight.len() as u64 - 1
    }

    /// Requeues all requests of the in-flight flush, which the device did not execute.
    pub(crate) fn requeue_all(&mut self) {
        while let Some(flush) = self.in_flight.pop_back() {
            self.waiting.push_front(StagedRequest { requeues: flush.requeues + 1, ..flush });
        }
    }

    /// Removes and returns a request that the completed flush served.
    pub(crate) fn pop_completed(&mut self) -> Option<StagedRequest> {
        self.in_flight.pop_front()
    }

    /// Removes and returns a waiting request, because the device has been removed.
    pub(crate) fn pop_waiting(&mut self) -> Option<StagedRequest> {
        self.waiting.pop_front()
    }
}
