//! [`Floor`]: what a queue of the C interface is, a hardware queue alone or behind a scheduler.

use block::{Busy, Completion, Device, Group, Limits, Request, Rest};
use clock::{Component, Nanos, Waker};
use direct::{Grouped, Queue, QueueStats, Scheduled};
use ring::AddressSpace;

/// A hardware queue, alone or behind a scheduler.
#[derive(Debug)]
pub(crate) enum Floor {
    Plain(Queue),
    Scheduled(Scheduled<Queue>),
}

impl Floor {
    /// Whether the device wakes who waits.
    pub(crate) fn interrupts(&self) -> bool {
        match self {
            Floor::Plain(queue) => queue.interrupts(),
            Floor::Scheduled(scheduled) => scheduled.device().interrupts(),
        }
    }

    /// What the hardware queue did beside sending commands.
    pub(crate) fn stats(&self) -> QueueStats {
        match self {
            Floor::Plain(queue) => queue.stats(),
            Floor::Scheduled(scheduled) => scheduled.device().stats(),
        }
    }
}

macro_rules! on {
    ($self:ident, $floor:ident => $call:expr) => {
        match $self {
            Floor::Plain($floor) => $call,
            Floor::Scheduled($floor) => $call,
        }
    };
}

impl Component for Floor {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        on!(self, floor => floor.poll(now))
    }

    fn deadline(&self) -> Nanos {
        on!(self, floor => floor.deadline())
    }
}

impl Device for Floor {
    #[inline]
    fn limits(&self) -> &Limits {
        on!(self, floor => floor.limits())
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
        on!(self, floor => floor.submit(now, request))
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        on!(self, floor => floor.reap())
    }

    fn memory(&self) -> &AddressSpace {
        on!(self, floor => floor.memory())
    }

    fn set_waker(&mut self, waker: Waker) {
        on!(self, floor => floor.set_waker(waker));
    }

    fn share(&mut self) {
        on!(self, floor => floor.share());
    }

    fn rests(&self) -> bool {
        on!(self, floor => floor.rests())
    }

    #[inline]
    fn rest(&mut self, now: Nanos, until: Nanos) -> Rest {
        on!(self, floor => floor.rest(now, until))
    }
}

impl Grouped for Floor {
    #[inline]
    fn submit_for(&mut self, now: Nanos, group: Group, request: Request) -> Result<(), Busy> {
        on!(self, floor => floor.submit_for(now, group, request))
    }
}
