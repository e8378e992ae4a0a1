//! [`DepthSearch`]: fio's `latency_target`: the greatest depth whose latency meets a target.
//!
//! The depth starts at 1 and doubles while windows meet the target; once one fails, the search halves
//! the distance between the deepest that met it and the shallowest that did not. Before each new depth
//! the job drains. When the depth does not change any more, what was measured is forgotten, and
//! one more window at that depth is the result; the job ends with it. With `latency_run` the search
//! goes on until the job ends. If depth 1 fails, the job stays there until its own end.

use clock::Nanos;

use crate::job::LatencyTarget;
use crate::result::DepthSearchResult;

/// Windows in a row at a depth that cannot grow, after which one more is tried, as in fio.
const STABLE_WINDOWS: u32 = 3;

/// The effect of a completed request on the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchStep {
    /// Nothing.
    Continue,
    /// The depth is found: forget what was measured.
    Converged,
    /// The last window has passed: the job ends.
    Done,
}

#[derive(Debug)]
pub(super) struct DepthSearch {
    target: LatencyTarget,
    depth_max: u32,
    depth: u32,
    /// The deepest that met the target.
    low: u32,
    /// The shallowest that did not, or the greatest depth.
    high: u32,
    window_start: Nanos,
    ios: u64,
    over_target: u64,
    /// Windows in a row that met the target without a deeper one to try.
    stable: u32,
    /// Nothing is issued until nothing is outstanding.
    draining: bool,
    /// The window of the result.
    is_final_window: bool,
    met: bool,
    converged: bool,
    /// Whether any depth has failed: until then the depth doubles.
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

    /// The job starts measuring.
    pub(super) fn start(&mut self, at: Nanos) {
        self.start_window(at);
    }

    /// Whether another request may be issued at `at`, with this many outstanding.
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

    /// A request with this latency has completed at `at`.
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
            // This depth met the target before, and does not any more.
            self.low -= 1;
        }
        self.depth = u32::midpoint(self.depth, self.low).max(1);
        self.draining = true;
        SearchStep::Continue
    }

    fn start_window(&mut self, at: Nanos) {
        (self.window_start, self.ios, self.over_target) = (at, 0, 0);
    }

    /// The depth found so far.
    pub(super) fn result(&self) -> DepthSearchResult {
        // A search that was cut short has the deepest that is known to be good.
        let depth = if self.converged || self.target.run { self.depth } else { self.low };
        DepthSearchResult { depth, met: self.met, converged: self.converged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Nanos = Nanos::from_micros;

    /// The depth that is found on a device whose latency is `per_request` times the depth, and the
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
        // 10 us per request outstanding, then 40: depths of 32 and 8 are the greatest.
        for (each, expected) in [(10, 32), (40, 8)] {
            for _ in 0..20_000 {
                assert!(search.can_issue(now, 0));
                now += US(10);
                let verdict = search.complete(now, US(each * u64::from(search.depth)));
                assert_eq!(verdict, SearchStep::Continue);
            }
            // Every few windows it tries one more than what is good.
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
        // All but the greatest depth.
        let (found, tried) = search(630, 64, 99.0);
        assert_eq!((found.depth, &tried[6..]), (63, &[64, 48, 56, 60, 62, 63][..]));
        let (found, tried) = search(10_000, 64, 99.0);
        assert_eq!((found.depth, tried.last()), (64, Some(&64)));
        let (found, tried) = search(5, 64, 99.0);
        assert_eq!(found, DepthSearchResult { depth: 1, met: false, converged: false });
        assert_eq!(tried, [1]);
    }
}
