//! [`Pid`]: the controller of [`RateLimiterKind::Pid`](crate::RateLimiterKind::Pid) [LightNVM17
//! §4.2.4].
//!
//! It controls the free space to a set point between the limiter's watermarks. The host's share of
//! the writes is the sum of a term for the error, one for its integral, and one for its change. A
//! share proportional to the free space settles lower the more data is relocated. The integral
//! finds the share of the workload, the inverse of its write amplification, and the free space
//! stays at the set point.
//!
//! Its time is the amount written, by the host and GC, in multiples of the distance between the
//! watermarks. So results do not depend on the speed of the flash, and a pause changes nothing.
//!
//! Bounds: the integral is a share itself and stays from 0 to 1. It does not grow further in a
//! direction in which the output is at its limit (no windup). The output stays within [`SHARE_MIN`]
//! and [`SHARE_MAX`], so that the host earns credits from every victim.

use serde::{Deserialize, Serialize};

/// Minimum share of the host: one sector for 63 relocated ones. A victim is much larger, so that
/// the host never waits for more than one.
const SHARE_MIN: f64 = 1.0 / 64.0;
/// Maximum share of the host.
const SHARE_MAX: f64 = 1.0 - SHARE_MIN;
/// Window of the filter of the change, relative to the distance of the watermarks: a reclaimed line
/// frees its space at once, which is no change of trend.
const FILTER_WINDOW: f64 = 0.5;

/// A PID controller over free sectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pid {
    low: f64,
    range: f64,
    high: u64,
    kp: f64,
    ki: f64,
    kd: f64,
    /// Contributions of the terms.
    proportional: f64,
    integral: f64,
    derivative: f64,
    /// The error, smoothed.
    filtered_error: f64,
}

impl Pid {
    /// Set point of the free space between the watermarks, from 0 to 1.
    pub(crate) const SET_POINT: f64 = 0.5;

    /// Creates a controller between two watermarks with the gains of its three terms. The host and
    /// garbage collection start with equal shares [LightNVM17 §4.2.4].
    pub(crate) fn new(low: u64, high: u64, [kp, ki, kd]: [f64; 3]) -> Pid {
        Pid {
            low: low as f64,
            range: (high - low) as f64,
            high,
            kp,
            ki,
            kd,
            proportional: 0.0,
            integral: 0.5,
            derivative: 0.0,
            filtered_error: 1.0 - Pid::SET_POINT,
        }
    }

    /// Records that `sectors` were written, after which `free` are free.
    #[inline]
    pub(crate) fn step(&mut self, sectors: u32, free: u64) {
        let error = (free as f64 - self.low) / self.range - Pid::SET_POINT;
        // Above the range the host is not limited, and its share cannot be measured.
        let error = error.clamp(-Pid::SET_POINT, 1.0 - Pid::SET_POINT);
        let time = f64::from(sectors) / self.range;
        let change = (error - self.filtered_error) / (FILTER_WINDOW + time);
        self.filtered_error += change * time;
        self.proportional = self.kp * error;
        self.derivative = self.kd * change;
        if free >= self.high {
            return;
        }
        let output = self.proportional + self.integral + self.derivative;
        let winds_up = output >= SHARE_MAX && error > 0.0 || output <= SHARE_MIN && error < 0.0;
        if !winds_up {
            self.integral = (self.integral + self.ki * error * time).clamp(0.0, 1.0);
        }
    }

    /// Returns the host's share of the writes.
    #[inline]
    pub(crate) fn host_share(&self) -> f64 {
        (self.proportional + self.integral + self.derivative).clamp(SHARE_MIN, SHARE_MAX)
    }

    /// Returns the set point in free sectors.
    pub(crate) fn set_point(&self) -> u64 {
        (self.low + Pid::SET_POINT * self.range) as u64
    }

    /// Returns the contribution of each term.
    pub(crate) fn terms(&self) -> [f64; 3] {
        [self.proportional, self.integral, self.derivative]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_term_does_its_part() {
        let mut p = Pid::new(100, 200, [1.0, 0.0, 0.0]);
        p.step(0, 175);
        assert_eq!((p.host_share(), p.terms()), (0.75, [0.25, 0.5, 0.0]));
        let mut i = Pid::new(100, 200, [0.0, 0.2, 0.0]);
        i.step(100, 125);
        assert!((i.host_share() - 0.45).abs() < 1e-12, "0.5 - 0.2 * 0.25 * 1: {}", i.host_share());
        let mut d = Pid::new(100, 200, [0.0, 0.0, 0.1]);
        d.step(10, 200);
        assert_eq!(d.host_share(), 0.5, "no change yet");
        d.step(10, 150);
        assert!(d.host_share() < 0.45, "falls: {}", d.host_share());
        for _ in 0..1_000 {
            d.step(10, 150);
        }
        assert!((d.host_share() - 0.5).abs() < 1e-6, "has stopped falling: {}", d.host_share());
        assert_eq!(p.set_point(), 150);
    }

    #[test]
    fn the_integral_does_not_wind_up() {
        let mut pid = Pid::new(100, 200, [0.6, 0.1, 0.05]);
        for _ in 0..1_000_000 {
            pid.step(50, 0);
        }
        assert_eq!(pid.host_share(), SHARE_MIN);
        let [_, integral, _] = pid.terms();
        assert!((0.0..0.5).contains(&integral), "{integral}");
        // Above the set point the integral falls at once: there was no windup.
        for _ in 0..20 {
            pid.step(50, 190);
        }
        assert!(pid.host_share() > 0.4, "{}", pid.host_share());
        for _ in 0..1_000_000 {
            pid.step(50, 199);
        }
        assert!(pid.host_share() <= SHARE_MAX && pid.terms()[1] <= 1.0);
        // Without a limit the integral does not change.
        let before = pid.terms()[1];
        for _ in 0..1_000 {
            pid.step(50, 10_000);
        }
        assert_eq!(pid.terms()[1], before);
    }
}
