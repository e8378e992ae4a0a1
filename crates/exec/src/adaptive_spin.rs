//! [`AdaptiveSpin`]: whether it is worth to look for something before sleeping until it comes.
//!
//! It is as long as one wait in three is over meanwhile, and soon; else only now and then, in case things have changed.
//! Whoever looks gives the processor away between looks: on a loaded machine few of them can take long.

use clock::Nanos;

/// Of waits of one kind.
#[derive(Debug)]
pub(crate) struct AdaptiveSpin {
    rounds_max: u32,
    /// Longer waits are to be slept through.
    spin_max: Nanos,
    /// Waits that paid count two, others take one away.
    credit: u32,
    timeout_count: u32,
}

/// Credit at most, and at first.
const CREDIT_MAX: u32 = 8;
/// Misses after which it looks once more, whatever the credit is.
const RETRY_TIMEOUTS: u32 = 16;

impl AdaptiveSpin {
    /// So many rounds, where it is worth it, of waits that are over so soon.
    pub(crate) fn new((rounds_max, spin_max): (u32, Nanos)) -> AdaptiveSpin {
        AdaptiveSpin { rounds_max, spin_max, credit: CREDIT_MAX, timeout_count: 0 }
    }

    /// Rounds to look before sleeping.
    pub(crate) fn spin_budget(&self) -> u32 {
        let tries = self.credit > 0 || self.timeout_count % RETRY_TIMEOUTS == RETRY_TIMEOUTS - 1;
        if tries { self.rounds_max } else { 0 }
    }

    /// It came meanwhile, after such a time.
    pub(crate) fn succeeded(&mut self, after: Nanos) {
        match after <= self.spin_max {
            true => self.credit = (self.credit + 2).min(CREDIT_MAX),
            false => self.timed_out(),
        }
    }

    /// It did not.
    pub(crate) fn timed_out(&mut self) {
        self.credit = self.credit.saturating_sub(1);
        self.timeout_count = self.timeout_count.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN_MAX: Nanos = Nanos(100);

    /// Rounds that are looked in so many waits, of which each `nth` is over meanwhile.
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
        // Things have changed.
        spun_rounds(&mut patience, RETRY_TIMEOUTS, 1);
        assert_eq!(spun_rounds(&mut patience, 100, 1), 100 * 200);
    }

    #[test]
    fn one_in_two_is_worth_it_and_one_in_ten_is_not() {
        let mut patience = AdaptiveSpin::new((200, SPIN_MAX));
        assert_eq!(spun_rounds(&mut patience, 1000, 2), 1000 * 200);
        let rounds = spun_rounds(&mut patience, 1000, 10);
        assert!(rounds < 300 * 200, "{rounds}");
        // Nor is what takes long.
        let mut patience = AdaptiveSpin::new((200, SPIN_MAX));
        (0..CREDIT_MAX).for_each(|_| patience.succeeded(SPIN_MAX + Nanos(1)));
        assert_eq!(patience.spin_budget(), 0);
    }
}
