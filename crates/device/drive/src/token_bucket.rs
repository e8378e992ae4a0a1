//! [`TokenBucket`]: a rate limit in virtual or real time. It stores an instant instead of a level
//! (the generic cell rate algorithm, ITU-T I.371).
//!
//! Invariants: over intervals much longer than the burst, the rate is not exceeded; it is reached
//! if tokens are always in demand. The arithmetic is exact: the remainder of a division enters the
//! next.

use clock::Nanos;

const NS_PER_SEC: u64 = 1_000_000_000;

/// Grants tokens at a rate. Consuming more than are available delays later grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    /// Tokens per second; 0 for no limit.
    rate: u64,
    /// Burst, as the time in which its tokens accrue.
    burst: Nanos,
    /// Time at which the bucket is full again.
    full_at: Nanos,
    /// Remainder of the last division by the rate.
    remainder: u64,
}

impl TokenBucket {
    /// Creates a full bucket.
    pub(crate) fn new(rate: u64, burst: Nanos) -> TokenBucket {
        TokenBucket { rate, burst, full_at: Nanos::ZERO, remainder: 0 }
    }

    /// Returns the time from which a token is available.
    pub(crate) fn ready_at(&self) -> Nanos {
        self.full_at.since(self.burst)
    }

    /// Consumes tokens, even if fewer are available.
    pub(crate) fn consume(&mut self, now: Nanos, tokens: u64) {
        if self.rate == 0 {
            return;
        }
        // The cap is 2^34 tokens; no command moves as many bytes.
        let cost = tokens.min(1 << 34).saturating_mul(NS_PER_SEC).saturating_add(self.remainder);
        self.remainder = cost % self.rate;
        self.full_at = self.full_at.max(now) + Nanos(cost / self.rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the tokens granted until `end`, in requests of `each` tokens.
    fn tokens_granted(rate: u64, each: u64, end: Nanos) -> u64 {
        let mut bucket = TokenBucket::new(rate, Nanos::from_millis(1));
        let (mut now, mut all) = (Nanos::ZERO, 0);
        while now < end {
            bucket.consume(now, each);
            all += each;
            now = now.max(bucket.ready_at());
        }
        all
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
        let mut bucket = TokenBucket::new(1_000_000, Nanos::from_millis(1));
        let now = Nanos::from_secs(10);
        let mut burst = 0;
        while bucket.ready_at() <= now {
            bucket.consume(now, 1);
            burst += 1;
        }
        assert_eq!(burst, 1_001);
        // Rate 0 means no limit.
        let mut free = TokenBucket::new(0, Nanos::ZERO);
        free.consume(now, u64::MAX);
        assert_eq!(free.ready_at(), Nanos::ZERO);
    }
}
