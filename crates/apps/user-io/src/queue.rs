//! [`Queue`]: a hardware queue of the application's own (`nvmed_create_queue`).

use std::any::Any;
use std::sync::Arc;

use block::{BlockDevice, Completion, Group, Limits, QueueFull, Raw, Request, WaitResult};
use driver::{BounceStats, NullQueue, NvmeQueue, PassthroughQueue, UringQueue};
use event::Waker;
use mem::{AddressSpace, RegisterError};
use time::{Component, Nanos};
use transport::DoorbellStats;

use crate::device_inner::DeviceInner;
use crate::remote::RemoteQueue;
use crate::scheduled::GroupedSubmit;
use crate::supervised::SupervisedQueue;

/// Backend of a queue.
#[allow(clippy::large_enum_variant, reason = "a drive's queue is reached without another step")]
pub(crate) enum HardwareQueueKind {
    Null(Raw<NullQueue>),
    Drive(Raw<NvmeQueue>),
    File(Box<Raw<UringQueue>>),
    /// A namespace under the kernel's driver.
    Passthrough(Box<Raw<PassthroughQueue>>),
    /// A real controller.
    Controller(Box<SupervisedQueue<NvmeQueue>>),
    /// A target on host-managed flash.
    Target(LeasedQueue),
    /// A drive in another process.
    Remote(Box<RemoteQueue>),
    /// Returned to the device.
    Closed,
}

/// Work that a queue did beside sending commands. All zero and `None` for devices without NVMe
/// queue pairs, where the kernel copies data and rings doorbells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Data that was copied because commands could not address it: requests, bytes, failures for
    /// lack of memory, and the memory in use.
    pub bounced: BounceStats,
    /// Why data cannot be copied, if that was needed: such requests complete with
    /// [`INTERNAL`](nvme::Status::INTERNAL).
    pub bounce_refused: Option<RegisterError>,
    /// Shadow doorbells: register writes done and saved. `None` without shadow doorbells; then
    /// every batch of commands writes a register.
    pub doorbells: Option<DoorbellStats>,
}

impl QueueStats {
    /// Returns the sum of two queues' counters.
    #[must_use]
    pub fn and(self, other: QueueStats) -> QueueStats {
        let doorbells = match (self.doorbells, other.doorbells) {
            (Some(one), Some(other)) => Some(one.plus(&other)),
            (one, other) => one.or(other),
        };
        let bounce_refused = self.bounce_refused.or(other.bounce_refused);
        QueueStats { bounced: self.bounced.plus(&other.bounced), bounce_refused, doorbells }
    }
}

/// A target's queue and its number of outstanding requests. They must complete before the queue is
/// leased again, so that the next owner does not reap another's completions.
pub(crate) struct LeasedQueue {
    pub(crate) target: Box<dyn BlockDevice + Send>,
    pub(crate) outstanding: u64,
    /// Number of the lease.
    pub(crate) lease: u64,
}

impl LeasedQueue {
    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.target.submit(now, request)?;
        self.outstanding += 1;
        Ok(())
    }

    #[inline]
    pub(crate) fn reap(&mut self) -> Option<Completion> {
        let completion = self.target.reap()?;
        assert!(
            self.outstanding > 0,
            "leased queue: tag {} completes, and no request is outstanding",
            completion.tag
        );
        self.outstanding -= 1;
        Some(completion)
    }

    #[inline]
    pub(crate) fn poll(&mut self, now: Nanos) -> bool {
        self.target.poll(now)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.target.set_waker(waker);
    }
}

/// A hardware queue, owned by its submitter (ARCHITECTURE.md, R4): its path takes no lock, and no
/// atomic beside those of the rings. Dropping a queue deletes it and abandons its outstanding
/// requests. A target's queue is returned instead, after its outstanding requests have completed.
pub struct Queue {
    pub(crate) hardware: HardwareQueueKind,
    pub(crate) limits: Limits,
    pub(crate) memory: AddressSpace,
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) interrupts: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

impl Queue {
    /// Returns whether the device wakes sleeping handles. If not, the handle must poll.
    pub fn has_interrupts(&self) -> bool {
        self.interrupts
    }

    /// Returns the counters of the queue.
    pub fn stats(&self) -> QueueStats {
        let of = |queue: &NvmeQueue| QueueStats {
            bounced: queue.bounce_stats(),
            bounce_refused: queue.bounce_error(),
            doorbells: queue.pair().doorbells(),
        };
        match &self.hardware {
            HardwareQueueKind::Drive(raw) => of(raw.queue()),
            HardwareQueueKind::Controller(watched) => of(watched.queue()),
            HardwareQueueKind::Remote(served) => served.queue().map(of).unwrap_or_default(),
            _ => QueueStats::default(),
        }
    }
}

/// Dispatches to the queue's backend; a closed queue has none.
macro_rules! dispatch {
    ($self:ident, $queue:ident => $call:expr, $gone:expr) => {
        match &mut $self.hardware {
            HardwareQueueKind::Null($queue) => $call,
            HardwareQueueKind::Drive($queue) => $call,
            HardwareQueueKind::File($queue) => $call,
            HardwareQueueKind::Passthrough($queue) => $call,
            HardwareQueueKind::Target($queue) => $call,
            HardwareQueueKind::Remote($queue) => $call,
            HardwareQueueKind::Controller($queue) => $call,
            HardwareQueueKind::Closed => $gone,
        }
    };
}

impl BlockDevice for Queue {
    #[inline]
    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        dispatch!(self, queue => queue.submit(now, request), Err(QueueFull))
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        dispatch!(self, queue => queue.reap(), None)
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn set_waker(&mut self, waker: Waker) {
        if let HardwareQueueKind::Target(LeasedQueue { lease, .. }) = &self.hardware {
            self.device.set_sleeper(*lease, waker.clone());
        }
        dispatch!(self, queue => queue.set_waker(waker), ());
    }

    /// Recreates a file's queue for several threads, unless it allows them already. If memory is
    /// short, the queue is left unchanged.
    fn enable_sharing(&mut self) {
        if let HardwareQueueKind::File(queue) = &mut self.hardware
            && let Some(shared) = self.device.shared_file_queue()
        {
            **queue = Raw::new(shared, self.limits);
        }
    }

    /// Returns whether the queue has [interrupts](Queue::has_interrupts).
    fn can_wake(&self) -> bool {
        self.interrupts
    }

    /// Returns whether the queue is an io_uring, which submits and sleeps in one system call.
    fn can_wait(&self) -> bool {
        match &self.hardware {
            HardwareQueueKind::File(queue) => queue.can_wait(),
            HardwareQueueKind::Passthrough(queue) => queue.can_wait(),
            _ => false,
        }
    }

    #[inline]
    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        match &mut self.hardware {
            HardwareQueueKind::File(queue) => queue.wait_for_event(now, until),
            HardwareQueueKind::Passthrough(queue) => queue.wait_for_event(now, until),
            _ => WaitResult::Unsupported,
        }
    }

    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        if let HardwareQueueKind::Target(queue) = &mut self.hardware {
            queue.target.visit_layers(visit);
        }
    }
}

impl GroupedSubmit for Queue {
    /// A plain queue ignores groups.
    #[inline]
    fn submit_for(&mut self, now: Nanos, _: Group, request: Request) -> Result<(), QueueFull> {
        self.submit(now, request)
    }
}

impl Component for Queue {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let moved = dispatch!(self, queue => queue.poll(now), false);
        if matches!(self.hardware, HardwareQueueKind::Target(_)) && self.device.has_idle_targets() {
            return moved | self.device.poll_idle_targets(now);
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        match &self.hardware {
            HardwareQueueKind::Null(queue) => queue.deadline(),
            HardwareQueueKind::Drive(queue) => queue.deadline(),
            HardwareQueueKind::File(queue) => queue.deadline(),
            HardwareQueueKind::Passthrough(queue) => queue.deadline(),
            // Unleased queues of the target wake no handle, so they must be polled.
            HardwareQueueKind::Target(_) if self.device.has_idle_targets() => Nanos::ZERO,
            HardwareQueueKind::Target(queue) => queue.target.deadline(),
            HardwareQueueKind::Remote(queue) => queue.deadline(),
            HardwareQueueKind::Controller(queue) => queue.deadline(),
            HardwareQueueKind::Closed => Nanos::MAX,
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.hardware, HardwareQueueKind::Closed) {
            // A drive that does not answer keeps the queue id and its memory.
            HardwareQueueKind::Drive(raw) => {
                let _ = raw.into_queue().0.close(&mut |_| {}, &mut self.device.progress());
            }
            HardwareQueueKind::Controller(watched) => {
                let _ = watched.into_queue().close(&mut |_| {}, &mut self.device.progress());
            }
            HardwareQueueKind::Target(borrowed) => self.device.return_target_queue(borrowed),
            HardwareQueueKind::Remote(mut queue) => self.device.close_remote(&mut queue),
            HardwareQueueKind::Null(_)
            | HardwareQueueKind::File(_)
            | HardwareQueueKind::Passthrough(_)
            | HardwareQueueKind::Closed => {}
        }
    }
}
