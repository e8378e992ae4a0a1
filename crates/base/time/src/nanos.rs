//! [`Nanos`]: the unit of time.

use std::fmt;
use std::ops::{Add, AddAssign, Mul, Sub};

use serde::{Deserialize, Serialize};

/// Nanoseconds: an instant since the start of its clock, or a duration.
///
/// Arithmetic saturates, so that "never" ([`Nanos::MAX`]) stays never.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[repr(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The start of the clock, or an empty duration.
    pub const ZERO: Nanos = Nanos(0);
    /// An instant that is never reached.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// Returns `n` microseconds.
    pub const fn from_micros(n: u64) -> Nanos {
        Nanos(n.saturating_mul(1_000))
    }

    /// Returns `n` milliseconds.
    pub const fn from_millis(n: u64) -> Nanos {
        Nanos(n.saturating_mul(1_000_000))
    }

    /// Returns `n` seconds.
    pub const fn from_secs(n: u64) -> Nanos {
        Nanos(n.saturating_mul(1_000_000_000))
    }

    /// Returns the value in seconds, for rates and output.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the value in microseconds, for output.
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time that `bytes` take at `bytes_per_sec`, rounded up; zero for a rate of zero,
    /// which means no limit.
    pub fn transfer(bytes: u64, bytes_per_sec: u64) -> Nanos {
        if bytes_per_sec == 0 {
            return Nanos::ZERO;
        }
        // Nearly always: a division of 128 bits is much slower.
        if let Some(scaled) = bytes.checked_mul(1_000_000_000) {
            return Nanos(scaled.div_ceil(bytes_per_sec));
        }
        let ns = (bytes as u128 * 1_000_000_000).div_ceil(bytes_per_sec as u128);
        Nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    #[inline]
    fn add(self, rhs: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(rhs.0))
    }
}

impl AddAssign for Nanos {
    #[inline]
    fn add_assign(&mut self, rhs: Nanos) {
        *self = *self + rhs;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    #[inline]
    fn sub(self, rhs: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(rhs.0))
    }
}

impl Mul<u64> for Nanos {
    type Output = Nanos;
    #[inline]
    fn mul(self, rhs: u64) -> Nanos {
        Nanos(self.0.saturating_mul(rhs))
    }
}

impl fmt::Display for Nanos {
    /// Formats the value with the most readable unit: `250ns`, `35.0us`, `1.39ms`, `2.00s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        match n {
            u64::MAX => write!(f, "never"),
            0..1_000 => write!(f, "{n}ns"),
            1_000..1_000_000 => write!(f, "{:.1}us", n as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.2}ms", n as f64 / 1e6),
            _ => write!(f, "{:.2}s", n as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_stays_never() {
        assert_eq!(Nanos::MAX + Nanos(1), Nanos::MAX);
        assert_eq!(Nanos(1) - Nanos(2), Nanos::ZERO);
        assert_eq!(Nanos::MAX * 2, Nanos::MAX);
    }

    #[test]
    fn transfer_rounds_up_and_zero_rate_is_free() {
        assert_eq!(Nanos::transfer(4096, 280_000_000), Nanos(14_629));
        assert_eq!(Nanos::transfer(4096, 0), Nanos::ZERO);
        assert_eq!(Nanos::transfer(u64::MAX, 1), Nanos::MAX);
    }

    #[test]
    fn prints_in_the_unit_a_person_would_choose() {
        let shown: Vec<String> = [0, 999, 35_000, 1_390_000, 2_000_000_000, u64::MAX]
            .map(|n| Nanos(n).to_string())
            .to_vec();
        assert_eq!(shown, ["0ns", "999ns", "35.0us", "1.39ms", "2.00s", "never"]);
    }
}
