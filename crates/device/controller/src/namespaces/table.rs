//! [`NamespaceTable`]: the namespaces of a drive, and the part of the space of its FTL that each has.
//!
//! The space is divided into granules of a power of two of units; the last one may be shorter. A
//! namespace has whole granules, in extents whose order is that of its blocks. Invariants: a granule
//! has at most one namespace; a namespace has at least the units of its blocks, and no granule
//! without a block; the extents of a namespace ascend in the namespace without gaps.

use serde::{Deserialize, Serialize};

use crate::check::{DriveCheck, DrivePart, DriveViolation};
use crate::namespaces::layout::{NAMESPACES_MAX, NamespaceLayout};
use crate::personality::logical_blocks::BlockRange;

/// Maximum number of granules. The extents of all namespaces are in the non-volatile settings.
pub(super) const GRANULES_MAX: u64 = 2048;

/// A part of the space that a namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamespaceExtent {
    /// First unit in the namespace.
    pub(crate) begin: u64,
    /// First unit in the space of the FTL.
    pub(crate) first: u64,
    /// Number of units.
    pub(crate) units: u64,
}

/// A range of granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GranuleRange {
    pub(super) first: u64,
    pub(super) end: u64,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DriveNamespace {
    pub(crate) nsid: u32,
    /// Size in logical blocks.
    pub(crate) blocks: u64,
    /// Number of namespaces that were created before; 0 for those of a new drive.
    pub(crate) generation: u32,
    pub(crate) is_attached: bool,
    pub(crate) extents: Vec<NamespaceExtent>,
}

/// The space that namespaces are allocated in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamespaceSpace {
    /// Units that the FTL maps.
    pub(crate) units: u64,
    /// Logical blocks in a unit.
    pub(crate) unit_blocks: u32,
}

impl NamespaceSpace {
    /// Returns the number of units in a granule: a power of two.
    pub(crate) fn granule_units(self) -> u64 {
        self.units.div_ceil(GRANULES_MAX).next_power_of_two()
    }

    /// Returns the number of granules.
    pub(super) fn granules(self) -> u64 {
        self.units.div_ceil(self.granule_units())
    }

    /// Returns the number of units of a range of granules.
    fn units_of(self, range: GranuleRange) -> u64 {
        let granule = self.granule_units();
        (range.end * granule).min(self.units) - range.first * granule
    }

    /// Returns the extents that granules make, whose ranges ascend.
    pub(super) fn extents(self, ranges: &[GranuleRange]) -> Vec<NamespaceExtent> {
        let mut begin = 0;
        let extent = |range: &GranuleRange| {
            let units = self.units_of(*range);
            let first = range.first * self.granule_units();
            begin += units;
            NamespaceExtent { begin: begin - units, first, units }
        };
        ranges.iter().map(extent).collect()
    }
}

impl DriveNamespace {
    /// Returns the number of units that are allocated to it.
    pub(crate) fn allocated_units(&self) -> u64 {
        self.extents.last().map_or(0, |extent| extent.begin + extent.units)
    }

    /// Whether a range of blocks is in the namespace.
    pub(crate) fn contains(&self, BlockRange { slba, nlb }: BlockRange) -> bool {
        slba.checked_add(nlb.into()).is_some_and(|end| end <= self.blocks)
    }

    /// Returns the parts of a range of its blocks, as the drive addresses them.
    pub(crate) fn parts(
        &self,
        unit_blocks: u32,
        BlockRange { slba, nlb }: BlockRange,
    ) -> impl Iterator<Item = BlockRange> + '_ {
        let (unit_blocks, end) = (u64::from(unit_blocks), slba + u64::from(nlb));
        let unit = slba / unit_blocks;
        let from = self.extents.partition_point(|extent| extent.begin + extent.units <= unit);
        let inside = move |extent: &&NamespaceExtent| extent.begin * unit_blocks < end;
        self.extents[from..].iter().take_while(inside).map(move |extent| {
            let first = slba.max(extent.begin * unit_blocks);
            let last = end.min((extent.begin + extent.units) * unit_blocks);
            let slba = (extent.first * unit_blocks) + (first - extent.begin * unit_blocks);
            BlockRange { slba, nlb: last.saturating_sub(first) as u32 }
        })
    }

    /// Returns the block of the namespace that a block of the drive is.
    pub(crate) fn block_of(&self, unit_blocks: u32, lba: u64) -> Option<u64> {
        let unit_blocks = u64::from(unit_blocks);
        let unit = lba / unit_blocks;
        let has =
            |extent: &&NamespaceExtent| (extent.first..extent.first + extent.units).contains(&unit);
        let extent = self.extents.iter().find(has)?;
        Some(lba - extent.first * unit_blocks + extent.begin * unit_blocks)
    }
}

/// The namespaces of a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamespaceTable {
    pub(super) space: NamespaceSpace,
    /// In the order of their identifiers.
    pub(super) namespaces: Vec<DriveNamespace>,
    /// Number of namespaces that were created.
    pub(super) created: u32,
}

impl NamespaceTable {
    /// Creates the table of a new drive with one namespace, or those of a layout in which a block has
    /// `block_bytes` bytes. A size is rounded up to whole blocks.
    ///
    /// # Errors
    /// The number of bytes that the namespaces need, if the drive has fewer.
    pub(crate) fn new(
        space: NamespaceSpace,
        layout: &NamespaceLayout,
        block_bytes: u32,
    ) -> Result<NamespaceTable, u64> {
        let mut table = NamespaceTable { space, namespaces: Vec::new(), created: 0 };
        let mut sizes: Vec<(u32, Option<u64>)> = (1..).zip(layout.sizes()).collect();
        if sizes.is_empty() {
            sizes.push((1, None));
        }
        // The rest is what all others leave.
        sizes.sort_by_key(|(_, size)| size.is_none());
        let unit_blocks = u64::from(space.unit_blocks);
        let blocks_of = |size: &Option<u64>| size.map(|bytes| bytes.div_ceil(block_bytes.into()));
        for (nsid, size) in &sizes {
            let blocks = blocks_of(size).unwrap_or(table.unallocated_units() * unit_blocks);
            let extents = table.allocate(blocks).filter(|extents| !extents.is_empty());
            let Some(extents) = extents else {
                let units = |size| table.needed_units(blocks_of(size).unwrap_or(1));
                let needed: u64 = sizes.iter().map(|(_, size)| units(size)).sum();
                return Err(needed * unit_blocks * u64::from(block_bytes));
            };
            let (nsid, generation, is_attached) = (*nsid, 0, true);
            table.namespaces.push(DriveNamespace {
                nsid,
                blocks,
                generation,
                is_attached,
                extents,
            });
        }
        table.namespaces.sort_by_key(|namespace| namespace.nsid);
        Ok(table)
    }

    /// Whether the drive has its one original namespace: blocks of the namespace are those of the
    /// drive, and nothing is translated.
    pub(crate) fn is_direct(&self) -> bool {
        let [namespace] = self.namespaces.as_slice() else { return false };
        let space = self.space;
        namespace.nsid == 1
            && namespace.is_attached
            && namespace.extents.len() == 1
            && namespace.blocks == space.units * u64::from(space.unit_blocks)
    }

    /// Returns the number of logical blocks in a unit.
    pub(crate) fn unit_blocks(&self) -> u32 {
        self.space.unit_blocks
    }

    /// Returns the number of units in an allocation granule.
    pub(crate) fn granule_units(&self) -> u64 {
        self.space.granule_units()
    }

    /// Returns the namespaces, in the order of their identifiers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &DriveNamespace> {
        self.namespaces.iter()
    }

    /// Returns a namespace.
    pub(crate) fn get(&self, nsid: u32) -> Option<&DriveNamespace> {
        self.namespaces.iter().find(|namespace| namespace.nsid == nsid)
    }

    /// Returns a namespace if it is attached.
    pub(crate) fn active(&self, nsid: u32) -> Option<&DriveNamespace> {
        self.get(nsid).filter(|namespace| namespace.is_attached)
    }

    /// Returns the number of units that no namespace has.
    pub(crate) fn unallocated_units(&self) -> u64 {
        self.space.units - self.namespaces.iter().map(DriveNamespace::allocated_units).sum::<u64>()
    }

    /// Returns the number of units that a namespace of this size needs.
    pub(crate) fn needed_units(&self, blocks: u64) -> u64 {
        let units = blocks.div_ceil(self.space.unit_blocks.into());
        units.checked_next_multiple_of(self.space.granule_units()).unwrap_or(u64::MAX)
    }

    /// Returns the ranges of granules without a namespace, ascending.
    fn free_ranges(&self) -> Vec<GranuleRange> {
        let granule = self.space.granule_units();
        let mut used: Vec<(u64, u64)> = self
            .namespaces
            .iter()
            .flat_map(|namespace| &namespace.extents)
            .map(|e| (e.first / granule, (e.first + e.units).div_ceil(granule)))
            .collect();
        used.sort_unstable();
        used.push((self.space.granules(), self.space.granules()));
        let mut next = 0;
        let mut free = Vec::new();
        for (first, end) in used {
            if first > next {
                free.push(GranuleRange { first: next, end: first });
            }
            next = end;
        }
        free
    }

    /// Returns the extents that no namespace has.
    pub(crate) fn free_extents(&self) -> Vec<NamespaceExtent> {
        self.space.extents(&self.free_ranges())
    }

    /// Returns extents for a new namespace: one if a free range is large enough, otherwise free
    /// ranges from the first one on. Returns `None` if the drive has less capacity.
    pub(crate) fn allocate(&self, blocks: u64) -> Option<Vec<NamespaceExtent>> {
        let (space, granule) = (self.space, self.space.granule_units());
        let needed = blocks.div_ceil(space.unit_blocks.into());
        let free = self.free_ranges();
        let fits = |range: &&GranuleRange| space.units_of(**range) >= needed;
        let mut ranges = Vec::new();
        let mut left = needed;
        for range in free.iter().find(fits).map_or(free.as_slice(), std::slice::from_ref) {
            if left == 0 {
                break;
            }
            let end = range.end.min(range.first + left.div_ceil(granule));
            let taken = GranuleRange { end, ..*range };
            left = left.saturating_sub(space.units_of(taken));
            ranges.push(taken);
        }
        (left == 0).then(|| space.extents(&ranges))
    }

    /// Returns the smallest identifier without a namespace.
    pub(crate) fn free_nsid(&self) -> Option<u32> {
        (1..=NAMESPACES_MAX as u32).find(|nsid| self.get(*nsid).is_none())
    }

    /// Adds a namespace that is not attached.
    pub(crate) fn add(&mut self, nsid: u32, blocks: u64, extents: Vec<NamespaceExtent>) {
        self.created += 1;
        let generation = self.created;
        let at = self.namespaces.partition_point(|namespace| namespace.nsid < nsid);
        let namespace = DriveNamespace { nsid, blocks, generation, is_attached: false, extents };
        self.namespaces.insert(at, namespace);
    }

    /// Removes a namespace.
    pub(crate) fn remove(&mut self, nsid: u32) {
        self.namespaces.retain(|namespace| namespace.nsid != nsid);
    }

    /// Removes all namespaces.
    pub(crate) fn remove_all(&mut self) {
        self.namespaces.clear();
    }

    /// Attaches a namespace, or detaches it.
    pub(crate) fn set_attached(&mut self, nsid: u32, is_attached: bool) {
        if let Some(namespace) = self.namespaces.iter_mut().find(|n| n.nsid == nsid) {
            namespace.is_attached = is_attached;
        }
    }

    /// Checks that namespaces are within the space, share nothing, and have the units that they need.
    pub(crate) fn check_invariants(&self) -> Result<(), DriveViolation> {
        let (space, granule) = (self.space, self.space.granule_units());
        let mut owners = vec![0; space.granules() as usize];
        let mut last = 0;
        for namespace in &self.namespaces {
            let part = DrivePart::Namespaces;
            let check = DriveCheck { part, subject: "namespace", index: namespace.nsid };
            let ascends = namespace.nsid > last && namespace.nsid <= NAMESPACES_MAX as u32;
            check.require(ascends, "identifiers ascend", "a larger one", namespace.nsid)?;
            last = namespace.nsid;
            let mut begin = 0;
            for extent in &namespace.extents {
                check.equal("extents follow each other", begin, extent.begin)?;
                begin += extent.units;
                let end = extent.first + extent.units;
                let is_whole = extent.units > 0
                    && extent.first.is_multiple_of(granule)
                    && (end.is_multiple_of(granule) || end == space.units)
                    && end <= space.units;
                check.require(is_whole, "extents are whole granules", granule, extent)?;
                for owner in
                    &mut owners[(extent.first / granule) as usize..end.div_ceil(granule) as usize]
                {
                    check.equal("a granule has one namespace", 0, *owner)?;
                    *owner = namespace.nsid;
                }
            }
            let needed = namespace.blocks.div_ceil(space.unit_blocks.into());
            let is_exact = begin >= needed && begin < needed + granule && needed > 0;
            check.require(is_exact, "a namespace has the capacity of its blocks", needed, begin)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rng::Rng;

    use super::*;

    fn table(units: u64, unit_blocks: u32, sizes: &[Option<u64>]) -> Result<NamespaceTable, u64> {
        let layout = NamespaceLayout::of_sizes(sizes).unwrap();
        NamespaceTable::new(NamespaceSpace { units, unit_blocks }, &layout, 512)
    }

    #[test]
    fn a_new_drive_has_its_layout() {
        let one = table(5_000, 8, &[]).unwrap();
        assert!(one.is_direct());
        assert_eq!((one.granule_units(), one.unallocated_units()), (4, 0));
        assert_eq!(one.get(1).unwrap().blocks, 40_000);
        let three = table(5_001, 8, &[Some(4096 * 10), None, Some(1)]).unwrap();
        let blocks: Vec<_> =
            three.iter().map(|n| (n.nsid, n.blocks, n.allocated_units())).collect();
        assert_eq!(blocks, [(1, 80, 12), (2, 39_880, 4985), (3, 1, 4)]);
        assert_eq!(three.check_invariants(), Ok(()));
        assert!(!three.is_direct() && three.iter().all(|n| n.is_attached));
        assert_eq!(table(5_000, 8, &[Some(5_000 * 4096), None]), Err(5_004 * 4096));
        assert_eq!(table(5_000, 8, &[Some(5_000 * 4096), Some(1)]), Err(5_004 * 4096));
        assert!(table(5_000, 8, &[Some(4_999 * 4096)]).is_ok());
    }

    /// Only capacity decides: after any changes, a namespace of exactly the unallocated capacity can
    /// be created, and none that needs a unit more.
    #[test]
    fn capacity_is_never_lost_to_fragmentation() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let units = 1 + rng.below(9_000);
            let unit_blocks = 1 << rng.below(4);
            let mut t = table(units, unit_blocks, &[]).unwrap();
            for _ in 0..200 {
                if rng.chance(0.4) {
                    t.remove(1 + rng.below(32) as u32);
                } else if let Some(nsid) = t.free_nsid() {
                    let free = t.unallocated_units() * u64::from(unit_blocks);
                    let share = 1 + rng.below(8);
                    let asked = 1 + rng.below(free / share + 2);
                    let extents = t.allocate(asked);
                    let fits = asked.div_ceil(unit_blocks.into()) <= t.unallocated_units();
                    assert_eq!(extents.is_some(), fits, "seed {seed}");
                    if let Some(extents) = extents {
                        t.add(nsid, asked, extents);
                    }
                }
                assert_eq!(t.check_invariants(), Ok(()), "seed {seed}");
                let free = t.unallocated_units();
                assert_eq!(t.free_extents().iter().map(|e| e.units).sum::<u64>(), free);
                assert_eq!(free > 0, t.allocate(free.max(1) * u64::from(unit_blocks)).is_some());
                assert!(t.allocate((free + 1) * u64::from(unit_blocks)).is_none());
            }
        }
    }

    #[test]
    fn parts_are_every_block_of_a_range_once() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let mut t = table(5_000, 8, &[]).unwrap();
            t.remove(1);
            for nsid in 1..=20 {
                t.add(nsid, 8 * (1 + rng.below(200)), Vec::new());
                let blocks = t.get(nsid).unwrap().blocks;
                t.remove(nsid);
                t.add(nsid, blocks, t.allocate(blocks).unwrap());
            }
            (1..=20).step_by(2).for_each(|nsid| t.remove(nsid));
            let blocks = t.unallocated_units() * 8 - rng.below(20);
            t.add(1, blocks, t.allocate(blocks).unwrap());
            let namespace = t.get(1).unwrap();
            assert!(namespace.extents.len() > 1);
            for _ in 0..100 {
                let slba = rng.below(blocks);
                let nlb = 1 + rng.below(3_000.min(blocks - slba)) as u32;
                let mut next = slba;
                for part in namespace.parts(8, BlockRange { slba, nlb }) {
                    assert!(part.nlb > 0);
                    for lba in part.slba..part.slba + u64::from(part.nlb) {
                        assert_eq!(namespace.block_of(8, lba), Some(next));
                        next += 1;
                    }
                }
                assert_eq!(next, slba + u64::from(nlb));
            }
        }
    }
}
