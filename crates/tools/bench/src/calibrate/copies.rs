//! Measures copies of 4 KiB between regions, as a drive with data makes for every sector.

use event::{AllowedCpus, RealClock};
use mem::SharedRegion;
use time::Nanos;

use super::queue::whole_nanos;
use crate::{BenchError, RunLength, Samples, on_first_cpu};

const SECTOR: usize = 4096;

/// Cost of copying 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyCosts {
    /// From and to memory in the CPU's cache.
    pub cached: Nanos,
    /// From a random address of a region larger than the caches.
    pub cold: Nanos,
}

impl CopyCosts {
    /// Returns the cost of copying `bytes` from memory that is not in the cache.
    pub fn cold_bytes(&self, bytes: u64) -> Nanos {
        Nanos((self.cold.0.saturating_mul(bytes)).div_ceil(SECTOR as u64))
    }
}

/// Measures the costs.
///
/// # Errors
/// [`BenchError`] if the system refuses memory or threads.
pub fn measure(effort: RunLength, cores: &AllowedCpus) -> Result<CopyCosts, BenchError> {
    let bytes = effort.choose(256 << 20, 4 << 20);
    let copies = effort.choose(10_000, 100);
    on_first_cpu(cores, move || {
        let (large, small) =
            (SharedRegion::anonymous(bytes)?, SharedRegion::anonymous(16 * SECTOR)?);
        // Memory that was never written is one page of zeros, and in the cache.
        large.fill(0, bytes, 1);
        small.fill(0, small.len(), 1);
        Ok(CopyCosts { cached: copy(&small, &small, copies), cold: copy(&large, &small, copies) })
    })
}

/// Returns the time per copy of a sector from a random address of `from` into `to`, over `count`
/// copies.
fn copy(from: &SharedRegion, to: &SharedRegion, count: usize) -> Nanos {
    let clock = RealClock::start();
    let (sources, targets) = (from.len() / SECTOR, to.len() / SECTOR);
    let mut random = 1u64;
    let samples = (0..9).map(|_| {
        let start = clock.now();
        for number in 0..count {
            // Knuth's MMIX generator; its upper bits are the random ones.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let source = (random >> 33) as usize % sources;
            SharedRegion::copy(from, source * SECTOR, to, number % targets * SECTOR, SECTOR);
        }
        clock.now().since(start).0 as f64 / count as f64
    });
    whole_nanos(Samples::new(samples.collect()).map_or(0.0, |s| s.median()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_copies_cost_more() {
        let costs = CopyCosts { cached: Nanos(65), cold: Nanos(540) };
        assert_eq!(costs.cold_bytes(4096), Nanos(540));
        assert_eq!(costs.cold_bytes(65_536), Nanos(8_640));
        assert_eq!(costs.cold_bytes(512), Nanos(68));
        assert_eq!(costs.cold_bytes(0), Nanos::ZERO);
    }
}
