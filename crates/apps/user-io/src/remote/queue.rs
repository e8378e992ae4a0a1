//! [`RemoteQueue`]: a hardware queue of a drive in another process, whose requests fail when that process ends.
//!
//! Guarantee: every accepted request completes exactly once: with the drive's status, or with
//! [`Status::HOST_PATH_ERROR`] if the server has ended. In the second case the outcome of a write
//! is unknown.

use std::collections::VecDeque;
use std::sync::Arc;

use block::{BlockDevice, Completion, Limits, QueueFull, Raw, Request};
use driver::NvmeQueue;
use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use time::{Component, Nanos};

use super::liveness::ServerLiveness;
use crate::supervised::SupervisedQueue;

/// A device with one hardware queue of a remote drive.
pub(crate) trait RemoteRing: BlockDevice + Send + 'static {
    /// Returns the hardware queue.
    fn queue(&self) -> &NvmeQueue;

    /// Returns the hardware queue, and the completions that were not reaped.
    fn into_parts(self) -> (NvmeQueue, Vec<Completion>);
}

impl RemoteRing for Raw<NvmeQueue> {
    fn queue(&self) -> &NvmeQueue {
        Raw::queue(self)
    }

    fn into_parts(self) -> (NvmeQueue, Vec<Completion>) {
        let (queue, ended) = self.into_queue();
        (queue, ended.into_iter().collect())
    }
}

impl RemoteRing for SupervisedQueue<NvmeQueue> {
    fn queue(&self) -> &NvmeQueue {
        SupervisedQueue::queue(self)
    }

    fn into_parts(self) -> (NvmeQueue, Vec<Completion>) {
        self.into_queue()
    }
}

/// A hardware queue of a remote drive.
pub(crate) struct RemoteQueue<R> {
    /// `None` after the server has ended.
    raw: Option<R>,
    limits: Limits,
    memory: AddressSpace,
    liveness: Arc<ServerLiveness>,
    waiter_id: u64,
    /// Completions generated without the drive.
    failed_completions: VecDeque<Completion>,
}

impl<R: RemoteRing> RemoteQueue<R> {
    pub(crate) fn new(raw: R, liveness: Arc<ServerLiveness>) -> RemoteQueue<R> {
        let (limits, waiter_id) = (*raw.limits(), liveness.new_waiter_id());
        let failed_completions = VecDeque::with_capacity(2 * limits.queue_depth as usize);
        RemoteQueue {
            limits,
            memory: raw.memory().clone(),
            raw: Some(raw),
            liveness,
            waiter_id,
            failed_completions,
        }
    }

    /// Returns the queue while the server is present.
    #[inline]
    fn raw(&mut self) -> Option<&mut R> {
        if self.liveness.is_disconnected() {
            self.fail_outstanding();
        }
        self.raw.as_mut()
    }

    /// Fails all outstanding requests after the server has ended.
    #[cold]
    fn fail_outstanding(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        let (queue, ended) = raw.into_parts();
        self.failed_completions.extend(ended);
        let mut pair = queue.into_pair();
        // Completions posted before the end remain valid.
        while let Some(done) = pair.reap() {
            let result = done.result.min(Request::extent_capacity() as u64);
            self.failed_completions.push_back(Completion {
                tag: done.user,
                status: done.status,
                result,
            });
        }
        while let Some(done) = pair.orphan_next(Status::HOST_PATH_ERROR) {
            self.failed_completions.push_back(Completion {
                tag: done.user,
                status: done.status,
                result: 0,
            });
        }
    }

    /// Returns the NVMe queue while the server is present.
    pub(crate) fn queue(&self) -> Option<&NvmeQueue> {
        self.raw.as_ref().map(R::queue)
    }

    /// Deletes the queue if the server is present.
    pub(crate) fn close(&mut self, progress: &mut dyn FnMut()) {
        self.liveness.set_waker(self.waiter_id, None);
        if self.liveness.is_disconnected() {
            return;
        }
        if let Some(raw) = self.raw.take() {
            // A drive that does not answer keeps the queue id and its memory.
            let _ = raw.into_parts().0.close(&mut |_| {}, progress);
        }
    }
}

impl<R: RemoteRing> BlockDevice for RemoteQueue<R> {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false, visit_layers: {});

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        if let Some(raw) = self.raw() {
            return raw.submit(now, request);
        }
        if self.failed_completions.len() >= 2 * self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        let status = Status::HOST_PATH_ERROR;
        self.failed_completions.push_back(Completion { tag: request.tag, status, result: 0 });
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        match self.raw() {
            Some(raw) => raw.reap(),
            None => self.failed_completions.pop_front(),
        }
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn set_waker(&mut self, waker: Waker) {
        self.liveness.set_waker(self.waiter_id, Some(waker.clone()));
        if let Some(raw) = self.raw() {
            raw.set_waker(waker);
        }
    }
}

impl<R: RemoteRing> Component for RemoteQueue<R> {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        match self.raw() {
            Some(raw) => raw.poll(now),
            None => !self.failed_completions.is_empty(),
        }
    }

    fn deadline(&self) -> Nanos {
        self.raw.as_ref().map_or(Nanos::MAX, Component::deadline)
    }
}
