//! [`AdaptiveSpin`]: decides whether to poll before a sleep.
//!
//! A waiter spins while one wait in three succeeds within the spin; otherwise it spins only now and
//! then, to detect a change.

use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum and initial credit.
const CREDIT_MAX: u32 = 8;
/// Failed spins after which one more is tried, whatever the credit.
const RETRY_MISSES: u32 = 16;

/// Spin statistics of one kind of wait. Threads may share them; concurrent updates may be lost.
#[derive(Debug)]
pub struct AdaptiveSpin {
    polls_max: u32,
    /// A successful spin adds two, a failed one removes one.
    credit: AtomicU32,
    miss_count: AtomicU32,
}

impl AdaptiveSpin {
    /// Creates statistics for spins of at most `polls_max` polls.
    pub const fn new(polls_max: u32) -> AdaptiveSpin {
        let credit = AtomicU32::new(CREDIT_MAX);
        AdaptiveSpin { polls_max, credit, miss_count: AtomicU32::new(0) }
    }

    /// Returns the number of polls before sleeping: the maximum, or 0.
    #[inline]
    pub fn budget(&self) -> u32 {
        let misses = self.miss_count.load(Ordering::Relaxed);
        let tries =
            self.credit.load(Ordering::Relaxed) > 0 || misses % RETRY_MISSES == RETRY_MISSES - 1;
        if tries { self.polls_max } else { 0 }
    }

    /// Records a spin that succeeded.
    #[inline]
    pub fn hit(&self) {
        let credit = self.credit.load(Ordering::Relaxed);
        if credit < CREDIT_MAX {
            self.credit.store((credit + 2).min(CREDIT_MAX), Ordering::Relaxed);
        }
    }

    /// Records a spin that failed, or did not pay.
    #[inline]
    pub fn miss(&self) {
        let credit = self.credit.load(Ordering::Relaxed);
        if credit > 0 {
            self.credit.store(credit - 1, Ordering::Relaxed);
        }
        let misses = self.miss_count.load(Ordering::Relaxed);
        self.miss_count.store(misses.wrapping_add(1), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns the polls over this many waits. Each `nth` wait succeeds within the spin.
    fn poll_count(spin: &AdaptiveSpin, waits: u32, nth: u32) -> u32 {
        let mut polls = 0;
        for wait in 0..waits {
            polls += spin.budget();
            match spin.budget() > 0 && wait % nth == 0 {
                true => spin.hit(),
                false => spin.miss(),
            }
        }
        polls
    }

    #[test]
    fn futile_waits_end_in_sleep_at_once_and_are_retried_now_and_then() {
        let spin = AdaptiveSpin::new(200);
        let polls = poll_count(&spin, 10 * RETRY_MISSES, u32::MAX);
        assert!(polls <= (CREDIT_MAX + 2 + 10) * 200, "{polls}");
        assert!(polls >= (CREDIT_MAX + 9) * 200, "{polls}");
        // The load changes.
        poll_count(&spin, RETRY_MISSES, 1);
        assert_eq!(poll_count(&spin, 100, 1), 100 * 200);
    }

    #[test]
    fn one_in_two_is_worth_it_and_one_in_ten_is_not() {
        let spin = AdaptiveSpin::new(200);
        assert_eq!(poll_count(&spin, 1000, 2), 1000 * 200);
        let polls = poll_count(&spin, 1000, 10);
        assert!(polls < 300 * 200, "{polls}");
        let spin = AdaptiveSpin::new(200);
        (0..CREDIT_MAX).for_each(|_| spin.miss());
        assert_eq!(spin.budget(), 0);
    }
}
