//! [`Geometry`]: the geometry of an open-channel drive, as its host sees it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{InvalidPpa, Ppa, PpaFormat};

/// The geometry of a drive as the Geometry command reports it [OC20 §3.1, LightNVM17 §3.1]: groups
/// (channels) → parallel units → chunks → sectors. Planes and pages are inside a chunk: its sectors
/// are numbered in programming order, and `ws_opt` is one multi-plane page.
///
/// Invariant: every count is at least 1, and an address fits in 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Number of groups; the parallel units of a group share one channel.
    pub groups: u32,
    /// Parallel units per group.
    pub pus: u32,
    /// Chunks per parallel unit.
    pub chunks: u32,
    /// Sectors (logical blocks) per chunk, CLBA.
    pub sectors: u32,
    /// Bytes per sector.
    pub sector_bytes: u32,
    /// Out-of-band bytes per sector that are transferred through the metadata pointer.
    pub oob_bytes: u32,
    /// Smallest write, in sectors.
    pub ws_min: u32,
    /// Optimal write size, in sectors.
    pub ws_opt: u32,
    /// Number of sectors that must be programmed in the same chunk after a sector before it is
    /// readable (cache minimum write units): the distance to the paired page.
    pub mw_cunits: u32,
}

/// A physical address by its components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address {
    /// Group (channel).
    pub group: u32,
    /// Parallel unit in its group.
    pub pu: u32,
    /// Chunk in its parallel unit.
    pub chunk: u32,
    /// Sector in its chunk.
    pub sector: u32,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.group, self.pu, self.chunk, self.sector)
    }
}

/// The reason for which a geometry is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// A count is zero.
    #[error("{what} is 0, but a drive has at least 1")]
    Zero {
        /// Name of the count.
        what: &'static str,
    },
    /// The fields of an address need more than 64 bits.
    #[error(
        "an address needs {bits} bits (groups, PUs, chunks and sectors, each rounded up to a \
         power of two), but has only 64"
    )]
    TooManyBits {
        /// Number of bits needed.
        bits: u32,
    },
    /// A value is inconsistent with another one.
    #[error("{what} is {value}, but {allowed}")]
    Unfit {
        /// Name of the value.
        what: &'static str,
        /// The value.
        value: u64,
        /// The allowed values.
        allowed: String,
    },
}

impl Geometry {
    /// Checks the invariant.
    ///
    /// # Errors
    /// The first count that is zero or inconsistent with the others.
    pub fn check(&self) -> Result<(), GeometryError> {
        for (what, n) in [
            ("groups", self.groups),
            ("PUs per group", self.pus),
            ("chunks per PU", self.chunks),
            ("sectors per chunk", self.sectors),
            ("sector_bytes", self.sector_bytes),
            ("ws_min", self.ws_min),
            ("ws_opt", self.ws_opt),
        ] {
            if n == 0 {
                return Err(GeometryError::Zero { what });
            }
        }
        if !self.sectors.is_multiple_of(self.ws_min) {
            return Err(GeometryError::Unfit {
                what: "sectors per chunk",
                value: self.sectors.into(),
                allowed: format!("it must be a multiple of ws_min ({})", self.ws_min),
            });
        }
        if !self.ws_opt.is_multiple_of(self.ws_min) || !self.sectors.is_multiple_of(self.ws_opt) {
            return Err(GeometryError::Unfit {
                what: "ws_opt",
                value: self.ws_opt.into(),
                allowed: format!(
                    "it must be a multiple of ws_min ({}) and divide the sectors per chunk ({})",
                    self.ws_min, self.sectors
                ),
            });
        }
        PpaFormat::from_geometry(self).map(|_| ())
    }

    /// Returns the number of parallel units.
    pub fn total_pus(&self) -> u32 {
        self.groups * self.pus
    }

    /// Returns the number of chunks.
    pub fn total_chunks(&self) -> u64 {
        u64::from(self.total_pus()) * u64::from(self.chunks)
    }

    /// Returns the number of sectors.
    pub fn total_sectors(&self) -> u64 {
        self.total_chunks() * u64::from(self.sectors)
    }

    /// Returns the capacity in bytes, without out-of-band bytes.
    pub fn total_bytes(&self) -> u64 {
        self.total_sectors() * u64::from(self.sector_bytes)
    }

    /// Whether `a` is the address of a sector.
    #[inline]
    pub fn contains(&self, a: Address) -> bool {
        a.group < self.groups && a.pu < self.pus && a.chunk < self.chunks && a.sector < self.sectors
    }

    /// Returns the flat form of an address: sectors numbered without holes, chunk by chunk, by
    /// parallel unit.
    #[inline]
    pub fn flat(&self, a: Address) -> u64 {
        let pu = u64::from(a.group) * u64::from(self.pus) + u64::from(a.pu);
        (pu * u64::from(self.chunks) + u64::from(a.chunk)) * u64::from(self.sectors)
            + u64::from(a.sector)
    }

    /// Returns the address with this flat form; `None` past the end.
    #[inline]
    pub fn from_flat(&self, flat: u64) -> Option<Address> {
        let (rest, sector) =
            (flat / u64::from(self.sectors), (flat % u64::from(self.sectors)) as u32);
        let (pu, chunk) = (rest / u64::from(self.chunks), (rest % u64::from(self.chunks)) as u32);
        let (group, pu) = (pu / u64::from(self.pus), (pu % u64::from(self.pus)) as u32);
        (group < u64::from(self.groups)).then_some(Address {
            group: group as u32,
            pu,
            chunk,
            sector,
        })
    }

    /// Unpacks a physical page address.
    ///
    /// # Errors
    /// [`InvalidPpa`] for an address in a hole of the format.
    pub fn address(&self, format: &PpaFormat, ppa: Ppa) -> Result<Address, InvalidPpa> {
        let a = format.unpack(ppa);
        if format.has_no_reserved_bits(ppa) && self.contains(a) {
            Ok(a)
        } else {
            Err(InvalidPpa { ppa, address: a })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn westlake() -> Geometry {
        // The drive of [LightNVM17]: 1067 chunks need 11 bits.
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
    fn flat_addresses_have_no_holes() {
        let g = Geometry {
            groups: 3,
            pus: 2,
            chunks: 5,
            sectors: 7,
            ws_min: 7,
            ws_opt: 7,
            ..westlake()
        };
        g.check().unwrap();
        for flat in 0..g.total_sectors() {
            let a = g.from_flat(flat).unwrap();
            assert!(g.contains(a));
            assert_eq!(g.flat(a), flat);
        }
        assert_eq!(g.from_flat(g.total_sectors()), None);
    }

    #[test]
    fn impossible_shapes_are_refused_by_name() {
        let g = westlake();
        g.check().unwrap();
        assert_eq!(
            Geometry { groups: 0, ..g }.check(),
            Err(GeometryError::Zero { what: "groups" })
        );
        assert!(Geometry { sectors: 4095, ..g }.check().is_err());
        assert!(Geometry { ws_opt: 24, ..g }.check().is_err());
        let huge = Geometry { groups: u32::MAX, pus: u32::MAX, chunks: u32::MAX, ..g };
        assert!(matches!(huge.check(), Err(GeometryError::TooManyBits { bits: 108 })));
    }
}
