//! [`Issued`]: the numbers of write units, and which of them are still under way.

use std::collections::VecDeque;

/// Numbers write units in the order in which they are given a place, and knows up to where all of
/// them are on the media.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    /// Whether each unit from `low` on is on the media, or never will be; the first is neither.
    ended: VecDeque<bool>,
    low: u64,
}

impl Issued {
    /// Numbers from `next` on.
    pub(crate) fn from(next: u64) -> Issued {
        Issued { ended: VecDeque::with_capacity(64), low: next }
    }

    /// The next unit's number.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.low + self.ended.len() as u64
    }

    /// Every unit with a smaller number is on the media.
    #[inline]
    pub(crate) fn low(&self) -> u64 {
        self.low
    }

    /// A unit is given a place: its number.
    #[inline]
    pub(crate) fn begin(&mut self) -> u64 {
        let number = self.next();
        self.ended.push_back(false);
        number
    }

    /// A unit is on the media, or will get another number before it is.
    #[inline]
    pub(crate) fn end(&mut self, number: u64) {
        self.ended[(number - self.low) as usize] = true;
        while self.ended.front() == Some(&true) {
            self.ended.pop_front();
            self.low += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_stops_at_the_first_that_is_under_way() {
        let mut issued = Issued::from(5);
        assert_eq!((issued.low(), issued.next()), (5, 5));
        assert_eq!([issued.begin(), issued.begin(), issued.begin()], [5, 6, 7]);
        issued.end(6);
        assert_eq!((issued.low(), issued.next()), (5, 8));
        issued.end(5);
        assert_eq!(issued.low(), 7);
        issued.end(7);
        assert_eq!((issued.low(), issued.next()), (8, 8));
    }
}
