//! [`CacheConfig`]: what a cache is told.

use crate::DirectError;

/// Which frame is used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// The one that has not been used for longest.
    #[default]
    Lru,
    /// The next one that has not been used since it was last passed by: nearly the same, at less cost
    /// per use.
    Clock,
}

/// When a write is at the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePolicy {
    /// When it completes.
    WriteThrough,
    /// Later: it completes when it is in the cache, and is durable after a flush.
    WriteBack {
        /// Percent of the cache that may be dirty; writes wait beyond it. 1 to 90.
        dirty_percent: u8,
        /// Percent from which on dirty units are written in the background; at most the former.
        background_percent: u8,
    },
}

impl Default for WritePolicy {
    fn default() -> WritePolicy {
        WritePolicy::WriteBack { dirty_percent: 40, background_percent: 10 }
    }
}

/// What a cache is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Bytes of memory for data, at least [`FRAMES_MIN`](CacheConfig::FRAMES_MIN) units.
    pub bytes: u64,
    /// Which frame is used again.
    pub eviction: EvictionPolicy,
    /// When a write is at the device.
    pub write_policy: WritePolicy,
    /// Units that are read ahead of who reads one after the other, at most; 0 for none.
    pub read_ahead: u32,
    /// Requests outstanding at most.
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
    /// Bytes of a unit, unless the device's sectors are larger (NVMeDirect section 3.1).
    pub const BLOCK_BYTES: u32 = 4096;

    /// Units of the smallest cache.
    pub const FRAMES_MIN: u64 = 64;

    /// Units of the largest: a number has 32 bits.
    pub const FRAMES_MAX: u64 = 1 << 31;

    /// Frames of `unit_bytes`.
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

/// What a cache has done. Units, if nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Asked for and there.
    pub hits: u64,
    /// Asked for and not there, or on their way.
    pub misses: u64,
    /// Read from the device, ahead of anybody asking included.
    pub fills: u64,
    /// Of them read ahead.
    pub read_ahead: u64,
    /// Written to the device.
    pub written: u64,
    /// Commands that wrote them.
    pub write_commands: u64,
    /// Given up for others.
    pub evictions: u64,
    /// Writes to the device that failed; what they wrote is still in the cache.
    pub write_errors: u64,
    /// Times that a request waited for a frame.
    pub stalls: u64,
}
