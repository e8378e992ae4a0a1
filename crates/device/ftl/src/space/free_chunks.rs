//! [`FreeChunks`]: the chunks that a line can be opened on, by parallel unit.

use std::collections::VecDeque;

use nvme::{ChunkId, PuId};
use serde::{Deserialize, Serialize};

use crate::FlashGeometry;
use crate::check::{Subject, Violation, require, require_eq};
use crate::ids::ToIndex;
use crate::space::chunk::ChunkTable;

/// Erased chunks of each parallel unit, in the order in which they are opened.
///
/// With dynamic wear leveling the least worn chunk is first, among equals the one free longest;
/// otherwise the one free longest.
///
/// Invariants: a chunk is in the list of its parallel unit; with dynamic wear leveling a list is sorted by
/// erases; the count is the sum of the lists.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FreeChunks {
    geometry: FlashGeometry,
    by_pu: Vec<VecDeque<ChunkId>>,
    count: u32,
    dynamic_wl: bool,
    /// The parallel unit, in striping order, that the next line begins on.
    pu_cursor: u32,
}

impl FreeChunks {
    /// Creates empty lists.
    pub(super) fn new(geometry: FlashGeometry, dynamic_wl: bool) -> FreeChunks {
        let by_pu = vec![VecDeque::new(); geometry.pus.index()];
        FreeChunks { geometry, by_pu, count: 0, dynamic_wl, pu_cursor: 0 }
    }

    /// The number of free chunks.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Free chunks, by parallel unit.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ChunkId> {
        self.by_pu.iter().flatten().copied()
    }

    /// Adds a chunk behind the others of its parallel unit, or with dynamic wear leveling behind
    /// those with no more wear.
    pub(super) fn add(&mut self, chunk: ChunkId, chunks: &ChunkTable) {
        let erases = chunks.state(chunk).erases;
        let free = &mut self.by_pu[self.geometry.pu_of(chunk).index()];
        let at = if self.dynamic_wl {
            free.partition_point(|c| chunks.state(*c).erases <= erases)
        } else {
            free.len()
        };
        free.insert(at, chunk);
        self.count += 1;
    }

    /// Adds a chunk in front of the others of its parallel unit, or with dynamic wear leveling
    /// behind those with less wear.
    pub(super) fn add_first(&mut self, chunk: ChunkId, chunks: &ChunkTable) {
        let erases = chunks.state(chunk).erases;
        let free = &mut self.by_pu[self.geometry.pu_of(chunk).index()];
        let less = |c: &ChunkId| chunks.state(*c).erases < erases;
        let at = if self.dynamic_wl { free.partition_point(less) } else { 0 };
        free.insert(at, chunk);
        self.count += 1;
    }

    /// Removes a chunk. Returns whether it was free.
    pub(super) fn remove(&mut self, chunk: ChunkId) -> bool {
        let free = &mut self.by_pu[self.geometry.pu_of(chunk).index()];
        let Some(at) = free.iter().position(|c| *c == chunk) else { return false };
        free.remove(at);
        self.count -= 1;
        true
    }

    /// Removes and returns one chunk on each of the next `width` parallel units in striping order
    /// that have one: the first of the list, or the most worn. There are fewer if there are not so
    /// many.
    pub(super) fn take_stripe(
        &mut self,
        width: u32,
        worn: bool,
        chunks: &ChunkTable,
    ) -> Vec<ChunkId> {
        let mut taken = Vec::with_capacity(width.index());
        let pus = self.geometry.pus;
        let mut tried = 0;
        while taken.len() < width.index() && tried < pus {
            let pu = self.geometry.striped_pu((self.pu_cursor + tried) % pus);
            taken.extend(self.pop(pu, worn, chunks));
            tried += 1;
        }
        if !taken.is_empty() {
            self.pu_cursor = (self.pu_cursor + tried) % pus;
        }
        taken
    }

    /// Takes the first free chunk of a parallel unit, or the most worn.
    fn pop(&mut self, pu: PuId, worn: bool, chunks: &ChunkTable) -> Option<ChunkId> {
        let free = &mut self.by_pu[pu.index()];
        let at = if worn {
            (0..free.len()).max_by_key(|at| chunks.state(free[*at]).erases)?
        } else {
            0
        };
        let chunk = free.remove(at)?;
        self.count -= 1;
        Some(chunk)
    }

    /// Sorts the lists by wear, after an import of the wear.
    pub(super) fn sort(&mut self, chunks: &ChunkTable) {
        if self.dynamic_wl {
            for free in &mut self.by_pu {
                free.make_contiguous().sort_by_key(|chunk| chunks.state(*chunk).erases);
            }
        }
    }

    /// Checks the lists against the table of chunks.
    pub(super) fn check_invariants(&self, chunks: &ChunkTable) -> Result<(), Violation> {
        let mut count = 0;
        for (pu, free) in (0..).map(PuId).zip(&self.by_pu) {
            for &chunk in free {
                let subject = Subject::Chunk(chunk);
                require_eq!(
                    Space,
                    "a free chunk is in the list of its parallel unit",
                    subject,
                    pu,
                    self.geometry.pu_of(chunk)
                );
                chunks.check_free(chunk)?;
                count += 1;
            }
            let wear = |chunk: &ChunkId| chunks.state(*chunk).erases;
            require!(
                !self.dynamic_wl || free.iter().is_sorted_by_key(wear),
                Space,
                "free chunks are in order of their wear",
                Subject::Pu(pu),
                "ascending",
                "not"
            );
        }
        require_eq!(Space, "free chunks", Subject::Part, count, self.count);
        Ok(())
    }

    /// Breaks the count of chunks.
    #[cfg(test)]
    pub(crate) fn break_count(&mut self) {
        self.count += 1;
    }
}
