//! [`FifoQueue`]: requests in arrival order, in memory that grows and shrinks with their number
//! ([SYSTOR13 §3.2], software staging queues).

use std::collections::VecDeque;

use super::shrink::{CAPACITY_MIN, ShrinkPolicy};
use crate::StagedRequest;

/// Number of requests at the end of the queue that are tried for a merge. Contiguous requests are
/// usually submitted together.
const MERGE_WINDOW: usize = 8;

/// A FIFO of requests.
#[derive(Debug)]
pub(super) struct FifoQueue {
    requests: VecDeque<StagedRequest>,
    shrink_policy: ShrinkPolicy,
}

impl FifoQueue {
    pub(super) fn new() -> FifoQueue {
        FifoQueue { requests: VecDeque::new(), shrink_policy: ShrinkPolicy::new() }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the capacity in requests.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.requests.capacity()
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&StagedRequest> {
        self.requests.front()
    }

    #[inline]
    pub(super) fn push_back(&mut self, staged: StagedRequest) {
        self.requests.push_back(staged);
    }

    #[inline]
    pub(super) fn push_front(&mut self, staged: StagedRequest) {
        self.requests.push_front(staged);
    }

    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<StagedRequest> {
        let shrink = self.shrink_policy.on_take(self.requests.len(), self.requests.capacity());
        let staged = self.requests.pop_front();
        if let Some(room) = shrink {
            self.requests.shrink_to(room);
        }
        staged
    }

    /// Releases the memory of an empty queue that will not be used for a while.
    pub(super) fn release_memory(&mut self) {
        if self.is_empty() {
            self.requests.shrink_to(CAPACITY_MIN);
        }
    }

    /// Implements [`Scheduler::find_merge`](super::Scheduler::find_merge) among the last requests,
    /// newest first.
    pub(super) fn find_merge(
        &mut self,
        newcomer: &StagedRequest,
        visit: &mut dyn FnMut(&mut StagedRequest) -> bool,
    ) -> bool {
        let mut last = self.requests.iter_mut().rev().take(MERGE_WINDOW);
        last.any(|held| is_adjacent(held, newcomer) && visit(held))
    }
}

/// Returns whether two requests have the same operation and are adjacent.
#[inline]
fn is_adjacent(held: &StagedRequest, newcomer: &StagedRequest) -> bool {
    held.request.op == newcomer.request.op
        && (held.end() == newcomer.request.lba || newcomer.end() == held.request.lba)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Group, Payload, Request, Submitter};
    use time::Nanos;

    fn write(tag: u64, lba: u64) -> StagedRequest {
        StagedRequest {
            request: Request::write(lba, 1, Payload::BitBucket, tag),
            since: Nanos::ZERO,
            submitter: Submitter(0),
            group: Group(0),
            merged: 1,
            requeues: 0,
        }
    }

    #[test]
    fn shrinks_after_a_spike_and_keeps_still_in_steady_state() {
        let mut fifo = FifoQueue::new();
        (0..100_000).for_each(|i| fifo.push_back(write(i, 2 * i)));
        assert!(fifo.capacity() >= 100_000);
        (0..100_000).for_each(|i| assert_eq!(fifo.pop_front().map(|s| s.request.tag), Some(i)));
        assert!(fifo.capacity() <= 8192, "{}", fifo.capacity());
        for i in 0..2048 {
            fifo.push_back(write(i, i));
            fifo.pop_front().unwrap();
        }
        assert!(fifo.capacity() <= 2 * CAPACITY_MIN, "{}", fifo.capacity());
        let room = fifo.capacity();
        for i in 0..10_000 {
            fifo.push_back(write(i, i));
            fifo.pop_front().unwrap();
            assert_eq!(fifo.capacity(), room);
        }
    }

    #[test]
    fn offers_the_last_eight_newest_first_if_they_touch() {
        let mut fifo = FifoQueue::new();
        (0..10).for_each(|i| fifo.push_back(write(i, 10 * i)));
        fifo.push_back(write(10, 91));
        let mut seen = Vec::new();
        let mut look = |lba| {
            seen.clear();
            let found = fifo.find_merge(&write(99, lba), &mut |held| {
                seen.push(held.request.tag);
                false
            });
            assert!(!found);
            seen.clone()
        };
        assert_eq!(look(92), [10]);
        assert_eq!(look(90), [10], "91 begins where 90 ends; 90 itself overlaps");
        assert_eq!(look(31), [3]);
        assert_eq!(look(21), [], "the ninth from the end");
        assert!(fifo.find_merge(&write(99, 92), &mut |_| true));
    }
}
