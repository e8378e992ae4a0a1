//! [`MultiQueue`]: several devices over the same sectors, used as one (`nvmed_create_mq_handle`). In
//! [NVMeDirect16 fig. 1], thread B separates reads from writes, so that bulk writes do not starve
//! reads.

use std::any::Any;

use block::{BlockDevice, Completion, Limits, Op, QueueFull, Request, WaitResult};
use event::Waker;
use mem::AddressSpace;
use time::{Component, Nanos};

use crate::DirectError;

/// Selects a queue, given a request and the number of queues.
pub type QueueSelectFn = Box<dyn FnMut(&Request, usize) -> usize + Send>;

/// Selects the queue of a request.
pub enum QueueSelector {
    /// Reads use the first queue, all other requests the second.
    ByDirection,
    /// Requests of up to this many sectors use the first queue, longer ones the second. Requests
    /// without data count as short.
    BySize(u32),
    /// Queues in rotation.
    RoundRobin,
    /// The caller's function. An index out of range wraps around.
    Function(QueueSelectFn),
}

impl std::fmt::Debug for QueueSelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            QueueSelector::ByDirection => f.write_str("ByDirection"),
            QueueSelector::BySize(sectors) => f.debug_tuple("BySize").field(sectors).finish(),
            QueueSelector::RoundRobin => f.write_str("RoundRobin"),
            QueueSelector::Function(_) => f.write_str("Function"),
        }
    }
}

/// Several devices over the same sectors, used as one. A flush uses one queue like any other
/// request, and makes all completed writes durable, whichever queue they used.
///
/// Requests on different queues are not ordered. To order overlapping requests, wait for the first
/// before submitting the second.
#[derive(Debug)]
pub struct MultiQueue<D> {
    queues: Vec<D>,
    /// Outstanding requests per queue.
    outstanding: Vec<u32>,
    selector: QueueSelector,
    limits: Limits,
    /// Next queue for round robin, and the first to be reaped.
    next: usize,
    reap_from: usize,
}

impl<D: BlockDevice> MultiQueue<D> {
    /// Combines several devices into one.
    ///
    /// # Errors
    /// [`DirectError::Config`] if there are no queues, fewer than the selector distinguishes, or
    /// devices of different sizes.
    pub fn new(lanes: Vec<D>, selector: QueueSelector) -> Result<MultiQueue<D>, DirectError> {
        let wanted = match selector {
            QueueSelector::ByDirection | QueueSelector::BySize(_) => 2,
            QueueSelector::RoundRobin | QueueSelector::Function(_) => 1,
        };
        let refused = |value, allowed| DirectError::Config { key: "lanes", value, allowed };
        let count = lanes.len() as u64;
        if count < wanted {
            return Err(refused(count, "one, or the two that the selector tells apart"));
        }
        let mut limits = *lanes[0].limits();
        for lane in &lanes[1..] {
            let other = lane.limits();
            if (other.sectors, other.sector_bytes) != (limits.sectors, limits.sector_bytes) {
                return Err(refused(count, "all over the same sectors"));
            }
            limits.max_sectors = limits.max_sectors.min(other.max_sectors);
            limits.queue_depth += other.queue_depth;
            limits.volatile_cache |= other.volatile_cache;
        }
        let outstanding = vec![0; lanes.len()];
        Ok(MultiQueue { queues: lanes, outstanding, selector, limits, next: 0, reap_from: 0 })
    }

    /// Returns the queues.
    pub fn queues(&self) -> &[D] {
        &self.queues
    }

    fn select(&mut self, request: &Request) -> usize {
        let count = self.queues.len();
        match &mut self.selector {
            QueueSelector::ByDirection => usize::from(request.op != Op::Read),
            QueueSelector::BySize(sectors) => {
                let data = matches!(request.op, Op::Read | Op::Write);
                usize::from(data && request.sectors > *sectors)
            }
            QueueSelector::RoundRobin => {
                let lane = self.next;
                self.next = if lane + 1 == count { 0 } else { lane + 1 };
                lane
            }
            QueueSelector::Function(choose) => choose(request, count) % count,
        }
    }
}

impl<D: BlockDevice> BlockDevice for MultiQueue<D> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        let lane = self.select(&request);
        self.queues[lane].submit(now, request)?;
        self.outstanding[lane] += 1;
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        for _ in 0..self.queues.len() {
            if let Some(completion) = self.queues[self.reap_from].reap() {
                self.outstanding[self.reap_from] -= 1;
                return Some(completion);
            }
            self.reap_from =
                if self.reap_from + 1 == self.queues.len() { 0 } else { self.reap_from + 1 };
        }
        None
    }

    fn memory(&self) -> &AddressSpace {
        self.queues[0].memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        for lane in &mut self.queues {
            lane.set_waker(waker.clone());
        }
    }

    fn enable_sharing(&mut self) {
        self.queues.iter_mut().for_each(BlockDevice::enable_sharing);
    }

    fn can_wake(&self) -> bool {
        self.queues.iter().all(BlockDevice::can_wake)
    }

    fn can_wait(&self) -> bool {
        self.queues.iter().all(BlockDevice::can_wait)
    }

    /// Waits in the only queue with outstanding requests. The other queues are covered by the
    /// deadline.
    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        let mut busy = (0..self.queues.len()).filter(|lane| self.outstanding[*lane] > 0);
        let (Some(lane), None) = (busy.next(), busy.next()) else { return WaitResult::Unsupported };
        let until = self.deadline().min(until);
        self.queues[lane].wait_for_event(now, until)
    }

    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        self.queues.iter_mut().for_each(|queue| queue.visit_layers(visit));
    }
}

impl<D: BlockDevice> Component for MultiQueue<D> {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        for lane in &mut self.queues {
            moved |= lane.poll(now);
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        self.queues.iter().map(Component::deadline).min().unwrap_or(Nanos::MAX)
    }
}
