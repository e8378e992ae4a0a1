//! [`Order`]: which write units are durable.
//!
//! Every unit is numbered when its first record is put into it. Whoever must know that everything up
//! to an instant is durable asks for the prefix of the numbers given out so far: what was put into a
//! unit before that instant is in a unit of that prefix.

use std::collections::VecDeque;

/// Numbers of units, and which prefix of them is durable.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// Every unit with a smaller number is durable.
    base: u64,
    /// From `base` on.
    durable: VecDeque<bool>,
}

impl Order {
    /// A number for a unit that begins to fill.
    pub(crate) fn begin(&mut self) -> u64 {
        self.durable.push_back(false);
        self.base + self.durable.len() as u64 - 1
    }

    /// The numbers given out so far are those below this one.
    pub(crate) fn next(&self) -> u64 {
        self.base + self.durable.len() as u64
    }

    /// A unit is durable, or nothing of it is needed any more.
    pub(crate) fn end(&mut self, number: u64) {
        if let Some(durable) =
            number.checked_sub(self.base).and_then(|i| self.durable.get_mut(i as usize))
        {
            *durable = true;
        }
        while self.durable.front() == Some(&true) {
            self.durable.pop_front();
            self.base += 1;
        }
    }

    /// Whether every unit with a smaller number is durable.
    #[inline]
    pub(crate) fn durable_below(&self, number: u64) -> bool {
        self.base >= number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_durable_when_all_of_it_is() {
        let mut order = Order::default();
        assert!(order.durable_below(0));
        let numbers: Vec<u64> = (0..4).map(|_| order.begin()).collect();
        assert_eq!((numbers, order.next()), (vec![0, 1, 2, 3], 4));
        order.end(1);
        assert!(!order.durable_below(1));
        order.end(0);
        assert!(order.durable_below(2) && !order.durable_below(3));
        order.end(0);
        order.end(3);
        order.end(2);
        assert!(order.durable_below(4));
        assert_eq!(order.begin(), 4);
    }
}
