//! [`FlashGeometry`]: the flat numbering of chunks and sectors of a drive whose flash a host or an FTL manages.

use collections::FastDivisor;
use serde::{Deserialize, Serialize};

use crate::{ChunkId, Geometry, PhysSector, PuId};

/// Geometry of the flash: parallel units of chunks of sectors, programmed in write units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlashGeometry {
    /// Channels; parallel units are numbered channel by channel.
    pub channels: u32,
    /// Parallel units, all channels together.
    pub pus: u32,
    /// Chunks per parallel unit.
    pub chunks_per_pu: u32,
    /// Sectors per chunk.
    pub sectors_per_chunk: u32,
    /// Sectors per write unit.
    pub ws_opt: u32,
    /// Sectors that must follow in a chunk before a sector can be read (`mw_cunits`).
    pub mw_cunits: u32,
    /// Bytes per sector.
    pub sector_bytes: u32,
    by_sectors: FastDivisor,
    by_chunks: FastDivisor,
}

impl FlashGeometry {
    /// The shape that a Geometry command reported.
    pub fn from_geometry(g: &Geometry) -> FlashGeometry {
        FlashGeometry {
            channels: g.groups,
            pus: g.total_pus(),
            chunks_per_pu: g.chunks,
            sectors_per_chunk: g.sectors,
            ws_opt: g.ws_opt,
            mw_cunits: g.mw_cunits,
            sector_bytes: g.sector_bytes,
            by_sectors: FastDivisor::new(g.sectors),
            by_chunks: FastDivisor::new(g.chunks),
        }
    }

    /// All chunks.
    pub fn total_chunks(&self) -> u32 {
        self.pus * self.chunks_per_pu
    }

    /// All sectors.
    pub fn total_sectors(&self) -> u64 {
        u64::from(self.total_chunks()) * u64::from(self.sectors_per_chunk)
    }

    /// The chunk of a physical sector.
    #[inline]
    pub fn chunk_of(&self, phys: PhysSector) -> ChunkId {
        ChunkId(self.by_sectors.divide(phys.get()))
    }

    /// The index of a physical sector in its chunk.
    #[inline]
    pub fn sector_in_chunk(&self, phys: PhysSector) -> u32 {
        self.by_sectors.split(phys.get()).1
    }

    /// The parallel unit of a chunk.
    #[inline]
    pub fn pu_of(&self, chunk: ChunkId) -> PuId {
        PuId(self.by_chunks.divide(chunk.get()))
    }

    /// All chunks, in order.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = ChunkId> + Clone + use<> {
        (0..self.total_chunks()).map(ChunkId)
    }

    /// The chunk with this index on a parallel unit.
    #[inline]
    pub fn chunk_on(&self, pu: PuId, index: u32) -> ChunkId {
        ChunkId(pu.get() * self.chunks_per_pu + index)
    }

    /// All chunks on a parallel unit, in order.
    pub fn chunks_on(&self, pu: PuId) -> impl ExactSizeIterator<Item = ChunkId> + Clone + use<> {
        let first = self.chunk_on(pu, 0).get();
        (first..first + self.chunks_per_pu).map(ChunkId)
    }

    /// The index of a chunk on its parallel unit.
    #[inline]
    pub fn index_on_pu(&self, chunk: ChunkId) -> u32 {
        chunk.get() % self.chunks_per_pu
    }

    /// The first physical sector of a chunk.
    #[inline]
    pub fn first_sector_of(&self, chunk: ChunkId) -> PhysSector {
        PhysSector(chunk.get() * self.sectors_per_chunk)
    }

    /// Bytes of a write unit.
    #[inline]
    pub fn unit_bytes(&self) -> usize {
        self.ws_opt as usize * self.sector_bytes as usize
    }

    /// Write units that must follow in a chunk before a unit can be read.
    pub fn pair_units(&self) -> u32 {
        self.mw_cunits.div_ceil(self.ws_opt)
    }

    /// The `i`-th parallel unit in striping order: neighbours are on different channels.
    pub fn striped_pu(&self, i: u32) -> PuId {
        let per_channel = self.pus / self.channels;
        PuId(i % self.channels * per_channel + i / self.channels)
    }

    /// Returns the position of a parallel unit in striping order: the inverse of
    /// [`striped_pu`](FlashGeometry::striped_pu).
    pub fn stripe_position(&self, pu: PuId) -> u32 {
        let per_channel = self.pus / self.channels;
        pu.get() % per_channel * self.channels + pu.get() / per_channel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn striping_alternates_channels_and_reaches_every_unit_once() {
        let shape = FlashGeometry::from_geometry(&Geometry {
            groups: 4,
            pus: 2,
            chunks: 32,
            sectors: 64,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 4,
            ws_opt: 4,
            mw_cunits: 8,
        });
        let order: Vec<PuId> = (0..8).map(|i| shape.striped_pu(i)).collect();
        assert_eq!(order, [0, 2, 4, 6, 1, 3, 5, 7].map(PuId));
        assert!(order.iter().map(|pu| shape.stripe_position(*pu)).eq(0..8));
    }
}
