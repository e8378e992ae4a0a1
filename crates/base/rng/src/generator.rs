//! [`Rng`]: xoshiro256++ \[Xoshiro21\], seeded by SplitMix64 as its authors recommend.

use crate::math;

/// A generator of uniform random numbers. The sequence of a seed never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    s: [u64; 4],
}

/// Executes one step of SplitMix64 \[SplitMix14\]: advances `state` and returns a word.
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// Creates the generator of `seed`; every seed is valid.
    pub fn new(seed: u64) -> Rng {
        let mut state = seed;
        Rng { s: std::array::from_fn(|_| splitmix64(&mut state)) }
    }

    /// Returns an independent generator for `stream`, without changing this one. Equal streams of
    /// equal states give equal generators, so that one consumer's numbers never shift another's.
    #[must_use]
    pub fn fork(&self, stream: u64) -> Rng {
        let mut state = stream;
        let mut seed = splitmix64(&mut state);
        for word in self.s {
            state = seed ^ word;
            seed = splitmix64(&mut state);
        }
        Rng::new(seed)
    }

    /// Returns 64 uniform bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.s;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Returns a uniform number in `0..n`, without bias \[Lemire19a\]; 0 for `n` = 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        let mut product = u128::from(self.next_u64()) * u128::from(n);
        if (product as u64) < n {
            let reject_below = n.wrapping_neg() % n;
            while (product as u64) < reject_below {
                product = u128::from(self.next_u64()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    /// Returns a uniform number in `[0, 1)`, a multiple of 2^-53.
    #[inline]
    pub fn f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns true with probability `p`: never for 0 or less, always for 1 or more.
    #[inline]
    pub fn chance(&mut self, p: f64) -> bool {
        self.f64() < p
    }

    /// Returns the time to the next event of a Poisson process with a mean interval of `mean`.
    #[inline]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -math::ln(1.0 - self.f64()) * mean
    }

    /// Returns the number of events of a Poisson distribution with mean `mean`. The result is
    /// exact, and takes time proportional to `mean`. Returns 0 for a mean of zero or less.
    pub fn poisson(&mut self, mean: f64) -> u64 {
        let (mut at, mut events) = (self.exponential(1.0), 0);
        while at < mean {
            events += 1;
            at += self.exponential(1.0);
        }
        events
    }

    /// Returns the number of successes in `n` trials of probability `p`. The result is exact for up
    /// to 32 expected successes (or failures, if these are fewer), and takes time proportional to
    /// them. Beyond that it is a rounded normal variate of the same mean and variance.
    pub fn binomial(&mut self, n: u64, p: f64) -> u64 {
        if p > 0.5 {
            return n - self.binomial(n, 1.0 - p);
        }
        if n == 0 || p <= 0.0 {
            return 0;
        }
        let mean = n as f64 * p;
        if mean > 32.0 {
            let drawn = mean + (mean * (1.0 - p)).sqrt() * self.normal();
            return ((drawn + 0.5).max(0.0) as u64).min(n);
        }
        // Inversion, by the recurrence of successive probabilities.
        let (odds, mut left) = (p / (1.0 - p), self.f64());
        let mut share = math::exp(n as f64 * math::ln(1.0 - p));
        let mut successes = 0;
        while left >= share && successes < n {
            left -= share;
            successes += 1;
            share *= odds * (n - successes + 1) as f64 / successes as f64;
            if share < 1e-18 {
                break;
            }
        }
        successes
    }

    /// Returns the number of different items that `draws` draws with repetition find among `items`:
    /// the expected number, rounded at random.
    pub fn distinct(&mut self, items: u64, draws: u64) -> u64 {
        if items <= 1 || draws <= 1 {
            return items.min(draws);
        }
        let missed = math::exp(draws as f64 * math::ln(1.0 - 1.0 / items as f64));
        let expected = items as f64 * (1.0 - missed);
        let found = expected as u64 + u64::from(self.chance(expected.fract()));
        found.clamp(1, items.min(draws))
    }

    /// Returns a normal variate of mean 0 and variance 1 (Marsaglia's polar method).
    fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (2.0 * self.f64() - 1.0, 2.0 * self.f64() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * math::ln(square) / square).sqrt();
            }
        }
    }

    /// Shuffles `items` uniformly (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::distr::Distribution;
    use rand::rngs::SmallRng;

    #[test]
    fn a_seed_means_the_same_next_year() {
        let mut rng = Rng::new(42);
        let first: [u64; 3] = std::array::from_fn(|_| rng.next_u64());
        assert_eq!(first, PINNED);
        let mut fork = Rng::new(42).fork(7);
        assert_eq!(fork.next_u64(), PINNED_FORK);
        // The first output of the reference implementation of SplitMix64 for seed 1234567.
        assert_eq!(splitmix64(&mut 1_234_567), 6_457_827_717_110_365_317);
    }

    #[test]
    fn matches_the_published_generator() {
        // The first outputs of xoshiro256++ 1.0 from the state 1, 2, 3, 4.
        let mut rng = Rng { s: [1, 2, 3, 4] };
        let first: [u64; 4] = std::array::from_fn(|_| rng.next_u64());
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn below_is_uniform_and_in_range() {
        let mut rng = Rng::new(3);
        assert_eq!((rng.below(0), rng.below(1)), (0, 0));
        let mut counts = [0u64; 7];
        for _ in 0..700_000 {
            counts[rng.below(7) as usize] += 1;
        }
        let chi2: f64 = counts.iter().map(|&c| (c as f64 - 1e5).powi(2) / 1e5).sum();
        assert!(chi2 < 22.5, "6 degrees of freedom, p = 0.001: {chi2}");
        // A range over half of 2^64 reveals a biased method: all thirds must be equally frequent.
        let n = 3 << 62;
        let low = (0..300_000).filter(|_| rng.below(n) < 1 << 62).count();
        assert!((low as f64 / 300_000.0 - 1.0 / 3.0).abs() < 0.005);
    }

    #[test]
    fn forks_are_independent_of_order_and_of_each_other() {
        let rng = Rng::new(9);
        assert_eq!(rng.fork(1), rng.fork(1));
        assert_ne!(rng.fork(1), rng.fork(2));
        assert_ne!(rng.fork(1), Rng::new(10).fork(1));
        let (mut a, mut b) = (rng.fork(1), rng.fork(2));
        let n = 100_000;
        let same: u32 = (0..n).map(|_| (a.next_u64() ^ b.next_u64()).count_ones()).sum();
        assert!((f64::from(same) / f64::from(n) - 32.0).abs() < 0.1);
    }

    #[test]
    fn exponential_and_poisson_agree_with_rand_distr() {
        let (mut ours, mut theirs) = (Rng::new(4), SmallRng::seed_from_u64(4));
        let n = 200_000;
        let mean = |it: &mut dyn Iterator<Item = f64>| it.sum::<f64>() / f64::from(n);
        let exp = rand_distr::Exp::new(1.0 / 250.0).unwrap();
        let a = mean(&mut (0..n).map(|_| ours.exponential(250.0)));
        let b = mean(&mut (0..n).map(|_| exp.sample(&mut theirs)));
        assert!((a - b).abs() / b < 0.02, "{a} {b}");
        let poisson = rand_distr::Poisson::new(3.5).unwrap();
        let a = mean(&mut (0..n).map(|_| ours.poisson(3.5) as f64));
        let b = mean(&mut (0..n).map(|_| poisson.sample(&mut theirs)));
        assert!((a - b).abs() / b < 0.02, "{a} {b}");
        assert_eq!(ours.poisson(0.0), 0);
        assert!(!ours.chance(0.0) && ours.chance(1.0));
    }

    #[test]
    fn binomial_agrees_with_rand_distr() {
        let draws = 100_000;
        let moments = |samples: &[f64]| {
            let mean = samples.iter().sum::<f64>() / samples.len() as f64;
            let squares = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
            (mean, squares / samples.len() as f64)
        };
        for (n, p) in [(1, 0.3), (10, 0.5), (40, 0.9), (1_000_000, 5e-6), (500, 0.2), (3000, 0.7)] {
            let (mut ours, mut theirs) = (Rng::new(6), SmallRng::seed_from_u64(6));
            let binomial = rand_distr::Binomial::new(n, p).unwrap();
            let a: Vec<f64> = (0..draws).map(|_| ours.binomial(n, p) as f64).collect();
            let b: Vec<f64> = (0..draws).map(|_| binomial.sample(&mut theirs) as f64).collect();
            let ((mean_a, var_a), (mean_b, var_b)) = (moments(&a), moments(&b));
            let sigma = (var_b / f64::from(draws)).sqrt();
            assert!((mean_a - mean_b).abs() < 6.0 * sigma, "{n} {p}: {mean_a} {mean_b}");
            assert!((var_a / var_b - 1.0).abs() < 0.04, "{n} {p}: {var_a} {var_b}");
            assert!(a.iter().all(|x| *x <= n as f64), "{n} {p}");
        }
        let mut rng = Rng::new(7);
        assert_eq!((rng.binomial(0, 0.5), rng.binomial(9, 0.0), rng.binomial(9, 1.0)), (0, 0, 9));
    }

    #[test]
    fn distinct_agrees_with_draws() {
        let (mut rng, mut draw) = (Rng::new(8), Rng::new(9));
        for (items, draws) in [(1, 5), (7, 1), (10, 10), (50, 400), (1000, 30)] {
            let rounds = 4000;
            let drawn: u64 = (0..rounds).map(|_| rng.distinct(items, draws)).sum();
            let mut found = 0;
            for _ in 0..rounds {
                let mut seen: Vec<u64> = (0..draws).map(|_| draw.below(items)).collect();
                seen.sort_unstable();
                seen.dedup();
                found += seen.len() as u64;
            }
            let ratio = drawn as f64 / found as f64;
            assert!((ratio - 1.0).abs() < 0.01, "{items} {draws}: {ratio}");
        }
        assert_eq!((rng.distinct(0, 3), rng.distinct(3, 0)), (0, 0));
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Rng::new(5).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    const PINNED: [u64; 3] =
        [15_021_278_609_987_233_951, 5_881_210_131_331_364_753, 18_149_643_915_985_481_100];
    const PINNED_FORK: u64 = 1_890_453_854_299_140_058;
}
