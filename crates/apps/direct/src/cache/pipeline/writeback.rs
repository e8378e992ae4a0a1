//! [`Writeback`]: writing dirty blocks to the device.
//!
//! Blocks that are dirty when a flush arrives belong to its *epoch*. The flush is sent to the
//! device when no block of its epoch or an earlier one is dirty. A block whose write fails moves to
//! the current epoch, so that the flush completes and reports the error.

use std::collections::VecDeque;

use block::{BlockDevice, Op, Request};
use nvme::Status;

use crate::cache::frames::FrameState;
use crate::cache::ops::{OP_FRAMES_MAX, OpPurpose};
use crate::cache::{Cache, WritePolicy};

/// A waiting flush.
#[derive(Clone, Copy, Debug)]
struct Flush {
    io: u32,
    epoch: u64,
    status: Status,
}

/// State of the writeback.
#[derive(Debug)]
pub(in crate::cache) struct Writeback {
    /// Blocks that are dirty or being written, including those whose write failed.
    dirty: u32,
    /// Maximum number of dirty blocks.
    dirty_max: u32,
    /// Number of dirty blocks at which background writeback starts.
    background_threshold: u32,
    /// Blocks whose write a request waits for.
    write_requested_count: u32,
    /// The current epoch (the number of the next flush), and dirty blocks by epoch, oldest first.
    epoch: u64,
    dirty_by_epoch: VecDeque<u32>,
    flushes: VecDeque<Flush>,
    /// The block at which the writeback scan continues.
    cursor: u64,
    /// Write commands in flight.
    write_commands: u32,
    /// Blocks whose write failed.
    failed: Vec<u64>,
    last_error: Option<Status>,
    /// Blocks of failed commands, to be retried one by one.
    single_retries: VecDeque<(OpPurpose, (u64, u32))>,
    /// Blocks of requests that were resumed and then found no frame.
    retries: VecDeque<(u32, u64)>,
}

/// Maximum number of write commands in flight; the remaining slots are for reads.
const WRITE_COMMANDS_MAX: u32 = 32;

impl Writeback {
    pub(in crate::cache) fn new(frames: u32, write: WritePolicy) -> Writeback {
        let percent = |p: u8| (u64::from(frames) * u64::from(p) / 100) as u32;
        let (limit, background_threshold) = match write {
            WritePolicy::WriteThrough => (percent(50), 0),
            WritePolicy::WriteBack { dirty_percent, background_percent } => {
                (percent(dirty_percent), percent(background_percent))
            }
        };
        Writeback {
            dirty: 0,
            dirty_max: limit.max(1),
            background_threshold,
            write_requested_count: 0,
            epoch: 0,
            dirty_by_epoch: VecDeque::from([0]),
            flushes: VecDeque::new(),
            cursor: 0,
            write_commands: 0,
            failed: Vec::new(),
            last_error: None,
            single_retries: VecDeque::new(),
            retries: VecDeque::new(),
        }
    }

    pub(in crate::cache) fn dirty(&self) -> u32 {
        self.dirty
    }

    /// Returns whether the limit of dirty blocks is reached.
    pub(in crate::cache) fn is_full(&self) -> bool {
        self.dirty >= self.dirty_max
    }

    pub(in crate::cache) fn last_error(&self) -> Option<Status> {
        self.last_error
    }

    pub(in crate::cache) fn push_single_retry(&mut self, unit: (OpPurpose, (u64, u32))) {
        self.single_retries.push_back(unit);
    }

    pub(in crate::cache) fn has_single_retries(&self) -> bool {
        !self.single_retries.is_empty()
    }

    pub(in crate::cache) fn push_retry(&mut self, io: u32, unit: u64) {
        self.retries.push_back((io, unit));
    }

    pub(in crate::cache) fn push_retry_front(&mut self, io: u32, unit: u64) {
        self.retries.push_front((io, unit));
    }

    pub(in crate::cache) fn pop_retry(&mut self) -> Option<(u32, u64)> {
        self.retries.pop_front()
    }

    pub(in crate::cache) fn has_retries(&self) -> bool {
        !self.retries.is_empty()
    }

    /// Returns the oldest epoch that can have dirty blocks.
    fn oldest_dirty_epoch(&self) -> u64 {
        self.epoch + 1 - self.dirty_by_epoch.len() as u64
    }

    fn epoch_count_mut(&mut self, epoch: u64) -> Option<&mut u32> {
        let at = epoch.checked_sub(self.oldest_dirty_epoch())?;
        self.dirty_by_epoch.get_mut(at as usize)
    }

    /// Removes one dirty block from an epoch.
    fn remove_dirty(&mut self, epoch: u64) {
        if let Some(count) = self.epoch_count_mut(epoch) {
            *count -= 1;
        }
        while self.dirty_by_epoch.len() > 1 && self.dirty_by_epoch.front() == Some(&0) {
            self.dirty_by_epoch.pop_front();
        }
    }

    fn add_dirty(&mut self) -> u64 {
        let epoch = self.epoch;
        if let Some(count) = self.epoch_count_mut(epoch) {
            *count += 1;
        }
        epoch
    }
}

impl<D: BlockDevice> Cache<D> {
    /// Marks a frame dirty after a write.
    pub(in crate::cache) fn mark_dirty(&mut self, frame: u32, fua: bool) {
        let wanted = fua || self.config.write_policy == WritePolicy::WriteThrough;
        let f = self.frames.get_mut(frame);
        let unit = f.block;
        self.writeback.write_requested_count += u32::from(wanted && !f.write_requested);
        f.write_requested |= wanted;
        f.fua |= fua;
        let failed = std::mem::take(&mut f.failed);
        if f.state != FrameState::Dirty {
            f.epoch = self.writeback.add_dirty();
            self.writeback.dirty += 1;
            self.frames.set_state(frame, FrameState::Dirty);
            self.tree.set_dirty(unit);
        } else if failed {
            self.writeback.failed.retain(|u| *u != unit);
            self.tree.set_dirty(unit);
        }
    }

    /// Starts a flush: everything dirty now is written to the device, and then flushed there.
    pub(in crate::cache) fn flush(&mut self, io: u32) {
        // Retry the blocks whose write failed.
        for unit in std::mem::take(&mut self.writeback.failed) {
            if let Some(frame) = self.tree.get(unit) {
                self.frames.get_mut(frame).failed = false;
                self.tree.set_dirty(unit);
            }
        }
        let epoch = self.writeback.epoch;
        self.writeback.flushes.push_back(Flush { io, epoch, status: Status::SUCCESS });
        self.writeback.epoch += 1;
        self.writeback.dirty_by_epoch.push_back(0);
        while self.writeback.dirty_by_epoch.len() > 1
            && self.writeback.dirty_by_epoch.front() == Some(&0)
        {
            self.writeback.dirty_by_epoch.pop_front();
        }
    }

    /// Returns whether dirty blocks must be written now.
    fn is_urgent(&self) -> bool {
        self.writeback.write_requested_count > 0
            || !self.writeback.flushes.is_empty()
            || self.is_stalled()
            || self.bypass.is_some()
    }

    /// Writes dirty blocks as far as needed, and sends flushes whose epoch is clean.
    pub(in crate::cache) fn write_back(&mut self) -> bool {
        let mut moved = false;
        while self.ops.available() > 0
            && let Some((what, (unit, frame))) = self.writeback.single_retries.pop_front()
        {
            let op = if what == OpPurpose::Fill { Op::Read } else { Op::Write };
            let fua = self.frames.get(frame).fua;
            self.writeback.write_commands += u32::from(what == OpPurpose::Write);
            self.issue(what, op, &[(unit, frame)], fua && op == Op::Write);
            moved = true;
        }
        while self.ops.available() > 0
            && self.writeback.write_commands < WRITE_COMMANDS_MAX
            && (self.is_urgent() || self.writeback.dirty > self.writeback.background_threshold)
        {
            let from = self.writeback.cursor;
            let next = self.tree.next_dirty(from).or_else(|| self.tree.next_dirty(0));
            let Some((first, frame)) = next else { break };
            self.write_contiguous(first, frame);
            moved = true;
        }
        while let Some(&Flush { io, epoch, status }) = self.writeback.flushes.front() {
            if self.writeback.oldest_dirty_epoch() <= epoch {
                break;
            }
            let flush = Request::flush(0);
            let Some(op) = self.ops.push_bypass(io, flush) else { break };
            if !status.is_success() {
                self.ios[io as usize].status = status;
            }
            self.writeback.flushes.pop_front();
            self.to_send.push_back(op);
            moved = true;
        }
        moved
    }

    fn write_contiguous(&mut self, first: u64, frame: u32) {
        let mut run = [(first, frame); OP_FRAMES_MAX];
        let mut count = 0;
        let mut fua = false;
        let mut next = Some((first, frame));
        while let Some((unit, frame)) = next
            && unit == first + count as u64
            && count < self.op_blocks_max
        {
            run[count] = (unit, frame);
            count += 1;
            fua |= self.frames.get(frame).fua;
            self.tree.set_clean(unit);
            self.frames.set_state(frame, FrameState::Writing);
            next = self.tree.next_dirty(unit + 1);
        }
        self.writeback.cursor = first + count as u64;
        self.writeback.write_commands += 1;
        self.stats.written += count as u64;
        self.stats.write_commands += 1;
        self.issue(OpPurpose::Write, Op::Write, &run[..count], fua);
    }

    /// Handles the result of writing a block.
    pub(in crate::cache) fn on_block_written(&mut self, unit: u64, frame: u32, status: Status) {
        let f = self.frames.get_mut(frame);
        let epoch = f.epoch;
        self.writeback.write_requested_count -= u32::from(std::mem::take(&mut f.write_requested));
        f.fua = false;
        if status.is_success() {
            self.writeback.dirty -= 1;
            self.writeback.remove_dirty(epoch);
            self.frames.set_state(frame, FrameState::Clean);
        } else {
            self.stats.write_errors += 1;
            self.writeback.last_error = Some(status);
            for flush in &mut self.writeback.flushes {
                if flush.epoch >= epoch && flush.status.is_success() {
                    flush.status = status;
                }
            }
            f.failed = true;
            f.epoch = self.writeback.add_dirty();
            self.writeback.remove_dirty(epoch);
            self.writeback.failed.push(unit);
            self.frames.set_state(frame, FrameState::Dirty);
        }
        self.wake_waiters(frame, None, status);
    }

    /// Handles the completion of a write command.
    pub(in crate::cache) fn on_write_complete(&mut self) {
        self.writeback.write_commands -= 1;
    }

    /// Invalidates a block, whatever its state.
    pub(in crate::cache) fn invalidate(&mut self, unit: u64, frame: u32) {
        let f = *self.frames.get(frame);
        if f.state == FrameState::Dirty {
            self.writeback.dirty -= 1;
            self.writeback.remove_dirty(f.epoch);
            self.writeback.failed.retain(|u| *u != unit);
            if !f.failed {
                self.tree.set_clean(unit);
            }
        }
        self.tree.remove(unit);
        self.frames.set_state(frame, FrameState::Free);
    }
}
