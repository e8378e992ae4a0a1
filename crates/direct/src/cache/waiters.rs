//! Requests that wait for a frame: for what is on its way to or from it, or for there to be one.
//!
//! Guarantee: who came first goes first; nobody waits for ever: when nothing is on its way that could make
//! room, who waits for it fails.

use block::BlockDevice;
use nvme::Status;

use super::frames::NONE;
use super::{BlockAccess, Cache};

/// A request that waits for a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameWaiter {
    pub(super) io: u32,
    pub(super) block: u64,
    /// For what it wrote to be at the device; else for the frame to be usable.
    pub(super) until_written: bool,
    pub(super) next: u32,
}

impl<D: BlockDevice> Cache<D> {
    /// Lets a unit of a request wait for a frame.
    pub(super) fn wait_for_frame(&mut self, frame: u32, io: u32, unit: u64, stored: bool) {
        let waiting = FrameWaiter { io, block: unit, until_written: stored, next: NONE };
        let name = match self.free_waiters.pop() {
            Some(name) => {
                self.waiters[name as usize] = waiting;
                name
            }
            None => {
                self.waiters.push(waiting);
                (self.waiters.len() - 1) as u32
            }
        };
        // At the end, so that who came first goes first.
        let mut last = self.frames.get(frame).waiters;
        if last == NONE {
            self.frames.get_mut(frame).waiters = name;
            return;
        }
        while self.waiters[last as usize].next != NONE {
            last = self.waiters[last as usize].next;
        }
        self.waiters[last as usize].next = name;
    }

    /// Lets everybody go on who waited for a frame that is usable now, or, with a `failure`, is not
    /// there any more. What was to be stored is, or has failed with `stored`.
    pub(super) fn wake_waiters(&mut self, frame: u32, failure: Option<Status>, stored: Status) {
        let mut next = std::mem::replace(&mut self.frames.get_mut(frame).waiters, NONE);
        while next != NONE {
            let FrameWaiter { io, block: unit, until_written: is_stored, next: after } =
                self.waiters[next as usize];
            self.free_waiters.push(next);
            next = after;
            if let (false, Some(status)) = (is_stored, failure) {
                self.complete_part(io, status);
                continue;
            }
            if is_stored {
                self.complete_part(io, stored);
                continue;
            }
            match self.access_block(io, unit) {
                BlockAccess::Done => self.complete_part(io, Status::SUCCESS),
                BlockAccess::Waiting => {}
                // It comes back for this unit alone.
                BlockAccess::NoFrame => self.writeback.push_retry(io, unit),
            }
        }
    }

    /// Lets those go on who waited for a frame.
    pub(super) fn resume_waiters(&mut self) -> bool {
        let mut moved = false;
        while let Some((io, unit)) = self.writeback.pop_retry() {
            match self.access_block(io, unit) {
                BlockAccess::Done => self.complete_part(io, Status::SUCCESS),
                BlockAccess::Waiting => {}
                BlockAccess::NoFrame => {
                    self.writeback.push_retry_front(io, unit);
                    break;
                }
            }
            moved = true;
        }
        while let Some(&id) = self.stalled.front() {
            if !self.advance(id) {
                break;
            }
            self.stalled.pop_front();
            moved = true;
        }
        moved | self.fail_stalled_writes()
    }

    /// Whether anybody waits for a frame.
    pub(super) fn is_stalled(&self) -> bool {
        !self.stalled.is_empty() || self.writeback.has_retries()
    }

    /// When nothing is on its way that could make room, writes that wait for some fail.
    pub(super) fn fail_stalled_writes(&mut self) -> bool {
        let hopeless = self.is_stalled()
            && self.ops.in_flight() == 0
            && self.to_fill.is_empty()
            && !self.writeback.has_single_retries()
            && self.tree.next_dirty(0).is_none();
        let Some(status) = self.writeback.last_error().filter(|_| hopeless) else { return false };
        if let Some((io, _)) = self.writeback.pop_retry() {
            self.complete_part(io, status);
        } else if let Some(id) = self.stalled.pop_front() {
            // What has begun of it is in the cache.
            let io = &mut self.ios[id as usize];
            io.next_block = io.end_block;
            self.complete_part(id, status);
        }
        true
    }
}
