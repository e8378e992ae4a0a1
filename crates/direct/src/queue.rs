//! [`Queue`]: a hardware queue of the application's own (`nvmed_create_queue`).

use std::sync::Arc;

use block::{Busy, Completion, Device as BlockDevice, Group, Limits, Raw, Request, Rest};
use clock::{Component, Nanos, Waker};
use driver::{BounceStats, EmulatedQueue, NullQueue, PassthroughQueue, UringQueue};
use ring::{AddressSpace, DoorbellCounts, RegisterError};

use crate::opened::Opened;
use crate::scheduled::Grouped;
use crate::served::ServedQueue;
use crate::watched::Watched;

/// What a queue leads to.
#[allow(clippy::large_enum_variant, reason = "a drive's queue is reached without another step")]
pub(crate) enum Hardware {
    Null(Raw<NullQueue>),
    Drive(Raw<EmulatedQueue>),
    File(Box<Raw<UringQueue>>),
    /// A namespace under the kernel's driver.
    Passthrough(Box<Raw<PassthroughQueue>>),
    /// A real controller.
    Controller(Box<Watched<EmulatedQueue>>),
    /// A target on host-managed flash.
    Target(Borrowed),
    /// A drive in another process.
    Served(Box<ServedQueue>),
    /// Given back.
    Gone,
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
    pub doorbells: Option<DoorbellCounts>,
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
pub(crate) struct Borrowed {
    pub(crate) target: Box<dyn BlockDevice + Send>,
    pub(crate) outstanding: u64,
}

impl Borrowed {
    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
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
    pub(crate) hardware: Hardware,
    pub(crate) limits: Limits,
    pub(crate) memory: AddressSpace,
    pub(crate) device: Arc<Opened>,
    pub(crate) interrupts: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

impl Queue {
    /// Whether the device wakes who waits: without, completions must be looked for.
    pub fn interrupts(&self) -> bool {
        self.interrupts
    }

    /// What was done for its commands beside sending them.
    pub fn stats(&self) -> QueueStats {
        let of = |queue: &EmulatedQueue| QueueStats {
            bounced: queue.bounced(),
            bounce_refused: queue.bounce_refused(),
            doorbells: queue.pair().doorbells(),
        };
        match &self.hardware {
            Hardware::Drive(raw) => of(raw.queue()),
            Hardware::Controller(watched) => of(watched.queue()),
            Hardware::Served(served) => served.queue().map(of).unwrap_or_default(),
            _ => QueueStats::default(),
        }
    }
}

/// Calls the device behind a queue; a queue that has been given back has none.
macro_rules! on {
    ($self:ident, $queue:ident => $call:expr, $gone:expr) => {
        match &mut $self.hardware {
            Hardware::Null($queue) => $call,
            Hardware::Drive($queue) => $call,
            Hardware::File($queue) => $call,
            Hardware::Passthrough($queue) => $call,
            Hardware::Target($queue) => $call,
            Hardware::Served($queue) => $call,
            Hardware::Controller($queue) => $call,
            Hardware::Gone => $gone,
        }
    };
}

impl BlockDevice for Queue {
    #[inline]
    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
        on!(self, queue => queue.submit(now, request), Err(Busy))
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        on!(self, queue => queue.reap(), None)
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn set_waker(&mut self, waker: Waker) {
        on!(self, queue => queue.set_waker(waker), ());
    }

    /// A file's queue is made again, unless its kernel work is done for any thread. Where there is no memory
    /// for that it stays as it is.
    fn share(&mut self) {
        if let Hardware::File(queue) = &mut self.hardware
            && let Some(shared) = self.device.shared_file_queue()
        {
            **queue = Raw::new(shared, self.limits);
        }
    }

    /// With [interrupts](Queue::interrupts) only.
    fn wakes(&self) -> bool {
        self.interrupts
    }

    /// In a ring of the kernel: it does both in one system call.
    fn rests(&self) -> bool {
        match &self.hardware {
            Hardware::File(queue) => queue.rests(),
            Hardware::Passthrough(queue) => queue.rests(),
            _ => false,
        }
    }

    #[inline]
    fn rest(&mut self, now: Nanos, until: Nanos) -> Rest {
        match &mut self.hardware {
            Hardware::File(queue) => queue.rest(now, until),
            Hardware::Passthrough(queue) => queue.rest(now, until),
            _ => Rest::Unable,
        }
    }
}

impl Grouped for Queue {
    /// A queue treats everybody alike.
    #[inline]
    fn submit_for(&mut self, now: Nanos, _: Group, request: Request) -> Result<(), Busy> {
        self.submit(now, request)
    }
}

impl Component for Queue {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let moved = on!(self, queue => queue.poll(now), false);
        if matches!(self.hardware, Hardware::Target(_)) && self.device.has_idle_targets() {
            return moved | self.device.poll_idle_targets(now);
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        match &self.hardware {
            Hardware::Null(queue) => queue.deadline(),
            Hardware::Drive(queue) => queue.deadline(),
            Hardware::File(queue) => queue.deadline(),
            Hardware::Passthrough(queue) => queue.deadline(),
            // Those that nobody has wake nobody.
            Hardware::Target(_) if self.device.has_idle_targets() => Nanos::ZERO,
            Hardware::Target(queue) => queue.target.deadline(),
            Hardware::Served(queue) => queue.deadline(),
            Hardware::Controller(queue) => queue.deadline(),
            Hardware::Gone => Nanos::MAX,
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.hardware, Hardware::Gone) {
            // A drive that does not answer keeps the queue's number and its memory.
            Hardware::Drive(raw) => {
                let _ = raw.into_queue().0.close(&mut |_| {}, &mut self.device.pump());
            }
            Hardware::Controller(watched) => {
                let _ = watched.into_queue().close(&mut |_| {}, &mut self.device.pump());
            }
            Hardware::Target(borrowed) => self.device.put_target(borrowed),
            Hardware::Served(mut queue) => self.device.close_served(&mut queue),
            Hardware::Null(_) | Hardware::File(_) | Hardware::Passthrough(_) | Hardware::Gone => {}
        }
    }
}
