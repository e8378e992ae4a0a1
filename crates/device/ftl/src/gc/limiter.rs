//! [`RateLimiter`]: shares the flash between the host and garbage collection, with a PID controller on the
//! number of free blocks [LightNVM17 §4.2.4].
//!
//! Guarantees of every kind: with `high` free sectors or more the host writes freely, but never leaves fewer
//! than `low`; with `low` or fewer it waits. In between, every relocated sector earns credits for the host,
//! so that one victim's worth of relocations never leaves it without any; unused credits are bounded. If no
//! relocation is in progress that could earn credits, the host does not wait for one. The results depend
//! only on the calls (ARCHITECTURE.md, R3).

use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::RateLimiterKind;
use crate::gc::limiter_history::{LimiterHistory, LimiterSample};
use crate::gc::pid::Pid;
use crate::ids::ToU32;

/// Shares the write bandwidth between the host and garbage collection by the free space, between
/// the watermarks `low` and `high` in sectors.
///
/// In between, the host gets a share `s` of the writes: every relocated sector earns it `s / (1 -
/// s)` sectors. In steady state `s` is the inverse of the write amplification, and both sides write
/// evenly instead of alternately. The [`RateLimiterKind`] determines `s`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateLimiter {
    low: u64,
    high: u64,
    credits: f64,
    credits_max: f64,
    /// `None` for [`RateLimiterKind::Proportional`].
    pid: Option<Pid>,
    history: LimiterHistory,
}

impl RateLimiter {
    /// Creates a limiter between two watermarks of free sectors, with at most `burst` unused
    /// credits.
    pub fn new(low: u64, high: u64, burst: u32, kind: RateLimiterKind) -> RateLimiter {
        let high = high.max(low + 1);
        let history = LimiterHistory::new(high - low);
        let credits_max = f64::from(burst);
        let mut limiter = RateLimiter { low, high, credits: 0.0, credits_max, pid: None, history };
        limiter.set_kind(kind);
        limiter
    }

    /// Changes the rule for the host's share. A controller starts anew; credits stay.
    pub(crate) fn set_kind(&mut self, kind: RateLimiterKind) {
        self.pid = match kind {
            RateLimiterKind::Proportional => None,
            RateLimiterKind::Pid { kp, ki, kd } => {
                Some(Pid::new(self.low, self.high, [kp, ki, kd]))
            }
        };
    }

    /// Returns the position of this much free space between the watermarks, from 0 to 1: the host's
    /// share for [`RateLimiterKind::Proportional`], and a measure of the shortage for every kind.
    pub fn headroom(&self, free: u64) -> f64 {
        (free.saturating_sub(self.low) as f64 / (self.high - self.low) as f64).min(1.0)
    }

    /// Returns the host's share of the writes, from 0 to 1.
    #[inline]
    pub fn host_share(&self, free: u64) -> f64 {
        match &self.pid {
            Some(pid) if free < self.high => pid.host_share(),
            Some(_) | None => self.headroom(free),
        }
    }

    /// Returns the free sectors at which the host waits, and from which on it is not limited.
    pub fn watermarks(&self) -> (u64, u64) {
        (self.low, self.high)
    }

    /// Whether garbage collection should run.
    #[inline]
    pub fn needs_gc(&self, free: u64) -> bool {
        free < self.high
    }

    /// Returns whether space is critical, so that garbage collection is not deferred: the lower half
    /// between the watermarks.
    #[inline]
    pub fn is_below_critical(&self, free: u64) -> bool {
        2 * free.saturating_sub(self.low) < self.high - self.low
    }

    /// Returns the number of sectors that can be written until space is
    /// [critical](RateLimiter::is_below_critical); `None` or 0 if it already is.
    #[inline]
    pub(crate) fn budget_until_critical(&self, free: u64) -> Option<u64> {
        let half = self.low + (self.high - self.low).div_ceil(2);
        (free + 1).checked_sub(half)
    }

    /// Returns how many write units garbage collection may have in flight where `units` are to be while
    /// space is not [critical](RateLimiter::is_below_critical). Below that they grow as the space above
    /// `low` shrinks, and have no bound at `low`.
    #[inline]
    pub(crate) fn urgent_units(&self, units: u32, free: u64) -> u64 {
        let (above, half) = (free.saturating_sub(self.low), (self.high - self.low).div_ceil(2));
        match above {
            0 => u64::MAX,
            above if above >= half => units.into(),
            above => u64::from(units).saturating_mul(half) / above,
        }
    }

    /// Records that garbage collection relocated `sectors`.
    #[inline]
    pub(crate) fn on_relocated(&mut self, sectors: u32, free: u64) {
        self.on_written(sectors, free);
        let s = self.host_share(free);
        if s < 1.0 {
            self.credits =
                (self.credits + f64::from(sectors) * s / (1.0 - s)).min(self.credits_max);
        }
    }

    /// Returns how many of `wanted` sectors the host may write now. The rest would leave fewer than
    /// `low` free.
    #[inline]
    pub(crate) fn admissible_sectors(&self, wanted: u32, free: u64, idle: bool) -> u32 {
        let above = free.saturating_sub(self.low);
        let wanted = if above < u64::from(wanted) { above.to_u32() } else { wanted };
        if free >= self.high {
            wanted
        } else if idle {
            // No relocation is in progress that could earn credits: the remaining space may be
            // used.
            wanted
        } else {
            wanted.min(self.credits as u32)
        }
    }

    /// Records that the host wrote `sectors`.
    #[inline]
    pub(crate) fn spend(&mut self, sectors: u32, free: u64) {
        self.on_written(sectors, free);
        if free < self.high {
            self.credits = (self.credits - f64::from(sectors)).max(0.0);
        }
    }

    #[inline]
    fn on_written(&mut self, sectors: u32, free: u64) {
        self.history.record_written(sectors);
        if let Some(pid) = &mut self.pid {
            pid.step(sectors, free);
        }
    }

    /// Adds a sample to the history, if one is due.
    #[inline]
    pub(crate) fn observe(&mut self, now: Nanos, free: u64) {
        if self.history.is_due(free) {
            self.record_sample(now, free);
        }
    }

    #[cold]
    fn record_sample(&mut self, now: Nanos, free: u64) {
        let terms = self.pid.as_ref().map_or([0.0; 3], Pid::terms);
        let set_point = self.pid.as_ref().map_or(self.high, Pid::set_point);
        let sample = LimiterSample {
            at: now,
            written: 0,
            free,
            free_min: free,
            free_max: free,
            set_point,
            proportional: terms[0],
            integral: terms[1],
            derivative: terms[2],
            host_share: self.host_share(free),
            credits: self.credits,
        };
        self.history.push(sample);
    }

    /// Returns the history of the limiter; see [`LimiterSample`].
    pub(crate) fn history(&self) -> &[LimiterSample] {
        self.history.samples()
    }

    /// Clears the history and begins a new one.
    pub(crate) fn reset_history(&mut self) {
        self.history = LimiterHistory::new(self.high - self.low);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [RateLimiterKind; 2] = [RateLimiterKind::Proportional, RateLimiterKind::PID];

    #[test]
    fn the_share_falls_from_all_to_nothing() {
        let l = RateLimiter::new(100, 200, 64, RateLimiterKind::Proportional);
        for (free, share) in [(1_000, 1.0), (150, 0.5), (100, 0.0), (0, 0.0)] {
            assert_eq!((l.headroom(free), l.host_share(free)), (share, share));
        }
        assert!(l.needs_gc(199) && !l.needs_gc(200));
        assert!(l.is_below_critical(149) && !l.is_below_critical(150));
        for (low, high) in [(100, 200), (100, 201), (100, 101), (7, 7)] {
            let l = RateLimiter::new(low, high, 64, RateLimiterKind::Proportional);
            for free in 0..300 {
                let spare = l.budget_until_critical(free).filter(|spare| *spare > 0);
                assert_eq!(l.is_below_critical(free), spare.is_none(), "{low} to {high}: {free}");
                assert!(spare.is_none_or(|spare| l.is_below_critical(free - spare)));
            }
        }
    }

    #[test]
    fn fewer_units_are_relocated_at_a_time_unless_space_is_short() {
        let l = RateLimiter::new(100, 200, 64, RateLimiterKind::Proportional);
        for (free, units) in [(1_000, 4), (200, 4), (150, 4), (125, 8), (110, 20), (101, 200)] {
            assert_eq!(l.urgent_units(4, free), units, "{free} free");
        }
        assert_eq!([l.urgent_units(4, 100), l.urgent_units(4, 0)], [u64::MAX; 2]);
        assert_eq!(l.urgent_units(u32::MAX, 101), u64::from(u32::MAX) * 50);
    }

    #[test]
    fn the_host_gets_its_share_of_what_is_relocated() {
        let mut l = RateLimiter::new(100, 200, 64, RateLimiterKind::Proportional);
        assert_eq!(l.admissible_sectors(10, 150, false), 0, "nothing earned yet");
        l.on_relocated(30, 150);
        assert_eq!(l.admissible_sectors(100, 150, false), 30, "half and half");
        l.spend(10, 150);
        assert_eq!(l.admissible_sectors(100, 150, false), 20);
        assert_eq!(l.admissible_sectors(100, 100, true), 0, "the reserve is not the users'");
        assert_eq!(
            l.admissible_sectors(100, 110, true),
            10,
            "nothing to wait for, but the reserve is not theirs"
        );
        assert_eq!(l.admissible_sectors(200, 250, false), 150);
        l.on_relocated(1_000, 199);
        assert_eq!(l.admissible_sectors(1_000, 199, false), 64, "bounded burst");
    }

    #[test]
    fn both_kinds_are_free_above_wait_below_and_earn_in_between() {
        for kind in BOTH {
            let mut l = RateLimiter::new(1_000, 2_000, 64, kind);
            assert_eq!(l.host_share(5_000), 1.0);
            assert_eq!(l.admissible_sectors(70, 2_000, false), 70);
            assert_eq!(l.admissible_sectors(70, 1_000, true), 0);
            // A controller that has seen nothing but shortage still lets something be earned.
            for _ in 0..1_000 {
                l.on_relocated(64, 1_001);
            }
            l.spend(64, 1_001);
            l.on_relocated(1_000, 1_001);
            assert!(l.admissible_sectors(64, 1_001, false) > 0, "{kind:?} starves users");
        }
    }

    /// A model of a device in steady state: a relocated sector frees `1 / v - 1` sectors, in lines.
    #[test]
    fn the_controller_settles_at_its_set_point_whatever_the_amplification() {
        // The amplitude grows with the valid share of the victims, and at the low watermark the
        // host waits: the mean yields.
        for (valid, near) in [(0.3, 0.12), (0.6, 0.12), (0.8, 0.12), (0.9, 0.2)] {
            let (low, high, line) = (10_000u64, 30_000u64, 10_000.0);
            let mut l = RateLimiter::new(low, high, 512, RateLimiterKind::PID);
            let (mut free, mut taken) = (high as f64, 0.0);
            let (mut sum, mut n) = (0.0, 0);
            for step in 0..60_000 {
                let at = free as u64;
                let moved = if l.needs_gc(at) { 16 } else { 0 };
                l.on_relocated(moved, at);
                free -= f64::from(moved);
                taken += f64::from(moved);
                if taken >= valid * line {
                    (free, taken) = (free + line, taken - valid * line);
                }
                let n_users = l.admissible_sectors(256, free as u64, moved == 0);
                l.spend(n_users, free as u64);
                free -= f64::from(n_users);
                assert!(free > low as f64 - line, "{valid}: {free} free after {step}");
                if step > 30_000 {
                    (sum, n) = (sum + free, n + 1);
                }
            }
            let mean = (sum / f64::from(n) - low as f64) / (high - low) as f64;
            assert!((mean - Pid::SET_POINT).abs() < near, "{valid} valid: settles at {mean}");
        }
    }

    #[test]
    fn the_history_shows_both_kinds_and_starts_again() {
        for kind in BOTH {
            let mut l = RateLimiter::new(100, 200, 64, kind);
            for i in 0..100_000u64 {
                l.on_relocated(3, 150 + i % 7);
                l.observe(Nanos(i), 150 + i % 7);
            }
            let curve = l.history();
            assert!((200..=512).contains(&curve.len()), "{}", curve.len());
            let last = curve.last().unwrap();
            assert!(last.written > 290_000 && last.at > Nanos(98_000), "{last:?}");
            assert!(curve.windows(2).all(|w| w[0].written < w[1].written && w[0].at < w[1].at));
            assert_eq!((last.free_min, last.free_max), (150, 156));
            assert!(curve.iter().all(|s| (0.0..=1.0).contains(&s.host_share) && s.credits <= 64.0));
            l.reset_history();
            assert!(l.history().is_empty());
        }
    }
}
