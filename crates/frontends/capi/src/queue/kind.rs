//! [`QueueKind`]: the queue of the C interface: a hardware queue, alone or behind a scheduler.

use block::{BlockDevice, Group, QueueFull, Request};
use time::{Component, Nanos};
use user_io::{GroupedSubmit, Queue, QueueStats, Scheduled};

/// A hardware queue, alone or behind a scheduler.
#[derive(Debug)]
pub(crate) enum QueueKind {
    Plain(Queue),
    Scheduled(Scheduled<Queue>),
}

impl QueueKind {
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
    block::delegate_block_device!(self => dispatch!; poll, deadline);
}

impl BlockDevice for QueueKind {
    block::delegate_block_device!(self => dispatch!);
}

impl GroupedSubmit for QueueKind {
    #[inline]
    fn submit_for(&mut self, now: Nanos, group: Group, request: Request) -> Result<(), QueueFull> {
        dispatch!(self, floor => floor.submit_for(now, group, request))
    }
}
