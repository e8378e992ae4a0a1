//! [`Raw`]: straight to a driver's hardware queue.
//!
//! One request becomes one command, and nothing is kept in between but a tag. This is the path that
//! the multi-queue paper measures its block layers against (SYSTOR'13 section 5: *raw*). A request
//! that cannot be sent (range, length) is answered here with the status that a drive would give;
//! everything that was taken completes exactly once.

use std::collections::VecDeque;
use std::sync::Arc;

use clock::{Component, Nanos, Waker};
use driver::{
    BindError, ControllerInfo, Event, HardwareQueue, NvmeDeviceError, NvmeQueue, QueuePair,
};
use nvme::Status;
use ring::{AddressSpace, Port};

use crate::device::validate_request;
use crate::{BlockDevice, Completion, Limits, QueueFull, Request, WaitResult};

/// A block device that is one hardware queue.
#[derive(Debug)]
pub struct Raw<Q = NvmeQueue> {
    queue: Q,
    limits: Limits,
    /// The event that the last poll found, if it has not been reaped.
    peeked_event: Option<Event>,
    /// Requests that were answered here and not reaped yet.
    refused: VecDeque<Completion>,
    /// Whether a request was refused since the last poll.
    refused_now: bool,
    spurious: u64,
}

impl Raw<NvmeQueue> {
    /// The device at the other end of `pair`, on the drive that `info` describes and `port` leads to.
    ///
    /// # Errors
    /// [`NvmeDeviceError`].
    pub fn from_pair(
        info: &ControllerInfo,
        pair: QueuePair,
        port: Arc<Port>,
    ) -> Result<Raw, NvmeDeviceError> {
        let queue = NvmeQueue::new(info, pair, port)?;
        let limits = queue.limits();
        Ok(Raw::new(queue, limits))
    }
}

impl<Q: HardwareQueue> Raw<Q> {
    /// The device behind `queue`, which is the device's from now on; nothing may be outstanding.
    pub fn new(queue: Q, limits: Limits) -> Raw<Q> {
        let tags = queue.tags().count();
        Raw {
            queue,
            limits: Limits { queue_depth: tags.into(), ..limits },
            peeked_event: None,
            refused: VecDeque::with_capacity(tags.into()),
            refused_now: false,
            spurious: 0,
        }
    }

    /// The queue, for its counters.
    pub fn queue(&self) -> &Q {
        &self.queue
    }

    /// The queue, for who watches over it. Commands that it has forgotten are the caller's to take
    /// back, after everything was [reaped](Device::reap).
    pub fn queue_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Events that named no command of the queue: faults of the device, dropped.
    pub fn spurious_events(&self) -> u64 {
        self.spurious
    }

    /// Gives the queue back. What is outstanding on it comes back from there; requests answered here
    /// and not reaped are returned.
    pub fn into_queue(mut self) -> (Q, impl Iterator<Item = Completion>) {
        let found = self.peeked_event.take().and_then(|event| self.complete(event));
        (self.queue, found.into_iter().chain(self.refused))
    }

    #[inline]
    fn complete(&mut self, event: Event) -> Option<Completion> {
        let Event { tag, status, result } = event;
        let Ok(command) = self.queue.detach_tag_cmd(tag) else {
            self.spurious += 1;
            return None;
        };
        // Detached above, so it can be given back.
        let _ = self.queue.release_tags(&[tag]);
        Some(Completion { tag: command.user, status, result })
    }

    #[cold]
    fn refuse(&mut self, tag: u64, status: Status) -> Result<(), QueueFull> {
        // As many as the queue has tags: memory stays bounded when nobody reaps.
        if self.refused.len() >= self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        self.refused.push_back(Completion { tag, status, result: 0 });
        self.refused_now = true;
        Ok(())
    }
}

impl<Q: HardwareQueue> BlockDevice for Raw<Q> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        if let Some(status) = validate_request(&self.limits, self.limits.max_sectors, &request) {
            return self.refuse(request.tag, status);
        }
        let tag = self.queue.tags_mut().take().ok_or(QueueFull)?;
        match self.queue.bind_tag_cmd(tag, &request, now) {
            Ok(()) => Ok(()),
            Err(error) => {
                // Taken above, so it can be given back.
                let _ = self.queue.release_tags(&[tag]);
                match error {
                    BindError::Refused(status) => self.refuse(request.tag, status),
                    BindError::Busy | BindError::Tag(_) => Err(QueueFull),
                }
            }
        }
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        while let Some(event) = self.peeked_event.take().or_else(|| self.queue.fetch_event()) {
            if let Some(completion) = self.complete(event) {
                return Some(completion);
            }
        }
        self.refused.pop_front()
    }

    fn memory(&self) -> &AddressSpace {
        self.queue.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        self.queue.set_waker(waker);
    }

    fn can_wait(&self) -> bool {
        self.queue.can_wait()
    }

    #[inline]
    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        // What can be reaped now must not wait.
        if self.peeked_event.is_some() || !self.refused.is_empty() {
            return WaitResult::Unsupported;
        }
        self.queue.wait_for_event(match self.queue.deadline().min(until) {
            Nanos::MAX => Nanos::MAX,
            until => until.since(now),
        })
    }
}

impl<Q: HardwareQueue> Component for Raw<Q> {
    /// Issues all requests since the last poll at once, and looks for a completion. Completions are
    /// reaped from the device's queue directly, also those that arrive later.
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        // First, so that nothing is issued to what is gone.
        let mut moved = self.queue.poll(now) | std::mem::take(&mut self.refused_now);
        moved |= self.queue.issue_tags();
        if self.peeked_event.is_none() {
            self.peeked_event = self.queue.fetch_event();
            moved |= self.peeked_event.is_some();
        }
        moved
    }

    /// When the driver needs it; otherwise only the device, or who submits, can give this work.
    fn deadline(&self) -> Nanos {
        self.queue.deadline()
    }
}
