//! Requests that go past the frames: discards, zeroes, queries for extents; and the end of flushes.
//!
//! One at a time, with nothing else under way: everything before it has ended and is at the device,
//! and what the frames held of its sectors is forgotten when it has succeeded.

use block::{Completion, Device, Op, Request};

use super::frames::State;
use super::{Cache, Io};

impl<D: Device> Cache<D> {
    /// Sends the request that goes past, when everything before it has ended.
    pub(super) fn go_past(&mut self) -> bool {
        let Some((io, false)) = self.past else { return false };
        // Itself, and those behind it.
        let before = self.under_way() - 1 - self.queued.len();
        let nothing = before == 0
            && self.ops.busy() == 0
            && self.to_fill.is_empty()
            && !self.back.has_alone()
            && self.tree.next_dirty(0).is_none();
        if !nothing {
            return false;
        }
        let Some(op) = self.ops.pass(io, self.ios[io as usize].request) else { return false };
        self.to_send.push_back(op);
        self.past = Some((io, true));
        true
    }

    /// The device has answered a request that went past.
    pub(super) fn passed(&mut self, id: u32, completion: Completion) {
        let Io { request, .. } = self.ios[id as usize];
        self.ios[id as usize].result = completion.result;
        if completion.status.is_success() && matches!(request.op, Op::Discard | Op::WriteZeroes) {
            self.forget_range(id);
        }
        if request.op != Op::Flush {
            self.past = None;
        }
        self.less(id, completion.status);
        while self.past.is_none()
            && let Some(next) = self.queued.pop_front()
        {
            self.start(next);
        }
    }

    fn forget_range(&mut self, id: u32) {
        let Io { request, next, end, .. } = self.ios[id as usize];
        if end - next <= u64::from(self.frames.count()) {
            for unit in next..end {
                if let Some(frame) = self.tree.get(unit) {
                    self.forget_part(&request, unit, frame);
                }
            }
            return;
        }
        for frame in 0..self.frames.count() {
            let f = *self.frames.get(frame);
            if f.state != State::Free && (next..end).contains(&f.unit) {
                self.forget_part(&request, f.unit, frame);
            }
        }
    }

    /// Forgets a unit; but one that could not be written, and is zeros in part now, is zeros in part.
    fn forget_part(&mut self, request: &Request, unit: u64, frame: u32) {
        let (at, bytes, _) = self.overlap(request, unit);
        let whole = bytes as u32 == self.sectors_of(unit) * self.limits.sector_bytes;
        if whole || self.frames.get(frame).state != State::Dirty {
            return self.forget(unit, frame);
        }
        let offset = self.frame_offset(frame) + at;
        self.buffer.fill(offset, bytes, 0);
    }
}
