//! [`FtlTimeSeries`]: samples of a drive's FTL at equal intervals of virtual time, in bounded
//! memory.
//!
//! A sample is taken when all events before its instant have happened, and none at it. It does not
//! depend on the steps of the run loop. When the maximum number of samples is reached, every second
//! one is dropped.

use ftl::FtlStats;
use time::Nanos;

use crate::sim_run::SimRun;

/// Maximum number of samples. A run of more than half a second has at least half as many.
const SAMPLES_MAX: usize = 512;
const FIRST_INTERVAL: Nanos = Nanos::from_millis(1);
/// Maximum number of intervals in results.
const INTERVALS_SHOWN_MAX: u64 = 128;

/// Intervals of results over time; they are the same for every job and drive of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Length of each interval except the last.
    pub width: Nanos,
    /// Number of intervals.
    pub count: usize,
    /// Length of the last interval: `width`, or less if the run ended within it.
    pub last: Nanos,
}

impl Timeline {
    /// Returns the intervals of a run of length `elapsed`: at most 128, each a millisecond times a
    /// power of two.
    pub fn new(elapsed: Nanos) -> Timeline {
        let mut width = FIRST_INTERVAL;
        while elapsed.0.div_ceil(width.0) > INTERVALS_SHOWN_MAX {
            width = width * 2;
        }
        let count = elapsed.0.div_ceil(width.0).max(1);
        let last = elapsed.since(width * (count - 1));
        Timeline {
            width,
            count: count as usize,
            last: if last == Nanos::ZERO { width } else { last },
        }
    }

    /// Returns the length of the interval at `index`.
    pub fn length(&self, index: usize) -> Nanos {
        if index + 1 == self.count { self.last } else { self.width }
    }

    /// Returns whether the run ended within the last interval.
    pub fn is_last_partial(&self) -> bool {
        self.last < self.width
    }
}

/// State of the FTL at one instant; counts start with the run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FtlSample {
    /// Sectors that hosts wrote.
    pub host_sectors: u64,
    /// Sectors that GC relocated.
    pub relocated_sectors: u64,
    /// Sectors of padding and metadata.
    pub other_sectors: u64,
    /// Lines reclaimed.
    pub lines_reclaimed: u64,
    /// Free lines.
    pub free_lines: f64,
}

impl FtlSample {
    fn from_stats((stats, free_lines): (FtlStats, f64), before: &FtlStats) -> FtlSample {
        let stats = stats.since(before);
        FtlSample {
            host_sectors: stats.host_writes,
            relocated_sectors: stats.gc_relocations,
            other_sectors: stats.padding + stats.metadata,
            lines_reclaimed: stats.lines_reclaimed,
            free_lines,
        }
    }
}

/// Activity of the FTL in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FtlInterval {
    /// Sectors that hosts wrote.
    pub host_sectors: u64,
    /// Sectors that GC relocated.
    pub relocated_sectors: u64,
    /// Lines reclaimed.
    pub lines_reclaimed: u64,
    /// Free lines at the end of the interval.
    pub free_lines: f64,
    /// Sectors programmed per host sector written; `None` if hosts wrote nothing in the interval.
    pub write_amplification: Option<f64>,
}

/// FTL of one drive over time.
#[derive(Clone, Debug, PartialEq)]
pub struct FtlTimeSeries {
    width: Nanos,
    /// Samples at the end of each interval; the last at the end of the run.
    samples: Vec<FtlSample>,
}

impl FtlTimeSeries {
    /// Returns the intervals of `timeline`, the timeline of the run.
    pub fn intervals(&self, timeline: &Timeline) -> Vec<FtlInterval> {
        let each = (timeline.width.0 / self.width.0).max(1) as usize;
        let mut before = FtlSample::default();
        let mut intervals = Vec::with_capacity(timeline.count);
        for i in 0..timeline.count {
            let at = match i + 1 == timeline.count {
                true => self.samples.len(),
                false => ((i + 1) * each).min(self.samples.len()),
            };
            let Some(now) = at.checked_sub(1).map(|at| self.samples[at]) else { break };
            let user_sectors = now.host_sectors - before.host_sectors;
            let moved_sectors = now.relocated_sectors - before.relocated_sectors;
            let all = user_sectors + moved_sectors + now.other_sectors - before.other_sectors;
            intervals.push(FtlInterval {
                host_sectors: user_sectors,
                relocated_sectors: moved_sectors,
                lines_reclaimed: now.lines_reclaimed - before.lines_reclaimed,
                free_lines: now.free_lines,
                write_amplification: (user_sectors > 0).then(|| all as f64 / user_sectors as f64),
            });
            before = now;
        }
        intervals
    }
}

/// Samples the FTLs of all paths during a run.
pub(crate) struct Sampler {
    started: Nanos,
    width: Nanos,
    /// Time of the next sample.
    next: Nanos,
    /// Counters at the start, and samples, per path; `None` without an FTL.
    paths: Vec<Option<(FtlStats, Vec<FtlSample>)>>,
}

impl Sampler {
    /// Returns a sampler of a run that starts at `now`.
    pub(crate) fn start(now: Nanos, run: &mut SimRun) -> Sampler {
        let count = run.paths.len();
        let ftl = |i| run.ftl_snapshot(i).map(|(stats, _)| (stats, Vec::new()));
        let paths = (0..count).map(ftl).collect();
        Sampler { started: now, width: FIRST_INTERVAL, next: now + FIRST_INTERVAL, paths }
    }

    /// Returns the time of the next sample; `Nanos::MAX` if no path has an FTL.
    pub(crate) fn next(&self) -> Nanos {
        if self.paths.iter().all(Option::is_none) { Nanos::MAX } else { self.next }
    }

    /// Takes all samples that are due by `now`; `view` returns counters and free lines of a path's
    /// FTL.
    pub(crate) fn sample(
        &mut self,
        now: Nanos,
        mut view: impl FnMut(usize) -> Option<(FtlStats, f64)>,
    ) {
        while self.next() <= now {
            self.push(&mut view);
            if self.sample_count() == SAMPLES_MAX {
                self.coarsen();
            }
            self.next = self.started + self.width * (self.sample_count() as u64 + 1);
        }
    }

    /// Returns the samples of all paths, the last at `now`, the end of the run.
    pub(crate) fn finish(
        mut self,
        now: Nanos,
        mut view: impl FnMut(usize) -> Option<(FtlStats, f64)>,
    ) -> Vec<Option<FtlTimeSeries>> {
        self.sample(now, &mut view);
        self.push(&mut view);
        let width = self.width;
        let paths = self.paths.into_iter();
        paths.map(|path| path.map(|(_, samples)| FtlTimeSeries { width, samples })).collect()
    }

    fn sample_count(&self) -> usize {
        self.paths.iter().flatten().map(|(_, samples)| samples.len()).next().unwrap_or(0)
    }

    fn push(&mut self, view: &mut impl FnMut(usize) -> Option<(FtlStats, f64)>) {
        for (i, drive) in self.paths.iter_mut().enumerate() {
            let Some((before, samples)) = drive else { continue };
            let sample = match view(i) {
                Some(now) => FtlSample::from_stats(now, before),
                // A drive that did not recover from a power cut has no FTL any more.
                None => {
                    let last = samples.last().copied().unwrap_or_default();
                    FtlSample { free_lines: 0.0, ..last }
                }
            };
            samples.push(sample);
        }
    }

    /// Merges each two adjacent intervals into one.
    fn coarsen(&mut self) {
        for (_, samples) in self.paths.iter_mut().flatten() {
            let mut i = 0;
            samples.retain(|_| {
                i += 1;
                i % 2 == 0
            });
        }
        self.width = self.width * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_covers_the_run_in_few_intervals() {
        for (elapsed, width, count, last) in [
            (0, 1_000_000, 1, 1_000_000),
            (1, 1_000_000, 1, 1),
            (1_000_000, 1_000_000, 1, 1_000_000),
            (128_000_000, 1_000_000, 128, 1_000_000),
            (128_000_001, 2_000_000, 65, 1),
            (10_000_000_000, 128_000_000, 79, 16_000_000),
        ] {
            let found = Timeline::new(Nanos(elapsed));
            let expected = Timeline { width: Nanos(width), count, last: Nanos(last) };
            assert_eq!(found, expected, "{elapsed}");
            let sum: u64 = (0..count).map(|i| found.length(i).0).sum();
            assert!(sum == elapsed || elapsed == 0);
        }
    }

    #[test]
    fn an_ftl_that_is_lost_has_samples_until_the_end() {
        let mut sampler = Sampler {
            started: Nanos(0),
            width: FIRST_INTERVAL,
            next: FIRST_INTERVAL,
            paths: vec![Some((FtlStats::default(), Vec::new()))],
        };
        let stats = FtlStats { host_writes: 7, ..FtlStats::default() };
        sampler.sample(FIRST_INTERVAL, |_| Some((stats, 3.0)));
        sampler.sample(FIRST_INTERVAL * 3, |_| None);
        let end = FIRST_INTERVAL * 4;
        let found = sampler.finish(end, |_| None);
        let intervals = found[0].as_ref().unwrap().intervals(&Timeline::new(end));
        let facts: Vec<_> = intervals.iter().map(|i| (i.host_sectors, i.free_lines)).collect();
        assert_eq!(facts, [(7, 3.0), (0, 0.0), (0, 0.0), (0, 0.0)]);
    }

    #[test]
    fn thinned_out_samples_are_those_of_longer_intervals() {
        let stats = |ms: u64| FtlStats {
            host_writes: 10 * ms,
            gc_relocations: 5 * ms,
            ..FtlStats::default()
        };
        let before = Some((FtlStats::default(), Vec::new()));
        let mut sampler = Sampler {
            started: Nanos(7),
            width: FIRST_INTERVAL,
            next: Nanos(7) + FIRST_INTERVAL,
            paths: vec![None, before],
        };
        let mut ms = 0;
        while ms < 3_000 {
            ms += 1;
            let now = Nanos(7) + Nanos::from_millis(ms);
            sampler.sample(now, |_| Some((stats(ms), ms as f64)));
            assert!(sampler.sample_count() < SAMPLES_MAX);
        }
        let end = Nanos(7) + Nanos(3_000_500_000);
        let found = sampler.finish(end, |_| Some((stats(3_001), 0.0)));
        assert!(found[0].is_none());
        let timeline = Timeline::new(Nanos(3_000_500_000));
        let intervals = found[1].as_ref().unwrap().intervals(&timeline);
        assert_eq!((intervals.len(), timeline.width), (94, Nanos::from_millis(32)));
        for (i, interval) in intervals[..93].iter().enumerate() {
            assert_eq!(interval.host_sectors, 320, "{i}");
            assert_eq!(interval.write_amplification, Some(1.5));
            assert_eq!(interval.free_lines, (i as f64 + 1.0) * 32.0);
        }
        assert_eq!(intervals.iter().map(|i| i.host_sectors).sum::<u64>(), 30_010);
    }
}
