//! Fills: blocks that are being read from the device, on demand or ahead.
//!
//! Guarantee: read-ahead takes no frame that a request waits for.

use block::{BlockDevice, Op};
use nvme::Status;

use crate::cache::Cache;
use crate::cache::frames::{BlockFrame, FrameState};
use crate::cache::ops::{OP_FRAMES_MAX, OpPurpose};

impl<D: BlockDevice> Cache<D> {
    /// Requests blocks ahead of a sequential reader.
    #[inline]
    pub(in crate::cache) fn read_ahead(&mut self, first: u64, end: u64) {
        if self.readahead.record(first, end, self.config.read_ahead) {
            self.fill_ahead(end);
        }
    }

    fn fill_ahead(&mut self, end: u64) {
        let blocks = self.geometry.blocks();
        let window = self.readahead.next_window(end, blocks, self.config.read_ahead);
        let Some(window) = window else { return };
        let target = window.end;
        for block in window {
            if self.blocks.find(block).is_some() {
                continue;
            }
            // Read-ahead must not delay a request that waits for a frame.
            if self.waiters.has_stalled_requests() {
                break;
            }
            let Some(frame) = self.allocate_frame(block) else { break };
            self.blocks.frames.set_state(frame, FrameState::Filling);
            self.ops.push_fill(BlockFrame { block, frame });
            self.stats.read_ahead += 1;
        }
        self.readahead.set_requested(target);
    }

    /// Builds commands for the queued fills.
    pub(in crate::cache) fn fill(&mut self) -> bool {
        let mut moved = false;
        while self.ops.available() > 0 {
            let Some(first) = self.ops.pop_fill() else { break };
            let mut run = [first; OP_FRAMES_MAX];
            let mut count = 1;
            while count < self.geometry.op_blocks_max()
                && let Some(next) = self.ops.pop_fill_of(first.block + count as u64)
            {
                run[count] = next;
                count += 1;
            }
            self.stats.fills += count as u64;
            self.issue(OpPurpose::Fill, Op::Read, &run[..count], false);
            moved = true;
        }
        moved
    }

    /// Completes the fill of a block's frame, or fails its waiters.
    pub(in crate::cache) fn on_fill_complete(&mut self, at: BlockFrame, status: Status) {
        if status.is_success() {
            self.blocks.frames.set_state(at.frame, FrameState::Clean);
            return self.wake_waiters(at.frame, None, status);
        }
        self.wake_waiters(at.frame, Some(status), status);
        self.blocks.remove(at);
    }
}
