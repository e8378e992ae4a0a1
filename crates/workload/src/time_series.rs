//! [`TimeSeries`]: throughput, outstanding requests and latencies in each interval of a run, in bounded
//! memory: when the intervals run out, each two become one.

use clock::Nanos;

use crate::job::Direction;
use crate::latency_series::LatencySeries;

/// Intervals at most; there are at least half as many in a run longer than half a second.
pub const INTERVALS_MAX: usize = 1024;
const FIRST_INTERVAL: Nanos = Nanos::from_millis(1);

/// Requests of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Bytes completed, per direction.
    pub bytes: [u64; 3],
    /// Requests completed, per direction.
    pub ios: [u64; 3],
    /// Nanoseconds that requests were outstanding at the device within the interval, summed over
    /// requests: divided by the interval's length, the mean queue depth. Requests that completed only.
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
    /// Bytes of the intervals of one.
    pub(crate) const BYTES: u64 = (INTERVALS_MAX * size_of::<Interval>()) as u64;

    /// Counts a request of `bytes` that was given to the device at `issued`, completed at `at`, both
    /// after the run's start, and took `latency`; completed no earlier than all before.
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

    /// Counts a request that is outstanding from `issued` until the present interval begins.
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

    /// Makes each two whole intervals one.
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

    /// Latencies of one direction over time.
    pub fn latencies(&self, direction: Direction) -> &LatencySeries {
        &self.latencies[direction as usize]
    }

    /// The series in intervals of `width`, if that is its own width times a power of two; else in the next
    /// longer ones.
    #[must_use]
    pub fn with_width(&self, width: Nanos) -> TimeSeries {
        let mut series = self.with_current_closed();
        while series.width < width {
            series.coarsen();
        }
        series
    }

    /// How long each interval is.
    pub fn width(&self) -> Nanos {
        self.width
    }

    /// The intervals from the run's start; the last may not have ended.
    pub fn intervals(&self) -> impl Iterator<Item = Interval> + '_ {
        let rest = (self.current != Interval::default()).then_some(self.current);
        self.closed.iter().copied().chain(rest)
    }

    /// Adds what `other` counted, in the coarser intervals of the two.
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

    /// With the interval that has begun as a whole one.
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
        // From 0.5 to 3.25 ms, beside one from 2 to 2.5 ms.
        one(&mut series, ms(2), Nanos(2_500_000));
        one(&mut series, Nanos(500_000), Nanos(3_250_000));
        let spent: Vec<u64> = series.intervals().map(|i| i.outstanding_ns).collect();
        assert_eq!(spent, [500_000, 1_000_000, 1_500_000, 250_000]);
        // Whatever the width becomes, no time is lost.
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
