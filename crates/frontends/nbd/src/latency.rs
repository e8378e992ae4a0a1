//! [`LatencyCounts`]: latency histograms, written by the server's thread and read by any other.
//!
//! Buckets are log-linear, 32 per power of two. A quantile exceeds the duration it stands for by at
//! most 3.2 %, and is exact below 64 ns. Recording is a load and a store of one counter. Counts
//! only grow, so the distribution of an interval is the difference of two readings.

use time::Nanos;

use crate::stats::Count;

const SUB_BITS: u32 = 5;
const SUB: u64 = 1 << SUB_BITS;
/// Durations of 2^42 ns (73 minutes) and more share the last bucket.
const TOP_BIT: u32 = 41;
const BUCKETS: usize = ((TOP_BIT - SUB_BITS + 2) as usize) << SUB_BITS;

fn index(value: u64) -> usize {
    let shift = (u64::BITS - 1 - (value | SUB).leading_zeros()) - SUB_BITS;
    let index = (u64::from(shift) << SUB_BITS) + (value >> shift);
    (index as usize).min(BUCKETS - 1)
}

/// Returns the longest duration of a bucket.
fn upper(index: usize) -> Nanos {
    let index = index as u64;
    if index < 2 * SUB {
        return Nanos(index);
    }
    let shift = (index >> SUB_BITS) - 1;
    let from = (SUB + (index & (SUB - 1))) << shift;
    Nanos(from + (1 << shift) - 1)
}

/// A histogram with a single writer.
#[derive(Debug)]
pub(super) struct LatencyCounter(Box<[Count]>);

impl Default for LatencyCounter {
    fn default() -> LatencyCounter {
        LatencyCounter((0..BUCKETS).map(|_| Count::default()).collect())
    }
}

impl LatencyCounter {
    #[inline]
    pub(super) fn record(&self, duration: Nanos) {
        self.0[index(duration.0)].add(1);
    }

    pub(super) fn read(&self) -> LatencyCounts {
        LatencyCounts(self.0.iter().map(Count::get).collect())
    }
}

/// A snapshot of a histogram, or the difference of two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts(Box<[u64]>);

impl LatencyCounts {
    /// Returns the requests that completed since the reading `before`.
    #[must_use]
    pub fn since(&self, before: &LatencyCounts) -> LatencyCounts {
        // A default value has no buckets.
        let old = before.0.iter().copied().chain(std::iter::repeat(0));
        LatencyCounts(self.0.iter().zip(old).map(|(now, old)| now.wrapping_sub(old)).collect())
    }

    /// Returns the requests of both distributions.
    pub(super) fn plus(&self, other: &LatencyCounts) -> LatencyCounts {
        // A default value has no buckets.
        let others = other.0.iter().copied().chain(std::iter::repeat(0));
        LatencyCounts(self.0.iter().zip(others).map(|(a, b)| a.wrapping_add(b)).collect())
    }

    /// Returns the number of requests.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the `q` quantile of the latency, with `q` from 0 to 1; 1 returns the maximum.
    /// Returns `None` without requests.
    pub fn quantile(&self, q: f64) -> Option<Nanos> {
        let count = self.count();
        let rank = ((q * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        let found = self.0.iter().position(|n| {
            below += n;
            below >= rank
        });
        found.map(upper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        let mut last = None;
        for i in 0..BUCKETS {
            let end = upper(i).0;
            assert_eq!(index(end), i);
            assert_eq!(index(last.map_or(0, |l: u64| l + 1)), i, "no gap before");
            let from = last.map_or(0, |l| l + 1);
            assert!((end - from) as f64 <= 0.032 * end as f64, "{from} to {end}");
            last = Some(end);
        }
        assert_eq!(last, Some((1 << 42) - 1));
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_interval_has_what_ended_in_it() {
        let counter = LatencyCounter::default();
        assert_eq!((counter.read().count(), counter.read().quantile(0.5)), (0, None));
        for nanos in 1..=100 {
            counter.record(Nanos::from_micros(nanos));
        }
        let before = counter.read();
        let close = |found: Option<Nanos>, micros: u64| {
            let (found, exact) = (found.unwrap().0, micros * 1_000);
            assert!(found >= exact && found as f64 <= exact as f64 * 1.033, "{found} {exact}");
        };
        close(before.quantile(0.5), 50);
        close(before.quantile(0.99), 99);
        close(before.quantile(1.0), 100);
        assert_eq!(before.since(&before).quantile(0.5), None, "nothing ended since");
        counter.record(Nanos::from_millis(7));
        let last = counter.read().since(&before);
        assert_eq!(last.count(), 1);
        for q in [0.0, 0.5, 1.0] {
            close(last.quantile(q), 7_000);
        }
        assert_eq!(counter.read().since(&LatencyCounts::default()).count(), 101);
    }
}
