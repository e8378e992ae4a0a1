//! [`TokenBucket`]: a token bucket with a rate and a burst.
//!
//! Levels are exact, in billionths of a token: a nanosecond adds as many of these as there are
//! tokens per second.

use clock::Nanos;

/// Parts per token.
const PARTS_PER_TOKEN: i128 = 1_000_000_000;

/// A rate, and the burst that may be saved up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Tokens per second.
    pub per_sec: u64,
    /// Maximum number of saved tokens. A larger request passes when the bucket is full, and is paid
    /// for afterwards.
    pub burst: u64,
}

impl RateLimit {
    /// Returns a limit of `per_sec` with a burst of a tenth of a second.
    pub fn per_sec(per_sec: u64) -> RateLimit {
        RateLimit { per_sec, burst: (per_sec / 10).max(1) }
    }
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    rate: RateLimit,
    /// Level in parts of a token; below zero after a request larger than the burst.
    level: i128,
    /// Time of the level.
    at: Nanos,
}

impl TokenBucket {
    /// Creates a full bucket.
    pub(super) fn new(rate: RateLimit) -> TokenBucket {
        TokenBucket { rate, level: i128::from(rate.burst) * PARTS_PER_TOKEN, at: Nanos::ZERO }
    }

    /// Adds the tokens accrued until `now`.
    #[inline]
    pub(super) fn fill(&mut self, now: Nanos) {
        let came = i128::from(now.since(self.at).0).saturating_mul(self.rate.per_sec.into());
        self.level =
            self.level.saturating_add(came).min(i128::from(self.rate.burst) * PARTS_PER_TOKEN);
        self.at = self.at.max(now);
    }

    /// Returns the level at which `amount` may be taken.
    #[inline]
    fn needed(&self, amount: u64) -> i128 {
        i128::from(amount.min(self.rate.burst)) * PARTS_PER_TOKEN
    }

    /// Returns whether `amount` may be taken. Call [`fill`](TokenBucket::fill) first.
    #[inline]
    pub(super) fn can_take(&self, amount: u64) -> bool {
        self.level >= self.needed(amount)
    }

    /// Takes `amount`.
    #[inline]
    pub(super) fn take(&mut self, amount: u64) {
        self.level -= i128::from(amount) * PARTS_PER_TOKEN;
    }

    /// Returns when `amount` may be taken if nothing else is taken before.
    pub(super) fn ready_at(&self, amount: u64) -> Nanos {
        let missing = (self.needed(amount) - self.level).max(0) as u128;
        let wait = missing.div_ceil(u128::from(self.rate.per_sec.max(1)));
        self.at + Nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_does_not_divide_a_second_is_exact() {
        let mut bucket = TokenBucket::new(RateLimit { per_sec: 3, burst: 1 });
        let mut now = Nanos::ZERO;
        for _ in 0..3001 {
            now = now.max(bucket.ready_at(1));
            bucket.fill(now);
            assert!(bucket.can_take(1));
            bucket.take(1);
        }
        assert!(
            now >= Nanos::from_secs(1000) && now < Nanos(1000 * 1_000_000_000 + 3000),
            "{now:?}"
        );
    }

    #[test]
    fn ready_at_is_the_first_instant() {
        let mut bucket = TokenBucket::new(RateLimit { per_sec: 7, burst: 10 });
        bucket.take(10);
        let at = bucket.ready_at(4);
        bucket.fill(at - Nanos(1));
        assert!(!bucket.can_take(4));
        bucket.fill(at);
        assert!(bucket.can_take(4));
        assert_eq!(bucket.ready_at(4), at);
    }

    #[test]
    fn more_than_the_burst_goes_and_is_paid_for() {
        let mut bucket = TokenBucket::new(RateLimit { per_sec: 100, burst: 10 });
        assert!(bucket.can_take(1000), "a full bucket lets anything through");
        bucket.take(1000);
        assert!(!bucket.can_take(1));
        assert_eq!(bucket.ready_at(1), Nanos(991 * 10_000_000));
        assert_eq!(bucket.ready_at(1000), Nanos::from_secs(10));
    }

    #[test]
    fn idling_saves_no_more_than_the_burst() {
        let mut bucket = TokenBucket::new(RateLimit { per_sec: u64::MAX, burst: u64::MAX });
        bucket.fill(Nanos::MAX);
        assert!(bucket.can_take(u64::MAX));
        bucket.take(u64::MAX);
        assert!(!bucket.can_take(1));
    }
}
