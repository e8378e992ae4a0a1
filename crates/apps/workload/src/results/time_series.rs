//! [`TimeSeries`]: throughput, outstanding requests and latencies in each interval of a run.
//!
//! Memory is bounded: when the maximum number of intervals is reached, each two adjacent intervals
//! are merged.

use time::Nanos;

use crate::job::Direction;
use crate::results::latency_series::LatencySeries;

/// Maximum number of intervals. A run of more than half a second has at least half as many.
pub const INTERVALS_MAX: usize = 1024;
const FIRST_INTERVAL: Nanos = Nanos::from_millis(1);

/// Requests of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Bytes completed, per direction.
    pub bytes: [u64; 3],
    /// Requests completed, per direction.
    pub ios: [u64; 3],
    /// Time in nanoseconds that requests were outstanding at the device within the interval, summed
    /// over requests. Divided by the length of the interval, it is the mean queue depth. Only
    /// completed requests count.
    pub outstanding_ns: u64,
}

impl Interval {
    fn add(&mut self, other: &Interval) {
        for d in 0..3 {
            self.bytes[d] += other.bytes[d];
            self.ios[d] += other.ios[d];
        }
        self.outstanding_ns += other.outstanding_ns;
    }
}

/// Throughput, queue depth and latencies over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeSeries {
    width: Nanos,
    closed: Vec<Interval>,
    current: Interval,
    current_end: Nanos,
    latencies: [LatencySeries; 3],
}

impl Default for TimeSeries {
    fn default() -> TimeSeries {
        TimeSeries {
            width: FIRST_INTERVAL,
            closed: Vec::with_capacity(INTERVALS_MAX),
            current: Interval::default(),
            current_end: FIRST_INTERVAL,
            latencies: Default::default(),
        }
    }
}

impl TimeSeries {
    /// Memory of the intervals of one series, in bytes.
    pub(crate) const BYTES: u64 = (INTERVALS_MAX * size_of::<Interval>()) as u64;

    /// Records a request that completed at `at`.
    ///
    /// `issued` is the time at which it was submitted to the device; both times count from the
    /// start of the run. `at` must not decrease between calls.
    #[inline]
    pub(crate) fn record(
        &mut self,
        at: Nanos,
        direction: Direction,
        bytes: u64,
        issued: Nanos,
        latency: Nanos,
    ) {
        if at >= self.current_end {
            self.advance(at);
        }
        self.current.bytes[direction as usize] += bytes;
        self.current.ios[direction as usize] += 1;
        let begins = self.current_end.since(self.width);
        self.current.outstanding_ns += at.since(issued.max(begins)).0;
        if issued < begins {
            self.add_outstanding(issued);
        }
        self.latencies[direction as usize].record(at, latency);
    }

    /// Adds the time from `issued` until the current interval begins to the intervals that it
    /// spans.
    #[cold]
    fn add_outstanding(&mut self, issued: Nanos) {
        let width = self.width.0;
        for i in (issued.0 / width) as usize..self.closed.len() {
            let begins = i as u64 * width;
            self.closed[i].outstanding_ns += begins + width - issued.0.max(begins);
        }
    }

    #[cold]
    fn advance(&mut self, at: Nanos) {
        while at >= self.current_end {
            if self.closed.len() + 1 < INTERVALS_MAX {
                self.closed.push(std::mem::take(&mut self.current));
                self.current_end += self.width;
            } else {
                self.closed.push(std::mem::take(&mut self.current));
                self.coarsen();
                self.current_end = self.width * (self.closed.len() as u64 + 1);
            }
        }
    }

    /// Merges each two adjacent closed intervals into one.
    fn coarsen(&mut self) {
        let halves = self.closed.len().div_ceil(2);
        for i in 0..halves {
            let mut sum = self.closed[2 * i];
            if let Some(second) = self.closed.get(2 * i + 1) {
                sum.add(second);
            }
            self.closed[i] = sum;
        }
        self.closed.truncate(halves);
        self.width = self.width * 2;
    }

    /// Returns the latencies of one direction over time.
    pub fn latencies(&self, direction: Direction) -> &LatencySeries {
        &self.latencies[direction as usize]
    }

    /// Returns the series in intervals of `width`, if that is the current width times a power of
    /// two; otherwise in the next longer ones.
    #[must_use]
    pub fn with_width(&self, width: Nanos) -> TimeSeries {
        let mut series = self.with_current_closed();
        while series.width < width {
            series.coarsen();
        }
        series
    }

    /// Returns the length of an interval.
    pub fn width(&self) -> Nanos {
        self.width
    }

    /// Returns the intervals from the start of the run; the last one may be incomplete.
    pub fn intervals(&self) -> impl Iterator<Item = Interval> + '_ {
        let rest = (self.current != Interval::default()).then_some(self.current);
        self.closed.iter().copied().chain(rest)
    }

    /// Adds the counts of `other`, in the longer intervals of the two series.
    pub fn merge(&mut self, other: &TimeSeries) {
        let mut mine: TimeSeries = self.with_current_closed();
        let mut theirs = other.with_current_closed();
        while mine.width < theirs.width {
            mine.coarsen();
        }
        while theirs.width < mine.width {
            theirs.coarsen();
        }
        if mine.closed.len() < theirs.closed.len() {
            mine.closed.resize(theirs.closed.len(), Interval::default());
        }
        for (a, b) in mine.closed.iter_mut().zip(&theirs.closed) {
            a.add(b);
        }
        mine.current_end = mine.width * (mine.closed.len() as u64 + 1);
        for (mine, theirs) in mine.latencies.iter_mut().zip(&other.latencies) {
            mine.merge(theirs);
        }
        *self = mine;
    }

    /// Returns the series with the current interval closed.
    fn with_current_closed(&self) -> TimeSeries {
        TimeSeries {
            width: self.width,
            closed: self.intervals().collect(),
            current: Interval::default(),
            current_end: Nanos::ZERO,
            latencies: self.latencies.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(series: &mut TimeSeries, at: Nanos, bytes: u64) {
        series.record(at, Direction::Read, bytes, at, Nanos(1));
    }

    fn totals(series: &TimeSeries) -> (u64, u64) {
        series.intervals().fold((0, 0), |(b, n), i| (b + i.bytes[0], n + i.ios[0]))
    }

    #[test]
    fn intervals_double_and_lose_nothing() {
        let mut series = TimeSeries::default();
        for ms in 0..100_000u64 {
            record(&mut series, Nanos::from_millis(ms), 10);
        }
        assert!(series.intervals().count() <= INTERVALS_MAX);
        assert_eq!(totals(&series), (1_000_000, 100_000));
        assert_eq!(series.width(), Nanos::from_millis(128));
        let whole: Vec<Interval> = series.intervals().collect();
        assert!(whole[..whole.len() - 1].iter().all(|i| i.ios[0] == 128), "{whole:?}");
    }

    #[test]
    fn a_gap_is_zeros_and_a_far_jump_is_cheap() {
        let mut series = TimeSeries::default();
        record(&mut series, Nanos(0), 1);
        record(&mut series, Nanos::from_secs(1_000_000), 1);
        assert_eq!(totals(&series), (2, 2));
        assert!(series.intervals().count() <= INTERVALS_MAX);
    }

    #[test]
    fn series_of_different_widths_add_up() {
        let (mut long, mut short) = (TimeSeries::default(), TimeSeries::default());
        for s in 0..100 {
            record(&mut long, Nanos::from_secs(s), 4);
        }
        record(&mut short, Nanos::from_millis(1), 4);
        short.merge(&long);
        assert_eq!(totals(&short), (404, 101));
        assert_eq!(short.width(), long.width());
        let first = short.intervals().next().unwrap();
        assert_eq!(first.ios[0], 2);
    }

    #[test]
    fn outstanding_time_is_in_the_intervals_that_it_was_in() {
        let mut series = TimeSeries::default();
        let ms = Nanos::from_millis;
        let one = |series: &mut TimeSeries, from: Nanos, to: Nanos| {
            series.record(to, Direction::Write, 1, from, to.since(from));
        };
        // One request from 0.5 to 3.25 ms, and another from 2 to 2.5 ms.
        one(&mut series, ms(2), Nanos(2_500_000));
        one(&mut series, Nanos(500_000), Nanos(3_250_000));
        let spent: Vec<u64> = series.intervals().map(|i| i.outstanding_ns).collect();
        assert_eq!(spent, [500_000, 1_000_000, 1_500_000, 250_000]);
        // No outstanding time is lost, whatever the width becomes.
        one(&mut series, Nanos(3_500_000), Nanos::from_secs(5));
        let sum: u64 = series.intervals().map(|i| i.outstanding_ns).sum();
        assert_eq!(sum, 500_000 + 2_750_000 + 4_996_500_000);
        let coarse = series.with_width(series.width() * 64);
        assert_eq!(coarse.width(), series.width() * 64);
        assert_eq!(coarse.intervals().map(|i| i.outstanding_ns).sum::<u64>(), sum);
        let most = coarse.intervals().map(|i| i.outstanding_ns).max().unwrap_or(0);
        assert!(most <= coarse.width().0, "one request at a time");
    }
}
