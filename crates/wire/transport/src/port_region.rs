//! [`PortRegion`]: the persistent memory region of a drive, as a host of it has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mem::{PersistentMemory, PersistentMemoryError, ReadOnlyRegion, SharedImages};
use time::Nanos;

use crate::remote_notify::REGION_COSTS_OFFSET;

/// Maximum size of a region in bytes.
const BYTES_MAX: u64 = 64 << 30;

/// The time that accesses to a persistent memory region take on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionCosts {
    /// Time to store to one cache line.
    pub store: Nanos,
    /// Time of one persist, whatever its size.
    pub persist: Nanos,
}

impl RegionCosts {
    /// Returns the number of cache lines that a store of `bytes` bytes at `offset` changes.
    pub fn lines(offset: u64, bytes: u64) -> u64 {
        let line = PersistentMemory::LINE_BYTES as u64;
        match bytes {
            0 => 0,
            _ => (offset % line + bytes).div_ceil(line),
        }
    }

    /// Returns the time of a store of `bytes` bytes at `offset`.
    pub fn store_time(&self, offset: u64, bytes: u64) -> Nanos {
        Nanos(self.store.0.saturating_mul(RegionCosts::lines(offset, bytes)))
    }
}

/// Counters of the accesses to a persistent memory region, by the hosts of one process.
#[derive(Debug, Default)]
pub struct RegionCounters {
    lines_stored: AtomicU64,
    persists: AtomicU64,
}

impl RegionCounters {
    /// Counts a store to this number of cache lines.
    pub fn add_store(&self, lines: u64) {
        self.lines_stored.fetch_add(lines, Ordering::Relaxed);
    }

    /// Counts a persist.
    pub fn add_persist(&self) {
        self.persists.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of cache lines stored to, and the number of persists.
    pub fn counts(&self) -> (u64, u64) {
        (self.lines_stored.load(Ordering::Relaxed), self.persists.load(Ordering::Relaxed))
    }

    /// Starts again at zero.
    pub fn reset(&self) {
        self.lines_stored.store(0, Ordering::Relaxed);
        self.persists.store(0, Ordering::Relaxed);
    }
}

/// A persistent memory region that a host has mapped. Clones refer to one region.
#[derive(Clone, Debug)]
pub struct PortRegion {
    /// The memory.
    pub memory: PersistentMemory,
    /// The time that accesses take.
    pub costs: RegionCosts,
    /// Counts the accesses.
    pub counters: Arc<RegionCounters>,
}

impl PortRegion {
    /// Maps the region of a drive in another process, which publishes its costs.
    pub(crate) fn import(
        images: SharedImages,
        published: &ReadOnlyRegion,
    ) -> Result<PortRegion, PersistentMemoryError> {
        let cost = |index: usize| {
            let at = REGION_COSTS_OFFSET + 8 * index;
            let halves = [published.load_u32(at), published.load_u32(at + 4)].map(u64::from);
            Nanos(halves[0] | halves[1] << 32)
        };
        let memory = PersistentMemory::import(images, BYTES_MAX)?;
        let costs = RegionCosts { store: cost(0), persist: cost(1) };
        Ok(PortRegion { memory, costs, counters: Arc::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_costs_the_lines_that_it_changes() {
        let costs = RegionCosts { store: Nanos(7), persist: Nanos(100) };
        for (offset, bytes, lines) in
            [(0, 0, 0), (63, 0, 0), (0, 1, 1), (0, 64, 1), (0, 65, 2), (63, 2, 2), (8, 4096, 65)]
        {
            assert_eq!(RegionCosts::lines(offset, bytes), lines, "{bytes} at {offset}");
            assert_eq!(costs.store_time(offset, bytes), Nanos(7 * lines));
        }
    }
}
