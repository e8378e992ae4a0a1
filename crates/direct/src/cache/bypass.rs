//! Requests that go past the frames: discards, zeroes, queries for extents; and the end of flushes.
//!
//! One at a time, with nothing else under way: everything before it has ended and is at the device,
//! and what the frames held of its sectors is forgotten when it has succeeded.

use block::{BlockDevice, Completion, Op, Request};

use super::frames::FrameState;
use super::{Cache, CacheRequest};

impl<D: BlockDevice> Cache<D> {
    /// Sends the request that goes past, when everything before it has ended.
    pub(super) fn send_bypass(&mut self) -> bool {
        let Some((io, false)) = self.bypass else { return false };
        // Itself, and those behind it.
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

    /// The device has answered a request that went past.
    pub(super) fn on_bypass_complete(&mut self, id: u32, completion: Completion) {
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

    /// Forgets a unit; but one that could not be written, and is zeros in part now, is zeros in part.
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
