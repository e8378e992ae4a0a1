//! [`NandLayout`]: the numbering of the sectors of a NAND medium.
//!
//! This module converts between the flat numbers used inside a drive ([`PhysSector`],
//! [`ChunkId`]) and the hierarchy of [LightNVM17 §2.1]. Flat numbers have no holes and are the
//! flat form of [`nvme::Geometry`]: sectors chunk by chunk, chunks by parallel unit, parallel units
//! by channel. Inside a chunk, sectors are numbered in programming order: page, then plane, then
//! sector.

use collections::FastDivisor;
use nvme::{Address, ChunkId, PhysSector, PuId};
use serde::{Deserialize, Serialize};

use crate::NandConfig;

/// The address of a sector, by components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysAddress {
    /// Channel.
    pub channel: u32,
    /// Parallel unit in its channel.
    pub pu: u32,
    /// Chunk in its parallel unit: the block's index on every plane.
    pub chunk: u32,
    /// Page in its block.
    pub page: u32,
    /// Plane.
    pub plane: u32,
    /// Sector in its page.
    pub sector: u32,
}

collections::position_type! {
    /// A write unit, by its index in its chunk.
    pub struct UnitInChunk(pub u32), "unit ";
}

/// The derived geometry values that operations need, computed once.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct NandLayout {
    per_chunk: FastDivisor,
    per_unit: FastDivisor,
    per_pu: FastDivisor,
    channels: u32,
    pus: u32,
    planes: u32,
    per_page: u32,
    chunk_count: u32,
    sector_count: u32,
    sector_bytes: u32,
    oob_bytes: u32,
}

impl NandLayout {
    /// Creates the layout of a medium. Its geometry must have passed [`NandConfig::check`].
    pub fn new(config: &NandConfig) -> NandLayout {
        let g = &config.geometry;
        let chunk_count = g.total_pus() * g.chunks;
        NandLayout {
            per_chunk: FastDivisor::new(g.sectors_per_chunk()),
            per_unit: FastDivisor::new(config.write_unit()),
            per_pu: FastDivisor::new(g.chunks),
            channels: g.channels,
            pus: g.pus,
            planes: g.planes,
            per_page: g.sectors_per_page(),
            chunk_count,
            sector_count: chunk_count * g.sectors_per_chunk(),
            sector_bytes: g.sector_bytes,
            oob_bytes: g.oob_bytes,
        }
    }

    /// Returns the number of chunks.
    #[inline]
    pub fn chunk_count(&self) -> u32 {
        self.chunk_count
    }

    /// Returns the number of sectors.
    #[inline]
    pub fn sector_count(&self) -> u32 {
        self.sector_count
    }

    /// Returns the number of parallel units.
    #[inline]
    pub fn pu_count(&self) -> u32 {
        self.channels * self.pus
    }

    /// Returns the sectors per chunk.
    #[inline]
    pub fn sectors_per_chunk(&self) -> u32 {
        self.per_chunk.get()
    }

    /// Returns the sectors programmed by one operation.
    #[inline]
    pub fn write_unit(&self) -> u32 {
        self.per_unit.get()
    }

    /// Returns the write units per chunk.
    #[inline]
    pub fn units_per_chunk(&self) -> u32 {
        self.per_chunk.get() / self.per_unit.get()
    }

    /// Returns the chunks per parallel unit.
    #[inline]
    pub fn chunks_per_pu(&self) -> u32 {
        self.per_pu.get()
    }

    /// Returns the sector size in bytes.
    #[inline]
    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// Returns the out-of-band bytes per sector.
    #[inline]
    pub fn oob_bytes(&self) -> u32 {
        self.oob_bytes
    }

    /// Returns the chunk of a sector, and the sector's index in it. A sector past the end of the
    /// medium gives a chunk past the end.
    #[inline]
    pub fn split(&self, phys: PhysSector) -> (ChunkId, u32) {
        let (chunk, sector) = self.per_chunk.split(phys.0);
        (ChunkId(chunk), sector)
    }

    /// Returns the chunk of a sector.
    #[inline]
    pub fn chunk_of(&self, phys: PhysSector) -> ChunkId {
        self.split(phys).0
    }

    /// Returns the sector with this index in a chunk.
    #[inline]
    pub fn phys(&self, chunk: ChunkId, sector: u32) -> PhysSector {
        PhysSector(chunk.0 * self.per_chunk.get() + sector)
    }

    /// Returns the write unit of a sector, given by its index in the chunk.
    #[inline]
    pub fn unit_of(&self, sector: u32) -> UnitInChunk {
        UnitInChunk(self.per_unit.split(sector).0)
    }

    /// Returns the first sector of a unit.
    #[inline]
    pub fn unit_start(&self, chunk: ChunkId, unit: UnitInChunk) -> PhysSector {
        self.phys(chunk, unit.get() * self.per_unit.get())
    }

    /// Returns the flat index of a chunk's parallel unit: `channel × pus + pu`.
    #[inline]
    pub fn pu_of(&self, chunk: ChunkId) -> PuId {
        PuId(self.per_pu.divide(chunk.0))
    }

    /// Returns the channel of a parallel unit, given by its flat index.
    #[inline]
    pub fn channel_of(&self, pu: PuId) -> u32 {
        pu.0 / self.pus
    }

    /// Returns the chunk with this index on the parallel unit with flat index `pu`.
    #[inline]
    pub fn chunk(&self, pu: PuId, index: u32) -> ChunkId {
        ChunkId(pu.0 * self.per_pu.get() + index)
    }

    /// Returns the address of a sector in the host's geometry.
    pub fn address(&self, phys: PhysSector) -> Address {
        let (id, sector) = self.split(phys);
        let (pu, chunk) = self.per_pu.split(id.0);
        Address { group: pu / self.pus, pu: pu % self.pus, chunk, sector }
    }

    /// Returns the sector at an address, which must be valid in the medium's geometry.
    #[inline]
    pub fn phys_at(&self, a: Address) -> PhysSector {
        self.phys(self.chunk(PuId(a.group * self.pus + a.pu), a.chunk), a.sector)
    }

    /// Returns the address of a sector by components.
    pub fn phys_address(&self, phys: PhysSector) -> PhysAddress {
        let a = self.address(phys);
        let stripe = self.per_page * self.planes;
        PhysAddress {
            channel: a.group,
            pu: a.pu,
            chunk: a.chunk,
            page: a.sector / stripe,
            plane: a.sector % stripe / self.per_page,
            sector: a.sector % self.per_page,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn flat_numbers_are_those_of_the_hosts_geometry_and_have_no_holes() {
        let config = testing::config();
        let (layout, host) = (NandLayout::new(&config), config.host_geometry());
        assert_eq!(u64::from(layout.sector_count()), host.total_sectors());
        for n in 0..layout.sector_count() {
            let phys = PhysSector(n);
            let a = layout.address(phys);
            assert_eq!(host.flat(a), u64::from(n));
            assert_eq!(layout.phys_at(a), phys);
            let (chunk, sector) = layout.split(phys);
            assert_eq!((chunk, sector), (layout.chunk_of(phys), a.sector));
            assert_eq!(layout.pu_of(chunk), PuId(a.group * host.pus + a.pu));
            assert_eq!(layout.channel_of(layout.pu_of(chunk)), a.group);
            assert_eq!(layout.phys(layout.chunk(layout.pu_of(chunk), a.chunk), sector), phys);
        }
    }

    #[test]
    fn sectors_go_page_by_page_then_plane_by_plane() {
        let mut config = testing::config();
        config.geometry.planes = 4;
        config.geometry.page_bytes = 2 * config.geometry.sector_bytes;
        let layout = NandLayout::new(&config);
        let mut want = Vec::new();
        for page in 0..config.geometry.pages {
            for plane in 0..4 {
                for sector in 0..2 {
                    want.push((page, plane, sector));
                }
            }
        }
        let chunk = layout.chunk(PuId(1), 2);
        for (i, (page, plane, sector)) in want.into_iter().enumerate() {
            let p = layout.phys_address(layout.phys(chunk, i as u32));
            assert_eq!((p.page, p.plane, p.sector), (page, plane, sector));
            assert_eq!(
                (p.channel, p.pu, p.chunk),
                (1 / config.geometry.pus, 1 % config.geometry.pus, 2)
            );
        }
    }

    #[test]
    fn a_unit_is_one_program_operation() {
        let mut config = testing::config();
        config.one_shot = true;
        let layout = NandLayout::new(&config);
        assert_eq!(layout.write_unit(), config.write_unit());
        assert_eq!(layout.units_per_chunk() * layout.write_unit(), layout.sectors_per_chunk());
        for unit in 0..layout.units_per_chunk() {
            let first = layout.unit_start(ChunkId(3), UnitInChunk(unit));
            let (chunk, sector) = layout.split(first);
            assert_eq!((chunk, layout.unit_of(sector)), (ChunkId(3), UnitInChunk(unit)));
            assert_eq!(layout.unit_of(sector + layout.write_unit() - 1), UnitInChunk(unit));
        }
    }
}
