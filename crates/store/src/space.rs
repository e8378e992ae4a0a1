//! [`Space`]: which data blocks are free, and how many of these are promised to buffered data, or reserved for
//! writes to come.
//!
//! Next fit with a stride: a file goes on behind its last block if that is free; otherwise the next place
//! is a stride away from where the last file was placed, which leaves both room to grow. What fits nowhere
//! behind that goes into the smallest run that has room, or else into the largest one.

use std::collections::{BTreeMap, BTreeSet};

/// Blocks between places of files that are small when they are placed.
const STRIDE: u32 = 64;
/// Runs looked at behind the last place.
const LOOKS: usize = 16;

/// The free blocks of a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    /// Runs, by first block.
    runs: BTreeMap<u32, u32>,
    /// The same by length.
    sizes: BTreeSet<(u32, u32)>,
    free: u64,
    promised: u64,
    reserved: u64,
    /// Where the next file is placed.
    next: u32,
}

impl Space {
    /// The blocks `first..end` without those in use, which are in order and do not overlap.
    pub(crate) fn new(first: u32, end: u32, used: &[(u32, u32)]) -> Space {
        let mut space = Space { next: first, ..Space::default() };
        let mut at = first;
        for &(start, count) in used {
            if start > at {
                space.give(at, start - at);
            }
            at = start + count;
        }
        if end > at {
            space.give(at, end - at);
        }
        space
    }

    /// Free blocks that are neither promised nor reserved.
    pub(crate) fn available(&self) -> u64 {
        self.free - self.promised - self.reserved
    }

    /// Blocks that are reserved.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Reserves blocks; `false` if there are not as many.
    #[must_use]
    pub(crate) fn reserve(&mut self, blocks: u64) -> bool {
        let enough = self.available() >= blocks;
        if enough {
            self.reserved += blocks;
        }
        enough
    }

    /// Blocks that were reserved are not.
    pub(crate) fn unreserve(&mut self, blocks: u64) {
        self.reserved -= blocks;
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Promises blocks to somebody; `false` if there are not as many.
    #[must_use]
    pub(crate) fn promise(&mut self, blocks: u64) -> bool {
        let enough = self.available() >= blocks;
        if enough {
            self.promised += blocks;
        }
        enough
    }

    /// A promise is not needed, or is kept by the next [`take`](Space::take).
    pub(crate) fn release(&mut self, blocks: u64) {
        self.promised = self.promised.saturating_sub(blocks);
    }

    fn remove(&mut self, start: u32, count: u32) {
        self.runs.remove(&start);
        self.sizes.remove(&(count, start));
    }

    fn insert(&mut self, start: u32, count: u32) {
        if count > 0 {
            self.runs.insert(start, count);
            self.sizes.insert((count, start));
        }
    }

    /// The run that `block` is in.
    fn around(&self, block: u32) -> Option<(u32, u32)> {
        let (&start, &count) = self.runs.range(..=block).next_back()?;
        (block - start < count).then_some((start, count))
    }

    fn cut(&mut self, (start, count): (u32, u32), at: u32, want: u32) -> (u32, u32) {
        let taken = want.min(start + count - at);
        self.remove(start, count);
        self.insert(start, at - start);
        self.insert(at + taken, start + count - at - taken);
        self.free -= u64::from(taken);
        (at, taken)
    }

    /// Takes up to `want` blocks in one run, at `goal` if it is free. `None` if nothing is.
    pub(crate) fn take(&mut self, goal: Option<u32>, want: u32) -> Option<(u32, u32)> {
        if let Some(goal) = goal
            && let Some(run) = self.around(goal)
        {
            return Some(self.cut(run, goal, want));
        }
        let here = self.around(self.next);
        if let Some((start, count)) = here
            && start + count - self.next >= want
        {
            return Some(self.place((start, count), self.next, want));
        }
        let behind = self.runs.range(self.next..).take(LOOKS).find(|(_, n)| **n >= want);
        let found = behind.map(|(s, n)| (*s, *n)).or_else(|| {
            let fits = self.sizes.range((want, 0)..).next();
            fits.or_else(|| self.sizes.last()).map(|(n, s)| (*s, *n))
        });
        found.map(|run| self.place(run, run.0, want))
    }

    fn place(&mut self, run: (u32, u32), at: u32, want: u32) -> (u32, u32) {
        let (at, taken) = self.cut(run, at, want);
        self.next = at.saturating_add(taken.max(STRIDE));
        if self.around(self.next).is_none() {
            let start = self.runs.range(self.next..).next().or_else(|| self.runs.iter().next());
            self.next = start.map_or(self.next, |(s, _)| *s);
        }
        (at, taken)
    }

    /// Gives blocks back.
    pub(crate) fn give(&mut self, start: u32, count: u32) {
        let (mut from, mut to) = (start, start + count);
        if let Some((&s, &n)) = self.runs.range(..start).next_back()
            && s + n == start
        {
            self.remove(s, n);
            from = s;
        }
        if let Some(&n) = self.runs.get(&to) {
            self.remove(to, n);
            to += n;
        }
        self.insert(from, to - from);
        self.free += u64::from(count);
    }

    #[cfg(test)]
    pub(crate) fn runs(&self) -> Vec<(u32, u32)> {
        self.runs.iter().map(|(s, n)| (*s, *n)).collect()
    }
}

#[cfg(test)]
mod tests {
    use rng::Rng;

    use super::*;

    #[test]
    fn every_block_has_one_owner_and_comes_back() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let mut space = Space::new(10, 500, &[(10, 3), (40, 5), (499, 1)]);
            let mut owned = [false; 500];
            for b in [10, 11, 12, 40, 41, 42, 43, 44, 499] {
                owned[b] = true;
            }
            let mut held = Vec::new();
            for _ in 0..400 {
                if rng.chance(0.55) {
                    let goal = rng.chance(0.5).then(|| rng.below(520) as u32);
                    let Some((at, n)) = space.take(goal, 1 + rng.below(20) as u32) else {
                        assert_eq!(space.free(), 0);
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
                    space.give(at, n);
                }
                let free = owned[10..].iter().filter(|o| !**o).count() as u64;
                assert_eq!(space.free(), free, "seed {seed}");
            }
            held.drain(..).for_each(|(at, n)| space.give(at, n));
            assert_eq!(space.runs(), [(13, 27), (45, 454)], "grown together");
            assert!(space.promise(481) && !space.promise(1));
            space.release(481);
            assert_eq!(space.available(), 481);
        }
    }

    #[test]
    fn files_that_grow_beside_each_other_stay_in_one_piece() {
        let mut space = Space::new(0, 10_000, &[]);
        let mut ends = [None; 4];
        for _ in 0..STRIDE {
            for end in &mut ends {
                let (at, n) = space.take(*end, 1).unwrap();
                assert!(end.is_none_or(|e| e == at));
                *end = Some(at + n);
            }
        }
    }
}
