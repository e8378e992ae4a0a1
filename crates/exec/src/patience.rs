//! [`Patience`]: whether it is worth to look for something before sleeping until it comes.
//!
//! It is as long as one wait in three is over meanwhile, and soon; else only now and then, in case things have changed.
//! Whoever looks gives the processor away between looks: on a loaded machine few of them can take long.

use clock::Nanos;

/// Of waits of one kind.
#[derive(Debug)]
pub(crate) struct Patience {
    most: u32,
    /// Longer waits are to be slept through.
    soon: Nanos,
    /// Waits that paid count two, others take one away.
    credit: u32,
    missed: u32,
}

/// Credit at most, and at first.
const CREDIT: u32 = 8;
/// Misses after which it looks once more, whatever the credit is.
const TRY_AGAIN: u32 = 16;

impl Patience {
    /// So many rounds, where it is worth it, of waits that are over so soon.
    pub(crate) fn new((most, soon): (u32, Nanos)) -> Patience {
        Patience { most, soon, credit: CREDIT, missed: 0 }
    }

    /// Rounds to look before sleeping.
    pub(crate) fn rounds(&self) -> u32 {
        let tries = self.credit > 0 || self.missed % TRY_AGAIN == TRY_AGAIN - 1;
        if tries { self.most } else { 0 }
    }

    /// It came meanwhile, after such a time.
    pub(crate) fn came(&mut self, after: Nanos) {
        match after <= self.soon {
            true => self.credit = (self.credit + 2).min(CREDIT),
            false => self.missed(),
        }
    }

    /// It did not.
    pub(crate) fn missed(&mut self) {
        self.credit = self.credit.saturating_sub(1);
        self.missed = self.missed.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Nanos = Nanos(100);

    /// Rounds that are looked in so many waits, of which each `nth` is over meanwhile.
    fn looked(patience: &mut Patience, waits: u32, nth: u32) -> u32 {
        let mut looked = 0;
        for wait in 0..waits {
            looked += patience.rounds();
            match patience.rounds() > 0 && wait % nth == 0 {
                true => patience.came(SOON),
                false => patience.missed(),
            }
        }
        looked
    }

    #[test]
    fn who_waits_in_vain_sleeps_at_once_and_tries_again_now_and_then() {
        let mut patience = Patience::new((200, SOON));
        let rounds = looked(&mut patience, 10 * TRY_AGAIN, u32::MAX);
        assert!(rounds <= (CREDIT + 2 + 10) * 200, "{rounds}");
        assert!(rounds >= (CREDIT + 9) * 200, "{rounds}");
        // Things have changed.
        looked(&mut patience, TRY_AGAIN, 1);
        assert_eq!(looked(&mut patience, 100, 1), 100 * 200);
    }

    #[test]
    fn one_in_two_is_worth_it_and_one_in_ten_is_not() {
        let mut patience = Patience::new((200, SOON));
        assert_eq!(looked(&mut patience, 1000, 2), 1000 * 200);
        let rounds = looked(&mut patience, 1000, 10);
        assert!(rounds < 300 * 200, "{rounds}");
        // Nor is what takes long.
        let mut patience = Patience::new((200, SOON));
        (0..CREDIT).for_each(|_| patience.came(SOON + Nanos(1)));
        assert_eq!(patience.rounds(), 0);
    }
}
