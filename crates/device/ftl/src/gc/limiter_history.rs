//! [`LimiterHistory`]: a bounded history of the rate limiter [LightNVM17 §4.2.4].
//!
//! Samples are taken per amount written, not per time: an idle device adds none. When the history
//! is full, every second sample is merged into its neighbor, and the sampling interval doubles. So
//! it always covers the whole run, in constant memory.

use serde::{Deserialize, Serialize};
use time::Nanos;

/// Maximum number of samples.
const SAMPLES_MAX: usize = 512;
/// Initial number of samples per distance of the limiter's watermarks.
const SAMPLES_PER_RANGE: u64 = 64;

/// A sample of the rate limiter. Units are sectors unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimiterSample {
    /// Time of the sample.
    pub at: Nanos,
    /// Sectors written by the host and garbage collection since the history began.
    pub written: u64,
    /// Free sectors.
    pub free: u64,
    /// Minimum of the free sectors since the previous sample.
    pub free_min: u64,
    /// Maximum of the free sectors since the previous sample.
    pub free_max: u64,
    /// Set point of the controller; without one, the free sectors from which on the host is not
    /// limited.
    pub set_point: u64,
    /// Contribution of the error to the host's share; 0 without a controller, like the next two.
    pub proportional: f64,
    /// Contribution of the accumulated error.
    pub integral: f64,
    /// Contribution of the error's change.
    pub derivative: f64,
    /// The host's share of the writes, from 0 to 1.
    pub host_share: f64,
    /// Unused credits of the host.
    pub credits: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LimiterHistory {
    samples: Vec<LimiterSample>,
    /// Sectors written, and the number of them at which the next sample is due.
    written: u64,
    next: u64,
    stride: u64,
    free_min: u64,
    free_max: u64,
}

impl LimiterHistory {
    /// Creates the history of a limiter whose watermarks are `zone` sectors apart.
    pub(crate) fn new(zone: u64) -> LimiterHistory {
        LimiterHistory {
            samples: Vec::with_capacity(SAMPLES_MAX),
            written: 0,
            next: 0,
            stride: (zone / SAMPLES_PER_RANGE).max(1),
            free_min: u64::MAX,
            free_max: 0,
        }
    }

    /// Counts written sectors.
    #[inline]
    pub(crate) fn record_written(&mut self, sectors: u32) {
        self.written += u64::from(sectors);
    }

    /// Updates the extremes with the free sectors. Returns whether a sample is due.
    #[inline]
    pub(crate) fn is_due(&mut self, free: u64) -> bool {
        self.free_min = self.free_min.min(free);
        self.free_max = self.free_max.max(free);
        self.written >= self.next
    }

    /// Adds a sample; its `written` and extremes are filled in here.
    pub(crate) fn push(&mut self, sample: LimiterSample) {
        if self.samples.len() == SAMPLES_MAX {
            self.thin();
        }
        let (written, free_least, free_most) = (self.written, self.free_min, self.free_max);
        self.samples.push(LimiterSample {
            written,
            free_min: free_least,
            free_max: free_most,
            ..sample
        });
        (self.free_min, self.free_max) = (u64::MAX, 0);
        self.next = self.written + self.stride;
    }

    /// Drops every other sample, and merges its extremes into the next one.
    fn thin(&mut self) {
        for i in 0..SAMPLES_MAX / 2 {
            let (a, b) = (self.samples[2 * i], self.samples[2 * i + 1]);
            let free_least = a.free_min.min(b.free_min);
            let free_most = a.free_max.max(b.free_max);
            self.samples[i] = LimiterSample { free_min: free_least, free_max: free_most, ..b };
        }
        self.samples.truncate(SAMPLES_MAX / 2);
        self.stride *= 2;
    }

    pub(crate) fn samples(&self) -> &[LimiterSample] {
        &self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reaches_back_to_its_beginning_and_loses_no_extreme() {
        let blank = LimiterSample {
            at: Nanos(0),
            written: 0,
            free: 0,
            free_min: 0,
            free_max: 0,
            set_point: 0,
            proportional: 0.0,
            integral: 0.0,
            derivative: 0.0,
            host_share: 0.0,
            credits: 0.0,
        };
        let mut curve = LimiterHistory::new(640);
        for i in 0..1_000_000u64 {
            curve.record_written(1);
            let free = if i == 3_333 { 7 } else { 100 };
            if curve.is_due(free) {
                curve.push(LimiterSample { at: Nanos(i), free, ..blank });
            }
        }
        let samples = curve.samples();
        assert!((SAMPLES_MAX / 2..=SAMPLES_MAX).contains(&samples.len()), "{}", samples.len());
        assert_eq!(curve.samples.capacity(), SAMPLES_MAX);
        let first = samples[0];
        assert!(first.written <= 2 * curve.stride, "{first:?}");
        let low: Vec<_> = samples.iter().filter(|s| s.free_min == 7).collect();
        assert_eq!(low.len(), 1, "{low:?}");
        assert!(low[0].written >= 3_333 && low[0].written - 3_333 <= 2 * curve.stride);
        assert!(samples.iter().all(|s| s.free_max == 100));
    }
}
