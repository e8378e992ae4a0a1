//! Requests that wait: for a frame's transfer to complete, or for a free frame.
//!
//! Guarantee: waiters proceed in arrival order, and none waits forever. If no operation in flight
//! can free a frame, requests that wait for one fail.

use block::BlockDevice;
use nvme::Status;

use crate::cache::frame_waiters::{FrameWaiter, RequestBlock};
use crate::cache::frames::NONE;
use crate::cache::{BlockAccess, Cache};

impl<D: BlockDevice> Cache<D> {
    /// Queues a block of a request on a frame; `until_written` if it waits for the frame's data to
    /// be on the device.
    pub(in crate::cache) fn wait_for_frame(
        &mut self,
        frame: u32,
        waiting: RequestBlock,
        until_written: bool,
    ) {
        let list = &mut self.blocks.frames.get_mut(frame).waiters;
        self.waiters.push(list, waiting, until_written);
    }

    /// Resumes all waiters of a frame, which is usable now, or, with a `failure`, was released.
    /// `written` is the result of writing the frame.
    pub(in crate::cache) fn wake_waiters(
        &mut self,
        frame: u32,
        failure: Option<Status>,
        written: Status,
    ) {
        let list = &mut self.blocks.frames.get_mut(frame).waiters;
        let mut list = std::mem::replace(list, NONE);
        while let Some(FrameWaiter { waiting, until_written, .. }) = self.waiters.pop(&mut list) {
            if until_written {
                self.complete_part(waiting.request, written);
            } else if let Some(status) = failure {
                self.complete_part(waiting.request, status);
            } else if !self.resume(waiting) {
                // Retry this block alone.
                self.waiters.push_retry(waiting);
            }
        }
    }

    /// Continues a block that waited. Returns `false` if it found no frame.
    fn resume(&mut self, waiting: RequestBlock) -> bool {
        match self.access_block(waiting) {
            BlockAccess::Done => self.complete_part(waiting.request, Status::SUCCESS),
            BlockAccess::Waiting => {}
            BlockAccess::NoFrame => return false,
        }
        true
    }

    /// Resumes the requests that waited for a free frame.
    pub(in crate::cache) fn resume_waiters(&mut self) -> bool {
        let mut moved = false;
        while let Some(waiting) = self.waiters.pop_retry() {
            if !self.resume(waiting) {
                self.waiters.push_retry_front(waiting);
                break;
            }
            moved = true;
        }
        while let Some(id) = self.waiters.first_stalled() {
            if !self.advance(id) {
                break;
            }
            self.waiters.pop_stalled();
            moved = true;
        }
        moved | self.fail_stalled_writes()
    }

    /// Returns whether every block is clean, or its write failed, and none is in flight.
    pub(in crate::cache) fn is_device_idle(&self) -> bool {
        self.ops.is_idle()
            && !self.writeback.has_single_retries()
            && self.blocks.next_dirty(0).is_none()
    }

    /// Fails writes that wait for a frame if no operation in flight can free one.
    fn fail_stalled_writes(&mut self) -> bool {
        let is_hopeless = self.waiters.is_stalled() && self.is_device_idle();
        let last_error = self.writeback.last_error();
        let Some(status) = last_error.filter(|_| is_hopeless) else { return false };
        if let Some(waiting) = self.waiters.pop_retry() {
            self.complete_part(waiting.request, status);
        } else if let Some(id) = self.waiters.pop_stalled() {
            // Its blocks that have started are in the cache.
            self.requests.skip_blocks(id);
            self.complete_part(id, status);
        }
        true
    }
}
