//! [`Ppa`]: the physical page address and its per-drive bit-field format.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Address, Geometry, GeometryError};

/// A physical page address in a command: an opaque 64-bit word whose fields a [`PpaFormat`] defines
/// ([LightNVM17 §3.1]; [OC20 §2.1]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Ppa(pub u64);

/// The fields of an address, from low to high: sector, chunk, parallel unit, group. A field has as
/// many bits as its largest value needs, so counts that are not powers of two leave holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PpaFormat {
    /// Bits of the group field.
    pub group_bits: u8,
    /// Bits of the parallel-unit field.
    pub pu_bits: u8,
    /// Bits of the chunk field.
    pub chunk_bits: u8,
    /// Bits of the sector field.
    pub sector_bits: u8,
}

/// The error for an address in a hole of its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("physical address {:#x} ({address}) is in a hole of the address format", ppa.0)]
pub struct InvalidPpa {
    /// The address as given.
    pub ppa: Ppa,
    /// Its components; at least one is out of range.
    pub address: Address,
}

fn bits_for(count: u32) -> u8 {
    // A field whose only value is 0 has no bits.
    (u32::BITS - (count - 1).leading_zeros()) as u8
}

#[inline]
fn mask(bits: u8) -> u64 {
    // A field has at most 32 bits.
    (1u64 << bits) - 1
}

impl PpaFormat {
    /// Returns the format of a geometry.
    ///
    /// # Errors
    /// [`GeometryError::TooManyBits`] if the fields need more than 64 bits, [`GeometryError::Zero`]
    /// if a count is zero.
    pub fn from_geometry(g: &Geometry) -> Result<PpaFormat, GeometryError> {
        for (what, n) in [
            ("groups", g.groups),
            ("PUs per group", g.pus),
            ("chunks per PU", g.chunks),
            ("sectors per chunk", g.sectors),
        ] {
            if n == 0 {
                return Err(GeometryError::Zero { what });
            }
        }
        let format = PpaFormat {
            group_bits: bits_for(g.groups),
            pu_bits: bits_for(g.pus),
            chunk_bits: bits_for(g.chunks),
            sector_bits: bits_for(g.sectors),
        };
        let bits = [format.group_bits, format.pu_bits, format.chunk_bits, format.sector_bits]
            .iter()
            .map(|b| u32::from(*b))
            .sum();
        if bits > 64 { Err(GeometryError::TooManyBits { bits }) } else { Ok(format) }
    }

    /// Packs components. Each must fit its field.
    #[inline]
    pub fn pack(&self, a: Address) -> Ppa {
        let mut word = u64::from(a.group);
        word = word << self.pu_bits | u64::from(a.pu);
        word = word << self.chunk_bits | u64::from(a.chunk);
        Ppa(word << self.sector_bits | u64::from(a.sector))
    }

    /// Unpacks an address without a range check; [`Geometry::address`] checks the components.
    #[inline]
    pub fn unpack(&self, ppa: Ppa) -> Address {
        let mut word = ppa.0;
        let mut take = |bits: u8| {
            let field = (word & mask(bits)) as u32;
            word >>= bits;
            field
        };
        let sector = take(self.sector_bits);
        let chunk = take(self.chunk_bits);
        let pu = take(self.pu_bits);
        let group = take(self.group_bits);
        Address { group, pu, chunk, sector }
    }

    /// Whether no bit above the fields is set.
    #[inline]
    pub fn has_no_reserved_bits(&self, ppa: Ppa) -> bool {
        let bits = u32::from(self.group_bits)
            + u32::from(self.pu_bits)
            + u32::from(self.chunk_bits)
            + u32::from(self.sector_bits);
        bits >= 64 || ppa.0 >> bits == 0
    }
}

impl fmt::Display for PpaFormat {
    /// Formats as `group 4 | pu 3 | chunk 11 | sector 12`, highest field first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "group {} | pu {} | chunk {} | sector {}",
            self.group_bits, self.pu_bits, self.chunk_bits, self.sector_bits
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry {
            groups: 16,
            pus: 8,
            chunks: 1067,
            sectors: 4096,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 16,
            ws_opt: 16,
            mw_cunits: 128,
        }
    }

    #[test]
    fn the_papers_drive_needs_eleven_bits_for_1067_chunks() {
        let g = geometry();
        let f = PpaFormat::from_geometry(&g).unwrap();
        assert_eq!(f.to_string(), "group 4 | pu 3 | chunk 11 | sector 12");
        let last = Address { group: 15, pu: 7, chunk: 1066, sector: 4095 };
        assert_eq!(g.address(&f, f.pack(last)), Ok(last));
        for chunk in [1067, 2047] {
            let hole = f.pack(Address { chunk, ..last });
            assert_eq!(g.address(&f, hole).unwrap_err().ppa, hole);
        }
        assert!(g.address(&f, Ppa(u64::MAX)).is_err());
        assert!(g.address(&f, Ppa(1 << 30)).is_err(), "bits above the fields");
    }

    #[test]
    fn one_of_everything_is_an_address_of_no_bits() {
        let g = Geometry {
            groups: 1,
            pus: 1,
            chunks: 1,
            sectors: 1,
            ws_min: 1,
            ws_opt: 1,
            ..geometry()
        };
        let f = PpaFormat::from_geometry(&g).unwrap();
        assert_eq!(g.address(&f, Ppa(0)), Ok(Address::default()));
        assert!(g.address(&f, Ppa(1)).is_err());
    }

    #[test]
    fn packing_and_unpacking_are_inverse_for_odd_counts() {
        let g = Geometry {
            groups: 3,
            pus: 5,
            chunks: 7,
            sectors: 24,
            ws_min: 8,
            ws_opt: 8,
            ..geometry()
        };
        let f = PpaFormat::from_geometry(&g).unwrap();
        for flat in 0..g.total_sectors() {
            let a = g.from_flat(flat).unwrap();
            assert_eq!(g.address(&f, f.pack(a)), Ok(a));
        }
    }
}
