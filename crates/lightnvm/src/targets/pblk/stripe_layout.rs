//! [`Spread`]: where the sectors of a part of a request are in the whole request's memory.
//!
//! A logical space that is striped over several layers gives each of them a contiguous range of its
//! own for a contiguous range of the whole, but in memory the stripes of the others lie between.
//! Stripes are powers of two, so that a sector's place costs an addition, a shift and a
//! multiplication, and no branch.

/// The place of each sector of a part, counted from its first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StripeMap {
    /// Sectors of its first stripe that are before the part.
    head: u32,
    /// Sectors of the others between two stripes.
    skip: u32,
    /// Sectors of a stripe, as a power of two.
    shift: u8,
}

impl StripeMap {
    /// One sector after the other.
    pub(crate) const CONTIGUOUS: StripeMap = StripeMap { head: 0, skip: 0, shift: 31 };

    /// A part that begins `head` sectors into a stripe of `1 << shift`, where `skip` sectors of
    /// others follow each stripe.
    pub(crate) fn new(head: u32, skip: u32, shift: u8) -> StripeMap {
        StripeMap { head, skip, shift }
    }

    /// How many sectors after the part's first one its sector number `sector` is.
    #[inline]
    pub(crate) fn memory_sector(self, sector: u32) -> u32 {
        sector + ((self.head + sector) >> self.shift) * self.skip
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_of_others_lie_between() {
        assert_eq!([0, 1, 70_000].map(|i| StripeMap::CONTIGUOUS.memory_sector(i)), [0, 1, 70_000]);
        // Stripes of 4, three shards, beginning in the middle of one.
        let spread = StripeMap::new(2, 8, 2);
        assert_eq!([0, 1, 2, 5, 6].map(|i| spread.memory_sector(i)), [0, 1, 10, 13, 22]);
    }
}
