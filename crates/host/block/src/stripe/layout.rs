//! [`StripeLayout`]: several drives as one, striped (RAID 0).
//!
//! [HIOPS14 §4] combines six drives with a stripe of 128 KB. Stripe `s` of the set is stripe `s /
//! n` of member `s % n`.
//!
//! Invariant: the fragments of a range cover it once, in order, and each is on one member.

// guarantee: B-23

/// The distribution of sectors over the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeLayout {
    members: u16,
    stripe: u32,
    sectors: u64,
}

/// The part of a range on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeFragment {
    /// The member.
    pub member: u16,
    /// First sector on the member.
    pub lba: u64,
    /// Number of sectors.
    pub sectors: u32,
    /// Number of sectors of the range before this fragment.
    pub offset: u32,
}

impl StripeLayout {
    /// Creates a layout of `members` drives with `member_sectors` sectors each, in stripes of
    /// `stripe` sectors.
    ///
    /// A partial stripe at a member's end is not used. A single member is not striped. Returns
    /// `None` without members, for a stripe of no sectors, or if a member has less than one stripe.
    pub fn new(members: u16, member_sectors: u64, stripe: u32) -> Option<StripeLayout> {
        if members == 1 {
            return (member_sectors > 0).then_some(StripeLayout {
                members,
                stripe: u32::MAX,
                sectors: member_sectors,
            });
        }
        let stripes = member_sectors.checked_div(stripe.into())?;
        let sectors = (stripes * u64::from(stripe)).checked_mul(members.into())?;
        (sectors > 0).then_some(StripeLayout { members, stripe, sectors })
    }

    /// Returns the number of sectors of the set.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the number of members.
    pub fn members(&self) -> u16 {
        self.members
    }

    /// Returns the maximum number of fragments of a range of `sectors`, at any position.
    pub fn fragments_max(&self, sectors: u32) -> u32 {
        if self.members == 1 {
            return 1;
        }
        // The first sector may be the last of its stripe.
        sectors.saturating_sub(1).div_ceil(self.stripe) + 1
    }

    /// Returns whether a range is within the set.
    pub fn contains(&self, lba: u64, sectors: u64) -> bool {
        sectors <= self.sectors && lba <= self.sectors - sectors
    }

    /// Returns the fragments of a range within the set, in order.
    #[inline]
    pub fn fragments(self, lba: u64, sectors: u32) -> impl Iterator<Item = StripeFragment> {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == sectors {
                return None;
            }
            let at = lba + u64::from(done);
            let part = self.fragment_at(at, sectors - done, done);
            done += part.sectors;
            Some(part)
        })
    }

    /// Returns one contiguous extent per member of a range within the set. This is for requests
    /// without data, whose order does not matter. `offset` has no meaning.
    pub fn member_extents(self, lba: u64, sectors: u32) -> impl Iterator<Item = StripeFragment> {
        (0..self.members).filter_map(move |member| {
            let first = self.member_sectors_before(lba, member);
            let sectors = self.member_sectors_before(lba + u64::from(sectors), member) - first;
            let span = StripeFragment { member, lba: first, sectors: sectors as u32, offset: 0 };
            (sectors > 0).then_some(span)
        })
    }

    /// Returns how many of the first `count` sectors of the set are on a member.
    fn member_sectors_before(&self, count: u64, member: u16) -> u64 {
        if self.members == 1 {
            return count;
        }
        let (stripe, members) = (u64::from(self.stripe), u64::from(self.members));
        let (rounds, rest) = (count / (stripe * members), count % (stripe * members));
        rounds * stripe + rest.saturating_sub(u64::from(member) * stripe).min(stripe)
    }

    #[inline]
    fn fragment_at(&self, at: u64, left: u32, offset: u32) -> StripeFragment {
        if self.members == 1 {
            return StripeFragment { member: 0, lba: at, sectors: left, offset };
        }
        let (stripe, members) = (u64::from(self.stripe), u64::from(self.members));
        let (number, within) = (at / stripe, at % stripe);
        StripeFragment {
            member: (number % members) as u16,
            lba: number / members * stripe + within,
            sectors: left.min((stripe - within) as u32),
            offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sector_is_in_one_place_of_one_member() {
        let striped = StripeLayout::new(3, 21, 4).unwrap();
        assert_eq!(striped.sectors(), 60, "a stripe that a member cannot fill is left out");
        let mut places: Vec<(u16, u64)> = Vec::new();
        for lba in 0..striped.sectors() {
            let parts: Vec<StripeFragment> = striped.fragments(lba, 1).collect();
            let [StripeFragment { member, lba: at, sectors: 1, offset: 0 }] = parts[..] else {
                panic!("{parts:?}")
            };
            assert!(at < 20);
            places.push((member, at));
        }
        assert_eq!(&places[2..6], [(0, 2), (0, 3), (1, 0), (1, 1)]);
        assert_eq!(places[12], (0, 4));
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 60);
    }

    #[test]
    fn the_parts_of_a_range_are_its_sectors() {
        for (members, stripe) in [(1, 8), (2, 1), (6, 256), (5, 7)] {
            let striped = StripeLayout::new(members, 10_000, stripe).unwrap();
            for (lba, sectors) in [(0, 1), (3, 600), (255, 2), (1_000, 1), (0, 9_000)] {
                let mut covered = 0;
                let mut count = 0;
                for part in striped.fragments(lba, sectors) {
                    assert_eq!(part.offset, covered);
                    for i in 0..part.sectors {
                        let whole = lba + u64::from(covered + i);
                        let single = striped.fragments(whole, 1).next().unwrap();
                        let want = (part.member, part.lba + u64::from(i));
                        assert_eq!((single.member, single.lba), want);
                    }
                    covered += part.sectors;
                    count += 1;
                }
                assert_eq!(covered, sectors);
                let mut spans: Vec<StripeFragment> = striped.member_extents(lba, sectors).collect();
                for part in striped.fragments(lba, sectors) {
                    let span = spans.iter_mut().find(|s| s.member == part.member).unwrap();
                    assert_eq!(span.lba, part.lba, "in one piece");
                    span.lba += u64::from(part.sectors);
                    span.sectors -= part.sectors;
                }
                assert!(spans.iter().all(|span| span.sectors == 0), "{spans:?}");
                assert!(count <= striped.fragments_max(sectors), "{count} parts");
            }
            assert_eq!(striped.fragments(5, 0).count() + striped.member_extents(5, 0).count(), 0);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (members, sectors, stripe) in
            [(0, 100, 8), (2, 7, 8), (2, 100, 0), (1, 0, 8), (2, u64::MAX, 1)]
        {
            assert_eq!(StripeLayout::new(members, sectors, stripe), None);
        }
        let striped = StripeLayout::new(2, 100, 10).unwrap();
        assert!(striped.contains(199, 1) && striped.contains(200, 0) && striped.contains(0, 200));
        assert!(!striped.contains(199, 2) && !striped.contains(u64::MAX, 2));
    }
}
