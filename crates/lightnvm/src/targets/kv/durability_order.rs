//! [`Order`]: which write units are durable.
//!
//! Every unit is numbered when its first record is put into it. Whoever must know that everything up
//! to an instant is durable asks for the prefix of the numbers given out so far: what was put into a
//! unit before that instant is in a unit of that prefix.

use std::collections::VecDeque;

/// Numbers of units, and which prefix of them is durable.
#[derive(Debug, Default)]
pub(crate) struct DurablePrefix {
    /// Every unit with a smaller number is durable.
    base: u64,
    /// From `base` on.
    is_durable: VecDeque<bool>,
}

impl DurablePrefix {
    /// A number for a unit that begins to fill.
    pub(crate) fn assign_seq(&mut self) -> u64 {
        self.is_durable.push_back(false);
        self.base + self.is_durable.len() as u64 - 1
    }

    /// The numbers given out so far are those below this one.
    pub(crate) fn next_seq(&self) -> u64 {
        self.base + self.is_durable.len() as u64
    }

    /// A unit is durable, or nothing of it is needed any more.
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

    /// Whether every unit with a smaller number is durable.
    #[inline]
    pub(crate) fn is_durable_below(&self, number: u64) -> bool {
        self.base >= number
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
