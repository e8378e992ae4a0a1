//! [`Permutation`]: a permutation of `0..n` without a table.

use crate::Rng;

/// A random bijection of `0..n` onto itself. Its memory does not grow with `n`, so that a random
/// map over a 2 TB drive costs nothing.
///
/// It applies four rounds of invertible steps (multiply by an odd number, add, fold the high half
/// onto the low) on the next power of two. Results outside `0..n` are mapped again, which takes at
/// most two evaluations per look-up on average.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    mask: u64,
    shift: u32,
    rounds: [(u64, u64); 4],
}

impl Permutation {
    /// Creates a permutation of `0..n`.
    pub fn new(n: u64, rng: &mut Rng) -> Permutation {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        let mask = if bits == 0 { 0 } else { u64::MAX >> (u64::BITS - bits) };
        let rounds = std::array::from_fn(|_| (rng.next_u64() | 1, rng.next_u64()));
        Permutation { n, mask, shift: bits.div_ceil(2), rounds }
    }

    /// Returns `n`.
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Whether `n` is 0.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Returns the image of `i`.
    ///
    /// # Panics
    /// If `i` is not below `n`.
    #[inline]
    pub fn at(&self, i: u64) -> u64 {
        assert!(i < self.n, "{i} of a permutation of {}", self.n);
        let mut x = i;
        loop {
            for (multiplier, addend) in self.rounds {
                x = x.wrapping_mul(multiplier).wrapping_add(addend) & self.mask;
                x ^= x >> self.shift;
            }
            // Following the cycle of a bijection from inside 0..n returns inside.
            if x < self.n {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_bijection_for_every_size() {
        let mut rng = Rng::new(1);
        for n in (1..=300).chain([1000, 4096, 65_537, 1 << 20]) {
            let p = Permutation::new(n, &mut rng);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let at = p.at(i) as usize;
                assert!(!std::mem::replace(&mut seen[at], true), "{at} twice of {n}");
            }
        }
        assert!(Permutation::new(0, &mut rng).is_empty());
    }

    #[test]
    fn looks_random() {
        let n = 1_000_003;
        let p = Permutation::new(n, &mut Rng::new(2));
        // Any window of positions is spread evenly over eight parts of the range.
        for window in [0, 1, 7, 90] {
            let mut counts = [0u32; 8];
            for i in window * 10_000..(window + 1) * 10_000 {
                counts[(p.at(i) * 8 / n) as usize] += 1;
            }
            let chi2: f64 = counts.iter().map(|&c| (f64::from(c) - 1250.0).powi(2) / 1250.0).sum();
            assert!(chi2 < 30.0, "{counts:?}");
        }
        // Neighbors are mapped far apart: the mean distance of two uniform points is n/3.
        let mean = (0..100_000).map(|i| p.at(i).abs_diff(p.at(i + 1)) as f64).sum::<f64>() / 1e5;
        assert!((mean / n as f64 - 1.0 / 3.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn large_ranges_stay_in_range() {
        for n in [u64::MAX, (1 << 63) + 1, 3 << 40] {
            let p = Permutation::new(n, &mut Rng::new(3));
            assert!((0..1000).all(|i| p.at(i) < n));
        }
    }
}
