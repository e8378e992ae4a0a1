//! [`Zipf`]: ranks with a Zipf distribution, by rejection-inversion \[Zipf96\]. Unlike the
//! approximation \[Gray94\] that YCSB and fio use, it is exact, accepts any exponent, and needs no
//! sum over all ranks before the first draw.

use std::ops::Range;

use crate::{Rng, math};

/// Draws ranks in `0..n`, with rank `r` at a probability proportional to `1 / (r + 1)^theta`.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    theta: f64,
    first: f64,
    last: f64,
    accept: f64,
}

/// Returns `ln(1 + x) / x`.
#[inline]
fn ln_1p_over(x: f64) -> f64 {
    if x.abs() > 1e-4 {
        math::ln((1.0 + x).max(f64::MIN_POSITIVE)) / x
    } else {
        1.0 - x * (0.5 - x * (1.0 / 3.0 - x * 0.25))
    }
}

/// Returns `(e^x - 1) / x`.
#[inline]
fn exp_m1_over(x: f64) -> f64 {
    if x.abs() > 1e-4 {
        (math::exp(x) - 1.0) / x
    } else {
        1.0 + x * 0.5 * (1.0 + x / 3.0 * (1.0 + x * 0.25))
    }
}

/// Returns the integral of `x^-theta` from 1 to `x`.
#[inline]
fn integral(x: f64, theta: f64) -> f64 {
    let ln = math::ln(x);
    exp_m1_over((1.0 - theta) * ln) * ln
}

/// Returns the inverse of [`integral`].
#[inline]
fn integral_inverse(y: f64, theta: f64) -> f64 {
    let t = (y * (1.0 - theta)).max(-1.0);
    math::exp(ln_1p_over(t) * y)
}

impl Zipf {
    /// Creates a distribution for a `theta` of 0 (uniform) to 100 and `n` of at least 1; `None`
    /// otherwise.
    pub fn new(n: u64, theta: f64) -> Option<Zipf> {
        if n == 0 || !(0.0..=100.0).contains(&theta) {
            return None;
        }
        Some(Zipf {
            n,
            theta,
            first: integral(1.5, theta) - 1.0,
            last: integral(n as f64 + 0.5, theta),
            accept: 2.0
                - integral_inverse(integral(2.5, theta) - math::exp(-theta * math::ln(2.0)), theta),
        })
    }

    /// Returns the weight of a range of ranks. The probability of the range is its weight over that of
    /// all ranks. Long ranges are integrated by the midpoint rule.
    pub fn weight(&self, ranks: Range<u64>) -> f64 {
        const SUMMED: u64 = 64;
        let middle = ranks.start.max(SUMMED).min(ranks.end.max(ranks.start));
        let summed: f64 =
            (ranks.start..middle).map(|r| math::exp(-self.theta * math::ln(r as f64 + 1.0))).sum();
        if middle >= ranks.end {
            return summed;
        }
        let at = |rank: u64| integral(rank as f64 + 0.5, self.theta);
        summed + at(ranks.end) - at(middle)
    }

    /// Draws a rank; rank 0 is the most popular.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.last + rng.f64() * (self.first - self.last);
            let x = integral_inverse(u, self.theta);
            let rank = ((x + 0.5) as u64).clamp(1, self.n);
            let k = rank as f64;
            if k - x <= self.accept
                || u >= integral(k + 0.5, self.theta) - math::exp(-self.theta * math::ln(k))
            {
                return rank - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::distr::Distribution;
    use rand::rngs::SmallRng;

    /// Returns the frequencies of the first ranks, and of all others.
    fn histogram(mut draw: impl FnMut() -> u64, draws: u32) -> [f64; 33] {
        let mut counts = [0.0; 33];
        for _ in 0..draws {
            counts[draw().min(32) as usize] += 1.0;
        }
        counts
    }

    #[test]
    fn agrees_with_the_closed_form_and_with_rand_distr() {
        const DRAWS: u32 = 300_000;
        for (n, theta) in
            [(1u64, 1.0), (100, 0.5), (1000, 0.99), (1000, 1.0), (100_000, 1.2), (50, 2.5)]
        {
            let (zipf, mut rng) = (Zipf::new(n, theta).unwrap(), Rng::new(8));
            let ours = histogram(|| zipf.sample(&mut rng), DRAWS);
            let sum: f64 = (1..=n).map(|k| (k as f64).powf(-theta)).sum();
            let mut chi2 = 0.0;
            let mut beyond = f64::from(DRAWS);
            for (rank, count) in ours.iter().enumerate().take((n as usize).min(32)) {
                let expected = f64::from(DRAWS) * (rank as f64 + 1.0).powf(-theta) / sum;
                beyond -= expected;
                chi2 += (count - expected).powi(2) / expected;
            }
            if n > 32 {
                chi2 += (ours[32] - beyond).powi(2) / beyond;
            }
            assert!(chi2 < 66.0, "32 degrees of freedom, p < 0.001: {chi2} for {n}, {theta}");
            let theirs_zipf = rand_distr::Zipf::new(n as f64, theta).unwrap();
            let mut theirs_rng = SmallRng::seed_from_u64(8);
            let theirs = histogram(|| theirs_zipf.sample(&mut theirs_rng) as u64 - 1, DRAWS);
            for (rank, (a, b)) in ours.iter().zip(&theirs).enumerate() {
                let sigma = (a + b).sqrt().max(1.0);
                assert!((a - b).abs() < 5.0 * sigma, "rank {rank}: {a} {b} for {n}, {theta}");
            }
        }
    }

    #[test]
    fn theta_zero_is_uniform() {
        let (zipf, mut rng) = (Zipf::new(32, 0.0).unwrap(), Rng::new(8));
        let counts = histogram(|| zipf.sample(&mut rng), 320_000);
        assert!(counts[..32].iter().all(|c| (c - 1e4).abs() < 500.0), "{counts:?}");
    }

    #[test]
    fn huge_ranges_and_pinned_draws() {
        for theta in [0.0, 0.5, 0.9, 1.0, 1.2, 10.0] {
            let (zipf, mut rng) = (Zipf::new(1 << 40, theta).unwrap(), Rng::new(1));
            assert!((0..10_000).all(|_| zipf.sample(&mut rng) < 1 << 40), "{theta}");
        }
        for theta in [-0.1, 101.0, f64::NAN] {
            assert!(Zipf::new(10, theta).is_none());
        }
        assert!(Zipf::new(0, 1.0).is_none());
        let (zipf, mut rng) = (Zipf::new(1_000_000, 1.2).unwrap(), Rng::new(1));
        let first: [u64; 6] = std::array::from_fn(|_| zipf.sample(&mut rng));
        assert_eq!(first, PINNED);
    }

    const PINNED: [u64; 6] = [0, 1, 7219, 1, 862, 5];

    #[test]
    fn weights_are_those_of_the_ranks() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2, 2.5] {
            let zipf = Zipf::new(10_000, theta).unwrap();
            for (from, to) in [(0, 1), (1, 2), (3, 80), (64, 65), (100, 10_000), (5, 5)] {
                let sum: f64 = (from..to).map(|r| (r as f64 + 1.0).powf(-theta)).sum();
                let weight = zipf.weight(from..to);
                assert!((weight - sum).abs() <= 2e-4 * sum, "{theta} {from}..{to}: {weight} {sum}");
            }
        }
    }
}
