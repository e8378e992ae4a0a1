//! [`LatencySeries`]: the latency distribution of each interval of a run, in bounded memory.
//!
//! Each power of two has sixteen buckets: a percentile is within 3.2 % of the recorded latency. A
//! closed interval keeps its non-empty buckets. Recording a request takes a few instructions,
//! closing an interval a few for each non-empty bucket, and memory is allocated once per interval.
//! When the maximum number of intervals is reached, each two
//! adjacent intervals are merged.

use time::Nanos;

const SUB_BITS: u32 = 4;
const SUB: u64 = 1 << SUB_BITS;
/// Latencies of more than 19 hours share the last bucket.
const TOP_BIT: u32 = 46;
const BUCKETS: usize = ((TOP_BIT - SUB_BITS + 1) as usize) << SUB_BITS;

/// Words of a set of buckets.
const WORDS: usize = BUCKETS.div_ceil(64);

/// Maximum number of intervals. A run of more than an eighth of a second has at least half as many.
pub const LATENCY_INTERVALS_MAX: usize = 256;
const FIRST_INTERVAL: Nanos = Nanos::from_millis(1);

/// Latencies of the requests that completed in one interval; zeros if none did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntervalLatency {
    /// Number of requests.
    pub count: u64,
    /// Median latency.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// Maximum; exact.
    pub max: Nanos,
}

/// A closed interval: its non-empty buckets in ascending order, and its maximum latency.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ClosedInterval {
    buckets: Box<[(u16, u32)]>,
    max: u64,
}

/// Latencies over time in one direction of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySeries {
    width: Nanos,
    closed: Vec<ClosedInterval>,
    /// Bucket counts of the current interval; empty before the first request.
    counts: Box<[u32]>,
    /// The buckets of the current interval that are not empty, a bit each.
    used: [u64; WORDS],
    max: u64,
    interval_end: Nanos,
}

impl Default for LatencySeries {
    fn default() -> LatencySeries {
        LatencySeries {
            width: FIRST_INTERVAL,
            closed: Vec::new(),
            counts: Box::default(),
            used: [0; WORDS],
            max: 0,
            interval_end: FIRST_INTERVAL,
        }
    }
}

#[inline]
fn index(value: u64) -> usize {
    let shift = (u64::BITS - 1 - (value | SUB).leading_zeros()) - SUB_BITS;
    let index = (u64::from(shift) << SUB_BITS) + (value >> shift);
    (index as usize).min(BUCKETS - 1)
}

/// Returns the midpoint of a bucket.
fn midpoint(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * SUB {
        return index;
    }
    let shift = (index >> SUB_BITS) - 1;
    let from = (SUB + (index & (SUB - 1))) << shift;
    from + ((1 << shift) - 1) / 2
}

impl ClosedInterval {
    fn summary(&self) -> IntervalLatency {
        let count: u64 = self.buckets.iter().map(|(_, n)| u64::from(*n)).sum();
        let percentile = |share: f64| {
            let wanted = ((count as f64 * share).ceil() as u64).clamp(1, count.max(1));
            let mut seen = 0;
            let found = self.buckets.iter().find(|(_, n)| {
                seen += u64::from(*n);
                seen >= wanted
            });
            Nanos(found.map_or(0, |(i, _)| midpoint(usize::from(*i))).min(self.max))
        };
        let (p50, p99) = (percentile(0.5), percentile(0.99));
        IntervalLatency { count, p50, p99, max: Nanos(self.max) }
    }

    /// Adds the counts of `other`.
    fn add(&mut self, other: &ClosedInterval) {
        self.max = self.max.max(other.max);
        let (mine, theirs) = (&self.buckets, &other.buckets);
        let mut sum = Vec::with_capacity(mine.len() + theirs.len());
        let (mut a, mut b) = (mine.iter().peekable(), theirs.iter().peekable());
        while let (Some((i, n)), Some((j, m))) = (a.peek(), b.peek()) {
            match i.cmp(j) {
                std::cmp::Ordering::Less => sum.extend(a.next()),
                std::cmp::Ordering::Greater => sum.extend(b.next()),
                std::cmp::Ordering::Equal => {
                    sum.push((*i, n.saturating_add(*m)));
                    a.next();
                    b.next();
                }
            }
        }
        sum.extend(a);
        sum.extend(b);
        self.buckets = sum.into();
    }
}

impl LatencySeries {
    /// Records the latency of a request that completed `at` after the start of the run. `at` must
    /// not decrease between calls.
    #[inline]
    pub(crate) fn record(&mut self, at: Nanos, latency: Nanos) {
        if at >= self.interval_end || self.counts.is_empty() {
            self.advance(at);
        }
        let bucket = index(latency.0);
        let count = &mut self.counts[bucket];
        *count = count.saturating_add(1);
        self.used[bucket / 64] |= 1 << (bucket % 64);
        self.max = self.max.max(latency.0);
    }

    #[cold]
    fn advance(&mut self, at: Nanos) {
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKETS].into();
        }
        while at >= self.interval_end {
            let present = self.present();
            for (bucket, _) in &present.buckets {
                self.counts[usize::from(*bucket)] = 0;
            }
            self.closed.push(present);
            (self.used, self.max) = ([0; WORDS], 0);
            if self.closed.len() == LATENCY_INTERVALS_MAX {
                self.coarsen();
            }
            self.interval_end = self.width * (self.closed.len() as u64 + 1);
        }
    }

    /// Merges each two adjacent intervals into one.
    fn coarsen(&mut self) {
        let mut fine = std::mem::take(&mut self.closed).into_iter();
        while let Some(mut first) = fine.next() {
            if let Some(second) = fine.next() {
                first.add(&second);
            }
            self.closed.push(first);
        }
        self.width = self.width * 2;
    }

    /// Returns the length of an interval.
    pub fn width(&self) -> Nanos {
        self.width
    }

    /// Returns the intervals from the start of the run to the last request; the last one may be
    /// incomplete.
    pub fn intervals(&self) -> impl Iterator<Item = IntervalLatency> + '_ {
        self.closed
            .iter()
            .map(ClosedInterval::summary)
            .chain(self.current().map(|last| last.summary()))
    }

    fn current(&self) -> Option<ClosedInterval> {
        let last = self.present();
        (!last.buckets.is_empty()).then_some(last)
    }

    /// Returns the current interval.
    fn present(&self) -> ClosedInterval {
        let mut buckets = Vec::new();
        for (at, word) in self.used.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                let bucket = at * 64 + rest.trailing_zeros() as usize;
                buckets.push((bucket as u16, self.counts[bucket]));
                rest &= rest - 1;
            }
        }
        ClosedInterval { buckets: buckets.into(), max: self.max }
    }

    /// Returns the series in intervals of `width`, if that is the current width times a power of
    /// two; otherwise in the next longer ones.
    #[must_use]
    pub fn with_width(&self, width: Nanos) -> LatencySeries {
        let mut series = self.with_current_closed();
        while series.width < width {
            series.coarsen();
        }
        series
    }

    /// Adds the counts of `other`, in the longer intervals of the two series.
    pub fn merge(&mut self, other: &LatencySeries) {
        let (mut mine, mut theirs) = (self.with_current_closed(), other.with_current_closed());
        while mine.width < theirs.width {
            mine.coarsen();
        }
        while theirs.width < mine.width {
            theirs.coarsen();
        }
        if mine.closed.len() < theirs.closed.len() {
            mine.closed.resize(theirs.closed.len(), ClosedInterval::default());
        }
        for (a, b) in mine.closed.iter_mut().zip(&theirs.closed) {
            a.add(b);
        }
        mine.interval_end = mine.width * (mine.closed.len() as u64 + 1);
        *self = mine;
    }

    /// Returns the series with the current interval closed.
    fn with_current_closed(&self) -> LatencySeries {
        let done = self.closed.iter().cloned().chain(self.current()).collect();
        LatencySeries { width: self.width, closed: done, ..LatencySeries::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_an_interval_are_within_their_bound() {
        let mut series = LatencySeries::default();
        let mut all: Vec<u64> = (1..=1000).map(|i| i * i * 37).collect();
        for latency in &all {
            series.record(Nanos(*latency % 1000), Nanos(*latency));
        }
        all.sort_unstable();
        let found: Vec<IntervalLatency> = series.intervals().collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].count, found[0].max), (1000, Nanos(37_000_000)));
        for (got, exact) in [(found[0].p50, all[499]), (found[0].p99, all[989])] {
            let off = (got.0 as f64 - exact as f64).abs() / exact as f64;
            assert!(off < 0.032, "{got:?} for {exact}");
        }
    }

    #[test]
    fn intervals_double_keep_their_requests_and_stay_few() {
        let mut series = LatencySeries::default();
        for ms in 0..10_000u64 {
            // Latency is high during one second in the middle.
            let slow = (4_000..5_000).contains(&ms);
            series.record(Nanos::from_millis(ms), Nanos(if slow { 1 << 20 } else { 1 << 10 }));
        }
        let found: Vec<IntervalLatency> = series.intervals().collect();
        assert!(found.len() <= LATENCY_INTERVALS_MAX && found.len() > LATENCY_INTERVALS_MAX / 2);
        assert_eq!(found.iter().map(|i| i.count).sum::<u64>(), 10_000);
        let width = series.width().0 / 1_000_000;
        for (i, interval) in (0..).zip(&found) {
            let (from, to) = (i * width, (i + 1) * width);
            let expected = match (from >= 4_000 && to <= 5_000, to <= 4_000 || from >= 5_000) {
                (true, _) => 1 << 20,
                (_, true) => 1 << 10,
                _ => continue,
            };
            assert!(interval.p50.0.abs_diff(expected) <= expected / 32, "{i}: {interval:?}");
            assert_eq!(interval.max, Nanos(expected), "{i}");
        }
        let coarse = series.with_width(series.width() * 8);
        assert!(coarse.intervals().count() <= found.len().div_ceil(8));
        assert_eq!(coarse.intervals().map(|i| i.count).sum::<u64>(), 10_000);
    }

    #[test]
    fn series_of_different_widths_add_up_and_nothing_is_nothing() {
        assert_eq!(LatencySeries::default().intervals().count(), 0);
        let (mut long, mut short) = (LatencySeries::default(), LatencySeries::default());
        for s in 0..100 {
            long.record(Nanos::from_secs(s), Nanos(500));
        }
        short.record(Nanos::from_millis(1), Nanos(900));
        short.merge(&long);
        assert_eq!(short.width(), long.width());
        assert_eq!(short.intervals().map(|i| i.count).sum::<u64>(), 101);
        let first = short.intervals().next().unwrap();
        assert_eq!((first.max, first.p50), (Nanos(900), Nanos(503)));
    }
}
