//! [`HandleDevice`]: the device stack of a handle: one queue or several, with or without a block cache.

use block::{BlockDevice, Completion, Limits, QueueFull, Request, WaitResult};
use clock::{Component, Nanos, Waker};
use direct::{Cache, CacheStats, MultiQueue, QueueStats};
use ring::AddressSpace;

use crate::queue_binding::QueueBinding;

/// The device stack of a handle; unused parts are absent.
#[derive(Debug)]
pub(crate) enum HandleDevice {
    One(QueueBinding),
    Many(MultiQueue<QueueBinding>),
    CachedOne(Box<Cache<QueueBinding>>),
    CachedMany(Box<Cache<MultiQueue<QueueBinding>>>),
}

impl HandleDevice {
    /// Returns the cache's counters and its number of dirty blocks, if there is a cache.
    pub(crate) fn cache(&self) -> Option<(CacheStats, u32)> {
        match self {
            HandleDevice::One(_) | HandleDevice::Many(_) => None,
            HandleDevice::CachedOne(cache) => Some((cache.stats(), cache.dirty())),
            HandleDevice::CachedMany(cache) => Some((cache.stats(), cache.dirty())),
        }
    }

    /// Returns the sum of its queues' counters.
    pub(crate) fn queues(&self) -> QueueStats {
        let all = |lanes: &[QueueBinding]| {
            lanes.iter().map(QueueBinding::stats).fold(QueueStats::default(), QueueStats::and)
        };
        match self {
            HandleDevice::One(lane) => lane.stats(),
            HandleDevice::Many(lanes) => all(lanes.queues()),
            HandleDevice::CachedOne(cache) => cache.device().stats(),
            HandleDevice::CachedMany(cache) => all(cache.device().queues()),
        }
    }
}

macro_rules! dispatch {
    ($self:ident, $top:ident => $call:expr) => {
        match $self {
            HandleDevice::One($top) => $call,
            HandleDevice::Many($top) => $call,
            HandleDevice::CachedOne($top) => $call,
            HandleDevice::CachedMany($top) => $call,
        }
    };
}

impl Component for HandleDevice {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        dispatch!(self, top => top.poll(now))
    }

    fn deadline(&self) -> Nanos {
        dispatch!(self, top => top.deadline())
    }
}

impl BlockDevice for HandleDevice {
    #[inline]
    fn limits(&self) -> &Limits {
        dispatch!(self, top => top.limits())
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        dispatch!(self, top => top.submit(now, request))
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        dispatch!(self, top => top.reap())
    }

    fn memory(&self) -> &AddressSpace {
        dispatch!(self, top => top.memory())
    }

    fn set_waker(&mut self, waker: Waker) {
        dispatch!(self, top => top.set_waker(waker));
    }

    fn can_wait(&self) -> bool {
        dispatch!(self, top => top.can_wait())
    }

    #[inline]
    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        dispatch!(self, top => top.wait_for_event(now, until))
    }
}
