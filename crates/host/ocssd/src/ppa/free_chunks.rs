//! [`FreeChunkPool`]: allocates free chunks, the least worn first. The host selects free blocks such
//! that bad blocks are hidden and wear is leveled [LightNVM17 §2.4].
//!
//! The drive reports a chunk as free until it is written, so allocated chunks are recorded here; an
//! application has one instance for its own parallel units. Allocation is deterministic: among
//! chunks of equal wear, the one with the lowest index comes first.

use std::collections::{BTreeMap, BTreeSet};

use nvme::{Address, ChunkState};

use super::{PpaSpace, PuId, PuSet};
use crate::{OcssdError, OpenChannelSsd, ReportedChunk};

/// The free chunks of some parallel units.
#[derive(Clone, Debug)]
pub struct FreeChunkPool {
    space: PpaSpace,
    /// Parallel units in striping order.
    pus: Vec<PuId>,
    /// Wear index, and chunk index in the parallel unit.
    free: BTreeMap<PuId, BTreeSet<(u8, u32)>>,
    /// Index in `pus` of the next allocation.
    next_pu: usize,
}

impl FreeChunkPool {
    /// Creates an allocator of the chunks of `pus` that the drive reports as free.
    ///
    /// # Errors
    /// [`OcssdError`].
    pub fn new(
        ssd: &mut OpenChannelSsd,
        pus: &PuSet,
        progress: &mut dyn FnMut(),
    ) -> Result<FreeChunkPool, OcssdError> {
        let chunks = ssd.chunks_on_pus(pus, progress)?;
        let space = ssd.space();
        let pus = pus.striped(&space);
        let free = pus.iter().map(|pu| (*pu, BTreeSet::new())).collect();
        let mut all = FreeChunkPool { space, pus, free, next_pu: 0 };
        for chunk in &chunks {
            all.return_chunk(chunk);
        }
        Ok(all)
    }

    /// Returns the number of free chunks.
    pub fn len(&self) -> usize {
        self.free.values().map(BTreeSet::len).sum()
    }

    /// Returns whether there are no free chunks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of free chunks on one parallel unit.
    pub fn len_on(&self, pu: PuId) -> usize {
        self.free.get(&pu).map_or(0, BTreeSet::len)
    }

    /// Allocates the least worn chunk of a parallel unit.
    pub fn pop_on(&mut self, pu: PuId) -> Option<Address> {
        let (_, chunk) = self.free.get_mut(&pu)?.pop_first()?;
        let first = self.space.pu_address(pu).ok()?;
        Some(Address { chunk, ..first })
    }

    /// Allocates a chunk on the parallel unit of `like`, as its replacement; if there is none, on
    /// another parallel unit, in striping order.
    pub fn pop_near(&mut self, like: Address) -> Option<Address> {
        let pu = self.space.pu(like).ok()?;
        self.pop_on(pu).or_else(|| self.pop_next())
    }

    /// Removes a chunk that is in use although the drive reports it as free, such as one of an
    /// empty block. Returns whether it was free here.
    pub fn remove(&mut self, chunk: Address) -> bool {
        let Ok(pu) = self.space.pu(chunk) else { return false };
        let Some(free) = self.free.get_mut(&pu) else { return false };
        let before = free.len();
        free.retain(|(_, number)| *number != chunk.chunk);
        free.len() < before
    }

    /// Allocates `count` chunks, round robin over the parallel units in striping order from where
    /// the last call stopped, so that consecutive chunks are on different channels. Returns `None`,
    /// and allocates nothing, if there are too few.
    pub fn pop_many(&mut self, count: usize) -> Option<Vec<Address>> {
        if self.len() < count {
            return None;
        }
        (0..count).map(|_| self.pop_next()).collect()
    }

    fn pop_next(&mut self) -> Option<Address> {
        for _ in 0..self.pus.len() {
            let pu = *self.pus.get(self.next_pu)?;
            self.next_pu = (self.next_pu + 1) % self.pus.len();
            if let Some(chunk) = self.pop_on(pu) {
                return Some(chunk);
            }
        }
        None
    }

    /// Returns a chunk to the allocator, with its current chunk information. Returns whether it can
    /// be allocated again: free, of full size, and on one of these parallel units.
    pub fn return_chunk(&mut self, chunk: &ReportedChunk) -> bool {
        let whole = chunk.sectors == self.space.geometry().sectors;
        let Ok(pu) = self.space.pu(chunk.address) else { return false };
        match self.free.get_mut(&pu) {
            Some(free) if whole && chunk.state == ChunkState::Free => {
                free.insert((chunk.wear_index, chunk.address.chunk))
            }
            _ => false,
        }
    }
}
