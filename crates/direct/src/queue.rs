//! [`Queue`]: a hardware queue of the application's own (`nvmed_create_queue`).

use std::sync::Arc;

use block::{Busy, Completion, Device as BlockDevice, Group, Limits, Raw, Request};
use clock::{Component, Nanos, Waker};
use driver::{EmulatedQueue, NullQueue, UringQueue};
use ring::AddressSpace;

use crate::device::Opened;
use crate::scheduled::Grouped;

/// What a queue leads to.
pub(crate) enum Hardware {
    Null(Raw<NullQueue>),
    Drive(Raw<EmulatedQueue>),
    File(Box<Raw<UringQueue>>),
    /// A target on host-managed flash.
    Target(Box<dyn BlockDevice + Send>),
    /// Given back.
    Gone,
}

/// A hardware queue, owned by who submits to it (rule R4): no lock and no atomic on its path beside the
/// rings themselves. It is destroyed when it is dropped; what is outstanding then is given up.
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
}

/// Calls the device behind a queue; a queue that has been given back has none.
macro_rules! on {
    ($self:ident, $queue:ident => $call:expr, $gone:expr) => {
        match &mut $self.hardware {
            Hardware::Null($queue) => $call,
            Hardware::Drive($queue) => $call,
            Hardware::File($queue) => $call,
            Hardware::Target($queue) => $call,
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
        on!(self, queue => queue.poll(now), false)
    }

    fn deadline(&self) -> Nanos {
        match &self.hardware {
            Hardware::Null(queue) => queue.deadline(),
            Hardware::Drive(queue) => queue.deadline(),
            Hardware::File(queue) => queue.deadline(),
            Hardware::Target(queue) => queue.deadline(),
            Hardware::Gone => Nanos::MAX,
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.hardware, Hardware::Gone) {
            Hardware::Drive(raw) => {
                // A drive that does not answer keeps the queue's number and its memory.
                let _ = raw.into_queue().0.close(&mut |_| {}, &mut std::thread::yield_now);
            }
            Hardware::Target(target) => self.device.put_target(target),
            Hardware::Null(_) | Hardware::File(_) | Hardware::Gone => {}
        }
    }
}
