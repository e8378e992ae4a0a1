//! Requests that bypass the frames (discard, write zeroes, extent queries), and the completion of
//! flushes.
//!
//! At most one bypass request is in flight, and nothing else with it: it waits until every earlier
//! request has completed on the device. When it succeeds, the cached blocks of its sectors are
//! invalidated.

use block::{BlockDevice, Completion, Op, Request};

use crate::cache::frames::FrameState;
use crate::cache::{Cache, CacheRequest};

impl<D: BlockDevice> Cache<D> {
    /// Sends the bypass request if every earlier request has completed.
    pub(in crate::cache) fn send_bypass(&mut self) -> bool {
        let Some((io, false)) = self.bypass else { return false };
        // Excludes the bypass request and the requests behind it.
        let before = self.in_flight() - 1 - self.behind_bypass.len();
        let nothing = before == 0
            && self.ops.in_flight() == 0
            && self.to_fill.is_empty()
            && !self.writeback.has_single_retries()
            && self.tree.next_dirty(0).is_none();
        if !nothing {
            return false;
        }
        let Some(op) = self.ops.push_bypass(io, self.ios[io as usize].request) else {
            return false;
        };
        self.to_send.push_back(op);
        self.bypass = Some((io, true));
        true
    }

    /// Completes a bypass request with the device's result.
    pub(in crate::cache) fn on_bypass_complete(&mut self, id: u32, completion: Completion) {
        let CacheRequest { request, .. } = self.ios[id as usize];
        self.ios[id as usize].result = completion.result;
        if completion.status.is_success() && matches!(request.op, Op::Discard | Op::WriteZeroes) {
            self.invalidate_range(id);
        }
        if request.op != Op::Flush {
            self.bypass = None;
        }
        self.complete_part(id, completion.status);
        while self.bypass.is_none()
            && let Some(next) = self.behind_bypass.pop_front()
        {
            self.start(next);
        }
    }

    fn invalidate_range(&mut self, id: u32) {
        let CacheRequest { request, next_block: next, end_block: end, .. } = self.ios[id as usize];
        if end - next <= u64::from(self.frames.count()) {
            for unit in next..end {
                if let Some(frame) = self.tree.get(unit) {
                    self.invalidate_partial(&request, unit, frame);
                }
            }
            return;
        }
        for frame in 0..self.frames.count() {
            let f = *self.frames.get(frame);
            if f.state != FrameState::Free && (next..end).contains(&f.block) {
                self.invalidate_partial(&request, f.block, frame);
            }
        }
    }

    /// Invalidates a block. If the request covers only a part of a dirty block whose writeback
    /// failed, zeroes that part instead.
    fn invalidate_partial(&mut self, request: &Request, unit: u64, frame: u32) {
        let (at, bytes, _) = self.overlap(request, unit);
        let whole = bytes as u32 == self.sectors_in_block(unit) * self.limits.sector_bytes;
        if whole || self.frames.get(frame).state != FrameState::Dirty {
            return self.invalidate(unit, frame);
        }
        let offset = self.frame_offset(frame) + at;
        self.buffer.fill(offset, bytes, 0);
    }
}
