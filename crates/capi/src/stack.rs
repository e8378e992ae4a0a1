//! [`Stack`]: what a handle is made of: one lane or several, behind a block cache or not.

use block::{Busy, Completion, Device, Limits, Request, Rest};
use clock::{Component, Nanos, Waker};
use direct::{Cache, CacheStats, Lanes, QueueStats};
use ring::AddressSpace;

use crate::lane::Lane;

/// What a handle is made of; what it does not want is not there.
#[derive(Debug)]
pub(crate) enum Stack {
    One(Lane),
    Many(Lanes<Lane>),
    CachedOne(Box<Cache<Lane>>),
    CachedMany(Box<Cache<Lanes<Lane>>>),
}

impl Stack {
    /// What the cache has done, and units that the device does not have, if there is a cache.
    pub(crate) fn cache(&self) -> Option<(CacheStats, u32)> {
        match self {
            Stack::One(_) | Stack::Many(_) => None,
            Stack::CachedOne(cache) => Some((cache.stats(), cache.dirty())),
            Stack::CachedMany(cache) => Some((cache.stats(), cache.dirty())),
        }
    }

    /// What its queues did beside sending commands, together.
    pub(crate) fn queues(&self) -> QueueStats {
        let all = |lanes: &[Lane]| {
            lanes.iter().map(Lane::stats).fold(QueueStats::default(), QueueStats::and)
        };
        match self {
            Stack::One(lane) => lane.stats(),
            Stack::Many(lanes) => all(lanes.lanes()),
            Stack::CachedOne(cache) => cache.device().stats(),
            Stack::CachedMany(cache) => all(cache.device().lanes()),
        }
    }
}

macro_rules! on {
    ($self:ident, $top:ident => $call:expr) => {
        match $self {
            Stack::One($top) => $call,
            Stack::Many($top) => $call,
            Stack::CachedOne($top) => $call,
            Stack::CachedMany($top) => $call,
        }
    };
}

impl Component for Stack {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        on!(self, top => top.poll(now))
    }

    fn deadline(&self) -> Nanos {
        on!(self, top => top.deadline())
    }
}

impl Device for Stack {
    #[inline]
    fn limits(&self) -> &Limits {
        on!(self, top => top.limits())
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
        on!(self, top => top.submit(now, request))
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        on!(self, top => top.reap())
    }

    fn memory(&self) -> &AddressSpace {
        on!(self, top => top.memory())
    }

    fn set_waker(&mut self, waker: Waker) {
        on!(self, top => top.set_waker(waker));
    }

    fn rests(&self) -> bool {
        on!(self, top => top.rests())
    }

    #[inline]
    fn rest(&mut self, now: Nanos, until: Nanos) -> Rest {
        on!(self, top => top.rest(now, until))
    }
}
