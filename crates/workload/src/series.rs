//! [`Series`]: what completed in each interval of a run, in bounded memory: when the intervals run
//! out, each two become one.

use clock::Nanos;

use crate::job::Direction;

/// Intervals at most; there are at least half as many in a run longer than half a second.
pub const MAX_INTERVALS: usize = 1024;
const FIRST_INTERVAL: Nanos = Nanos::from_millis(1);

/// What completed in one interval, per direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Bytes.
    pub bytes: [u64; 3],
    /// Requests.
    pub ios: [u64; 3],
}

impl Interval {
    fn add(&mut self, other: &Interval) {
        for d in 0..3 {
            self.bytes[d] += other.bytes[d];
            self.ios[d] += other.ios[d];
        }
    }
}

/// Throughput over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    width: Nanos,
    done: Vec<Interval>,
    current: Interval,
    current_ends: Nanos,
}

impl Default for Series {
    fn default() -> Series {
        Series {
            width: FIRST_INTERVAL,
            done: Vec::with_capacity(MAX_INTERVALS),
            current: Interval::default(),
            current_ends: FIRST_INTERVAL,
        }
    }
}

impl Series {
    /// Bytes of the intervals of one.
    pub(crate) const BYTES: u64 = (MAX_INTERVALS * size_of::<Interval>()) as u64;

    /// Counts a request of `bytes` completed `at` after the run's start; later than all before.
    #[inline]
    pub(crate) fn record(&mut self, at: Nanos, direction: Direction, bytes: u64) {
        if at >= self.current_ends {
            self.advance(at);
        }
        self.current.bytes[direction as usize] += bytes;
        self.current.ios[direction as usize] += 1;
    }

    #[cold]
    fn advance(&mut self, at: Nanos) {
        while at >= self.current_ends {
            if self.done.len() + 1 < MAX_INTERVALS {
                self.done.push(std::mem::take(&mut self.current));
                self.current_ends += self.width;
            } else {
                self.done.push(std::mem::take(&mut self.current));
                self.coarsen();
                self.current_ends = self.width * (self.done.len() as u64 + 1);
            }
        }
    }

    /// Makes each two whole intervals one.
    fn coarsen(&mut self) {
        let halves = self.done.len().div_ceil(2);
        for i in 0..halves {
            let mut sum = self.done[2 * i];
            if let Some(second) = self.done.get(2 * i + 1) {
                sum.add(second);
            }
            self.done[i] = sum;
        }
        self.done.truncate(halves);
        self.width = self.width * 2;
    }

    /// How long each interval is.
    pub fn width(&self) -> Nanos {
        self.width
    }

    /// The intervals from the run's start; the last may not have ended.
    pub fn intervals(&self) -> impl Iterator<Item = Interval> + '_ {
        let rest = (self.current != Interval::default()).then_some(self.current);
        self.done.iter().copied().chain(rest)
    }

    /// Adds what `other` counted, in the coarser intervals of the two.
    pub fn merge(&mut self, other: &Series) {
        let mut mine: Series = self.closed();
        let mut theirs = other.closed();
        while mine.width < theirs.width {
            mine.coarsen();
        }
        while theirs.width < mine.width {
            theirs.coarsen();
        }
        if mine.done.len() < theirs.done.len() {
            mine.done.resize(theirs.done.len(), Interval::default());
        }
        for (a, b) in mine.done.iter_mut().zip(&theirs.done) {
            a.add(b);
        }
        mine.current_ends = mine.width * (mine.done.len() as u64 + 1);
        *self = mine;
    }

    /// With the interval that has begun as a whole one.
    fn closed(&self) -> Series {
        Series {
            width: self.width,
            done: self.intervals().collect(),
            current: Interval::default(),
            current_ends: Nanos::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(series: &Series) -> (u64, u64) {
        series.intervals().fold((0, 0), |(b, n), i| (b + i.bytes[0], n + i.ios[0]))
    }

    #[test]
    fn intervals_double_and_lose_nothing() {
        let mut series = Series::default();
        for ms in 0..100_000u64 {
            series.record(Nanos::from_millis(ms), Direction::Read, 10);
        }
        assert!(series.intervals().count() <= MAX_INTERVALS);
        assert_eq!(totals(&series), (1_000_000, 100_000));
        assert_eq!(series.width(), Nanos::from_millis(128));
        let whole: Vec<Interval> = series.intervals().collect();
        assert!(whole[..whole.len() - 1].iter().all(|i| i.ios[0] == 128), "{whole:?}");
    }

    #[test]
    fn a_gap_is_zeros_and_a_far_jump_is_cheap() {
        let mut series = Series::default();
        series.record(Nanos(0), Direction::Read, 1);
        series.record(Nanos::from_secs(1_000_000), Direction::Read, 1);
        assert_eq!(totals(&series), (2, 2));
        assert!(series.intervals().count() <= MAX_INTERVALS);
    }

    #[test]
    fn series_of_different_widths_add_up() {
        let (mut long, mut short) = (Series::default(), Series::default());
        for s in 0..100 {
            long.record(Nanos::from_secs(s), Direction::Read, 4);
        }
        short.record(Nanos::from_millis(1), Direction::Read, 4);
        short.merge(&long);
        assert_eq!(totals(&short), (404, 101));
        assert_eq!(short.width(), long.width());
        let first = short.intervals().next().unwrap();
        assert_eq!(first.ios[0], 2);
    }
}
