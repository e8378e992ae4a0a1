//! [`Back`]: dirty units, and their way to the device.
//!
//! Whatever is dirty when a flush comes belongs to the flush's *epoch*; a flush goes to the device when
//! nothing of its epoch or an earlier one is dirty any more. What cannot be written moves to the epoch
//! that is now, so that the flush ends, and says so.

use std::collections::VecDeque;

use block::{Device, Op, Request};
use nvme::Status;

use super::frames::State;
use super::ops::{For, RUN};
use super::{Cache, WriteMode};

/// A flush that waits.
#[derive(Clone, Copy, Debug)]
struct Flush {
    io: u32,
    epoch: u64,
    status: Status,
}

/// Dirty units, counted.
#[derive(Debug)]
pub(super) struct Back {
    /// Units dirty or being written, those that failed included.
    dirty: u32,
    /// How many may be.
    limit: u32,
    /// From how many on they are written without anybody waiting.
    background: u32,
    /// Units that somebody waits for to be stored.
    wanted: u32,
    /// The number of the next flush, and dirty units by epoch, the oldest first.
    epoch: u64,
    counts: VecDeque<u32>,
    flushes: VecDeque<Flush>,
    /// Where writing goes on.
    cursor: u64,
    /// Commands that write.
    writing: u32,
    /// Units that could not be written.
    failed: Vec<u64>,
    last_error: Option<Status>,
    /// Units of commands that failed, to be tried one by one.
    alone: VecDeque<(For, (u64, u32))>,
    /// Units of requests that had waited for a frame and then found none.
    retries: VecDeque<(u32, u64)>,
}

/// Commands that write at a time at most: some places are for reads.
const WRITING: u32 = 32;

impl Back {
    pub(super) fn new(frames: u32, write: WriteMode) -> Back {
        let percent = |p: u8| (u64::from(frames) * u64::from(p) / 100) as u32;
        let (limit, background) = match write {
            WriteMode::Through => (percent(50), 0),
            WriteMode::Back { dirty_percent, background_percent } => {
                (percent(dirty_percent), percent(background_percent))
            }
        };
        Back {
            dirty: 0,
            limit: limit.max(1),
            background,
            wanted: 0,
            epoch: 0,
            counts: VecDeque::from([0]),
            flushes: VecDeque::new(),
            cursor: 0,
            writing: 0,
            failed: Vec::new(),
            last_error: None,
            alone: VecDeque::new(),
            retries: VecDeque::new(),
        }
    }

    pub(super) fn dirty(&self) -> u32 {
        self.dirty
    }

    /// Whether no further unit may become dirty.
    pub(super) fn is_full(&self) -> bool {
        self.dirty >= self.limit
    }

    pub(super) fn last_error(&self) -> Option<Status> {
        self.last_error
    }

    pub(super) fn alone(&mut self, unit: (For, (u64, u32))) {
        self.alone.push_back(unit);
    }

    pub(super) fn has_alone(&self) -> bool {
        !self.alone.is_empty()
    }

    pub(super) fn retry(&mut self, io: u32, unit: u64) {
        self.retries.push_back((io, unit));
    }

    pub(super) fn retry_first(&mut self, io: u32, unit: u64) {
        self.retries.push_front((io, unit));
    }

    pub(super) fn next_retry(&mut self) -> Option<(u32, u64)> {
        self.retries.pop_front()
    }

    pub(super) fn has_retry(&self) -> bool {
        !self.retries.is_empty()
    }

    /// The oldest epoch that something dirty may belong to.
    fn oldest(&self) -> u64 {
        self.epoch + 1 - self.counts.len() as u64
    }

    fn count(&mut self, epoch: u64) -> Option<&mut u32> {
        let at = epoch.checked_sub(self.oldest())?;
        self.counts.get_mut(at as usize)
    }

    /// Something of an epoch is not dirty any more.
    fn left(&mut self, epoch: u64) {
        if let Some(count) = self.count(epoch) {
            *count -= 1;
        }
        while self.counts.len() > 1 && self.counts.front() == Some(&0) {
            self.counts.pop_front();
        }
    }

    fn joined(&mut self) -> u64 {
        let epoch = self.epoch;
        if let Some(count) = self.count(epoch) {
            *count += 1;
        }
        epoch
    }
}

impl<D: Device> Cache<D> {
    /// A frame has been written to.
    pub(super) fn make_dirty(&mut self, frame: u32, fua: bool) {
        let wanted = fua || self.config.write == WriteMode::Through;
        let f = self.frames.get_mut(frame);
        let unit = f.unit;
        self.back.wanted += u32::from(wanted && !f.wanted);
        f.wanted |= wanted;
        f.fua |= fua;
        let failed = std::mem::take(&mut f.failed);
        if f.state != State::Dirty {
            f.epoch = self.back.joined();
            self.back.dirty += 1;
            self.frames.set(frame, State::Dirty);
            self.tree.set_dirty(unit);
        } else if failed {
            self.back.failed.retain(|u| *u != unit);
            self.tree.set_dirty(unit);
        }
    }

    /// A flush: everything that is dirty now must be at the device, and then durable there.
    pub(super) fn flush(&mut self, io: u32) {
        // What failed is tried again.
        for unit in std::mem::take(&mut self.back.failed) {
            if let Some(frame) = self.tree.get(unit) {
                self.frames.get_mut(frame).failed = false;
                self.tree.set_dirty(unit);
            }
        }
        let epoch = self.back.epoch;
        self.back.flushes.push_back(Flush { io, epoch, status: Status::SUCCESS });
        self.back.epoch += 1;
        self.back.counts.push_back(0);
        while self.back.counts.len() > 1 && self.back.counts.front() == Some(&0) {
            self.back.counts.pop_front();
        }
    }

    /// Whether dirty units are to be written now.
    fn is_urgent(&self) -> bool {
        self.back.wanted > 0
            || !self.back.flushes.is_empty()
            || self.is_stalled()
            || self.past.is_some()
    }

    /// Writes dirty units, as far as there is reason to, and sends flushes whose epoch is clean.
    pub(super) fn write_back(&mut self) -> bool {
        let mut moved = false;
        while self.ops.room() > 0
            && let Some((what, (unit, frame))) = self.back.alone.pop_front()
        {
            let op = if what == For::Fill { Op::Read } else { Op::Write };
            let fua = self.frames.get(frame).fua;
            self.back.writing += u32::from(what == For::Write);
            self.issue(what, op, &[(unit, frame)], fua && op == Op::Write);
            moved = true;
        }
        while self.ops.room() > 0
            && self.back.writing < WRITING
            && (self.is_urgent() || self.back.dirty > self.back.background)
        {
            let from = self.back.cursor;
            let next = self.tree.next_dirty(from).or_else(|| self.tree.next_dirty(0));
            let Some((first, frame)) = next else { break };
            self.write_run(first, frame);
            moved = true;
        }
        while let Some(&Flush { io, epoch, status }) = self.back.flushes.front() {
            if self.back.oldest() <= epoch {
                break;
            }
            let flush = Request::flush(0);
            let Some(op) = self.ops.pass(io, flush) else { break };
            if !status.is_success() {
                self.ios[io as usize].status = status;
            }
            self.back.flushes.pop_front();
            self.to_send.push_back(op);
            moved = true;
        }
        moved
    }

    fn write_run(&mut self, first: u64, frame: u32) {
        let mut run = [(first, frame); RUN];
        let mut count = 0;
        let mut fua = false;
        let mut next = Some((first, frame));
        while let Some((unit, frame)) = next
            && unit == first + count as u64
            && count < self.run
        {
            run[count] = (unit, frame);
            count += 1;
            fua |= self.frames.get(frame).fua;
            self.tree.set_clean(unit);
            self.frames.set(frame, State::Writing);
            next = self.tree.next_dirty(unit + 1);
        }
        self.back.cursor = first + count as u64;
        self.back.writing += 1;
        self.stats.written += count as u64;
        self.stats.write_commands += 1;
        self.issue(For::Write, Op::Write, &run[..count], fua);
    }

    /// A unit has been written, or has not.
    pub(super) fn written(&mut self, unit: u64, frame: u32, status: Status) {
        let f = self.frames.get_mut(frame);
        let epoch = f.epoch;
        self.back.wanted -= u32::from(std::mem::take(&mut f.wanted));
        f.fua = false;
        if status.is_success() {
            self.back.dirty -= 1;
            self.back.left(epoch);
            self.frames.set(frame, State::Clean);
        } else {
            self.stats.write_errors += 1;
            self.back.last_error = Some(status);
            for flush in &mut self.back.flushes {
                if flush.epoch >= epoch && flush.status.is_success() {
                    flush.status = status;
                }
            }
            f.failed = true;
            f.epoch = self.back.joined();
            self.back.left(epoch);
            self.back.failed.push(unit);
            self.frames.set(frame, State::Dirty);
        }
        self.wake(frame, None, status);
    }

    /// A command that writes has ended.
    pub(super) fn write_ended(&mut self) {
        self.back.writing -= 1;
    }

    /// Forgets a unit, whatever is in it.
    pub(super) fn forget(&mut self, unit: u64, frame: u32) {
        let f = *self.frames.get(frame);
        if f.state == State::Dirty {
            self.back.dirty -= 1;
            self.back.left(f.epoch);
            self.back.failed.retain(|u| *u != unit);
            if !f.failed {
                self.tree.set_clean(unit);
            }
        }
        self.tree.remove(unit);
        self.frames.set(frame, State::Free);
    }
}
