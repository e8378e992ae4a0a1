//! [`QuotaLimits`] and [`ChunkQuota`]: how many chunks a target may own, and how many it may
//! acquire per second. This is coarse-grained quality of service, with decisions per flash block,
//! not per I/O [Thesis15 ch. 6 §4.2].
//!
//! A token bucket enforces the rate. The time between two chunks is rounded up to a nanosecond.

use std::fmt;

use time::{Nanos, Rounding, TokenBucket, TokenRate};

/// A rate in chunks per second, with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRate {
    millichunks_per_sec: u32,
    burst_chunks: u32,
}

impl ChunkRate {
    /// Creates a rate from thousandths of a chunk per second and a burst in chunks; `None` if
    /// either is 0.
    pub fn new(millichunks_per_sec: u32, burst_chunks: u32) -> Option<ChunkRate> {
        let some = millichunks_per_sec > 0 && burst_chunks > 0;
        some.then_some(ChunkRate { millichunks_per_sec, burst_chunks })
    }

    /// Returns the rate in thousandths of a chunk per second.
    pub fn millichunks_per_sec(self) -> u32 {
        self.millichunks_per_sec
    }

    /// Returns the number of chunks that may be acquired at once.
    pub fn burst_chunks(self) -> u32 {
        self.burst_chunks
    }

    /// Returns the time between two chunks, rounded up so that the rate is never exceeded.
    fn interval(self) -> Nanos {
        Nanos(1_000_000_000_000u64.div_ceil(self.millichunks_per_sec.into()))
    }
}

impl fmt::Display for ChunkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = f64::from(self.millichunks_per_sec) / 1000.0;
        write!(f, "{rate} chunks/s, {} at once", self.burst_chunks)
    }
}

/// Limits of a sharing target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Maximum number of chunks owned; `None` if unlimited.
    pub max_chunks: Option<u32>,
    /// Maximum rate of acquired chunks; `None` if unlimited.
    pub rate: Option<ChunkRate>,
}

impl QuotaLimits {
    /// Returns whether no limit is set.
    pub fn is_unlimited(&self) -> bool {
        *self == QuotaLimits::default()
    }
}

/// A target's use of its rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkQuota {
    bucket: Option<TokenBucket>,
}

impl ChunkQuota {
    /// Creates a full bucket.
    pub fn new(limits: &QuotaLimits) -> ChunkQuota {
        let bucket = |rate: ChunkRate| {
            let interval = TokenRate { tokens: 1, per: rate.interval() };
            TokenBucket::new(interval, rate.burst_chunks.into(), Rounding::Up)
        };
        ChunkQuota { bucket: limits.rate.map(bucket) }
    }

    /// Returns the earliest time at which a chunk may be acquired, at least `now`.
    pub fn allowed_at(&self, now: Nanos) -> Nanos {
        self.bucket.map_or(now, |bucket| now.max(bucket.ready_at(1)))
    }

    /// Consumes a token at `now`; [`allowed_at`](ChunkQuota::allowed_at) must have returned `now`.
    pub fn consume(&mut self, now: Nanos) {
        if let Some(bucket) = &mut self.bucket {
            bucket.fill(now);
            bucket.take(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use rng::Rng;

    use super::*;

    /// Returns the number of chunks that a target acquires until `end` if it always acquires as
    /// early as allowed.
    fn consumed_until(rate: ChunkRate, end: Nanos, mut step: impl FnMut() -> u64) -> u64 {
        let mut ration = ChunkQuota::new(&QuotaLimits { max_chunks: None, rate: Some(rate) });
        let (mut now, mut count) = (Nanos::ZERO, 0);
        while now <= end {
            while ration.allowed_at(now) == now {
                ration.consume(now);
                count += 1;
            }
            assert!(ration.allowed_at(now) > now);
            now += Nanos(step());
        }
        count
    }

    #[test]
    fn an_eager_taker_gets_the_rate_and_the_burst_and_nothing_more() {
        for (milli, burst, seconds) in [(1000, 1, 10), (2500, 4, 8), (100, 1, 100), (64_000, 16, 2)]
        {
            let rate = ChunkRate::new(milli, burst).unwrap();
            let end = Nanos::from_secs(seconds);
            let due = u64::from(milli) * seconds / 1000 + u64::from(burst);
            let found = consumed_until(rate, end, || 1_000_000);
            // The interval is rounded up, and the last query may be a step early.
            assert!((due - 1..=due).contains(&found), "{rate}: {found} of {due}");
            let mut rng = Rng::new(u64::from(milli));
            let seldom = consumed_until(rate, end, || rng.below(900_000_000));
            assert!(seldom <= due, "{rate}: {seldom} of {due}");
        }
    }

    #[test]
    fn a_denial_names_the_instant_at_which_asking_helps() {
        let limits = QuotaLimits { max_chunks: None, rate: ChunkRate::new(3000, 2) };
        let mut ration = ChunkQuota::new(&limits);
        let mut now = Nanos(5);
        for _ in 0..2 {
            assert_eq!(ration.allowed_at(now), now);
            ration.consume(now);
        }
        for _ in 0..100 {
            let next = ration.allowed_at(now);
            assert_eq!(next, now + Nanos(333_333_334));
            assert!(ration.allowed_at(Nanos(next.0 - 1)) == next);
            (now, _) = (next, ration.consume(next));
        }
        // After a long pause the bucket holds the burst, and no more.
        now += Nanos::from_secs(100);
        for _ in 0..2 {
            assert_eq!(ration.allowed_at(now), now);
            ration.consume(now);
        }
        assert!(ration.allowed_at(now) > now);
    }

    #[test]
    fn no_limit_is_no_limit_and_rates_of_nothing_are_none() {
        let mut ration = ChunkQuota::new(&QuotaLimits::default());
        ration.consume(Nanos(7));
        assert_eq!(ration.allowed_at(Nanos(7)), Nanos(7));
        assert!(ChunkRate::new(0, 1).is_none() && ChunkRate::new(1, 0).is_none());
        assert_eq!(ChunkRate::new(2500, 4).unwrap().to_string(), "2.5 chunks/s, 4 at once");
        assert!(QuotaLimits::default().is_unlimited());
        let end = ChunkRate::new(1, u32::MAX)
            .map(|rate| QuotaLimits { max_chunks: None, rate: Some(rate) });
        assert_eq!(ChunkQuota::new(&end.unwrap()).allowed_at(Nanos::MAX), Nanos::MAX);
    }
}
