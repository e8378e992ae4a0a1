//! [`Bucket`]: a token bucket in virtual or real time, as an instant instead of a level (the generic
//! cell rate algorithm, ITU-T I.371).
//!
//! Guarantees: over any time that is much longer than the burst, no more than the rate; not less, if
//! there is always somebody who takes. Exact: what is left of a division goes into the next one.

use clock::Nanos;

const NS_PER_SEC: u64 = 1_000_000_000;

/// Tokens come at a rate; who takes more than there are pays with the time that follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    /// Tokens per second; 0 for no limit.
    rate: u64,
    /// As many tokens as come in this time wait to be taken at most.
    burst: Nanos,
    /// When it is full again.
    full_at: Nanos,
    /// Of a division by the rate.
    remainder: u64,
}

impl TokenBucket {
    /// A full bucket.
    pub(crate) fn new(rate: u64, burst: Nanos) -> TokenBucket {
        TokenBucket { rate, burst, full_at: Nanos::ZERO, remainder: 0 }
    }

    /// From when on there is a token.
    pub(crate) fn ready_at(&self) -> Nanos {
        self.full_at.since(self.burst)
    }

    /// Takes tokens, more than there are if need be.
    pub(crate) fn consume(&mut self, now: Nanos, tokens: u64) {
        if self.rate == 0 {
            return;
        }
        // 2^34 tokens fit; no command moves as many bytes.
        let cost = tokens.min(1 << 34).saturating_mul(NS_PER_SEC).saturating_add(self.remainder);
        self.remainder = cost % self.rate;
        self.full_at = self.full_at.max(now) + Nanos(cost / self.rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens that a taker of `each` gets until `end`.
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
        // A rate of zero is no limit.
        let mut free = TokenBucket::new(0, Nanos::ZERO);
        free.consume(now, u64::MAX);
        assert_eq!(free.ready_at(), Nanos::ZERO);
    }
}
