//! [`FastDivisor`]: division by a number that is fixed at start-up.

use serde::{Deserialize, Serialize};

/// Exact division of 32-bit numbers by a constant, as a multiplication (A. Robison, *N-bit unsigned
/// division via N-bit multiply-add*, ARITH-17, 2005): `⌊n/d⌋ = ⌊(n+1)·m / 2⁶⁴⌋` with `m =
/// ⌊(2⁶⁴−1)/d⌋`. It needs no special case for a divisor of 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastDivisor {
    divisor: u32,
    multiplier: u64,
}

impl FastDivisor {
    /// Prepares division by `divisor`; 0 counts as 1.
    pub const fn new(divisor: u32) -> FastDivisor {
        let divisor = if divisor == 0 { 1 } else { divisor };
        FastDivisor { divisor, multiplier: u64::MAX / divisor as u64 }
    }

    /// Returns the divisor.
    #[inline]
    pub const fn get(self) -> u32 {
        self.divisor
    }

    /// Returns the quotient.
    #[inline]
    pub fn divide(self, n: u32) -> u32 {
        ((u128::from(self.multiplier) * (u128::from(n) + 1)) >> 64) as u32
    }

    /// Returns the quotient and the remainder.
    #[inline]
    pub fn split(self, n: u32) -> (u32, u32) {
        let q = self.divide(n);
        (q, n - q * self.divisor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_is_exact_for_every_divisor_that_matters() {
        for by in (1..70).chain([255, 256, 257, 4095, 4096, 4097, 1 << 24, u32::MAX]) {
            let d = FastDivisor::new(by);
            let near =
                |k: u32| (0..3).map(move |i| k.wrapping_mul(by).wrapping_add(i).wrapping_sub(1));
            for n in (0..600).chain((0..200).flat_map(near)).chain([u32::MAX - 1, u32::MAX]) {
                assert_eq!(d.split(n), (n / by, n % by), "{n} / {by}");
            }
        }
    }

    #[test]
    fn division_by_multiplication_is_exact() {
        for by in [1, 2, 3, 5, 7, 48, 1067, 4096, 65_537, u32::MAX] {
            let d = FastDivisor::new(by);
            for n in [0, 1, by - 1, by, by.saturating_add(1), 1 << 31, u32::MAX - 1, u32::MAX] {
                assert_eq!(d.divide(n), n / by, "{n} / {by}");
            }
            let mut n = 12_345u32;
            for _ in 0..10_000 {
                n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                assert_eq!(d.divide(n), n / by);
            }
        }
    }

    #[test]
    fn a_divisor_of_zero_counts_as_one() {
        assert_eq!(FastDivisor::new(0), FastDivisor::new(1));
    }
}
