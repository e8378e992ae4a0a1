//! [`BlockAllocator`]: the free data blocks, and how many of them are promised to buffered data (delayed
//! allocation) or reserved for future writes.
//!
//! Placement is next fit with a stride. A file continues behind its last block if that block is
//! free. Otherwise it is placed a stride away from the previously placed file, which leaves both
//! space to grow. If nothing near that point fits, the smallest extent with enough space is used,
//! or else the largest one.

use std::collections::{BTreeMap, BTreeSet};

use crate::invariants::{VolumeViolation, require, require_eq};
use crate::on_media::layout::BlockRun;

/// Blocks between small files at their placement.
const PLACEMENT_STRIDE: u32 = 64;
/// Extents searched behind the last placement.
const NEXT_FIT_EXTENTS_MAX: usize = 16;

/// The free blocks of a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockAllocator {
    /// Free extents by first block.
    extents: BTreeMap<u32, u32>,
    /// Free extents by length.
    extents_by_length: BTreeSet<(u32, u32)>,
    free_blocks: u64,
    delalloc_blocks: u64,
    reserved_blocks: u64,
    /// Freed blocks whose discard is in flight.
    discarding_blocks: u64,
    /// Number of blocks discarded.
    discarded_blocks: u64,
    /// Where the next file is placed.
    placement_cursor: u32,
}

impl BlockAllocator {
    /// Creates an allocator of the blocks `first..end` without those in use, which are sorted and
    /// disjoint.
    pub(crate) fn new(first: u32, end: u32, used: &[BlockRun]) -> BlockAllocator {
        let mut space = BlockAllocator { placement_cursor: first, ..BlockAllocator::default() };
        let mut at = first;
        for run in used {
            if run.first_block > at {
                space.free(BlockRun { first_block: at, blocks: run.first_block - at });
            }
            at = run.end_block();
        }
        if end > at {
            space.free(BlockRun { first_block: at, blocks: end - at });
        }
        space
    }

    /// Returns the free blocks that are neither promised nor reserved.
    pub(crate) fn available(&self) -> u64 {
        self.free_blocks - self.delalloc_blocks - self.reserved_blocks
    }

    /// Returns the number of reserved blocks.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved_blocks
    }

    /// Reserves blocks; returns `false` if too few are available.
    #[must_use]
    pub(crate) fn reserve(&mut self, blocks: u64) -> bool {
        let enough = self.available() >= blocks;
        if enough {
            self.reserved_blocks += blocks;
        }
        enough
    }

    /// Releases reserved blocks.
    pub(crate) fn unreserve(&mut self, blocks: u64) {
        assert!(
            blocks <= self.reserved_blocks,
            "allocator: {blocks} blocks are released, and {} are reserved",
            self.reserved_blocks
        );
        self.reserved_blocks -= blocks;
    }

    #[cfg(test)]
    pub(crate) fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// Promises blocks to buffered data; returns `false` if too few are available.
    #[must_use]
    pub(crate) fn reserve_delalloc(&mut self, blocks: u64) -> bool {
        let enough = self.available() >= blocks;
        if enough {
            self.delalloc_blocks += blocks;
        }
        enough
    }

    /// Releases a promise, which is obsolete or fulfilled by the next
    /// [`allocate`](BlockAllocator::allocate).
    pub(crate) fn release_delalloc(&mut self, blocks: u64) {
        assert!(
            blocks <= self.delalloc_blocks,
            "allocator: promises of {blocks} blocks end, and {} are promised",
            self.delalloc_blocks
        );
        self.delalloc_blocks -= blocks;
    }

    fn remove(&mut self, start: u32, count: u32) {
        self.extents.remove(&start);
        self.extents_by_length.remove(&(count, start));
    }

    fn insert(&mut self, start: u32, count: u32) {
        if count > 0 {
            self.extents.insert(start, count);
            self.extents_by_length.insert((count, start));
        }
    }

    /// Returns the free extent that contains `block`.
    fn extent_at(&self, block: u32) -> Option<(u32, u32)> {
        let (&start, &count) = self.extents.range(..=block).next_back()?;
        (block - start < count).then_some((start, count))
    }

    fn split_extent(&mut self, (start, count): (u32, u32), at: u32, want: u32) -> (u32, u32) {
        let taken = want.min(start + count - at);
        self.remove(start, count);
        self.insert(start, at - start);
        self.insert(at + taken, start + count - at - taken);
        self.free_blocks -= u64::from(taken);
        (at, taken)
    }

    /// Allocates up to `want` contiguous blocks, at `goal` if it is free. Returns `None` if no
    /// block is free.
    pub(crate) fn allocate(&mut self, goal: Option<u32>, want: u32) -> Option<BlockRun> {
        let (first_block, blocks) = self.allocate_extent(goal, want)?;
        Some(BlockRun { first_block, blocks })
    }

    fn allocate_extent(&mut self, goal: Option<u32>, want: u32) -> Option<(u32, u32)> {
        if let Some(goal) = goal
            && let Some(run) = self.extent_at(goal)
        {
            return Some(self.split_extent(run, goal, want));
        }
        let here = self.extent_at(self.placement_cursor);
        if let Some((start, count)) = here
            && start + count - self.placement_cursor >= want
        {
            return Some(self.place_file((start, count), self.placement_cursor, want));
        }
        let behind = self
            .extents
            .range(self.placement_cursor..)
            .take(NEXT_FIT_EXTENTS_MAX)
            .find(|(_, n)| **n >= want);
        let found = behind.map(|(s, n)| (*s, *n)).or_else(|| {
            let fits = self.extents_by_length.range((want, 0)..).next();
            fits.or_else(|| self.extents_by_length.last()).map(|(n, s)| (*s, *n))
        });
        found.map(|run| self.place_file(run, run.0, want))
    }

    fn place_file(&mut self, run: (u32, u32), at: u32, want: u32) -> (u32, u32) {
        let (at, taken) = self.split_extent(run, at, want);
        self.placement_cursor = at.saturating_add(taken.max(PLACEMENT_STRIDE));
        if self.extent_at(self.placement_cursor).is_none() {
            let start = self
                .extents
                .range(self.placement_cursor..)
                .next()
                .or_else(|| self.extents.iter().next());
            self.placement_cursor = start.map_or(self.placement_cursor, |(s, _)| *s);
        }
        (at, taken)
    }

    /// Keeps freed blocks until their discard ends.
    pub(crate) fn begin_discard(&mut self, blocks: BlockRun) {
        self.discarding_blocks += u64::from(blocks.blocks);
    }

    /// Frees blocks whose discard has ended.
    pub(crate) fn end_discard(&mut self, blocks: BlockRun) {
        let count = u64::from(blocks.blocks);
        assert!(
            count <= self.discarding_blocks,
            "allocator: a discard of {count} blocks ends, and {} are in flight",
            self.discarding_blocks
        );
        self.discarding_blocks -= count;
        self.discarded_blocks += count;
        self.free(blocks);
    }

    /// Returns the number of freed blocks whose discard is in flight.
    pub(crate) fn discarding_blocks(&self) -> u64 {
        self.discarding_blocks
    }

    /// Returns the number of blocks discarded.
    pub(crate) fn discarded_blocks(&self) -> u64 {
        self.discarded_blocks
    }

    /// Frees blocks.
    pub(crate) fn free(&mut self, blocks: BlockRun) {
        let BlockRun { first_block: start, blocks: count } = blocks;
        debug_assert!(self.extent_at(start).is_none(), "allocator: {blocks:?} is freed twice");
        let (mut from, mut to) = (start, start + count);
        if let Some((&s, &n)) = self.extents.range(..start).next_back()
            && s + n == start
        {
            self.remove(s, n);
            from = s;
        }
        if let Some(&n) = self.extents.get(&to) {
            self.remove(to, n);
            to += n;
        }
        self.insert(from, to - from);
        self.free_blocks += u64::from(count);
    }

    /// Returns the free extents.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockRun> + '_ {
        self.extents.iter().map(|(start, count)| BlockRun { first_block: *start, blocks: *count })
    }

    /// Returns the number of blocks promised to buffered data.
    pub(crate) fn delalloc_blocks(&self) -> u64 {
        self.delalloc_blocks
    }

    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        let mut end = None;
        for run in self.iter() {
            let subject = format_args!("block {}", run.first_block);
            require!(
                run.blocks > 0 && end.is_none_or(|end| end < run.first_block),
                Allocator,
                "free extents are disjoint and merged",
                subject,
                end,
                run
            );
            require!(
                self.extents_by_length.contains(&(run.blocks, run.first_block)),
                Allocator,
                "a free extent is listed by length",
                subject,
                run,
                "none"
            );
            end = Some(run.end_block());
        }
        require_eq!(
            Allocator,
            "extents listed by length are free",
            "all extents",
            self.extents.len(),
            self.extents_by_length.len()
        );
        let free: u64 = self.iter().map(|run| u64::from(run.blocks)).sum();
        require_eq!(Allocator, "free blocks", "all extents", free, self.free_blocks);
        require!(
            self.delalloc_blocks + self.reserved_blocks <= free,
            Allocator,
            "promised and reserved blocks are free",
            format_args!("{} promised", self.delalloc_blocks),
            free,
            self.delalloc_blocks + self.reserved_blocks
        );
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_free_blocks(&mut self) {
        self.free_blocks -= 1;
    }

    #[cfg(test)]
    pub(crate) fn extents(&self) -> Vec<(u32, u32)> {
        self.extents.iter().map(|(s, n)| (*s, *n)).collect()
    }
}

#[cfg(test)]
mod tests {
    use rng::Rng;

    use super::*;

    fn run(first_block: u32, blocks: u32) -> BlockRun {
        BlockRun { first_block, blocks }
    }

    #[test]
    fn every_block_has_one_owner_and_comes_back() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let mut space = BlockAllocator::new(10, 500, &[run(10, 3), run(40, 5), run(499, 1)]);
            let mut owned = [false; 500];
            for b in [10, 11, 12, 40, 41, 42, 43, 44, 499] {
                owned[b] = true;
            }
            let mut held = Vec::new();
            for _ in 0..400 {
                if rng.chance(0.55) {
                    let goal = rng.chance(0.5).then(|| rng.below(520) as u32);
                    let Some(BlockRun { first_block: at, blocks: n }) =
                        space.allocate(goal, 1 + rng.below(20) as u32)
                    else {
                        assert_eq!(space.free_blocks(), 0);
                        continue;
                    };
                    for b in at..at + n {
                        assert!((10..500).contains(&b) && !owned[b as usize], "seed {seed}: {b}");
                        owned[b as usize] = true;
                    }
                    held.push((at, n));
                } else if !held.is_empty() {
                    let (at, n) = held.swap_remove(rng.below(held.len() as u64) as usize);
                    (at..at + n).for_each(|b| owned[b as usize] = false);
                    space.free(run(at, n));
                }
                let free = owned[10..].iter().filter(|o| !**o).count() as u64;
                assert_eq!(space.free_blocks(), free, "seed {seed}");
                space.check_invariants().unwrap();
            }
            held.drain(..).for_each(|(at, n)| space.free(run(at, n)));
            assert_eq!(space.extents(), [(13, 27), (45, 454)], "grown together");
            assert!(space.reserve_delalloc(481) && !space.reserve_delalloc(1));
            space.release_delalloc(481);
            assert_eq!(space.available(), 481);
        }
    }

    #[test]
    fn files_that_grow_side_by_side_stay_contiguous() {
        let mut space = BlockAllocator::new(0, 10_000, &[]);
        let mut ends = [None; 4];
        for _ in 0..PLACEMENT_STRIDE {
            for end in &mut ends {
                let BlockRun { first_block: at, blocks: n } = space.allocate(*end, 1).unwrap();
                assert!(end.is_none_or(|e| e == at));
                *end = Some(at + n);
            }
        }
    }
}
