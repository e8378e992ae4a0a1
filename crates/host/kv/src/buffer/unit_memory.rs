//! [`UnitMemory`]: registered memory for write units that are being filled, or that are not
//! readable from flash yet.
//!
//! Enough memory for normal operation is registered when the target is opened. Chunks whose
//! programs fail keep their units until these are relocated, which needs buffers as well. If none
//! is free then, the same amount is registered again. This is the only allocation after the start.

use std::sync::Arc;

use mem::{AddressSpace, Iova, SharedRegion};

use crate::format::oob::SectorTag;
use ocssd::vector::{MemoryError, register};

/// The memory of a number of slots.
#[derive(Debug)]
struct MemoryBlock {
    data: Arc<SharedRegion>,
    data_at: Iova,
    oob: Arc<SharedRegion>,
    oob_at: Iova,
}

/// The size of a [`UnitMemory`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitMemorySize {
    /// Number of write units.
    pub(crate) units: u32,
    /// Sectors per write unit.
    pub(crate) unit_sectors: u32,
    /// Bytes of data and of out-of-band data per sector.
    pub(crate) sector_bytes: u32,
    pub(crate) oob_bytes: u32,
}

/// Write units with their out-of-band bytes, and one shared unit of padding.
#[derive(Debug)]
pub(crate) struct UnitMemory {
    space: AddressSpace,
    blocks: Vec<MemoryBlock>,
    free: Vec<u32>,
    /// Slots per block. The first block has one more, for padding.
    count: u32,
    unit_bytes: usize,
    sectors: usize,
    oob_bytes: usize,
}

/// The slot of the padding unit.
pub(crate) const PADDING_SLOT: u32 = u32::MAX;

/// Maximum number of blocks.
const BLOCKS_MAX: usize = 32;

impl UnitMemory {
    /// Allocates memory.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(crate) fn new(
        space: &AddressSpace,
        size: UnitMemorySize,
    ) -> Result<UnitMemory, MemoryError> {
        let UnitMemorySize { units: count, unit_sectors: sectors, sector_bytes, oob_bytes } = size;
        let mut slots = UnitMemory {
            space: space.clone(),
            blocks: Vec::new(),
            free: Vec::new(),
            count,
            unit_bytes: (sectors * sector_bytes) as usize,
            sectors: sectors as usize,
            oob_bytes: oob_bytes as usize,
        };
        slots.grow()?;
        for sector in 0..sectors {
            slots.set_tag(PADDING_SLOT, sector, SectorTag::Padding { stamp: 0 });
        }
        Ok(slots)
    }

    /// Registers another block of slots.
    ///
    /// # Errors
    /// [`MemoryError`].
    fn grow(&mut self) -> Result<(), MemoryError> {
        let all = self.count as usize + usize::from(self.blocks.is_empty());
        let (data, data_at) = register(&self.space, all * self.unit_bytes, "the write buffer")?;
        let what = "the write buffer's out-of-band bytes";
        let oob_bytes = all * self.sectors * self.oob_bytes;
        let (oob, oob_at) = register(&self.space, oob_bytes, what)?;
        let first = self.blocks.len() as u32 * self.count;
        self.blocks.push(MemoryBlock { data, data_at, oob, oob_at });
        self.free.extend((first..first + self.count).rev());
        Ok(())
    }

    /// Adds a block, for the evacuation of failed chunks. Returns whether it succeeded.
    #[cold]
    pub(crate) fn try_grow(&mut self) -> bool {
        self.blocks.len() < BLOCKS_MAX && self.grow().is_ok()
    }

    /// Returns the block of a slot, and the slot's index in it.
    #[inline]
    fn block(&self, slot: u32) -> (&MemoryBlock, usize) {
        match slot {
            PADDING_SLOT => (&self.blocks[0], self.count as usize),
            slot => (&self.blocks[(slot / self.count) as usize], (slot % self.count) as usize),
        }
    }

    /// Returns the number of free slots.
    #[inline]
    pub(crate) fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Returns the free slots.
    pub(crate) fn free_slots(&self) -> &[u32] {
        &self.free
    }

    /// Returns the number of slots, free or not.
    pub(crate) fn slot_count(&self) -> u32 {
        self.blocks.len() as u32 * self.count
    }

    #[inline]
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        self.free.pop()
    }

    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot));
        self.free.push(slot);
    }

    /// Returns the address of a slot's data.
    #[inline]
    pub(crate) fn data_at(&self, slot: u32) -> Iova {
        let (block, i) = self.block(slot);
        block.data_at.offset((i * self.unit_bytes) as u64)
    }

    /// Returns the address of a slot's out-of-band bytes.
    #[inline]
    pub(crate) fn oob_at(&self, slot: u32) -> Iova {
        let (block, i) = self.block(slot);
        block.oob_at.offset((i * self.sectors * self.oob_bytes) as u64)
    }

    /// Returns the memory and the position of byte `offset` of a slot.
    #[inline]
    pub(crate) fn locate(&self, slot: u32, offset: u32) -> (&SharedRegion, usize) {
        let (block, i) = self.block(slot);
        (&block.data, i * self.unit_bytes + offset as usize)
    }

    /// Zeroes a slot; bytes that are not written are padding.
    #[inline]
    pub(crate) fn clear(&self, slot: u32) {
        let (region, at) = self.locate(slot, 0);
        region.fill(at, self.unit_bytes, 0);
    }

    /// Writes the tag of a slot's sector.
    #[inline]
    pub(crate) fn set_tag(&self, slot: u32, sector: u32, label: SectorTag) {
        let (block, i) = self.block(slot);
        block.oob.write((i * self.sectors + sector as usize) * self.oob_bytes, &label.encode());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_apart_and_can_be_made_more() {
        let space = AddressSpace::default();
        let size = UnitMemorySize { units: 3, unit_sectors: 2, sector_bytes: 512, oob_bytes: 16 };
        let mut slots = UnitMemory::new(&space, size).unwrap();
        let mut all: Vec<u32> = std::iter::from_fn(|| slots.allocate()).collect();
        assert_eq!(all.len(), 3);
        assert!(slots.try_grow());
        all.extend(std::iter::from_fn(|| slots.allocate()));
        assert_eq!(all.len(), 6);
        all.push(PADDING_SLOT);
        for (i, slot) in (1..).zip(&all) {
            let (region, at) = slots.locate(*slot, 0);
            region.fill(at, 1024, i);
        }
        for (i, slot) in (1..).zip(&all) {
            let mut bytes = [0; 1024];
            space.read(slots.data_at(*slot), &mut bytes).unwrap();
            assert!(bytes.iter().all(|b| *b == i), "slot {slot}");
        }
        let mut label = [0; 16];
        space.read(slots.oob_at(PADDING_SLOT).offset(16), &mut label).unwrap();
        assert_eq!(SectorTag::decode(&label), Some(SectorTag::Padding { stamp: 0 }));
        slots.release(all[0]);
        assert_eq!((slots.free_count(), slots.allocate()), (1, Some(all[0])));
    }
}
