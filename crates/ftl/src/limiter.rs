//! [`RateLimiter`]: how users and garbage collection share the flash.

/// Shares the write bandwidth between users and garbage collection by the free space
/// (LightNVM paper section 4.2.4).
///
/// Above `high` free sectors users write freely. Between `high` and `low` they get a share
/// `s = (free - low) / (high - low)` of what is written: every moved sector earns them
/// `s / (1 - s)` sectors. At `low` they wait. In steady state the free space settles where `s` is
/// one over the write amplification, so both sides flow evenly instead of stopping and going.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimiter {
    low: u64,
    high: u64,
    quota: f64,
    most: f64,
}

impl RateLimiter {
    /// A limiter between two levels of free sectors, with at most `burst` sectors earned ahead.
    pub fn new(low: u64, high: u64, burst: u32) -> RateLimiter {
        RateLimiter { low, high: high.max(low + 1), quota: 0.0, most: f64::from(burst) }
    }

    /// The users' share of what is written at this much free space, from 0 to 1.
    pub fn share(&self, free: u64) -> f64 {
        (free.saturating_sub(self.low) as f64 / (self.high - self.low) as f64).min(1.0)
    }

    /// Whether garbage collection should run.
    #[inline]
    pub fn collects(&self, free: u64) -> bool {
        free < self.high
    }

    /// Garbage collection moved `sectors`.
    #[inline]
    pub(crate) fn moved(&mut self, sectors: u32, free: u64) {
        let s = self.share(free);
        if s < 1.0 {
            self.quota = (self.quota + f64::from(sectors) * s / (1.0 - s)).min(self.most);
        }
    }

    /// How many of `wanted` sectors users may write now.
    #[inline]
    pub(crate) fn admits(&self, wanted: u32, free: u64, idle: bool) -> u32 {
        if free >= self.high {
            wanted
        } else if free <= self.low {
            0
        } else if idle {
            // Nothing is being moved that could earn quota; what is left may be used.
            wanted
        } else {
            wanted.min(self.quota as u32)
        }
    }

    /// Users wrote `sectors`.
    #[inline]
    pub(crate) fn spend(&mut self, sectors: u32, free: u64) {
        if free < self.high {
            self.quota = (self.quota - f64::from(sectors)).max(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_falls_from_all_to_nothing() {
        let l = RateLimiter::new(100, 200, 64);
        assert_eq!(l.share(1_000), 1.0);
        assert_eq!(l.share(150), 0.5);
        assert_eq!(l.share(100), 0.0);
        assert_eq!(l.share(0), 0.0);
        assert!(l.collects(199) && !l.collects(200));
    }

    #[test]
    fn users_get_their_share_of_what_is_moved() {
        let mut l = RateLimiter::new(100, 200, 64);
        assert_eq!(l.admits(10, 150, false), 0, "nothing earned yet");
        l.moved(30, 150);
        assert_eq!(l.admits(100, 150, false), 30, "half and half");
        l.spend(10, 150);
        assert_eq!(l.admits(100, 150, false), 20);
        assert_eq!(l.admits(100, 100, true), 0, "the reserve is not the users'");
        assert_eq!(l.admits(100, 101, true), 100, "nothing to wait for");
        l.moved(1_000, 199);
        assert_eq!(l.admits(1_000, 199, false), 64, "bounded burst");
    }
}
