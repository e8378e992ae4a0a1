//! [`AdaptiveSpin`]: decides whether to spin before a sleep.
//!
//! Spinning continues while one wait in three succeeds within the spin, and quickly; otherwise the
//! waiter spins only now and then, to detect a change. The waiter yields the processor between
//! polls, so on a loaded machine a few polls can take long.

use clock::Nanos;

/// Spin statistics of one kind of wait.
#[derive(Debug)]
pub(crate) struct AdaptiveSpin {
    rounds_max: u32,
    /// Spins that took longer count as failed.
    spin_max: Nanos,
    /// A successful spin adds two, a failed one removes one.
    credit: u32,
    timeout_count: u32,
}

/// Maximum and initial credit.
const CREDIT_MAX: u32 = 8;
/// Failed spins after which one more is tried, whatever the credit.
const RETRY_TIMEOUTS: u32 = 16;

impl AdaptiveSpin {
    /// Creates statistics for spins of at most this many rounds, which should succeed within this
    /// time.
    pub(crate) fn new((rounds_max, spin_max): (u32, Nanos)) -> AdaptiveSpin {
        AdaptiveSpin { rounds_max, spin_max, credit: CREDIT_MAX, timeout_count: 0 }
    }

    /// Returns the number of rounds to spin before sleeping.
    pub(crate) fn spin_budget(&self) -> u32 {
        let tries = self.credit > 0 || self.timeout_count % RETRY_TIMEOUTS == RETRY_TIMEOUTS - 1;
        if tries { self.rounds_max } else { 0 }
    }

    /// Records a spin that succeeded after this time.
    pub(crate) fn succeeded(&mut self, after: Nanos) {
        match after <= self.spin_max {
            true => self.credit = (self.credit + 2).min(CREDIT_MAX),
            false => self.timed_out(),
        }
    }

    /// Records a spin that failed.
    pub(crate) fn timed_out(&mut self) {
        self.credit = self.credit.saturating_sub(1);
        self.timeout_count = self.timeout_count.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN_MAX: Nanos = Nanos(100);

    /// Returns the rounds spun over this many waits, of which each `nth` succeeds within the spin.
    fn spun_rounds(patience: &mut AdaptiveSpin, waits: u32, nth: u32) -> u32 {
        let mut looked = 0;
        for wait in 0..waits {
            looked += patience.spin_budget();
            match patience.spin_budget() > 0 && wait % nth == 0 {
                true => patience.succeeded(SPIN_MAX),
                false => patience.timed_out(),
            }
        }
        looked
    }

    #[test]
    fn who_waits_in_vain_sleeps_at_once_and_tries_again_now_and_then() {
        let mut patience = AdaptiveSpin::new((200, SPIN_MAX));
        let rounds = spun_rounds(&mut patience, 10 * RETRY_TIMEOUTS, u32::MAX);
        assert!(rounds <= (CREDIT_MAX + 2 + 10) * 200, "{rounds}");
        assert!(rounds >= (CREDIT_MAX + 9) * 200, "{rounds}");
        // The load changes.
        spun_rounds(&mut patience, RETRY_TIMEOUTS, 1);
        assert_eq!(spun_rounds(&mut patience, 100, 1), 100 * 200);
    }

    #[test]
    fn one_in_two_is_worth_it_and_one_in_ten_is_not() {
        let mut patience = AdaptiveSpin::new((200, SPIN_MAX));
        assert_eq!(spun_rounds(&mut patience, 1000, 2), 1000 * 200);
        let rounds = spun_rounds(&mut patience, 1000, 10);
        assert!(rounds < 300 * 200, "{rounds}");
        // Slow successes count as failures.
        let mut patience = AdaptiveSpin::new((200, SPIN_MAX));
        (0..CREDIT_MAX).for_each(|_| patience.succeeded(SPIN_MAX + Nanos(1)));
        assert_eq!(patience.spin_budget(), 0);
    }
}
