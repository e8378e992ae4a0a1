//! Writing dirty blocks to the device.

use block::{BlockDevice, Op, Request};
use nvme::Status;

use crate::cache::dirty_blocks::SingleRetry;
use crate::cache::frames::{BlockFrame, FrameState};
use crate::cache::ops::{OP_FRAMES_MAX, OpPurpose};
use crate::cache::requests::CacheRequestId;
use crate::cache::{Cache, WritePolicy};

impl<D: BlockDevice> Cache<D> {
    /// Marks a frame dirty after a write.
    pub(in crate::cache) fn mark_dirty(&mut self, frame: u32, fua: bool) {
        let is_awaited = fua || self.config.write_policy == WritePolicy::WriteThrough;
        let f = self.blocks.frames.get_mut(frame);
        let block = f.block;
        if self.writeback.mark_dirty(f, is_awaited, fua) {
            self.blocks.frames.set_state(frame, FrameState::Dirty);
            self.blocks.set_dirty(block);
        }
    }

    /// Starts a flush: everything dirty now is written to the device, and then flushed there.
    pub(in crate::cache) fn flush(&mut self, id: CacheRequestId) {
        // Retry the blocks whose write failed.
        for block in self.writeback.begin_flush(id) {
            let frame = self.blocks.find(block);
            let frame = frame.expect("writeback: a block whose write failed is cached");
            self.blocks.frames.get_mut(frame).failed = false;
            self.blocks.set_dirty(block);
        }
    }

    /// Returns whether dirty blocks must be written now.
    fn is_urgent(&self) -> bool {
        self.writeback.is_awaited() || self.waiters.is_stalled() || self.bypass.is_active()
    }

    /// Writes dirty blocks as far as needed, and sends flushes whose epoch is clean.
    pub(in crate::cache) fn write_back(&mut self) -> bool {
        let mut moved = false;
        while self.ops.available() > 0
            && let Some(SingleRetry { purpose, block }) = self.writeback.pop_single_retry()
        {
            let is_write = purpose == OpPurpose::Write;
            let op = if is_write { Op::Write } else { Op::Read };
            let fua = is_write && self.blocks.frames.get(block.frame).fua;
            if is_write {
                self.writeback.begin_write_command();
            }
            self.issue(purpose, op, &[block], fua);
            moved = true;
        }
        while self.ops.available() > 0
            && self.writeback.can_write()
            && (self.is_urgent() || self.writeback.is_background_due())
        {
            let from = self.writeback.cursor();
            let next = self.blocks.next_dirty(from).or_else(|| self.blocks.next_dirty(0));
            let Some(first) = next else { break };
            self.write_contiguous(first);
            moved = true;
        }
        while let Some(flush) = self.writeback.clean_flush() {
            if !self.ops.push_bypass(flush.request, Request::flush(0)) {
                break;
            }
            if !flush.status.is_success() {
                self.requests.set_status(flush.request, flush.status);
            }
            self.writeback.pop_flush();
            moved = true;
        }
        moved
    }

    fn write_contiguous(&mut self, first: BlockFrame) {
        let mut run = [first; OP_FRAMES_MAX];
        let mut count = 0;
        let mut fua = false;
        let mut next = Some(first);
        while let Some(at) = next
            && at.block == first.block + count as u64
            && count < self.geometry.op_blocks_max()
        {
            run[count] = at;
            count += 1;
            fua |= self.blocks.frames.get(at.frame).fua;
            self.blocks.set_clean(at.block);
            self.blocks.frames.set_state(at.frame, FrameState::Writing);
            next = self.blocks.next_dirty(at.block + 1);
        }
        self.writeback.set_cursor(first.block + count as u64);
        self.writeback.begin_write_command();
        self.stats.written += count as u64;
        self.stats.write_commands += 1;
        self.issue(OpPurpose::Write, Op::Write, &run[..count], fua);
    }

    /// Handles the result of writing a block.
    pub(in crate::cache) fn on_block_written(&mut self, at: BlockFrame, status: Status) {
        let f = self.blocks.frames.get_mut(at.frame);
        if status.is_success() {
            self.writeback.mark_written(f);
            self.blocks.frames.set_state(at.frame, FrameState::Clean);
        } else {
            self.stats.write_errors += 1;
            self.writeback.mark_failed(f, status);
            self.blocks.frames.set_state(at.frame, FrameState::Dirty);
        }
        self.wake_waiters(at.frame, None, status);
    }

    /// Invalidates a block, whatever its state.
    pub(in crate::cache) fn invalidate(&mut self, at: BlockFrame) {
        let f = self.blocks.frames.get(at.frame);
        if f.state == FrameState::Dirty {
            self.writeback.forget(f);
            if !f.failed {
                self.blocks.set_clean(at.block);
            }
        }
        self.blocks.remove(at);
    }
}
