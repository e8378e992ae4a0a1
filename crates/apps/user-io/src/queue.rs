//! [`Queue`]: a hardware queue of the application's own (`nvmed_create_queue`).

use std::sync::Arc;

use block::{BlockDevice, Completion, Group, Limits, QueueFull, Raw, Request};
use driver::{BounceStats, Null, NullQueue, NvmeQueue, PassthroughQueue, UringQueue};
use event::Waker;
use mem::RegisterError;
use time::{Component, Nanos};
use transport::DoorbellStats;

use crate::device_inner::DeviceInner;
use crate::remote::{RemoteQueue, RemoteRing};
use crate::scheduled::GroupedSubmit;
use crate::supervised::SupervisedQueue;

/// A queue of a device.
///
/// The null device and an emulated drive are reached without a dynamic call: those of submission and
/// reaping cost 24.9 instructions in addition to the 355.3 of a request on the null device (case
/// `queue` of `make instructions`).
#[allow(clippy::large_enum_variant, reason = "a drive's queue is reached without another step")]
pub(crate) enum HardwareQueueKind {
    Null(Raw<NullQueue>),
    Drive(Raw<NvmeQueue>),
    /// A target on host-managed flash, which makes a dynamic call itself.
    Target(LeasedQueue),
    /// A file, a namespace under the kernel's driver, a real controller, a drive in another process.
    Other(Box<dyn BackendQueue>),
}

/// A queue that is reached by a dynamic call.
pub(crate) trait BackendQueue: BlockDevice + Send {
    /// Returns the counters of the NVMe queue, if it is one.
    fn stats(&self) -> QueueStats {
        QueueStats::default()
    }

    /// Prepares the queue of `device` for several threads.
    fn share(&mut self, device: &DeviceInner) {
        let _ = device;
    }

    /// Returns the queue to `device`.
    fn close(self: Box<Self>, device: &DeviceInner) {
        let _ = device;
    }
}

impl BackendQueue for Raw<PassthroughQueue> {}

impl BackendQueue for Raw<UringQueue> {
    /// Recreates the queue, unless several threads may use it already. If memory is short, the queue
    /// is left unchanged.
    fn share(&mut self, device: &DeviceInner) {
        if let Some(shared) = device.shared_file_queue() {
            *self = Raw::new(shared, *self.limits());
        }
    }
}

impl BackendQueue for SupervisedQueue<NvmeQueue> {
    fn stats(&self) -> QueueStats {
        QueueStats::of(self.queue())
    }

    fn close(self: Box<Self>, device: &DeviceInner) {
        // A controller that does not answer keeps the queue id and its memory.
        let _ = self.into_queue().0.close(&mut |_| {}, &mut device.progress());
    }
}

impl<R: RemoteRing> BackendQueue for RemoteQueue<R> {
    fn stats(&self) -> QueueStats {
        self.queue().map(QueueStats::of).unwrap_or_default()
    }

    fn close(mut self: Box<Self>, device: &DeviceInner) {
        if let Some(remote) = device.remote() {
            RemoteQueue::close(&mut self, &mut remote.admin_progress());
        }
    }
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
    fn of(queue: &NvmeQueue) -> QueueStats {
        QueueStats {
            bounced: queue.bounce_stats(),
            bounce_refused: queue.bounce_error(),
            doorbells: queue.pair().doorbells(),
        }
    }

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
    pub(crate) device: Arc<DeviceInner>,
}

impl BlockDevice for LeasedQueue {
    block::delegate_block_device!(self => self.target; limits, memory, enable_sharing, visit_layers);
    block::answer_block_device!(can_wake: true, can_wait: false);

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.target.submit(now, request)?;
        self.outstanding += 1;
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        let completion = self.target.reap()?;
        assert!(
            self.outstanding > 0,
            "leased queue: tag {} completes, and no request is outstanding",
            completion.tag
        );
        self.outstanding -= 1;
        Some(completion)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.device.set_sleeper(self.lease, waker.clone());
        self.target.set_waker(waker);
    }
}

impl Component for LeasedQueue {
    /// Also polls the queues that are not leased, if they must be.
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let moved = self.target.poll(now);
        match self.device.has_idle_targets() {
            true => moved | self.device.poll_idle_targets(now),
            false => moved,
        }
    }

    fn deadline(&self) -> Nanos {
        match self.device.has_idle_targets() {
            // Unleased queues of the target wake no handle, so they must be polled.
            true => Nanos::ZERO,
            false => self.target.deadline(),
        }
    }
}

/// A hardware queue, owned by its submitter (ARCHITECTURE.md, R4): its path takes no lock, and no
/// atomic beside those of the rings. Dropping a queue deletes it and abandons its outstanding
/// requests. A target's queue is returned instead, after its outstanding requests have completed.
pub struct Queue {
    pub(crate) hardware: HardwareQueueKind,
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
        match &self.hardware {
            HardwareQueueKind::Drive(raw) => QueueStats::of(raw.queue()),
            HardwareQueueKind::Other(queue) => queue.stats(),
            HardwareQueueKind::Null(_) | HardwareQueueKind::Target(_) => QueueStats::default(),
        }
    }
}

macro_rules! dispatch {
    ($self:ident, $queue:ident => $call:expr) => {
        match $self {
            Queue { hardware: HardwareQueueKind::Null($queue), .. } => $call,
            Queue { hardware: HardwareQueueKind::Drive($queue), .. } => $call,
            Queue { hardware: HardwareQueueKind::Target($queue), .. } => $call,
            Queue { hardware: HardwareQueueKind::Other($queue), .. } => $call,
        }
    };
}

impl BlockDevice for Queue {
    block::delegate_block_device!(self => dispatch!; limits, submit, reap, memory, set_waker, can_wait,
        wait_for_event, visit_layers);

    fn enable_sharing(&mut self) {
        if let HardwareQueueKind::Other(queue) = &mut self.hardware {
            queue.share(&self.device);
        }
    }

    /// Returns whether the queue has [interrupts](Queue::has_interrupts).
    fn can_wake(&self) -> bool {
        self.interrupts
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
    block::delegate_block_device!(self => dispatch!; poll, deadline);
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The queue moves out; one without requests takes its place.
        let closed = Null::new(Limits { queue_depth: 1, ..*self.limits() }, 0).create_queue();
        let closed = HardwareQueueKind::Null(Raw::new(closed, *self.limits()));
        match std::mem::replace(&mut self.hardware, closed) {
            // A drive that does not answer keeps the queue id and its memory.
            HardwareQueueKind::Drive(raw) => {
                let _ = raw.into_queue().0.close(&mut |_| {}, &mut self.device.progress());
            }
            HardwareQueueKind::Target(leased) => self.device.return_target_queue(leased),
            HardwareQueueKind::Other(queue) => queue.close(&self.device),
            HardwareQueueKind::Null(_) => {}
        }
    }
}
