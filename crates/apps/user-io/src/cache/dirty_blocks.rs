//! [`Writeback`]: counts of dirty blocks, and flushes that wait for them.
//!
//! Blocks that are dirty when a flush arrives belong to its *epoch*. The flush is sent to the
//! device when no block of its epoch or an earlier one is dirty. A block whose write fails moves to
//! the current epoch, so that the flush completes and reports the error.

use std::collections::VecDeque;

use nvme::Status;

use super::WritePolicy;
use super::frames::{BlockFrame, CacheFrames, Frame, FrameState};
use super::invariants::{CacheViolation, require, require_eq};
use super::ops::OpPurpose;
use super::requests::CacheRequestId;

/// Maximum number of write commands in flight; the remaining slots are for reads.
const WRITE_COMMANDS_MAX: u32 = 32;

/// A waiting flush.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingFlush {
    pub(super) request: CacheRequestId,
    epoch: u64,
    /// Error of a block of its epoch.
    pub(super) status: Status,
}

/// A block of a failed command, to be retried alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct SingleRetry {
    pub(super) purpose: OpPurpose,
    pub(super) block: BlockFrame,
}

/// State of the writeback.
#[derive(Debug)]
pub(super) struct Writeback {
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
    flushes: VecDeque<WaitingFlush>,
    /// The block at which the writeback scan continues.
    cursor: u64,
    /// Write commands in flight.
    write_commands: u32,
    /// Blocks whose write failed.
    failed: Vec<u64>,
    last_error: Option<Status>,
    single_retries: VecDeque<SingleRetry>,
}

impl Writeback {
    pub(super) fn new(frames: u32, write: WritePolicy) -> Writeback {
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
        }
    }

    pub(super) fn dirty(&self) -> u32 {
        self.dirty
    }

    /// Returns whether the limit of dirty blocks is reached.
    pub(super) fn is_full(&self) -> bool {
        self.dirty >= self.dirty_max
    }

    /// Returns whether there are enough dirty blocks for background writeback.
    pub(super) fn is_background_due(&self) -> bool {
        self.dirty > self.background_threshold
    }

    /// Returns whether a request waits for dirty blocks.
    pub(super) fn is_awaited(&self) -> bool {
        self.write_requested_count > 0 || !self.flushes.is_empty()
    }

    pub(super) fn last_error(&self) -> Option<Status> {
        self.last_error
    }

    pub(super) fn push_single_retry(&mut self, retry: SingleRetry) {
        self.single_retries.push_back(retry);
    }

    pub(super) fn pop_single_retry(&mut self) -> Option<SingleRetry> {
        self.single_retries.pop_front()
    }

    pub(super) fn has_single_retries(&self) -> bool {
        !self.single_retries.is_empty()
    }

    /// Returns the blocks to be retried alone.
    pub(super) fn single_retries(&self) -> impl Iterator<Item = &SingleRetry> {
        self.single_retries.iter()
    }

    /// Returns whether another write command may be sent.
    pub(super) fn can_write(&self) -> bool {
        self.write_commands < WRITE_COMMANDS_MAX
    }

    pub(super) fn begin_write_command(&mut self) {
        self.write_commands += 1;
    }

    pub(super) fn end_write_command(&mut self) {
        assert!(self.write_commands > 0, "writeback: a write ends, and none is in flight");
        self.write_commands -= 1;
    }

    /// Returns the number of write commands in flight.
    pub(super) fn write_commands(&self) -> u32 {
        self.write_commands
    }

    /// Returns the block at which the writeback scan continues.
    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    pub(super) fn set_cursor(&mut self, block: u64) {
        self.cursor = block;
    }

    /// Returns the oldest epoch that can have dirty blocks.
    fn oldest_dirty_epoch(&self) -> u64 {
        self.epoch + 1 - self.dirty_by_epoch.len() as u64
    }

    fn epoch_count_mut(&mut self, epoch: u64) -> &mut u32 {
        let oldest = self.oldest_dirty_epoch();
        let index = epoch.checked_sub(oldest);
        let count = index.and_then(|index| self.dirty_by_epoch.get_mut(index as usize));
        count.unwrap_or_else(|| {
            panic!("writeback: a block of epoch {epoch} is dirty, and the oldest is {oldest}")
        })
    }

    /// Removes one dirty block from an epoch.
    fn remove_from_epoch(&mut self, epoch: u64) {
        let count = self.epoch_count_mut(epoch);
        assert!(*count > 0, "writeback: epoch {epoch} has no dirty block");
        *count -= 1;
        self.drop_clean_epochs();
    }

    fn drop_clean_epochs(&mut self) {
        while self.dirty_by_epoch.len() > 1 && self.dirty_by_epoch.front() == Some(&0) {
            self.dirty_by_epoch.pop_front();
        }
    }

    fn add_to_epoch(&mut self) -> u64 {
        let epoch = self.epoch;
        *self.epoch_count_mut(epoch) += 1;
        epoch
    }

    /// Records a change of a frame that is clean or dirty; `is_awaited` if a request waits for its
    /// write, and `fua` if that must be durable. Returns whether the block must be marked dirty.
    pub(super) fn mark_dirty(&mut self, frame: &mut Frame, is_awaited: bool, fua: bool) -> bool {
        self.write_requested_count += u32::from(is_awaited && !frame.write_requested);
        frame.write_requested |= is_awaited;
        frame.fua |= fua;
        let has_failed = std::mem::take(&mut frame.failed);
        if frame.state != FrameState::Dirty {
            frame.epoch = self.add_to_epoch();
            self.dirty += 1;
            return true;
        }
        if has_failed {
            self.failed.retain(|block| *block != frame.block);
        }
        has_failed
    }

    /// Handles the write of a frame.
    pub(super) fn mark_written(&mut self, frame: &mut Frame) {
        self.end_write(frame);
        self.dirty -= 1;
        self.remove_from_epoch(frame.epoch);
    }

    /// Handles the failed write of a frame, which is dirty again.
    pub(super) fn mark_failed(&mut self, frame: &mut Frame, status: Status) {
        self.end_write(frame);
        self.last_error = Some(status);
        let epoch = frame.epoch;
        for flush in &mut self.flushes {
            if flush.epoch >= epoch && flush.status.is_success() {
                flush.status = status;
            }
        }
        frame.failed = true;
        frame.epoch = self.add_to_epoch();
        self.remove_from_epoch(epoch);
        self.failed.push(frame.block);
    }

    fn end_write(&mut self, frame: &mut Frame) {
        self.write_requested_count -= u32::from(std::mem::take(&mut frame.write_requested));
        frame.fua = false;
    }

    /// Forgets a dirty frame whose block is invalidated.
    pub(super) fn forget(&mut self, frame: &Frame) {
        self.dirty -= 1;
        self.remove_from_epoch(frame.epoch);
        self.failed.retain(|block| *block != frame.block);
    }

    /// Starts a flush of everything dirty now. Returns the blocks whose write failed, which are
    /// retried.
    pub(super) fn begin_flush(&mut self, request: CacheRequestId) -> Vec<u64> {
        let (epoch, status) = (self.epoch, Status::SUCCESS);
        self.flushes.push_back(WaitingFlush { request, epoch, status });
        self.epoch += 1;
        self.dirty_by_epoch.push_back(0);
        self.drop_clean_epochs();
        std::mem::take(&mut self.failed)
    }

    /// Returns the oldest flush if no block that it waits for is dirty.
    pub(super) fn clean_flush(&self) -> Option<WaitingFlush> {
        let oldest = self.oldest_dirty_epoch();
        self.flushes.front().copied().filter(|flush| oldest > flush.epoch)
    }

    /// Removes the oldest flush.
    pub(super) fn pop_flush(&mut self) {
        self.flushes.pop_front();
    }

    /// Returns the flushes that wait for dirty blocks.
    pub(super) fn flushes(&self) -> impl Iterator<Item = CacheRequestId> + '_ {
        self.flushes.iter().map(|flush| flush.request)
    }

    pub(super) fn check_invariants(&self, frames: &CacheFrames) -> Result<(), CacheViolation> {
        let (mut dirty, mut requested, mut failed) = (0, 0, 0);
        let mut by_epoch = vec![0; self.dirty_by_epoch.len()];
        for frame in (0..frames.count()).map(|index| frames.get(index)) {
            requested += u32::from(frame.write_requested);
            let is_unwritten = matches!(frame.state, FrameState::Dirty | FrameState::Writing);
            require!(
                is_unwritten || !(frame.write_requested || frame.fua || frame.failed),
                Writeback,
                "a block with a requested or failed write is dirty",
                format_args!("block {}", frame.block),
                "dirty",
                frame
            );
            require!(
                !frame.failed || self.failed.contains(&frame.block),
                Writeback,
                "a block whose write failed is listed",
                format_args!("block {}", frame.block),
                frame.block,
                &self.failed
            );
            failed += usize::from(frame.failed);
            if is_unwritten {
                dirty += 1;
                let index = frame.epoch.checked_sub(self.oldest_dirty_epoch());
                let count = index.and_then(|index| by_epoch.get_mut(index as usize));
                let subject = format_args!("block {}", frame.block);
                require!(
                    count.is_some(),
                    Writeback,
                    "a dirty block has an epoch",
                    subject,
                    self.oldest_dirty_epoch()..=self.epoch,
                    frame.epoch
                );
                *count.expect("it was just checked") += 1;
            }
        }
        require_eq!(Writeback, "dirty blocks", "all blocks", dirty, self.dirty);
        require_eq!(
            Writeback,
            "dirty blocks by epoch",
            "all blocks",
            &by_epoch,
            &Vec::from(self.dirty_by_epoch.clone())
        );
        require_eq!(
            Writeback,
            "blocks whose write is requested",
            "all blocks",
            requested,
            self.write_requested_count
        );
        require_eq!(
            Writeback,
            "blocks whose write failed",
            "all blocks",
            failed,
            self.failed.len()
        );
        require!(
            self.dirty <= self.dirty_max,
            Writeback,
            "the limit of dirty blocks",
            "all blocks",
            self.dirty_max,
            self.dirty
        );
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn break_dirty(&mut self) {
        self.dirty += 1;
    }
}
