//! [`Extents`]: maps a file's blocks to blocks of the volume.

use crate::Ino;
use crate::invariants::{VolumeViolation, require, require_eq};
use crate::on_media::layout::BlockRun;

/// A contiguous range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileExtent {
    /// First block of the file.
    pub(crate) logical: u32,
    /// Number of blocks.
    pub(crate) count: u32,
    /// First block of the volume.
    pub(crate) phys: u32,
    /// Whether it holds data; otherwise it is preallocated and reads as zeros.
    pub(crate) written: bool,
}

impl FileExtent {
    pub(crate) fn end(self) -> u32 {
        self.logical + self.count
    }

    /// Returns its blocks of the volume.
    pub(crate) fn run(self) -> BlockRun {
        BlockRun { first_block: self.phys, blocks: self.count }
    }

    /// Returns the part within `from..to`, which must overlap.
    pub(crate) fn clip(self, from: u32, to: u32) -> FileExtent {
        let (start, end) = (self.logical.max(from), self.end().min(to));
        FileExtent {
            logical: start,
            count: end - start,
            phys: self.phys + (start - self.logical),
            ..self
        }
    }

    /// Returns whether `next` continues this extent.
    fn can_merge(self, next: FileExtent) -> bool {
        self.end() == next.logical
            && self.phys + self.count == next.phys
            && self.written == next.written
    }
}

/// Mapping of a block, and the number of following blocks with the same mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockMapping {
    /// Not allocated; reads as zeros.
    Hole { count: u32 },
    /// A part of an extent.
    Extent(FileExtent),
}

/// All extents of a file, sorted, with contiguous ones merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    extents: Vec<FileExtent>,
    blocks: u64,
}

impl Extents {
    pub(crate) fn len(&self) -> usize {
        self.extents.len()
    }

    /// Returns the number of blocks of all extents.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = FileExtent> + '_ {
        self.extents.iter().copied()
    }

    /// Returns the extents that end after `block`, the first one clipped.
    pub(crate) fn range_from(&self, block: u32) -> impl Iterator<Item = FileExtent> + '_ {
        let first = self.extents.partition_point(|e| e.end() <= block);
        self.extents[first..].iter().map(move |e| e.clip(block, u32::MAX))
    }

    /// Returns the mapping of `block`.
    pub(crate) fn find(&self, block: u32) -> BlockMapping {
        match self.range_from(block).next() {
            Some(extent) if extent.logical == block => BlockMapping::Extent(extent),
            Some(extent) => BlockMapping::Hole { count: extent.logical - block },
            None => BlockMapping::Hole { count: u32::MAX - block },
        }
    }

    /// Returns the blocks from `first` on, at most up to `end`, that are contiguous on the volume,
    /// as one extent; it is written if all are. Returns `None` if the first one is not mapped.
    pub(crate) fn contiguous(&self, first: u32, end: u32) -> Option<FileExtent> {
        let mut extents = self.range_from(first).take_while(|extent| extent.logical < end);
        let mut all = extents.next().filter(|extent| extent.logical == first)?;
        for next in extents {
            if (next.logical, next.phys) != (all.end(), all.phys + all.count) {
                break;
            }
            all.count += next.count;
            all.written &= next.written;
        }
        Some(all.clip(first, end))
    }

    /// Returns the preferred location of the file's next block: behind the nearest block before it.
    pub(crate) fn goal(&self, block: u32) -> Option<u32> {
        let before = self.extents.partition_point(|e| e.logical < block).checked_sub(1)?;
        let extent = self.extents[before];
        extent.phys.checked_add(block - extent.logical)
    }

    /// Maps blocks, replacing earlier mappings.
    pub(crate) fn set(&mut self, new: FileExtent) {
        let last = self.extents.last().copied();
        if last.is_none_or(|last| last.end() <= new.logical) {
            self.blocks += u64::from(new.count);
            match self.extents.last_mut() {
                Some(last) if last.can_merge(new) => last.count += new.count,
                _ => self.extents.push(new),
            }
            return;
        }
        self.clear(new.logical, new.count, |_| {});
        let mut index = self.extents.partition_point(|e| e.logical < new.logical);
        self.blocks += u64::from(new.count);
        self.extents.insert(index, new);
        if index > 0 && self.extents[index - 1].can_merge(new) {
            index -= 1;
            self.extents[index].count += new.count;
            self.extents.remove(index + 1);
        }
        if let Some(next) = self.extents.get(index + 1).copied()
            && self.extents[index].can_merge(next)
        {
            self.extents[index].count += next.count;
            self.extents.remove(index + 1);
        }
    }

    /// Unmaps blocks; calls `freed` with each extent of the volume that this frees.
    pub(crate) fn clear(&mut self, at: u32, count: u32, mut freed: impl FnMut(BlockRun)) {
        let end = at.saturating_add(count);
        let first = self.extents.partition_point(|e| e.end() <= at);
        let past = self.extents.partition_point(|e| e.logical < end);
        if first >= past {
            return;
        }
        for run in &self.extents[first..past] {
            let gone = run.clip(at, end);
            self.blocks -= u64::from(gone.count);
            freed(gone.run());
        }
        let (head, tail) = (self.extents[first], self.extents[past - 1]);
        let head = (head.logical < at).then(|| head.clip(head.logical, at));
        let tail = (tail.end() > end).then(|| tail.clip(end, u32::MAX));
        self.extents.splice(first..past, head.into_iter().chain(tail));
    }

    pub(crate) fn check_invariants(&self, ino: Ino) -> Result<(), VolumeViolation> {
        for pair in self.extents.windows(2) {
            require!(
                pair[0].end() <= pair[1].logical && !pair[0].can_merge(pair[1]),
                Inodes,
                "extents are disjoint and merged",
                ino,
                pair[0],
                pair[1]
            );
        }
        let blocks: u64 = self.iter().map(|extent| u64::from(extent.count)).sum();
        require_eq!(Inodes, "blocks of all extents", ino, blocks, self.blocks);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rng::Rng;

    use super::*;

    #[test]
    fn extents_are_what_a_map_of_blocks_would_be() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut extents, mut model) = (Extents::default(), BTreeMap::new());
            for _ in 0..200 {
                let (at, count) = (rng.below(60) as u32, 1 + rng.below(12) as u32);
                if rng.chance(0.6) {
                    let (phys, written) = (rng.below(50) as u32, rng.chance(0.5));
                    extents.set(FileExtent { logical: at, count, phys, written });
                    model.extend((0..count).map(|i| (at + i, (phys + i, written))));
                } else {
                    let mut freed = Vec::new();
                    let many = if rng.chance(0.1) { u32::MAX } else { count };
                    extents.clear(at, many, |run| freed.extend(run.first_block..run.end_block()));
                    let end = at.saturating_add(many);
                    let gone: Vec<u32> = model.range(at..end).map(|(_, (p, _))| *p).collect();
                    model.retain(|b, _| !(at..end).contains(b));
                    assert_eq!(freed, gone, "seed {seed}");
                }
                assert_eq!(extents.blocks(), model.len() as u64, "seed {seed}");
                let flat: Vec<(u32, (u32, bool))> = extents
                    .iter()
                    .flat_map(|e| {
                        (0..e.count).map(move |i| (e.logical + i, (e.phys + i, e.written)))
                    })
                    .collect();
                assert_eq!(flat, model.clone().into_iter().collect::<Vec<_>>(), "seed {seed}");
                assert!(extents.extents.windows(2).all(|w| !w[0].can_merge(w[1])), "seed {seed}");
                let block = rng.below(75) as u32;
                match (extents.find(block), model.get(&block)) {
                    (BlockMapping::Extent(e), Some(found)) => {
                        assert_eq!((e.phys, e.written), *found)
                    }
                    (BlockMapping::Hole { count }, None) => {
                        let next = model.range(block..).next().map_or(u32::MAX, |(b, _)| *b);
                        assert_eq!(count, next - block);
                    }
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
        }
    }
}
