//! [`DepthSearch`]: fio's `latency_target`, the search for the greatest depth whose latency meets a
//! target.
//!
//! The depth starts at 1 and doubles while windows meet the target. After the first miss, the
//! search bisects between the greatest depth that met the target and the smallest that did not. The
//! job drains before each new depth. When the depth has converged, the measurements are discarded,
//! and one more window at that depth is the result; the job ends with it. With `latency_run`, the
//! search continues until the job ends. If depth 1 misses the target, the job stays at depth 1
//! until its own end.

use time::Nanos;

use crate::job::LatencyTarget;
use crate::results::result::DepthSearchResult;

/// Number of consecutive windows at a depth that cannot grow, after which the search tries a depth
/// greater by one, as in fio.
const STABLE_WINDOWS: u32 = 3;

/// Effect of a completed request on the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchStep {
    /// No effect.
    Continue,
    /// The depth has converged: the measurements must be discarded.
    Converged,
    /// The final window has ended, and with it the job.
    Done,
}

#[derive(Debug)]
pub(super) struct DepthSearch {
    target: LatencyTarget,
    depth_max: u32,
    depth: u32,
    /// Greatest depth that met the target.
    low: u32,
    /// Smallest depth that missed the target, or the maximum depth.
    high: u32,
    window_start: Nanos,
    ios: u64,
    over_target: u64,
    /// Number of consecutive windows that met the target with no greater depth to try.
    stable: u32,
    /// Whether the job waits until no request is outstanding before it issues more.
    draining: bool,
    /// Whether the current window is the one of the result.
    is_final_window: bool,
    met: bool,
    converged: bool,
    /// Whether any depth has missed the target; until then the depth doubles.
    failed: bool,
}

impl DepthSearch {
    pub(super) fn new(target: LatencyTarget, depth_max: u32) -> DepthSearch {
        DepthSearch {
            target,
            depth_max,
            depth: 1,
            low: 1,
            high: depth_max,
            window_start: Nanos::ZERO,
            ios: 0,
            over_target: 0,
            stable: 0,
            draining: false,
            is_final_window: false,
            met: false,
            converged: false,
            failed: false,
        }
    }

    /// Starts the search when the job starts to measure.
    pub(super) fn start(&mut self, at: Nanos) {
        self.start_window(at);
    }

    /// Returns whether another request can be issued at `at` while `outstanding` requests are
    /// outstanding.
    #[inline]
    pub(super) fn can_issue(&mut self, at: Nanos, outstanding: u32) -> bool {
        if self.draining {
            if outstanding > 0 {
                return false;
            }
            self.draining = false;
            self.start_window(at);
        }
        outstanding < self.depth
    }

    /// Processes a request with this latency that completed at `at`.
    #[inline]
    pub(super) fn complete(&mut self, at: Nanos, latency: Nanos) -> SearchStep {
        if self.draining || at < self.window_start {
            return SearchStep::Continue;
        }
        self.ios += 1;
        self.over_target += u64::from(latency > self.target.target);
        let at_once =
            self.over_target > 0 && self.target.percentile >= 100.0 && !self.is_final_window;
        if !at_once && at.since(self.window_start) < self.target.window {
            return SearchStep::Continue;
        }
        let on_time = (self.ios - self.over_target) as f64 * 100.0 / self.ios as f64;
        let met = on_time >= self.target.percentile;
        if self.is_final_window {
            (self.met, self.converged) = (met, true);
            return SearchStep::Done;
        }
        if met { self.succeed(at) } else { self.fail(at) }
    }

    fn succeed(&mut self, at: Nanos) -> SearchStep {
        self.met = true;
        let before = self.depth;
        self.low = before;
        self.stable = if before + 1 == self.high { self.stable + 1 } else { 0 };
        if self.stable >= STABLE_WINDOWS && self.target.run {
            self.stable = 0;
            self.high = (self.high + 1).min(self.depth_max);
        }
        self.depth = if self.failed {
            u32::midpoint(before, self.high)
        } else {
            before.saturating_mul(2).min(self.depth_max)
        };
        if self.depth != before {
            self.draining = true;
            return SearchStep::Continue;
        }
        self.start_window(at);
        if self.target.run {
            return SearchStep::Continue;
        }
        self.is_final_window = true;
        SearchStep::Converged
    }

    fn fail(&mut self, at: Nanos) -> SearchStep {
        self.stable = 0;
        if self.depth == 1 {
            self.met = false;
            self.start_window(at);
            return SearchStep::Continue;
        }
        self.failed = true;
        self.high = self.depth;
        if self.low == self.depth {
            // The depth met the target before but misses it now.
            self.low -= 1;
        }
        self.depth = u32::midpoint(self.depth, self.low).max(1);
        self.draining = true;
        SearchStep::Continue
    }

    fn start_window(&mut self, at: Nanos) {
        (self.window_start, self.ios, self.over_target) = (at, 0, 0);
    }

    /// Returns the result so far.
    pub(super) fn result(&self) -> DepthSearchResult {
        // An interrupted search returns the greatest depth that is known to meet the target.
        let depth = if self.converged || self.target.run { self.depth } else { self.low };
        DepthSearchResult { depth, met: self.met, converged: self.converged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Nanos = Nanos::from_micros;

    /// Returns the depth found on a device whose latency is `per_request` times the depth, and the
    /// depths that were tried.
    fn search(limit_us: u64, depth_max: u32, percentile: f64) -> (DepthSearchResult, Vec<u32>) {
        let target =
            LatencyTarget { target: US(limit_us), window: US(1000), percentile, run: false };
        let mut search = DepthSearch::new(target, depth_max);
        let (mut now, mut tried) = (Nanos::ZERO, vec![]);
        search.start(now);
        for _ in 0..100_000 {
            assert!(search.can_issue(now, 0));
            if tried.last() != Some(&search.depth) {
                tried.push(search.depth);
            }
            now += US(10);
            match search.complete(now, US(10 * u64::from(search.depth))) {
                SearchStep::Done => return (search.result(), tried),
                SearchStep::Continue | SearchStep::Converged => {}
            }
        }
        (search.result(), tried)
    }

    #[test]
    fn a_search_that_goes_on_follows_the_device() {
        let target =
            LatencyTarget { target: US(320), window: US(1000), percentile: 99.0, run: true };
        let mut search = DepthSearch::new(target, 64);
        let mut now = Nanos::ZERO;
        search.start(now);
        // With 10 us and 40 us per outstanding request, 32 and 8 are the greatest depths.
        for (each, expected) in [(10, 32), (40, 8)] {
            for _ in 0..20_000 {
                assert!(search.can_issue(now, 0));
                now += US(10);
                let verdict = search.complete(now, US(each * u64::from(search.depth)));
                assert_eq!(verdict, SearchStep::Continue);
            }
            // Every few windows the search tries a depth greater by one.
            assert!((expected..=expected + 1).contains(&search.depth), "{}", search.depth);
            assert!((expected - 1..=expected + 1).contains(&search.result().depth));
        }
        assert!(!search.result().converged);
    }

    #[test]
    fn finds_the_greatest_depth_that_meets_the_target() {
        for percentile in [99.0, 100.0] {
            let (found, tried) = search(370, 64, percentile);
            assert_eq!(found, DepthSearchResult { depth: 37, met: true, converged: true });
            assert_eq!(tried, [1, 2, 4, 8, 16, 32, 64, 48, 40, 36, 38, 37]);
        }
        // All depths except the maximum meet the target.
        let (found, tried) = search(630, 64, 99.0);
        assert_eq!((found.depth, &tried[6..]), (63, &[64, 48, 56, 60, 62, 63][..]));
        let (found, tried) = search(10_000, 64, 99.0);
        assert_eq!((found.depth, tried.last()), (64, Some(&64)));
        let (found, tried) = search(5, 64, 99.0);
        assert_eq!(found, DepthSearchResult { depth: 1, met: false, converged: false });
        assert_eq!(tried, [1]);
    }
}
