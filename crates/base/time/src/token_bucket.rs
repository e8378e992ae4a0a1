//! [`TokenBucket`]: a limit on the rate of anything that can be counted, in virtual or real time.
//!
//! The arithmetic is exact. A token has as many *parts* as its [`TokenRate::per`] has nanoseconds,
//! so that a nanosecond adds [`TokenRate::tokens`] parts. Only instants are rounded, as
//! [`Rounding`] says; results of virtual time depend on it.
//!
//! Invariants: over intervals much longer than the burst, the rate is not exceeded; it is reached
//! if tokens are always in demand. Results do not depend on how often the bucket is queried.

use crate::Nanos;

/// A number of tokens per interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRate {
    /// Tokens that accrue in the interval; 0 for no limit.
    pub tokens: u64,
    /// The interval.
    pub per: Nanos,
}

impl TokenRate {
    /// Returns a rate of `tokens` per second.
    pub const fn per_sec(tokens: u64) -> TokenRate {
        TokenRate { tokens, per: Nanos::from_secs(1) }
    }
}

/// How a bucket treats the fraction of a nanosecond at which it has the tokens for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// The tokens are there at the next full nanosecond. A full bucket owes nothing.
    Up,
    /// The tokens are there at the last full nanosecond. The fraction is kept when the bucket is
    /// full again, and delays a later request.
    Down,
}

/// Grants tokens at a rate, and at most a burst of saved ones at once.
///
/// Taking more tokens than there are is allowed; it delays later requests.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    rate: TokenRate,
    rounding: Rounding,
    /// Burst, in parts.
    burst: i128,
    /// Parts that a full bucket has in addition, at `at`.
    deficit: i128,
    /// Time of the last [`fill`](TokenBucket::fill).
    at: Nanos,
}

impl TokenBucket {
    /// Creates a full bucket that saves up to `burst` tokens.
    pub fn new(rate: TokenRate, burst: u64, rounding: Rounding) -> TokenBucket {
        let burst = i128::from(burst) * i128::from(rate.per.0);
        TokenBucket { rate, rounding, burst, deficit: 0, at: Nanos::ZERO }
    }

    /// Creates a full bucket that saves the tokens of `burst`.
    pub fn with_burst_time(rate: TokenRate, burst: Nanos, rounding: Rounding) -> TokenBucket {
        let burst = i128::from(burst.0) * i128::from(rate.tokens);
        TokenBucket { rate, rounding, burst, deficit: 0, at: Nanos::ZERO }
    }

    /// Changes the rate and the burst from `now` on. The tokens that were saved until then stay, as
    /// far as the new burst holds them, and so does a debt.
    ///
    /// # Panics
    /// If [`TokenRate::per`] is another one than before.
    pub fn set_rate(&mut self, now: Nanos, rate: TokenRate, burst: u64) {
        assert_eq!(rate.per, self.rate.per, "a token has as many parts as before");
        self.fill(now);
        let saved = self.burst - self.deficit;
        self.burst = i128::from(burst) * i128::from(rate.per.0);
        self.deficit = (self.burst - saved).max(0);
        self.rate = rate;
    }

    /// Adds the tokens accrued until `now`.
    #[inline]
    pub fn fill(&mut self, now: Nanos) {
        let tokens = i128::from(self.rate.tokens);
        let accrued = i128::from(now.since(self.at).0).saturating_mul(tokens);
        self.deficit = self.deficit.saturating_sub(accrued);
        if self.deficit < 0 {
            self.deficit = match self.rounding {
                Rounding::Down if tokens > 0 => self.deficit.rem_euclid(tokens),
                _ => 0,
            };
        }
        self.at = self.at.max(now);
    }

    /// Returns the parts that are missing for `amount` tokens; not above zero if none are. A
    /// request larger than the burst needs a full bucket.
    #[inline]
    fn missing(&self, amount: u64) -> i128 {
        let needed = i128::from(amount).saturating_mul(self.rate.per.0.into());
        self.deficit - (self.burst - needed.min(self.burst))
    }

    /// Returns whether `amount` may be taken. Call [`fill`](TokenBucket::fill) first.
    #[inline]
    pub fn can_take(&self, amount: u64) -> bool {
        self.missing(amount) <= 0
    }

    /// Takes `amount`, even if there are fewer tokens. Call [`fill`](TokenBucket::fill) first.
    #[inline]
    pub fn take(&mut self, amount: u64) {
        if self.rate.tokens > 0 {
            let parts = i128::from(amount).saturating_mul(self.rate.per.0.into());
            self.deficit = self.deficit.saturating_add(parts);
        }
    }

    /// Returns when `amount` may be taken if nothing else is taken before; not later than the last
    /// [`fill`](TokenBucket::fill) if it could be taken then.
    pub fn ready_at(&self, amount: u64) -> Nanos {
        let missing = self.missing(amount);
        if missing <= 0 {
            return self.at;
        }
        let (missing, tokens) = (missing as u128, u128::from(self.rate.tokens.max(1)));
        let wait = match self.rounding {
            Rounding::Up => missing.div_ceil(tokens),
            Rounding::Down => missing / tokens,
        };
        self.at + Nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(per_sec: u64, burst: u64) -> TokenBucket {
        TokenBucket::new(TokenRate::per_sec(per_sec), burst, Rounding::Up)
    }

    fn millisecond_of(per_sec: u64) -> TokenBucket {
        let rate = TokenRate::per_sec(per_sec);
        TokenBucket::with_burst_time(rate, Nanos::from_millis(1), Rounding::Down)
    }

    /// Returns the tokens granted until `end`, in requests of `each` tokens.
    fn tokens_granted(rate: u64, each: u64, end: Nanos) -> u64 {
        let mut bucket = millisecond_of(rate);
        let (mut now, mut all) = (Nanos::ZERO, 0);
        while now < end {
            bucket.fill(now);
            bucket.take(each);
            all += each;
            now = now.max(bucket.ready_at(0));
        }
        all
    }

    #[test]
    fn a_changed_rate_holds_from_its_instant_on() {
        let mut bucket = bucket(1000, 100);
        bucket.fill(Nanos(0));
        bucket.take(60);
        // 40 tokens are saved, then 50, as far as the new burst holds them.
        let per_sec = TokenRate::per_sec;
        bucket.set_rate(Nanos::from_millis(10), per_sec(500), 50);
        assert!(bucket.can_take(50));
        bucket.take(50);
        assert_eq!(bucket.ready_at(1), Nanos::from_millis(12));
        // A debt stays, and is paid at the new rate.
        bucket.take(10);
        bucket.set_rate(Nanos::from_millis(10), per_sec(100), 10);
        assert_eq!(bucket.ready_at(1), Nanos::from_millis(10 + 110));
        // A larger burst is not a gift.
        bucket.set_rate(Nanos::from_millis(110), per_sec(1000), 1000);
        assert_eq!(bucket.ready_at(5), Nanos::from_millis(115));
    }

    #[test]
    fn the_rate_is_kept() {
        for rate in [1_000, 3_333, 300_007, 7_000_003, 123_456_789_012] {
            for each in [1, 7, 4096] {
                let (seconds, burst) = (2, rate / 1_000 + each);
                if rate / each > 10_000_000 {
                    continue;
                }
                let all = tokens_granted(rate, each, Nanos::from_secs(seconds));
                let most = rate * seconds + burst + each;
                assert!(all <= most && all + burst + each >= rate * seconds, "{rate} {each} {all}");
            }
        }
    }

    #[test]
    fn who_waits_saves_no_more_than_a_burst() {
        let mut bucket = millisecond_of(1_000_000);
        let now = Nanos::from_secs(10);
        let mut burst = 0;
        while bucket.ready_at(0) <= now {
            bucket.fill(now);
            bucket.take(1);
            burst += 1;
        }
        assert_eq!(burst, 1_001);
        let mut bucket = self::bucket(u64::MAX, u64::MAX);
        bucket.fill(Nanos::MAX);
        assert!(bucket.can_take(u64::MAX));
        bucket.take(u64::MAX);
        assert!(!bucket.can_take(1));
    }

    #[test]
    fn rate_0_means_no_limit() {
        let rate = TokenRate::per_sec(0);
        let mut free = TokenBucket::with_burst_time(rate, Nanos::ZERO, Rounding::Down);
        free.take(u64::MAX);
        assert_eq!(free.ready_at(0), Nanos::ZERO);
        free.fill(Nanos::from_secs(10));
        free.take(u64::MAX);
        assert!(free.can_take(u64::MAX) && free.ready_at(u64::MAX) == Nanos::from_secs(10));
    }

    #[test]
    fn a_rate_that_does_not_divide_a_second_is_exact() {
        let mut bucket = bucket(3, 1);
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
        let mut bucket = bucket(7, 10);
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
        let mut bucket = bucket(100, 10);
        assert!(bucket.can_take(1000), "a full bucket lets anything through");
        bucket.take(1000);
        assert!(!bucket.can_take(1));
        assert_eq!(bucket.ready_at(1), Nanos(991 * 10_000_000));
        assert_eq!(bucket.ready_at(1000), Nanos::from_secs(10));
    }

    /// The generic cell rate algorithm (ITU-T I.371) with a remainder that is always carried, which
    /// `Rounding::Down` must equal.
    struct CellRate {
        rate: u64,
        burst: Nanos,
        full_at: Nanos,
        remainder: u64,
    }

    impl CellRate {
        fn ready_at(&self) -> Nanos {
            self.full_at.since(self.burst)
        }

        fn consume(&mut self, now: Nanos, tokens: u64) {
            let cost = tokens * 1_000_000_000 + self.remainder;
            self.remainder = cost % self.rate;
            self.full_at = self.full_at.max(now) + Nanos(cost / self.rate);
        }
    }

    #[test]
    fn rounding_down_is_the_cell_rate_algorithm() {
        let mut seed = 1u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
            (seed >> 33) % n
        };
        for rate in [1, 3, 333, 1_000_003, 7_000_000_001, 123_456_789_012] {
            let burst = Nanos(below(2_000_000));
            let mut cells = CellRate { rate, burst, full_at: Nanos::ZERO, remainder: 0 };
            let mut bucket =
                TokenBucket::with_burst_time(TokenRate::per_sec(rate), burst, Rounding::Down);
            let (mut now, mut waits) = (Nanos(below(1000)), 0);
            for _ in 0..20_000 {
                let wait = cells.ready_at();
                assert_eq!(now.max(bucket.ready_at(0)), now.max(wait), "{rate}, at {now:?}");
                // At once, when there are tokens, and later.
                match below(3) {
                    0 => now = now.max(wait),
                    1 => now += Nanos(below(1 + 3_000_000_000 / rate)),
                    _ => {}
                }
                waits += u32::from(wait > now);
                let tokens = below(10) * (1 + rate / 10_000_000);
                cells.consume(now, tokens);
                bucket.fill(now);
                bucket.take(tokens);
            }
            assert!(waits > 1_000, "{rate}: {waits}");
        }
    }
}
