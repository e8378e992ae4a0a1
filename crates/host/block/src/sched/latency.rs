//! [`LatencyBuckets`]: a histogram of latencies relative to a target.
//!
//! As in Linux's kyber there are eight buckets, each a quarter of the target wide. The first four
//! are within the target; the last one takes all latencies from seven quarters. A percentile of a
//! window's latencies is then a small number that says how far the target is met or missed.

use time::Nanos;

/// Number of buckets within the target.
pub(super) const TARGET_BUCKETS: usize = 4;
/// Number of buckets.
const BUCKET_COUNT: usize = 8;

/// Latencies counted in quarters of a target.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LatencyBuckets {
    counts: [u32; BUCKET_COUNT],
    samples: u32,
}

impl LatencyBuckets {
    #[inline]
    pub(super) fn add(&mut self, latency: Nanos, target: Nanos) {
        // A bucket includes its upper bound: 2 ms meets a target of 2 ms.
        let quarter = (target.0 / TARGET_BUCKETS as u64).max(1);
        let bucket = latency.0.saturating_sub(1) / quarter;
        let bucket = bucket.min(BUCKET_COUNT as u64 - 1) as usize;
        self.counts[bucket] += 1;
        self.samples += 1;
    }

    pub(super) fn samples(&self) -> u32 {
        self.samples
    }

    /// Returns the bucket that `percent` of the samples do not exceed; `None` without samples.
    pub(super) fn percentile(&self, percent: u32) -> Option<usize> {
        if self.samples == 0 {
            return None;
        }
        let wanted = (u64::from(self.samples) * u64::from(percent)).div_ceil(100);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= wanted
        });
        Some(found.unwrap_or(BUCKET_COUNT - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_quarters_and_the_bound_is_good() {
        let target = Nanos(400);
        let bucket = |latency| {
            let mut buckets = LatencyBuckets::default();
            buckets.add(Nanos(latency), target);
            buckets.percentile(99)
        };
        let got = [0, 1, 100, 101, 400, 401, 700, 701, u64::MAX].map(bucket);
        assert_eq!(got, [0, 0, 0, 1, 3, 4, 6, 7, 7].map(Some));
    }

    #[test]
    fn percentiles() {
        let mut buckets = LatencyBuckets::default();
        assert_eq!(buckets.percentile(99), None);
        (0..98).for_each(|_| buckets.add(Nanos(1), Nanos(400)));
        (0..2).for_each(|_| buckets.add(Nanos(500), Nanos(400)));
        assert_eq!(buckets.samples(), 100);
        assert_eq!(buckets.percentile(98), Some(0));
        assert_eq!(buckets.percentile(99), Some(4));
        assert_eq!(buckets.percentile(100), Some(4));
    }
}
