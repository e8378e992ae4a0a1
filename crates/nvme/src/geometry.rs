//! [`Geometry`]: what a host knows of an open-channel drive's shape.

use std::fmt;

use crate::{InvalidPpa, Ppa, PpaFormat};

/// The shape of a drive as the Geometry command reports it (OC section 3.1, LightNVM paper section
/// 3.1): groups (channels) → parallel units → chunks → sectors. Planes and pages are inside a
/// chunk: its sectors are numbered in programming order, and `ws_opt` is one multi-plane page.
///
/// Invariant: every count is at least 1, and the address format fits 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Groups; a group's PUs share one channel.
    pub groups: u32,
    /// Parallel units per group.
    pub pus: u32,
    /// Chunks per parallel unit.
    pub chunks: u32,
    /// Sectors (logical blocks) per chunk, CLBA.
    pub sectors: u32,
    /// Bytes per sector.
    pub sector_bytes: u32,
    /// Out-of-band bytes per sector that travel through the metadata pointer.
    pub oob_bytes: u32,
    /// Smallest write, in sectors.
    pub ws_min: u32,
    /// Best write, in sectors.
    pub ws_opt: u32,
    /// Sectors that must follow in the same chunk before a sector can be read (cache minimum write
    /// units): the distance to the paired page.
    pub mw_cunits: u32,
}

/// A physical address by its components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address {
    /// Group, that is channel.
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

/// Why a shape cannot be a drive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// A count is zero.
    #[error("{what} is 0, but a drive has at least 1")]
    Zero {
        /// The count's name.
        what: &'static str,
    },
    /// The fields do not fit an address.
    #[error(
        "an address needs {bits} bits (groups, PUs, chunks and sectors, each rounded up to a \
         power of two), but there are 64"
    )]
    TooManyBits {
        /// Bits needed.
        bits: u32,
    },
    /// A number is not what another one allows.
    #[error("{what} is {value}, but {allowed}")]
    Unfit {
        /// The number's name.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        allowed: String,
    },
}

impl Geometry {
    /// Checks the invariant.
    ///
    /// # Errors
    /// The first count that is zero, or does not fit the others.
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

    /// All parallel units.
    pub fn total_pus(&self) -> u32 {
        self.groups * self.pus
    }

    /// All chunks.
    pub fn total_chunks(&self) -> u64 {
        u64::from(self.total_pus()) * u64::from(self.chunks)
    }

    /// All sectors.
    pub fn total_sectors(&self) -> u64 {
        self.total_chunks() * u64::from(self.sectors)
    }

    /// All bytes, out-of-band bytes not counted.
    pub fn total_bytes(&self) -> u64 {
        self.total_sectors() * u64::from(self.sector_bytes)
    }

    /// Whether `a` names a sector.
    #[inline]
    pub fn contains(&self, a: Address) -> bool {
        a.group < self.groups && a.pu < self.pus && a.chunk < self.chunks && a.sector < self.sectors
    }

    /// The flat form of an address: sectors numbered without holes, chunk by chunk, PU by PU.
    #[inline]
    pub fn flat(&self, a: Address) -> u64 {
        let pu = u64::from(a.group) * u64::from(self.pus) + u64::from(a.pu);
        (pu * u64::from(self.chunks) + u64::from(a.chunk)) * u64::from(self.sectors)
            + u64::from(a.sector)
    }

    /// The address with this flat form; `None` past the end.
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

    /// The components of a physical page address.
    ///
    /// # Errors
    /// [`InvalidPpa`] for an address in a hole of the format.
    pub fn address(&self, format: &PpaFormat, ppa: Ppa) -> Result<Address, InvalidPpa> {
        let a = format.unpack(ppa);
        if format.has_no_stray_bits(ppa) && self.contains(a) {
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
        // The FAST'17 drive: 1067 chunks need 11 bits.
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
