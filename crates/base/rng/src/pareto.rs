//! [`Pareto`]: ranks with the distribution of fio's `random_distribution=pareto:h`.

use crate::{Rng, math};

/// Draws ranks in `0..n` such that the first `h * n` ranks get a fraction `1 - h` of the draws,
/// recursively: `h` = 0.2 is the 80/20 rule.
#[derive(Clone, Debug)]
pub struct Pareto {
    n: u64,
    power: f64,
}

impl Pareto {
    /// Creates a distribution for `h` in (0, 1), both ends excluded, and `n` of at least 1; `None`
    /// otherwise.
    pub fn new(n: u64, h: f64) -> Option<Pareto> {
        if n == 0 || !(h > 1e-9 && h < 1.0 - 1e-9) {
            return None;
        }
        Some(Pareto { n, power: math::ln(h) / math::ln(1.0 - h) })
    }

    /// Draws a rank; for `h` below 0.5, rank 0 is the most popular.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        let at = self.n as f64 * math::pow(rng.f64(), self.power);
        (at as u64).min(self.n - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_h_of_the_ranks_gets_the_rest_of_the_draws() {
        for h in [0.1, 0.2, 0.3, 0.5, 0.9] {
            let (pareto, mut rng) = (Pareto::new(1_000_000, h).unwrap(), Rng::new(6));
            let draws = 200_000;
            let hot = (0..draws).filter(|_| pareto.sample(&mut rng) < (h * 1e6) as u64).count();
            assert!((hot as f64 / f64::from(draws) - (1.0 - h)).abs() < 0.005, "h = {h}");
        }
    }

    #[test]
    fn bad_parameters_are_refused_and_draws_are_pinned() {
        for h in [0.0, 1.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Pareto::new(10, h).is_none());
        }
        assert!(Pareto::new(0, 0.2).is_none());
        let (pareto, mut rng) = (Pareto::new(1_000_000, 0.2).unwrap(), Rng::new(1));
        let first: [u64; 4] = std::array::from_fn(|_| pareto.sample(&mut rng));
        assert_eq!(first, PINNED);
    }

    const PINNED: [u64; 4] = [221_906, 122_111, 0, 121_068];
}
