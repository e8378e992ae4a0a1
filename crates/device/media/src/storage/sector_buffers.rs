//! [`SectorBuffers`]: sector data in memory, which moves by reference.
//!
//! A *holder* is a physical sector, or a slot of a drive's write buffer. It refers to at most one
//! buffer; a holder without a buffer reads as zeros. Holders share a buffer after a program or a
//! relocation, which copies no data.
//!
//! # Invariants
//!
//! Data is only written into a buffer that [`SectorBuffers::allocate`] has just returned, to which
//! no other holder refers. A buffer is free when no holder refers to it. As many buffers exist as
//! holders, so that one is always free for a holder that has none.
//!
//! References are counted in bytes, because their accesses are random, and a table of bytes stays in
//! the cache of the CPU. A holder in excess of [`REFERENCES_MAX`] gets a copy.

use std::io;

use mem::{HugeArray, OwnedRegion, SharedRegion};
use serde::{Deserialize, Serialize};

use crate::PhysSector;

/// Maximum number of holders that share a buffer.
const REFERENCES_MAX: u8 = u8::MAX;

collections::id_type! {
    /// A slot of a drive's write buffer.
    pub struct BufferSlot(pub u32), "slot ";
}

/// A reference to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A physical sector.
    Sector(PhysSector),
    /// A slot of the write buffer.
    Slot(BufferSlot),
}

/// Consecutive buffers in one mapping.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Slab {
    /// The number of its first buffer.
    first: u32,
    count: u32,
    region: OwnedRegion,
    /// By buffer, a byte: how many holders refer to it.
    references: OwnedRegion,
}

impl Slab {
    #[inline]
    fn references(&self, index: usize) -> u8 {
        let mut count = [0];
        self.references.read(index, &mut count);
        count[0]
    }

    #[inline]
    fn set_references(&self, index: usize, count: u8) {
        self.references.write(index, &[count]);
    }
}

/// Counters of the buffers of sector data in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectorBufferStats {
    /// Buffers that hold data.
    pub in_use: u32,
    /// Sectors that were copied into a buffer: data of the host, or of an image. The FTL's own
    /// contents (translation pages, metadata of lines, the journal) are not counted.
    pub copies: u64,
    /// Sectors that were programmed, relocated or loaded into a slot without a copy.
    pub shares: u64,
}

/// The buffers of sector data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SectorBuffers {
    sector_bytes: usize,
    /// In ascending order of their buffers.
    slabs: Vec<Slab>,
    /// By physical sector: the number of its buffer, plus 1; 0 for none. Empty for media that keep
    /// the data of sectors elsewhere.
    sectors: HugeArray,
    /// By slot, as `sectors`.
    slots: Vec<u32>,
    /// Buffers that were used before.
    free: Vec<u32>,
    /// Buffers from here on were never used.
    unused: u32,
    stats: SectorBufferStats,
}

impl SectorBuffers {
    /// Memory of the tables per sector, in bytes: its buffer, and that buffer's references.
    pub(crate) const TABLE_BYTES_PER_SECTOR: u64 = 5;

    /// Creates the buffers of `sectors` physical sectors, without slots.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns.
    pub(crate) fn new(sectors: usize, sector_bytes: usize) -> io::Result<SectorBuffers> {
        let mut buffers = SectorBuffers {
            sector_bytes,
            slabs: Vec::new(),
            sectors: HugeArray::zeroed(sectors)?,
            slots: Vec::new(),
            free: Vec::new(),
            unused: 0,
            stats: SectorBufferStats::default(),
        };
        buffers.reserve(sectors)?;
        Ok(buffers)
    }

    /// Replaces all slots by `slots` empty ones.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns; the slots are empty then, and their number is unchanged.
    pub(crate) fn set_slots(&mut self, slots: u32) -> io::Result<()> {
        for slot in 0..self.slots.len() {
            self.clear(Holder::Slot(BufferSlot::from_index(slot)));
        }
        self.reserve(self.sectors.len() + slots as usize)?;
        self.slots = vec![0; slots as usize];
        Ok(())
    }

    /// Ensures that there are `count` buffers. A mapping takes memory only where it is written.
    fn reserve(&mut self, count: usize) -> io::Result<()> {
        let existing = self.slabs.last().map_or(0, |s| s.first as usize + s.count as usize);
        let missing = count.saturating_sub(existing);
        if missing > 0 {
            self.slabs.push(Slab {
                first: existing as u32,
                count: missing as u32,
                region: SharedRegion::anonymous(missing * self.sector_bytes)?.into(),
                references: SharedRegion::anonymous(missing)?.into(),
            });
        }
        Ok(())
    }

    /// Allocates the memory of the first buffers that will be used, `bytes` in all. Freed buffers are
    /// used again before others, so that less data than this needs no more memory.
    ///
    /// # Errors
    /// The error that `madvise(2)` returns.
    pub(crate) fn populate(&self, bytes: usize) -> io::Result<()> {
        match self.slabs.first() {
            Some(slab) if bytes > 0 => slab.region.populate(0, bytes.min(slab.region.len())),
            _ => Ok(()),
        }
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> SectorBufferStats {
        SectorBufferStats { in_use: self.unused - self.free.len() as u32, ..self.stats }
    }

    #[inline]
    fn reference(&self, holder: Holder) -> u32 {
        match holder {
            Holder::Sector(phys) => self.sectors[phys.0 as usize],
            Holder::Slot(slot) => self.slots[slot.index()],
        }
    }

    #[inline]
    fn replace(&mut self, holder: Holder, reference: u32) -> u32 {
        let at = match holder {
            Holder::Sector(phys) => &mut self.sectors[phys.0 as usize],
            Holder::Slot(slot) => &mut self.slots[slot.index()],
        };
        std::mem::replace(at, reference)
    }

    /// Returns the slab of a buffer, and the buffer's index in it.
    #[inline]
    fn slab_of(&self, buffer: u32) -> (usize, usize) {
        let mut slab = self.slabs.len() - 1;
        while self.slabs[slab].first > buffer {
            slab -= 1;
        }
        (slab, (buffer - self.slabs[slab].first) as usize)
    }

    /// Removes one of the references to a buffer.
    #[inline]
    fn release(&mut self, reference: u32) {
        let Some(buffer) = reference.checked_sub(1) else { return };
        let (slab, index) = self.slab_of(buffer);
        let references = self.slabs[slab].references(index) - 1;
        self.slabs[slab].set_references(index, references);
        if references == 0 {
            self.free.push(buffer);
        }
    }

    /// Returns the region and the offset of a holder's data; `None` if it has none, for zeros.
    #[inline]
    pub(crate) fn data(&self, holder: Holder) -> Option<(&SharedRegion, usize)> {
        let buffer = self.reference(holder).checked_sub(1)?;
        let (slab, index) = self.slab_of(buffer);
        Some((&self.slabs[slab].region, index * self.sector_bytes))
    }

    /// Gives a holder a buffer of its own, whose contents are to be written. Returns its region and
    /// offset.
    #[inline]
    pub(crate) fn allocate(&mut self, holder: Holder) -> (&SharedRegion, usize) {
        if let Some(buffer) = self.reference(holder).checked_sub(1) {
            let (slab, index) = self.slab_of(buffer);
            if self.slabs[slab].references(index) == 1 {
                return (&self.slabs[slab].region, index * self.sector_bytes);
            }
        }
        let buffer = self.free.pop().unwrap_or_else(|| {
            self.unused += 1;
            self.unused - 1
        });
        let previous = self.replace(holder, buffer + 1);
        self.release(previous);
        let (slab, index) = self.slab_of(buffer);
        self.slabs[slab].set_references(index, 1);
        (&self.slabs[slab].region, index * self.sector_bytes)
    }

    /// Gives a holder a buffer of its own, into which a sector is to be copied.
    #[inline]
    pub(crate) fn allocate_for_copy(&mut self, holder: Holder) -> (&SharedRegion, usize) {
        self.stats.copies += 1;
        self.allocate(holder)
    }

    /// Makes `to` refer to the data of `from`.
    #[inline]
    pub(crate) fn share(&mut self, from: Holder, to: Holder) {
        let reference = self.reference(from);
        if let Some(buffer) = reference.checked_sub(1) {
            let (slab, index) = self.slab_of(buffer);
            let references = self.slabs[slab].references(index);
            if references == REFERENCES_MAX {
                return self.copy(from, to);
            }
            self.slabs[slab].set_references(index, references + 1);
            self.stats.shares += 1;
        }
        let previous = self.replace(to, reference);
        self.release(previous);
    }

    /// Copies the data of `from`, which cannot have another reference, into a buffer of `to`.
    #[cold]
    fn copy(&mut self, from: Holder, to: Holder) {
        if self.reference(from) == self.reference(to) {
            return;
        }
        let mut bytes = vec![0; self.sector_bytes];
        if let Some((region, offset)) = self.data(from) {
            region.read(offset, &mut bytes);
        }
        let (region, offset) = self.allocate_for_copy(to);
        region.write(offset, &bytes);
    }

    /// Removes the data of a holder.
    #[inline]
    pub(crate) fn clear(&mut self, holder: Holder) {
        let previous = self.replace(holder, 0);
        self.release(previous);
    }

    /// Returns the memory of free buffers to the operating system.
    ///
    /// # Errors
    /// The error of the operating system; free buffers may have lost their contents.
    pub(crate) fn discard_free(&mut self) -> io::Result<()> {
        self.free.sort_unstable_by(|a, b| b.cmp(a));
        // Runs of consecutive buffers: only whole pages are discarded.
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &buffer in self.free.iter().rev() {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == buffer => *count += 1,
                _ => runs.push((buffer, 1)),
            }
        }
        for slab in &self.slabs {
            let end = slab.first + slab.count;
            for (first, count) in &runs {
                let (from, to) = ((*first).max(slab.first), (first + count).min(end));
                if from < to {
                    let at = (from - slab.first) as usize * self.sector_bytes;
                    let bytes = (to - from) as usize * self.sector_bytes;
                    slab.region.discard(at, bytes)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    // guarantee: B-53, B-54

    use rng::Rng;

    use super::*;

    const BYTES: usize = 512;

    fn sector(phys: u32) -> Holder {
        Holder::Sector(PhysSector(phys))
    }

    fn contents(buffers: &SectorBuffers, holder: Holder) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        if let Some((region, offset)) = buffers.data(holder) {
            region.read(offset, &mut bytes);
        }
        bytes
    }

    fn write(buffers: &mut SectorBuffers, holder: Holder, byte: u8) {
        let (region, offset) = buffers.allocate_for_copy(holder);
        region.fill(offset, BYTES, byte);
    }

    /// The sum of all references is the number of holders with data, and a buffer is free exactly if
    /// it has none.
    fn check(buffers: &SectorBuffers) {
        let held = buffers.sectors.iter().chain(&buffers.slots).filter(|r| **r != 0).count();
        let references = (0..buffers.unused).map(|buffer| {
            let (slab, index) = buffers.slab_of(buffer);
            usize::from(buffers.slabs[slab].references(index))
        });
        assert_eq!(references.clone().sum::<usize>(), held);
        let unreferenced = references.filter(|references| *references == 0).count();
        assert_eq!(unreferenced, buffers.free.len());
    }

    #[test]
    fn holders_that_share_a_buffer_do_not_see_later_writes_of_each_other() {
        let mut buffers = SectorBuffers::new(2, BYTES).unwrap();
        buffers.set_slots(1).unwrap();
        let slot = Holder::Slot(BufferSlot(0));
        write(&mut buffers, slot, 7);
        buffers.share(slot, sector(1));
        write(&mut buffers, slot, 8);
        assert_eq!(contents(&buffers, sector(1)), [7; BYTES]);
        buffers.share(sector(1), sector(0));
        buffers.clear(sector(1));
        assert_eq!(contents(&buffers, sector(0)), [7; BYTES]);
        assert_eq!(contents(&buffers, sector(1)), [0; BYTES]);
        assert_eq!(buffers.stats(), SectorBufferStats { in_use: 2, copies: 2, shares: 2 });
        // A holder may share with itself.
        buffers.share(sector(0), sector(0));
        check(&buffers);
    }

    #[test]
    fn a_buffer_with_all_references_is_copied() {
        let sectors = 2 * u32::from(REFERENCES_MAX) + 5;
        let mut buffers = SectorBuffers::new(sectors as usize, BYTES).unwrap();
        write(&mut buffers, sector(0), 7);
        for phys in 0..sectors {
            buffers.share(sector(0), sector(phys));
        }
        for phys in 0..sectors {
            assert_eq!(contents(&buffers, sector(phys)), [7; BYTES]);
        }
        let shared = u32::from(REFERENCES_MAX);
        assert_eq!(buffers.stats().in_use, 1 + sectors - shared);
        check(&buffers);
        // One of them is free again.
        buffers.clear(sector(1));
        buffers.share(sector(0), sector(sectors - 1));
        assert_eq!(buffers.stats().in_use, sectors - shared);
        check(&buffers);
    }

    #[test]
    fn random_operations_equal_copies_and_take_no_more_buffers_than_holders() {
        let (sectors, slots) = (40, 9);
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut buffers = SectorBuffers::new(sectors as usize, BYTES).unwrap();
            buffers.set_slots(slots).unwrap();
            let mut model = vec![0u8; (sectors + slots) as usize];
            let holder = |i: u32| match i.checked_sub(sectors) {
                None => sector(i),
                Some(slot) => Holder::Slot(BufferSlot(slot)),
            };
            for step in 0..2000 {
                let (a, b) = (
                    rng.below(u64::from(sectors + slots)) as u32,
                    rng.below(u64::from(sectors + slots)) as u32,
                );
                match rng.below(20) {
                    0..8 => {
                        model[a as usize] = step as u8 | 1;
                        write(&mut buffers, holder(a), step as u8 | 1);
                    }
                    8..17 => {
                        model[b as usize] = model[a as usize];
                        buffers.share(holder(a), holder(b));
                    }
                    17 | 18 => {
                        model[a as usize] = 0;
                        buffers.clear(holder(a));
                    }
                    _ => buffers.discard_free().unwrap(),
                }
                if step % 500 == 499 {
                    buffers.set_slots(slots + step / 500).unwrap();
                    buffers.set_slots(slots).unwrap();
                    model[sectors as usize..].fill(0);
                    buffers =
                        postcard::from_bytes(&postcard::to_stdvec(&buffers).unwrap()).unwrap();
                    buffers = buffers.clone();
                }
                assert!(buffers.stats().in_use <= sectors + slots);
            }
            check(&buffers);
            for (i, byte) in (0..).zip(&model) {
                assert_eq!(contents(&buffers, holder(i)), [*byte; BYTES], "seed {seed}, {i}");
            }
        }
    }

    #[test]
    fn free_buffers_return_their_memory() {
        let mut buffers = SectorBuffers::new(64, 4096).unwrap();
        for phys in 0..64 {
            let (region, offset) = buffers.allocate(sector(phys));
            region.fill(offset, 4096, 9);
        }
        for phys in 8..24 {
            buffers.clear(sector(phys));
        }
        buffers.discard_free().unwrap();
        let region = &buffers.slabs[0].region;
        let mut bytes = vec![0; 64 * 4096];
        region.read(0, &mut bytes);
        for (i, page) in bytes.chunks(4096).enumerate() {
            let byte = if (8..24).contains(&i) { 0 } else { 9 };
            assert!(page.iter().all(|b| *b == byte), "page {i}");
        }
    }
}
