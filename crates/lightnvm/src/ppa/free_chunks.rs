//! [`FreeChunks`]: chunks to take, the least worn first (LightNVM paper section 2.4: the host picks
//! free blocks in a way that hides bad blocks and levels wear).
//!
//! The drive knows a chunk as free until it is written, so what has been handed out is remembered
//! here: an application has one of these for the parallel units that are its own. Deterministic: of
//! chunks with the same wear, the one with the lowest number comes first.

use std::collections::{BTreeMap, BTreeSet};

use nvme::{Address, ChunkState};

use super::{PpaSpace, PuIndex, PuSet};
use crate::{ChunkInfo, OcssdError, OpenChannelSsd};

/// The free chunks of some parallel units.
#[derive(Clone, Debug)]
pub struct FreeChunks {
    space: PpaSpace,
    /// In striping order.
    pus: Vec<PuIndex>,
    /// Wear and number in its parallel unit.
    free: BTreeMap<PuIndex, BTreeSet<(u8, u32)>>,
    /// Which of `pus` is next.
    next_pu: usize,
}

impl FreeChunks {
    /// The chunks of `pus` that the drive says are free.
    ///
    /// # Errors
    /// [`OcssdError`].
    pub fn new(
        ssd: &mut OpenChannelSsd,
        pus: &PuSet,
        pump: &mut dyn FnMut(),
    ) -> Result<FreeChunks, OcssdError> {
        let chunks = ssd.chunks_on_pus(pus, pump)?;
        let space = ssd.space();
        let pus = pus.striped(&space);
        let free = pus.iter().map(|pu| (*pu, BTreeSet::new())).collect();
        let mut all = FreeChunks { space, pus, free, next_pu: 0 };
        for chunk in &chunks {
            all.return_chunk(chunk);
        }
        Ok(all)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.free.values().map(BTreeSet::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are on one parallel unit.
    pub fn len_on(&self, pu: PuIndex) -> usize {
        self.free.get(&pu).map_or(0, BTreeSet::len)
    }

    /// Takes the least worn chunk of a parallel unit.
    pub fn pop_on(&mut self, pu: PuIndex) -> Option<Address> {
        let (_, chunk) = self.free.get_mut(&pu)?.pop_first()?;
        let first = self.space.pu_address(pu).ok()?;
        Some(Address { chunk, ..first })
    }

    /// Takes a chunk on the parallel unit of `like`, to stand in for it; on another, in striping
    /// order, if that has none.
    pub fn pop_near(&mut self, like: Address) -> Option<Address> {
        let pu = self.space.pu(like).ok()?;
        self.pop_on(pu).or_else(|| self.pop_next())
    }

    /// Takes a chunk that somebody has already, such as one of a block that is empty. Returns whether
    /// it was here.
    pub fn remove(&mut self, chunk: Address) -> bool {
        let Ok(pu) = self.space.pu(chunk) else { return false };
        let Some(free) = self.free.get_mut(&pu) else { return false };
        let before = free.len();
        free.retain(|(_, number)| *number != chunk.chunk);
        free.len() < before
    }

    /// Takes `count` chunks, going round the parallel units in striping order from where the last
    /// call stopped, so that neighbours are on different channels. `None`, and nothing is taken, when
    /// there are not as many.
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

    /// Takes a chunk back, with what the drive says of it now. Returns whether it is one to hand out
    /// again: free, of full size, and on one of these parallel units.
    pub fn return_chunk(&mut self, chunk: &ChunkInfo) -> bool {
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
