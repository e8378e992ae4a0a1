//! [`DurablePrefix`]: tracks which write units are durable.
//!
//! A unit is assigned a sequence number when its first record is placed in it. Everything appended
//! before a point in time is in units with the sequence numbers assigned by then, so it is durable
//! once that prefix is.

use std::collections::VecDeque;

/// The sequence numbers of units, and their durable prefix.
#[derive(Debug, Default)]
pub(crate) struct DurablePrefix {
    /// All units with smaller sequence numbers are durable.
    base: u64,
    /// By sequence number, from `base` on.
    is_durable: VecDeque<bool>,
}

impl DurablePrefix {
    /// Assigns a sequence number to a unit that starts to fill.
    pub(crate) fn assign_seq(&mut self) -> u64 {
        self.is_durable.push_back(false);
        self.base + self.is_durable.len() as u64 - 1
    }

    /// Returns the next sequence number; all assigned ones are smaller.
    pub(crate) fn next_seq(&self) -> u64 {
        self.base + self.is_durable.len() as u64
    }

    /// Marks a unit as durable, or as no longer needed.
    pub(crate) fn mark_durable(&mut self, number: u64) {
        if let Some(durable) =
            number.checked_sub(self.base).and_then(|i| self.is_durable.get_mut(i as usize))
        {
            *durable = true;
        }
        while self.is_durable.front() == Some(&true) {
            self.is_durable.pop_front();
            self.base += 1;
        }
    }

    /// Returns whether all units with smaller sequence numbers are durable.
    #[inline]
    pub(crate) fn is_durable_below(&self, number: u64) -> bool {
        self.base >= number
    }

    /// Returns the sequence numbers that are not durable, in order.
    pub(crate) fn not_durable(&self) -> impl Iterator<Item = u64> {
        let numbers = (self.base..).zip(&self.is_durable);
        numbers.filter(|(_, durable)| !**durable).map(|(number, _)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_durable_when_all_of_it_is() {
        let mut order = DurablePrefix::default();
        assert!(order.is_durable_below(0));
        let numbers: Vec<u64> = (0..4).map(|_| order.assign_seq()).collect();
        assert_eq!((numbers, order.next_seq()), (vec![0, 1, 2, 3], 4));
        order.mark_durable(1);
        assert!(!order.is_durable_below(1));
        order.mark_durable(0);
        assert!(order.is_durable_below(2) && !order.is_durable_below(3));
        order.mark_durable(0);
        order.mark_durable(3);
        order.mark_durable(2);
        assert!(order.is_durable_below(4));
        assert_eq!(order.assign_seq(), 4);
    }
}
