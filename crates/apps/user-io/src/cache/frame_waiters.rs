//! [`FrameWaiters`]: requests that wait for a frame's transfer, and those that wait for a frame.

use std::collections::VecDeque;

use collections::Slab;

use super::frames::{CacheFrames, NONE};
use super::invariants::{CacheViolation, require, require_eq};
use super::requests::CacheRequestId;

/// One block of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestBlock {
    pub(super) request: CacheRequestId,
    pub(super) block: u64,
}

/// A request that waits for a frame's transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameWaiter {
    pub(super) waiting: RequestBlock,
    /// Waits until its data is on the device; otherwise until the frame is usable.
    pub(super) until_written: bool,
    next: u32,
}

/// All waiting requests.
#[derive(Debug, Default)]
pub(super) struct FrameWaiters {
    waiters: Slab<FrameWaiter>,
    /// Requests that wait for a frame before their next block starts.
    stalled: VecDeque<CacheRequestId>,
    /// Blocks of requests that were resumed and then found no frame.
    retries: VecDeque<RequestBlock>,
}

impl FrameWaiters {
    /// Appends a block of a request to a frame's list, which begins at `list`.
    pub(super) fn push(&mut self, list: &mut u32, waiting: RequestBlock, until_written: bool) {
        let waiter = FrameWaiter { waiting, until_written, next: NONE };
        let index = self.waiters.insert(waiter);
        // Append, to keep arrival order.
        let mut last = *list;
        if last == NONE {
            *list = index;
            return;
        }
        while self.waiters[last].next != NONE {
            last = self.waiters[last].next;
        }
        self.waiters[last].next = index;
    }

    /// Removes the first waiter of a list, and advances `list`.
    pub(super) fn pop(&mut self, list: &mut u32) -> Option<FrameWaiter> {
        if *list == NONE {
            return None;
        }
        let waiter = self.waiters[*list];
        self.waiters.release(*list);
        *list = waiter.next;
        Some(waiter)
    }

    /// Returns whether a request waits for a frame.
    #[inline]
    pub(super) fn is_stalled(&self) -> bool {
        !self.stalled.is_empty() || !self.retries.is_empty()
    }

    /// Returns whether a request waits for a frame before its next block starts.
    #[inline]
    pub(super) fn has_stalled_requests(&self) -> bool {
        !self.stalled.is_empty()
    }

    pub(super) fn push_stalled(&mut self, request: CacheRequestId) {
        self.stalled.push_back(request);
    }

    /// Returns the request that waits for a frame longest.
    pub(super) fn first_stalled(&self) -> Option<CacheRequestId> {
        self.stalled.front().copied()
    }

    pub(super) fn pop_stalled(&mut self) -> Option<CacheRequestId> {
        self.stalled.pop_front()
    }

    pub(super) fn push_retry(&mut self, waiting: RequestBlock) {
        self.retries.push_back(waiting);
    }

    pub(super) fn push_retry_front(&mut self, waiting: RequestBlock) {
        self.retries.push_front(waiting);
    }

    pub(super) fn pop_retry(&mut self) -> Option<RequestBlock> {
        self.retries.pop_front()
    }

    /// Returns the request of each part that waits.
    pub(super) fn waiting_parts(
        &self,
        frames: &CacheFrames,
    ) -> impl Iterator<Item = CacheRequestId> {
        let on_frames = (0..frames.count()).flat_map(|frame| self.of_frame(frames, frame));
        on_frames
            .map(|waiter| waiter.waiting.request)
            .chain(self.stalled.iter().copied())
            .chain(self.retries.iter().map(|retry| retry.request))
    }

    fn of_frame(&self, frames: &CacheFrames, frame: u32) -> impl Iterator<Item = &FrameWaiter> {
        let get = |index: u32| self.waiters.get(index);
        std::iter::successors(get(frames.get(frame).waiters), move |waiter| get(waiter.next))
    }

    pub(super) fn check_invariants(&self, frames: &CacheFrames) -> Result<(), CacheViolation> {
        let mut listed = 0;
        for frame in 0..frames.count() {
            for waiter in self.of_frame(frames, frame) {
                listed += 1;
                require!(
                    listed <= self.waiters.len(),
                    Waiters,
                    "a list of waiters ends",
                    format_args!("frame {frame}"),
                    self.waiters.len(),
                    waiter
                );
                require_eq!(
                    Waiters,
                    "a request waits for its block's frame",
                    format_args!("frame {frame}"),
                    frames.get(frame).block,
                    waiter.waiting.block
                );
            }
        }
        require_eq!(
            Waiters,
            "a waiter is free or queued on a frame",
            "all waiters",
            self.waiters.len(),
            listed + self.waiters.free_len()
        );
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn break_free(&mut self) {
        let waiting = self.waiters[0].waiting;
        self.waiters.insert(FrameWaiter { waiting, until_written: false, next: NONE });
    }
}
