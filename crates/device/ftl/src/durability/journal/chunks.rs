//! [`ChunkPool`]: the reserved chunks, the use of each, and the choice of the next one.
//!
//! A chunk holds frames of one generation and one copy only, so that it can be erased alone when
//! that generation is obsolete.

use super::JournalError;
use crate::FlashGeometry;
use crate::ids::ToU32;
use nvme::{ChunkId, PuId};
use serde::{Deserialize, Serialize};

/// Use of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ChunkRole {
    /// Erased.
    Free,
    /// Holds frames of this generation and copy.
    InUse { generation: u64, copy: usize },
    /// To be erased.
    Stale,
    /// Being erased.
    Erasing,
    /// Never used again.
    Retired,
}

/// A reserved chunk.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PoolChunk {
    pub(crate) chunk: ChunkId,
    pub(crate) pu: PuId,
    pub(crate) role: ChunkRole,
    /// Whether its contents may contradict the next write. It is erased before anything is
    /// programmed.
    pub(crate) untrusted: bool,
    /// Programs in flight.
    pub(crate) programs: u32,
    /// Whether a program in it failed. It is erased once more, so that its contents are not taken
    /// for newer ones, and then retired.
    pub(super) failed: bool,
    /// Position in the order of all releases and erases at which it became free.
    freed_at: u64,
}

/// All reserved chunks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChunkPool {
    pub(crate) chunks: Vec<PoolChunk>,
    events: u64,
    untrusted_count: u32,
}

impl ChunkPool {
    /// Creates the pool of these chunks, all free.
    pub(crate) fn new(
        shape: &FlashGeometry,
        chunks: impl Iterator<Item = ChunkId>,
    ) -> Result<ChunkPool, JournalError> {
        let mut slots: Vec<PoolChunk> = Vec::new();
        for chunk in chunks {
            let times = 1 + slots.iter().filter(|s| s.chunk == chunk).count().to_u32();
            if chunk.get() >= shape.total_chunks() || times > 1 {
                let chunks = shape.total_chunks();
                return Err(JournalError::Chunk { chunk, times, chunks });
            }
            slots.push(PoolChunk {
                chunk,
                pu: shape.pu_of(chunk),
                role: ChunkRole::Free,
                untrusted: false,
                programs: 0,
                failed: false,
                freed_at: 0,
            });
        }
        Ok(ChunkPool { chunks: slots, events: 0, untrusted_count: 0 })
    }

    fn count(&self, which: impl Fn(ChunkRole) -> bool) -> u32 {
        self.chunks.iter().filter(|s| which(s.role)).count().to_u32()
    }

    /// Returns the number of chunks that are not retired.
    pub(crate) fn usable_count(&self) -> u32 {
        self.chunks.iter().filter(|s| s.role != ChunkRole::Retired && !s.failed).count().to_u32()
    }

    /// Returns the number of retired chunks.
    pub(crate) fn retired_count(&self) -> u32 {
        self.count(|u| u == ChunkRole::Retired)
    }

    /// Returns the number of chunks without needed contents.
    pub(crate) fn spare_count(&self) -> u32 {
        let spare = |s: &&PoolChunk| {
            matches!(s.role, ChunkRole::Free | ChunkRole::Stale | ChunkRole::Erasing)
        };
        self.chunks.iter().filter(|s| !s.failed).filter(spare).count().to_u32()
    }

    /// Returns whether erases are pending or in flight that can free chunks.
    pub(crate) fn has_erase_pending(&self) -> bool {
        self.chunks
            .iter()
            .any(|s| !s.failed && matches!(s.role, ChunkRole::Stale | ChunkRole::Erasing))
    }

    /// Returns the number of chunks with frames of a generation; of one copy, or of both.
    pub(crate) fn in_use_count(&self, of: u64, copy: Option<usize>) -> u32 {
        self.count(|u| {
            matches!(u, ChunkRole::InUse { generation, copy: lane }
                if generation == of && copy.is_none_or(|c| c == lane))
        })
    }

    /// Whether chunks must be erased before anything is programmed.
    pub(crate) fn needs_erase_first(&self) -> bool {
        self.untrusted_count > 0
    }

    /// Marks a chunk as one that may contradict what is written next.
    pub(crate) fn mark_untrusted(&mut self, pool_index: usize) {
        self.chunks[pool_index].role = ChunkRole::Stale;
        self.chunks[pool_index].untrusted = true;
        self.untrusted_count += 1;
    }

    /// Allocates a free chunk for a copy of a generation. It prefers a parallel unit that the other
    /// copy does not use, then one that the other copy is not writing to (`beside`), and then the
    /// chunk that has been free longest.
    pub(crate) fn allocate(
        &mut self,
        generation: u64,
        lane: usize,
        beside: Option<usize>,
    ) -> Option<usize> {
        let other = ChunkRole::InUse { generation, copy: 1 - lane };
        let beside = beside.map(|slot| self.chunks[slot].pu);
        let conflict = |pu: PuId| {
            if beside == Some(pu) {
                2
            } else {
                u32::from(self.chunks.iter().any(|s| s.role == other && s.pu == pu))
            }
        };
        let free = self.chunks.iter().enumerate().filter(|(_, s)| s.role == ChunkRole::Free);
        let (slot, _) = free.min_by_key(|(_, s)| (conflict(s.pu), s.freed_at))?;
        self.chunks[slot].role = ChunkRole::InUse { generation, copy: lane };
        Some(slot)
    }

    /// Returns the next chunk to erase.
    pub(crate) fn next_to_erase(&self) -> Option<usize> {
        self.chunks.iter().position(|s| s.role == ChunkRole::Stale && s.programs == 0)
    }

    /// Releases the chunks for which `which` holds. Returns whether there were any.
    pub(crate) fn release(&mut self, which: impl Fn(u64, usize) -> bool) -> bool {
        let mut any = false;
        for slot in &mut self.chunks {
            if let ChunkRole::InUse { generation, copy: lane } = slot.role
                && which(generation, lane)
            {
                slot.role = ChunkRole::Stale;
                any = true;
            }
        }
        any
    }

    /// Records that a program in a chunk failed.
    pub(crate) fn on_program_failed(&mut self, pool_index: usize) {
        self.chunks[pool_index].failed = true;
    }

    /// Records the end of an erase: the chunk is free, or retired if the erase or a program before
    /// it failed.
    pub(crate) fn on_erased(&mut self, pool_index: usize, ok: bool) {
        self.events += 1;
        let chunk = &mut self.chunks[pool_index];
        chunk.role = if ok && !chunk.failed { ChunkRole::Free } else { ChunkRole::Retired };
        chunk.freed_at = self.events;
        self.untrusted_count -= u32::from(chunk.untrusted);
        chunk.untrusted = false;
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;

    use super::*;

    fn shape() -> FlashGeometry {
        FlashGeometry::from_geometry(&Geometry {
            groups: 2,
            pus: 2,
            chunks: 10,
            sectors: 4,
            sector_bytes: 512,
            oob_bytes: 0,
            ws_min: 1,
            ws_opt: 1,
            mw_cunits: 0,
        })
    }

    #[test]
    fn copies_keep_to_different_parallel_units_as_long_as_they_can() {
        // Two chunks on each of three parallel units, and one on a fourth.
        let mut pool =
            ChunkPool::new(&shape(), [0, 1, 10, 11, 20, 21, 30].map(ChunkId).into_iter()).unwrap();
        let mut beside = [None, None];
        for _ in 0..3 {
            for lane in [0, 1] {
                beside[lane] = pool.allocate(7, lane, beside[1 - lane]);
            }
        }
        let pus = |lane| {
            let held = ChunkRole::InUse { generation: 7, copy: lane };
            let mut pus: Vec<PuId> =
                pool.chunks.iter().filter(|s| s.role == held).map(|s| s.pu).collect();
            pus.dedup();
            pus
        };
        assert!(pus(0).iter().all(|pu| !pus(1).contains(pu)), "{:?} {:?}", pus(0), pus(1));
        assert_eq!(pool.spare_count(), 1);
        assert_eq!(
            (pool.in_use_count(7, Some(0)), pool.in_use_count(7, None), pool.in_use_count(6, None)),
            (3, 6, 0)
        );
    }

    #[test]
    fn one_parallel_unit_is_better_than_no_copy() {
        let mut pool = ChunkPool::new(&shape(), [3, 4].map(ChunkId).into_iter()).unwrap();
        let first = pool.allocate(1, 0, None);
        assert_eq!((first, pool.allocate(1, 1, first)), (Some(0), Some(1)));
        assert_eq!(pool.allocate(1, 0, Some(1)), None);
    }

    #[test]
    fn chunks_in_which_a_program_or_an_erase_failed_are_not_taken_again() {
        let mut pool = ChunkPool::new(&shape(), [0, 1, 2].map(ChunkId).into_iter()).unwrap();
        assert_eq!(pool.allocate(1, 0, None), Some(0));
        pool.on_program_failed(0);
        pool.release(|_, _| true);
        assert_eq!(pool.next_to_erase(), Some(0));
        pool.on_erased(0, true);
        assert_eq!((pool.allocate(2, 0, None), pool.allocate(2, 0, None)), (Some(1), Some(2)));
        pool.on_erased(1, false);
        assert_eq!((pool.usable_count(), pool.retired_count(), pool.spare_count()), (1, 2, 0));
        pool.on_program_failed(2);
        assert_eq!((pool.usable_count(), pool.retired_count(), pool.spare_count()), (0, 2, 0));
        assert_eq!(pool.allocate(3, 0, None), None);
    }

    #[test]
    fn what_is_not_trusted_is_erased_first() {
        let mut pool = ChunkPool::new(&shape(), [5, 6].map(ChunkId).into_iter()).unwrap();
        pool.mark_untrusted(1);
        assert!(pool.needs_erase_first());
        pool.chunks[1].programs = 1;
        assert_eq!(pool.next_to_erase(), None);
        pool.chunks[1].programs = 0;
        assert_eq!(pool.next_to_erase(), Some(1));
        pool.on_erased(1, false);
        assert!(!pool.needs_erase_first());
    }

    #[test]
    fn chunks_that_do_not_exist_or_come_twice_are_refused() {
        for (chunks, times) in [([1, 1], 2), ([1, 40], 1)] {
            let error = ChunkPool::new(&shape(), chunks.map(ChunkId).into_iter()).unwrap_err();
            assert_eq!(error, JournalError::Chunk { chunk: ChunkId(chunks[1]), times, chunks: 40 });
        }
    }
}
