//! [`Addresses`]: converts sector indexes to physical page addresses.

use nvme::{Address, ChunkId, FlashGeometry, Geometry, PhysSector, Ppa, PpaFormat};

/// Converts sector indexes to physical page addresses with two multiplications and one lookup in a
/// table with one entry per parallel unit.
#[derive(Debug)]
pub struct Addresses {
    shape: FlashGeometry,
    geometry: Geometry,
    sector_bits: u8,
    /// PPA of the first sector of each parallel unit.
    pus: Box<[u64]>,
}

impl Addresses {
    /// Creates the converter. `shape` must be the FTL's view of `geometry`, and `format` its
    /// address format.
    pub fn new(shape: FlashGeometry, geometry: Geometry, format: PpaFormat) -> Addresses {
        let base = |pu: u32| {
            let (group, pu) = (pu / geometry.pus, pu % geometry.pus);
            format.pack(Address { group, pu, chunk: 0, sector: 0 }).0
        };
        let pus = (0..geometry.total_pus()).map(base).collect();
        Addresses { shape, geometry, sector_bits: format.sector_bits, pus }
    }

    /// Returns the flash geometry of the FTL.
    #[inline]
    pub fn shape(&self) -> &FlashGeometry {
        &self.shape
    }

    /// Returns the drive's geometry.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the out-of-band bytes per sector.
    #[inline]
    pub fn oob_bytes(&self) -> u32 {
        self.geometry.oob_bytes
    }

    /// Returns the PPA of a sector.
    #[inline]
    pub fn sector(&self, phys: PhysSector) -> Ppa {
        let chunk = self.shape.chunk_of(phys);
        Ppa(self.chunk(chunk).0 | u64::from(phys - self.shape.first_sector_of(chunk)))
    }

    /// Returns the PPA of a chunk's first sector.
    #[inline]
    pub fn chunk(&self, chunk: ChunkId) -> Ppa {
        let pu = self.shape.pu_of(chunk);
        let in_pu = chunk.get() - pu.get() * self.shape.chunks_per_pu;
        Ppa(self.pus[pu.index()] | u64::from(in_pu) << self.sector_bits)
    }

    /// Returns the components of a sector's address, for messages.
    pub fn components(&self, phys: PhysSector) -> Address {
        self.geometry.from_flat(phys.get().into()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_format() {
        let geometry = Geometry {
            groups: 3,
            pus: 5,
            chunks: 7,
            sectors: 24,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 8,
            ws_opt: 8,
            mw_cunits: 0,
        };
        let format = PpaFormat::from_geometry(&geometry).unwrap();
        let addresses = Addresses::new(FlashGeometry::from_geometry(&geometry), geometry, format);
        for flat in 0..geometry.total_sectors() {
            let address = geometry.from_flat(flat).unwrap();
            assert_eq!(addresses.sector(PhysSector(flat as u32)), format.pack(address));
            assert_eq!(addresses.components(PhysSector(flat as u32)), address);
            if address.sector == 0 {
                let chunk = flat / u64::from(geometry.sectors);
                assert_eq!(addresses.chunk(ChunkId(chunk as u32)), format.pack(address));
            }
        }
    }
}
