//! Requests that bypass the frames (discard, write zeroes, extent queries), and the completion of
//! flushes.
//!
//! At most one bypass request is in flight, and nothing else with it: it waits until every earlier
//! request has completed on the device. When it succeeds, the cached blocks of its sectors are
//! invalidated.

use std::collections::VecDeque;

use block::{BlockDevice, Completion, Op, Request};

use crate::cache::Cache;
use crate::cache::frames::{BlockFrame, FrameState};
use crate::cache::invariants::{CacheViolation, require};
use crate::cache::requests::{CacheRequest, CacheRequestId};

/// The bypass request, and the requests behind it.
#[derive(Debug, Default)]
pub(in crate::cache) struct BypassQueue {
    active: Option<ActiveBypass>,
    behind: VecDeque<CacheRequestId>,
}

#[derive(Clone, Copy, Debug)]
struct ActiveBypass {
    request: CacheRequestId,
    /// It was sent to the device.
    is_sent: bool,
}

impl BypassQueue {
    #[inline]
    pub(in crate::cache) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    pub(in crate::cache) fn begin(&mut self, request: CacheRequestId) {
        assert!(self.active.is_none(), "bypass: {request:?} begins while {:?} is", self.active);
        self.active = Some(ActiveBypass { request, is_sent: false });
    }

    /// Queues a request behind the bypass request.
    pub(in crate::cache) fn push_behind(&mut self, request: CacheRequestId) {
        self.behind.push_back(request);
    }

    /// Returns the bypass request unless it was sent.
    fn unsent(&self) -> Option<CacheRequestId> {
        self.active.filter(|active| !active.is_sent).map(|active| active.request)
    }

    /// Returns the number of requests behind the bypass request.
    fn behind_len(&self) -> usize {
        self.behind.len()
    }

    fn set_sent(&mut self) {
        if let Some(active) = &mut self.active {
            active.is_sent = true;
        }
    }

    fn end(&mut self, request: CacheRequestId) {
        let active = self.active.take();
        assert!(
            active.is_some_and(|active| active.request == request && active.is_sent),
            "bypass: {request:?} completes, and {active:?} is active"
        );
    }

    /// Takes the next request, unless it is behind a bypass request.
    fn pop_behind(&mut self) -> Option<CacheRequestId> {
        if self.active.is_some() { None } else { self.behind.pop_front() }
    }

    /// Returns the requests that were not sent: the bypass request, and those behind it.
    pub(in crate::cache) fn waiting(&self) -> impl Iterator<Item = CacheRequestId> + '_ {
        self.unsent().into_iter().chain(self.behind.iter().copied())
    }

    /// Returns the bypass request if it was sent.
    pub(in crate::cache) fn sent(&self) -> Option<CacheRequestId> {
        self.active.filter(|active| active.is_sent).map(|active| active.request)
    }

    pub(in crate::cache) fn check_invariants(&self) -> Result<(), CacheViolation> {
        require!(
            self.active.is_some() || self.behind.is_empty(),
            Bypass,
            "requests wait behind a bypass request",
            "the bypass request",
            "one",
            format_args!("none, and {:?} wait", self.behind)
        );
        Ok(())
    }

    #[cfg(test)]
    pub(in crate::cache) fn break_active(&mut self) {
        let request = self.active.expect("a bypass request").request;
        self.active = None;
        self.behind.push_back(request);
    }
}

impl<D: BlockDevice> Cache<D> {
    /// Sends the bypass request if every earlier request has completed.
    pub(in crate::cache) fn send_bypass(&mut self) -> bool {
        let Some(id) = self.bypass.unsent() else { return false };
        // Excludes the bypass request and the requests behind it.
        let before = self.requests.len() - 1 - self.bypass.behind_len();
        if before > 0 || !self.is_device_idle() {
            return false;
        }
        let is_sent = self.ops.push_bypass(id, self.requests.get(id).request);
        if is_sent {
            self.bypass.set_sent();
        }
        is_sent
    }

    /// Completes a bypass request, or a flush, with the device's result.
    pub(in crate::cache) fn on_bypass_complete(
        &mut self,
        id: CacheRequestId,
        completion: Completion,
    ) {
        let request = self.requests.get(id).request;
        self.requests.set_result(id, completion.result);
        if completion.status.is_success() && matches!(request.op, Op::Discard | Op::WriteZeroes) {
            self.invalidate_range(id);
        }
        if request.op != Op::Flush {
            self.bypass.end(id);
        }
        self.complete_part(id, completion.status);
        while let Some(next) = self.bypass.pop_behind() {
            self.start(next);
        }
    }

    fn invalidate_range(&mut self, id: CacheRequestId) {
        let CacheRequest { request, next_block: next, end_block: end, .. } = *self.requests.get(id);
        let frames = self.blocks.frames.count();
        if end - next <= u64::from(frames) {
            for block in next..end {
                if let Some(frame) = self.blocks.find(block) {
                    self.invalidate_partial(&request, BlockFrame { block, frame });
                }
            }
            return;
        }
        for frame in 0..frames {
            let f = *self.blocks.frames.get(frame);
            if f.state != FrameState::Free && (next..end).contains(&f.block) {
                self.invalidate_partial(&request, BlockFrame { block: f.block, frame });
            }
        }
    }

    /// Invalidates a block. If the request covers only a part of a dirty block whose writeback
    /// failed, zeroes that part instead.
    fn invalidate_partial(&mut self, request: &Request, at: BlockFrame) {
        let overlap = self.geometry.overlap(request, at.block);
        let whole = overlap.bytes as u32 == self.geometry.bytes_in_block(at.block);
        if whole || self.blocks.frames.get(at.frame).state != FrameState::Dirty {
            return self.invalidate(at);
        }
        self.blocks.zero(at.frame, overlap.block_offset, overlap.bytes);
    }
}
