//! [`StripeMap`]: maps the sectors of a fragment to sectors of the whole request's memory.
//!
//! A striped logical space maps a contiguous range to one contiguous range per shard; in the
//! request's memory, the stripes of the other shards lie between. Stripes are powers of two, so the
//! mapping costs an addition, a shift and a multiplication, without a branch.

/// Memory layout of a fragment, relative to its first sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StripeMap {
    /// Sectors of the first stripe that precede the fragment.
    head: u32,
    /// Sectors of other shards between two stripes.
    skip: u32,
    /// Log2 of the stripe size in sectors.
    shift: u8,
}

impl StripeMap {
    /// All sectors are consecutive.
    pub(crate) const CONTIGUOUS: StripeMap = StripeMap { head: 0, skip: 0, shift: 31 };

    /// Creates the layout of a fragment that begins `head` sectors into a stripe of `1 << shift`
    /// sectors, with `skip` sectors of other shards after each stripe.
    pub(crate) fn new(head: u32, skip: u32, shift: u8) -> StripeMap {
        StripeMap { head, skip, shift }
    }

    /// Returns the distance in memory, in sectors, of sector `sector` from the fragment's first
    /// sector.
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
        // Stripes of 4 sectors, three shards; the fragment begins in the middle of a stripe.
        let spread = StripeMap::new(2, 8, 2);
        assert_eq!([0, 1, 2, 5, 6].map(|i| spread.memory_sector(i)), [0, 1, 10, 13, 22]);
    }
}
