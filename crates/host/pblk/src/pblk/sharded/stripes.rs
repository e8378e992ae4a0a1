//! [`Stripes`]: maps sectors to shards, and requests to fragments.
//!
//! Stripe `i` of the device is stripe `i / shards` of shard `i % shards`. Invariant: the fragments
//! of a range cover it exactly once, and each is a contiguous range of its shard.

use super::super::stripe_layout::StripeMap;

collections::position_type! {
    /// A sector of a shard's logical space.
    pub(crate) struct ShardLba(pub(crate) u64), "";
}

/// The place of one of the device's sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StripedSector {
    pub(crate) shard: u32,
    /// The sector there.
    pub(crate) lba: ShardLba,
    /// Sectors to the end of its stripe, itself included.
    pub(crate) left: u32,
}

/// The striping of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stripes {
    shards: u32,
    /// Log2 of the stripe size in sectors.
    shift: u8,
}

/// The fragment of a range on a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardFragment {
    /// First sector, in the shard's logical space.
    pub(crate) lba: ShardLba,
    /// Number of sectors.
    pub(crate) sectors: u32,
    /// Sectors of the range that precede the fragment's first one.
    pub(crate) offset: u32,
    /// Layout of its sectors in the memory of the range.
    pub(crate) stripe_map: StripeMap,
}

impl Stripes {
    pub(crate) fn new(shards: u32, shift: u8) -> Stripes {
        Stripes { shards, shift }
    }

    /// Returns the number of shards.
    pub(crate) fn shards(&self) -> u32 {
        self.shards
    }

    /// Returns the stripe size in sectors.
    pub(crate) fn sectors(&self) -> u32 {
        1 << self.shift
    }

    /// Returns the place of the device's sector `slba`.
    #[inline]
    pub(crate) fn locate(&self, slba: u64) -> StripedSector {
        let (stripe, in_stripe) = (slba >> self.shift, slba as u32 & (self.sectors() - 1));
        let shards = u64::from(self.shards);
        StripedSector {
            shard: (stripe % shards) as u32,
            lba: ShardLba((stripe / shards) << self.shift | u64::from(in_stripe)),
            left: self.sectors() - in_stripe,
        }
    }

    /// Returns the sector of the device that corresponds to a shard's sector.
    #[inline]
    pub(crate) fn device_lba(&self, shard: u32, own: ShardLba) -> u64 {
        let own = own.get();
        let stripe = (own >> self.shift) * u64::from(self.shards) + u64::from(shard);
        stripe << self.shift | own & u64::from(self.sectors() - 1)
    }

    /// Returns how many of the device's first `count` sectors belong to `shard`.
    #[inline]
    fn sectors_before(&self, shard: u32, count: u64) -> u64 {
        let StripedSector { shard: at, lba: ShardLba(own), left } = self.locate(count);
        let in_stripe = u64::from(self.sectors() - left);
        let whole = own - in_stripe;
        match at.cmp(&shard) {
            std::cmp::Ordering::Greater => whole + u64::from(self.sectors()),
            std::cmp::Ordering::Equal => own,
            std::cmp::Ordering::Less => whole,
        }
    }

    /// Returns the fragment of a range on `shard`, or `None` if there is none.
    pub(crate) fn fragment(&self, shard: u32, slba: u64, sectors: u32) -> Option<ShardFragment> {
        let first = self.sectors_before(shard, slba);
        let end = self.sectors_before(shard, slba + u64::from(sectors));
        if first == end {
            return None;
        }
        let skip = (self.shards - 1) << self.shift;
        let head = first as u32 & (self.sectors() - 1);
        Some(ShardFragment {
            lba: ShardLba(first),
            sectors: (end - first) as u32,
            offset: (self.device_lba(shard, ShardLba(first)) - slba) as u32,
            stripe_map: StripeMap::new(head, skip, self.shift),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rng::Rng;

    #[test]
    fn the_fragments_of_a_range_cover_it_once_each_sector_where_its_data_is() {
        let mut rng = Rng::new(1);
        for _ in 0..3_000 {
            let stripes = Stripes::new(1 + rng.below(9) as u32, rng.below(6) as u8);
            let (lba, sectors) = (rng.below(5_000), 1 + rng.below(900) as u32);
            let mut seen = vec![0; sectors as usize];
            for shard in 0..stripes.shards() {
                let Some(part) = stripes.fragment(shard, lba, sectors) else { continue };
                for i in 0..part.sectors {
                    let place = part.offset + part.stripe_map.memory_sector(i);
                    seen[place as usize] += 1;
                    let StripedSector { shard: at, lba: own, left } =
                        stripes.locate(lba + u64::from(place));
                    assert_eq!((at, own), (shard, part.lba + u64::from(i)));
                    assert!((1..=stripes.sectors()).contains(&left));
                    assert_eq!(stripes.device_lba(shard, own), lba + u64::from(place));
                }
            }
            assert!(seen.iter().all(|n| *n == 1), "{stripes:?} {lba} {sectors}");
        }
    }

    #[test]
    fn the_longest_range_of_the_largest_device_is_a_fragment_of_each() {
        let stripes = Stripes::new(32, 16);
        let all: u64 = (0..32)
            .filter_map(|shard| stripes.fragment(shard, 0, u32::MAX))
            .map(|part| u64::from(part.sectors))
            .sum();
        assert_eq!(all, u64::from(u32::MAX));
    }
}
