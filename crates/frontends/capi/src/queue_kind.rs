//! [`QueueKind`]: the queue of the C interface: a hardware queue, alone or behind a scheduler.

use block::{BlockDevice, Completion, Group, Limits, QueueFull, Request, WaitResult};
use clock::{Component, Nanos, Waker};
use direct::{GroupedSubmit, Queue, QueueStats, Scheduled};
use ring::AddressSpace;

/// A hardware queue, alone or behind a scheduler.
#[derive(Debug)]
pub(crate) enum QueueKind {
    Plain(Queue),
    Scheduled(Scheduled<Queue>),
}

impl QueueKind {
    /// Returns whether the device wakes sleeping handles.
    pub(crate) fn has_interrupts(&self) -> bool {
        match self {
            QueueKind::Plain(queue) => queue.has_interrupts(),
            QueueKind::Scheduled(scheduled) => scheduled.device().has_interrupts(),
        }
    }

    /// Returns the counters of the hardware queue.
    pub(crate) fn stats(&self) -> QueueStats {
        match self {
            QueueKind::Plain(queue) => queue.stats(),
            QueueKind::Scheduled(scheduled) => scheduled.device().stats(),
        }
    }
}

macro_rules! dispatch {
    ($self:ident, $floor:ident => $call:expr) => {
        match $self {
            QueueKind::Plain($floor) => $call,
            QueueKind::Scheduled($floor) => $call,
        }
    };
}

impl Component for QueueKind {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        dispatch!(self, floor => floor.poll(now))
    }

    fn deadline(&self) -> Nanos {
        dispatch!(self, floor => floor.deadline())
    }
}

impl BlockDevice for QueueKind {
    #[inline]
    fn limits(&self) -> &Limits {
        dispatch!(self, floor => floor.limits())
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        dispatch!(self, floor => floor.submit(now, request))
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        dispatch!(self, floor => floor.reap())
    }

    fn memory(&self) -> &AddressSpace {
        dispatch!(self, floor => floor.memory())
    }

    fn set_waker(&mut self, waker: Waker) {
        dispatch!(self, floor => floor.set_waker(waker));
    }

    fn enable_sharing(&mut self) {
        dispatch!(self, floor => floor.enable_sharing());
    }

    fn can_wait(&self) -> bool {
        dispatch!(self, floor => floor.can_wait())
    }

    #[inline]
    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        dispatch!(self, floor => floor.wait_for_event(now, until))
    }
}

impl GroupedSubmit for QueueKind {
    #[inline]
    fn submit_for(&mut self, now: Nanos, group: Group, request: Request) -> Result<(), QueueFull> {
        dispatch!(self, floor => floor.submit_for(now, group, request))
    }
}
