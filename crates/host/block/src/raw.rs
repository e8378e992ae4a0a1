//! [`Raw`]: a block device that is one hardware queue of a driver, without a block layer.
//!
//! Each request becomes one command and occupies only a tag. [SYSTOR13 §5] measures its block
//! layers against this path (*raw*). `Raw` completes an invalid request (range, length) with the
//! status that a drive would return. Every accepted request completes exactly once.

use std::collections::VecDeque;
use std::sync::Arc;

use driver::{
    BindError, CompletionEvent, ControllerInfo, HardwareQueue, NvmeDeviceError, NvmeQueue,
    QueuePair,
};
use nvme::Status;
use time::{Component, Nanos};
use transport::Port;

use crate::device::validate_request;
use crate::{BlockDevice, Completion, Limits, QueueFull, Request, WaitResult};

/// A block device that is one hardware queue.
#[derive(Debug)]
pub struct Raw<Q = NvmeQueue> {
    queue: Q,
    limits: Limits,
    /// The event that the last poll found, until it is reaped.
    peeked_event: Option<CompletionEvent>,
    /// Completions of requests that `Raw` rejected, until they are reaped.
    refused: VecDeque<Completion>,
    /// Whether a request was rejected since the last poll.
    refused_now: bool,
    spurious: u64,
}

impl Raw<NvmeQueue> {
    /// Creates a device on the queue pair `pair` of the drive that `info` describes. `port` is the
    /// drive's port.
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
    /// Creates a device that owns `queue`. No command may be outstanding on the queue.
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

    /// Returns the queue, for its counters.
    pub fn queue(&self) -> &Q {
        &self.queue
    }

    /// Returns mutable access to the queue, for its supervisor.
    ///
    /// After a reset, the caller reclaims the commands that the queue has forgotten, after it has
    /// [reaped](BlockDevice::reap) all completions.
    pub fn queue_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Returns the number of events whose tag has no command. Such events are device faults and are
    /// dropped.
    pub fn spurious_events(&self) -> u64 {
        self.spurious
    }

    /// Returns the hardware queue and the completions that were not reaped, including those of
    /// rejected requests. Commands that are outstanding complete through the returned queue.
    pub fn into_queue(mut self) -> (Q, impl Iterator<Item = Completion>) {
        let found = self.peeked_event.take().and_then(|event| self.complete(event));
        (self.queue, found.into_iter().chain(self.refused))
    }

    #[inline]
    fn complete(&mut self, event: CompletionEvent) -> Option<Completion> {
        let CompletionEvent { tag, status, result } = event;
        let Ok(command) = self.queue.tags_mut().free_bound(tag) else {
            self.spurious += 1;
            return None;
        };
        Some(Completion { tag: command.user, status, result })
    }

    #[cold]
    fn refuse(&mut self, tag: u64, status: Status) -> Result<(), QueueFull> {
        // The limit is the number of tags: memory stays bounded if the submitter does not reap.
        if self.refused.len() >= self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        self.refused.push_back(Completion { tag, status, result: 0 });
        self.refused_now = true;
        Ok(())
    }
}

impl<Q: HardwareQueue> BlockDevice for Raw<Q> {
    crate::delegate_block_device!(self => self.queue; memory, set_waker, can_wait, visit_layers);
    crate::answer_block_device!(can_wake: true, enable_sharing: {});

    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        if let Some(status) = validate_request(&self.limits, self.limits.max_sectors, &request) {
            return self.refuse(request.tag, status);
        }
        let Some(tag) = self.queue.tags_mut().take() else { return Err(QueueFull) };
        match self.queue.bind_tag_cmd(tag, &request, now) {
            Ok(()) => Ok(()),
            Err(error) => {
                // The tag was allocated above, so the release cannot fail.
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

    #[inline]
    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        // Completions that can be reaped must not wait.
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
    /// Issues all requests since the last poll as one batch. A poll without any looks for a
    /// completion.
    ///
    /// The submitter reaps completions directly from the hardware queue, including those that
    /// arrive after the poll.
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        // Poll the driver first, so that nothing is issued to a removed device.
        let mut moved = self.queue.poll(now) | std::mem::take(&mut self.refused_now);
        moved |= self.queue.issue_tags();
        if !moved && self.peeked_event.is_none() {
            self.peeked_event = self.queue.fetch_event();
            moved = self.peeked_event.is_some();
        }
        moved
    }

    /// Returns the driver's deadline. Otherwise only the device and the submitter create work for
    /// this component.
    fn deadline(&self) -> Nanos {
        self.queue.deadline()
    }
}
