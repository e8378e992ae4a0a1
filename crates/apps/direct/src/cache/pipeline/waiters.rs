//! Requests that wait: for a frame's transfer to complete, or for a free frame.
//!
//! Guarantee: waiters proceed in arrival order, and none waits forever. If no operation in flight
//! can free a frame, requests that wait for one fail.

use block::BlockDevice;
use nvme::Status;

use crate::cache::frames::NONE;
use crate::cache::{BlockAccess, Cache};

/// A request that waits for a frame.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct FrameWaiter {
    pub(in crate::cache) io: u32,
    pub(in crate::cache) block: u64,
    /// Waits until its data is on the device; otherwise until the frame is usable.
    pub(in crate::cache) until_written: bool,
    pub(in crate::cache) next: u32,
}

impl<D: BlockDevice> Cache<D> {
    /// Queues a block of a request on a frame.
    pub(in crate::cache) fn wait_for_frame(
        &mut self,
        frame: u32,
        io: u32,
        unit: u64,
        stored: bool,
    ) {
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
        // Append, to keep arrival order.
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

    /// Resumes all waiters of a frame, which is usable now, or, with a `failure`, was released.
    /// `stored` is the result of writing the frame.
    pub(in crate::cache) fn wake_waiters(
        &mut self,
        frame: u32,
        failure: Option<Status>,
        stored: Status,
    ) {
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
                // Retry this block alone.
                BlockAccess::NoFrame => self.writeback.push_retry(io, unit),
            }
        }
    }

    /// Resumes the requests that waited for a free frame.
    pub(in crate::cache) fn resume_waiters(&mut self) -> bool {
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

    /// Returns whether a request waits for a free frame.
    pub(in crate::cache) fn is_stalled(&self) -> bool {
        !self.stalled.is_empty() || self.writeback.has_retries()
    }

    /// Fails writes that wait for a frame if no operation in flight can free one.
    pub(in crate::cache) fn fail_stalled_writes(&mut self) -> bool {
        let hopeless = self.is_stalled()
            && self.ops.in_flight() == 0
            && self.to_fill.is_empty()
            && !self.writeback.has_single_retries()
            && self.tree.next_dirty(0).is_none();
        let Some(status) = self.writeback.last_error().filter(|_| hopeless) else { return false };
        if let Some((io, _)) = self.writeback.pop_retry() {
            self.complete_part(io, status);
        } else if let Some(id) = self.stalled.pop_front() {
            // Its blocks that have started are in the cache.
            let io = &mut self.ios[id as usize];
            io.next_block = io.end_block;
            self.complete_part(id, status);
        }
        true
    }
}
