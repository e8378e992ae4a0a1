//! [`Queue`]: a hardware queue of the application's own (`nvmed_create_queue`).

use std::sync::Arc;

use block::{BlockDevice, Completion, Group, Limits, QueueFull, Raw, Request, WaitResult};
use clock::{Component, Nanos, Waker};
use driver::{BounceStats, NullQueue, NvmeQueue, PassthroughQueue, UringQueue};
use ring::{AddressSpace, DoorbellStats, RegisterError};

use crate::device_inner::DeviceInner;
use crate::remote::RemoteQueue;
use crate::scheduled::GroupedSubmit;
use crate::supervised::SupervisedQueue;

/// What a queue leads to.
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
    /// Given back.
    Closed,
}

/// What a queue did beside sending commands. All zero, and nothing, for what is no drive of queue pairs:
/// there the kernel copies and rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// What was copied because commands could not name it: how often, how many bytes, how often there was
    /// too little memory for it, and how much memory it takes.
    pub bounced: BounceStats,
    /// Why nothing can be copied, if something had to be: such requests end with
    /// [`INTERNAL`](nvme::Status::INTERNAL).
    pub bounce_refused: Option<RegisterError>,
    /// Doorbells in memory: registers written, and saved. `None` for doorbells that are registers, of which
    /// every batch of commands writes one.
    pub doorbells: Option<DoorbellStats>,
}

impl QueueStats {
    /// Those of several queues together.
    #[must_use]
    pub fn and(self, other: QueueStats) -> QueueStats {
        let doorbells = match (self.doorbells, other.doorbells) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        let bounce_refused = self.bounce_refused.or(other.bounce_refused);
        QueueStats { bounced: self.bounced.and(other.bounced), bounce_refused, doorbells }
    }
}

/// A target's queue, and how much is outstanding there: it is handed out again, and then nobody must find
/// another's completions.
pub(crate) struct LeasedQueue {
    pub(crate) target: Box<dyn BlockDevice + Send>,
    pub(crate) outstanding: u64,
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
        self.outstanding = self.outstanding.saturating_sub(1);
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

/// A hardware queue, owned by who submits to it (rule R4): no lock and no atomic on its path beside the
/// rings themselves. It is destroyed when it is dropped; what is outstanding then is given up. A target's
/// goes back instead, and what is outstanding there is waited for.
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
    /// Whether the device wakes who waits: without, completions must be looked for.
    pub fn has_interrupts(&self) -> bool {
        self.interrupts
    }

    /// What was done for its commands beside sending them.
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

/// Calls the device behind a queue; a queue that has been given back has none.
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
        dispatch!(self, queue => queue.set_waker(waker), ());
    }

    /// A file's queue is made again, unless its kernel work is done for any thread. Where there is no memory
    /// for that it stays as it is.
    fn enable_sharing(&mut self) {
        if let HardwareQueueKind::File(queue) = &mut self.hardware
            && let Some(shared) = self.device.shared_file_queue()
        {
            **queue = Raw::new(shared, self.limits);
        }
    }

    /// With [interrupts](Queue::has_interrupts) only.
    fn can_wake(&self) -> bool {
        self.interrupts
    }

    /// In a ring of the kernel: it does both in one system call.
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
}

impl GroupedSubmit for Queue {
    /// A queue treats everybody alike.
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
            // Those that nobody has wake nobody.
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
            // A drive that does not answer keeps the queue's number and its memory.
            HardwareQueueKind::Drive(raw) => {
                let _ = raw.into_queue().0.close(&mut |_| {}, &mut self.device.pump());
            }
            HardwareQueueKind::Controller(watched) => {
                let _ = watched.into_queue().close(&mut |_| {}, &mut self.device.pump());
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
