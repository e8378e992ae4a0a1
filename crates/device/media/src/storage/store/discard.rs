//! Removal of the data of chunks, from memory or from the image.

use super::{ChunkAllocation, Store};
use crate::ChunkId;
use crate::storage::image::PAGE_BYTES;
use crate::storage::sector_buffers::{Holder, SectorBuffers};

impl Store {
    /// Returns the memory or disk blocks of consecutive chunks to the operating system; memory when
    /// [`discard_free`](Store::discard_free) is called.
    pub(crate) fn release(&mut self, first: ChunkId, chunks: u32) -> std::io::Result<()> {
        let sectors = self.layout.sectors_per_chunk() * chunks;
        let first_phys = self.layout.phys(first, 0);
        let Some(data) = &self.image_data else {
            let Some(buffers) = &mut self.buffers else { return Ok(()) };
            first_phys.run(sectors).for_each(|phys| buffers.clear(Holder::Sector(phys)));
            return Ok(());
        };
        let start = data.offset(first_phys);
        // Only pages that no other chunk shares.
        let end = (start + sectors as usize * data.bytes_per_sector) & !(PAGE_BYTES - 1);
        let start = start.next_multiple_of(PAGE_BYTES);
        if start < end {
            data.region.discard(start, end - start)?;
            if let Some(image) = &mut self.image {
                let first = first.0 as usize;
                image.allocations[first..first + chunks as usize].fill(ChunkAllocation::Unknown);
            }
        }
        Ok(())
    }

    /// Removes the data of a chunk; of a chunk in memory the bytes are gone when
    /// [`discard_free`](Store::discard_free) is called.
    pub(crate) fn discard(&mut self, chunk: ChunkId) -> std::io::Result<()> {
        let (first, sectors) = (self.layout.phys(chunk, 0), self.layout.sectors_per_chunk());
        let (Some(data), Some(image)) = (&self.image_data, &mut self.image) else {
            let Some(buffers) = &mut self.buffers else { return Ok(()) };
            first.run(sectors).for_each(|phys| buffers.clear(Holder::Sector(phys)));
            return Ok(());
        };
        let allocation = &mut image.allocations[chunk.0 as usize];
        if *allocation != ChunkAllocation::Unknown {
            data.region.discard(data.offset(first), sectors as usize * data.bytes_per_sector)?;
            *allocation = ChunkAllocation::Unknown;
        }
        Ok(())
    }

    /// Returns the memory of released chunks to the operating system.
    pub(crate) fn discard_free(&mut self) -> std::io::Result<()> {
        self.buffers.as_mut().map_or(Ok(()), SectorBuffers::discard_free)
    }
}
