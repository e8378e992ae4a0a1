//! [`HandleStack`]: the device stack of a handle: one queue or several, with or without a block cache.

use std::fmt::Debug;

use block::BlockDevice;
use user_io::{Cache, CacheConfig, CacheStats, DirectError, IoDevice, MultiQueue, QueueStats};

use crate::queue::binding::QueueBinding;

/// The device stack of a handle, which makes one dynamic call.
pub(crate) trait HandleStack: BlockDevice + Debug + Send {
    /// Returns the cache's counters and its number of dirty blocks, if there is a cache.
    fn cache(&self) -> Option<(CacheStats, u32)> {
        None
    }

    /// Returns the sum of its queues' counters.
    fn queues(&self) -> QueueStats;
}

impl HandleStack for QueueBinding {
    fn queues(&self) -> QueueStats {
        self.stats()
    }
}

impl<D: HandleStack> HandleStack for MultiQueue<D> {
    fn queues(&self) -> QueueStats {
        let each = MultiQueue::queues(self).iter().map(HandleStack::queues);
        each.fold(QueueStats::default(), QueueStats::and)
    }
}

impl<D: HandleStack> HandleStack for Cache<D> {
    fn cache(&self) -> Option<(CacheStats, u32)> {
        Some((self.stats(), self.dirty()))
    }

    fn queues(&self) -> QueueStats {
        self.device().queues()
    }
}

/// Returns the stack of a handle over `queues`, with a cache if there is a configuration for one.
///
/// # Errors
/// [`DirectError`] if no memory is left for the cache.
pub(crate) fn handle_stack(
    device: &IoDevice,
    queues: impl HandleStack + 'static,
    cache: Option<CacheConfig>,
) -> Result<Box<dyn HandleStack>, DirectError> {
    Ok(match cache {
        Some(config) => Box::new(Cache::new(device, queues, config)?),
        None => Box::new(queues),
    })
}
