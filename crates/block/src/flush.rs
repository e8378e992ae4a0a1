//! [`FlushMachine`]: one flush at the device at a time, standing for all that wait.
//!
//! A flush makes durable what had completed when the *device* got it, so one that arrives while
//! another is under way must wait for the next; all that wait go together. Every request that was
//! added comes back exactly once.

use std::collections::VecDeque;

use crate::StagedRequest;

#[derive(Debug, Default)]
pub(crate) struct FlushMachine {
    /// For the next flush.
    waiting: VecDeque<StagedRequest>,
    /// For whom the device flushes now.
    in_flight: VecDeque<StagedRequest>,
}

impl FlushMachine {
    pub(crate) fn add(&mut self, flush: StagedRequest) {
        self.waiting.push_back(flush);
    }

    /// The flush to give to the device, if one waits and none is under way.
    pub(crate) fn next(&self) -> Option<StagedRequest> {
        if self.in_flight.is_empty() { self.waiting.front().copied() } else { None }
    }

    /// The device has it: it stands for all that wait. Returns how many others there are.
    pub(crate) fn begin(&mut self) -> u64 {
        std::mem::swap(&mut self.waiting, &mut self.in_flight);
        self.in_flight.len() as u64 - 1
    }

    /// The device did not carry it out: all wait again.
    pub(crate) fn requeue_all(&mut self) {
        while let Some(flush) = self.in_flight.pop_back() {
            self.waiting.push_front(StagedRequest { requeues: flush.requeues + 1, ..flush });
        }
    }

    /// One after the other, those for whom the device has flushed.
    pub(crate) fn pop_completed(&mut self) -> Option<StagedRequest> {
        self.in_flight.pop_front()
    }

    /// One after the other, those that wait: the device is gone.
    pub(crate) fn pop_waiting(&mut self) -> Option<StagedRequest> {
        self.waiting.pop_front()
    }
}
