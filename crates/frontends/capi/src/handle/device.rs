//! [`HandleDevice`]: the device stack of a handle: one queue or several, with or without a block cache.

use block::BlockDevice;
use time::Component;
use user_io::{Cache, CacheStats, MultiQueue, QueueStats};

use crate::queue::binding::QueueBinding;

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
    block::delegate_block_device!(self => dispatch!; poll, deadline);
}

impl BlockDevice for HandleDevice {
    block::delegate_block_device!(self => dispatch!);
}
