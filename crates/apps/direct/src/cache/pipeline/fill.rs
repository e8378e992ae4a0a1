//! Fills: blocks that are being read from the device, on demand or ahead.
//!
//! Guarantee: read-ahead takes no frame that a request waits for.

use block::{BlockDevice, Op};
use nvme::Status;

use crate::cache::Cache;
use crate::cache::frames::FrameState;
use crate::cache::ops::{OP_FRAMES_MAX, OpPurpose};

/// Detects a sequential reader.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cache) struct Readahead {
    /// The block at which a sequential reader's next read begins.
    pub(in crate::cache) next_expected: u64,
    pub(in crate::cache) window: u64,
    /// End of the blocks already requested.
    pub(in crate::cache) requested_end: u64,
}

impl<D: BlockDevice> Cache<D> {
    /// Requests blocks ahead of a sequential reader.
    #[inline]
    pub(in crate::cache) fn read_ahead(&mut self, first: u64, end: u64) {
        let ahead = &mut self.readahead;
        // Two reads of the same block count as sequential, too.
        let goes_on = self.config.read_ahead > 0
            && (first == ahead.next_expected || first + 1 == ahead.next_expected);
        ahead.next_expected = end;
        match goes_on {
            false => (ahead.window, ahead.requested_end) = (0, end),
            true => self.fill_ahead(end),
        }
    }

    fn fill_ahead(&mut self, end: u64) {
        let (most, ahead) = (u64::from(self.config.read_ahead), &mut self.readahead);
        ahead.window = (2 * ahead.window).clamp(most.min(4), most);
        let units = self.limits.sectors.div_ceil(self.block_sectors.into());
        let (window, from) = (ahead.window, ahead.requested_end.max(end));
        let target = (end + window).min(units);
        if target.saturating_sub(from) < window.div_ceil(2) && target < units {
            return;
        }
        for unit in from..target {
            if self.tree.get(unit).is_some() {
                continue;
            }
            // Read-ahead must not delay a request that waits for a frame.
            if !self.stalled.is_empty() {
                break;
            }
            let Some(frame) = self.allocate_frame(unit) else { break };
            self.frames.set_state(frame, FrameState::Filling);
            self.to_fill.push_back((unit, frame));
            self.stats.read_ahead += 1;
        }
        self.readahead.requested_end = self.readahead.requested_end.max(target);
    }

    /// Builds commands for the queued fills.
    pub(in crate::cache) fn fill(&mut self) -> bool {
        let mut moved = false;
        while self.ops.available() > 0 {
            let Some((first, frame)) = self.to_fill.pop_front() else { break };
            let mut run = [(first, frame); OP_FRAMES_MAX];
            let mut count = 1;
            while count < self.op_blocks_max
                && let Some(&(unit, frame)) = self.to_fill.front()
                && unit == first + count as u64
            {
                run[count] = (unit, frame);
                count += 1;
                self.to_fill.pop_front();
            }
            self.stats.fills += count as u64;
            self.issue(OpPurpose::Fill, Op::Read, &run[..count], false);
            moved = true;
        }
        moved
    }

    /// Completes the fill of a block's frame, or fails its waiters.
    pub(in crate::cache) fn on_fill_complete(&mut self, unit: u64, frame: u32, status: Status) {
        if status.is_success() {
            self.frames.set_state(frame, FrameState::Clean);
            return self.wake_waiters(frame, None, status);
        }
        self.wake_waiters(frame, Some(status), status);
        self.tree.remove(unit);
        self.frames.set_state(frame, FrameState::Free);
    }
}
