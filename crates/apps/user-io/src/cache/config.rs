//! [`CacheConfig`]: configuration of a block cache, and its counters.

use crate::DirectError;

/// Selects the frame to evict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// The least recently used frame.
    #[default]
    Lru,
    /// The next frame that was not used since the clock hand passed it last: close to LRU, at less
    /// cost per use.
    Clock,
}

/// When a write reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePolicy {
    /// Before it completes.
    WriteThrough,
    /// After it completes: the write completes in the cache, and is durable after a flush.
    WriteBack {
        /// Percent of the cache that may be dirty, 1 to 90. Writes beyond it wait.
        dirty_percent: u8,
        /// Percent of dirty blocks at which background writeback starts; at most `dirty_percent`.
        background_percent: u8,
    },
}

impl Default for WritePolicy {
    fn default() -> WritePolicy {
        WritePolicy::WriteBack { dirty_percent: 40, background_percent: 10 }
    }
}

/// Configuration of a block cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Bytes of memory for data, at least [`FRAMES_MIN`](CacheConfig::FRAMES_MIN) blocks.
    pub bytes: u64,
    /// Eviction policy.
    pub eviction: EvictionPolicy,
    /// Write policy.
    pub write_policy: WritePolicy,
    /// Maximum number of blocks read ahead of a sequential reader; 0 disables read-ahead.
    pub read_ahead: u32,
    /// Maximum number of outstanding requests.
    pub depth: u32,
}

impl Default for CacheConfig {
    fn default() -> CacheConfig {
        CacheConfig {
            bytes: 64 << 20,
            eviction: EvictionPolicy::default(),
            write_policy: WritePolicy::default(),
            read_ahead: 32,
            depth: 1024,
        }
    }
}

impl CacheConfig {
    /// Bytes of a block, unless the device's sectors are larger ([NVMeDirect16 §3.1]).
    pub const BLOCK_BYTES: u32 = 4096;

    /// Minimum number of blocks of a cache.
    pub const FRAMES_MIN: u64 = 64;

    /// Limit of the number of blocks (exclusive): frame indexes have 32 bits.
    pub const FRAMES_MAX: u64 = 1 << 31;

    /// Returns the number of frames of `unit_bytes` each.
    pub(super) fn frames(&self, unit_bytes: u32) -> Result<u32, DirectError> {
        let frames = self.bytes / u64::from(unit_bytes);
        let refused = |key, value, allowed| Err(DirectError::Config { key, value, allowed });
        if !(Self::FRAMES_MIN..Self::FRAMES_MAX).contains(&frames) {
            return refused("bytes", self.bytes, "64 units at least, and what memory there is");
        }
        let machine = rustix::system::sysinfo();
        let memory = machine.totalram as u64 * u64::from(machine.mem_unit);
        if self.bytes > memory {
            return refused("bytes", self.bytes, "no more than the machine has memory");
        }
        if let WritePolicy::WriteBack { dirty_percent, background_percent } = self.write_policy {
            if !(1..=90).contains(&dirty_percent) {
                return refused("dirty_percent", dirty_percent.into(), "1 to 90");
            }
            if background_percent > dirty_percent {
                let allowed = "at most `dirty_percent`";
                return refused("background_percent", background_percent.into(), allowed);
            }
        }
        if u64::from(self.read_ahead) > frames / 4 {
            return refused("read_ahead", self.read_ahead.into(), "a quarter of the cache at most");
        }
        if self.depth == 0 {
            return refused("depth", 0, "1 or more");
        }
        Ok(frames as u32)
    }
}

/// Counters of a block cache, in blocks unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks requested that were in the cache.
    pub hits: u64,
    /// Blocks requested that were absent or still being filled.
    pub misses: u64,
    /// Blocks read from the device, including read-ahead.
    pub fills: u64,
    /// Blocks of `fills` that were read ahead.
    pub read_ahead: u64,
    /// Blocks written to the device.
    pub written: u64,
    /// Commands that wrote blocks.
    pub write_commands: u64,
    /// Blocks evicted.
    pub evictions: u64,
    /// Blocks whose write to the device failed; their data is still in the cache.
    pub write_errors: u64,
    /// Number of times that a request waited for a frame.
    pub stalls: u64,
}
