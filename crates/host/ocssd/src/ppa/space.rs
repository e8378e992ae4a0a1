//! [`PpaSpace`]: the address space of a drive, in three forms ([LightNVM17 §3.1], [OC20 §2.1]).
//!
//! | form | type | used by |
//! |---|---|---|
//! | generic | [`Address`]: group, PU, chunk, sector | users and programs that place data |
//! | device | [`Ppa`]: packed in the drive's format, with holes | commands |
//! | flat | [`FlatSector`]: sector index, without holes | tables |
//!
//! Invariants: every conversion is checked and none panics. The three forms of a sector convert
//! into each other in both directions. An error for an invalid address names the wrong component.

use std::fmt;

use nvme::{Address, Geometry, Ppa, PpaFormat};

/// The flat form of an address: sectors numbered chunk by chunk and PU by PU, without holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlatSector(pub u64);

/// Index of a parallel unit on the drive: `group × PUs per group + PU in its group`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PuIndex(pub u32);

impl fmt::Display for PuIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PU {}", self.0)
    }
}

/// An address that does not exist on the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// A component is out of range.
    #[error("address {address} does not exist: there are {limit} {what}, numbered from 0")]
    Component {
        /// The address.
        address: Address,
        /// Name of the component.
        what: &'static str,
        /// Number of valid values.
        limit: u32,
    },
    /// A device address is in a hole of the format, or has bits above its fields.
    #[error("physical address {:#x} ({address}) is in a hole of the drive's address format", ppa.0)]
    Hole {
        /// The given address.
        ppa: Ppa,
        /// Its components.
        address: Address,
    },
    /// A sector index is out of range.
    #[error("flat address {} does not exist: the drive has {sectors} sectors", flat.0)]
    Flat {
        /// The index.
        flat: FlatSector,
        /// Sectors of the drive.
        sectors: u64,
    },
    /// A parallel unit is out of range.
    #[error("{pu} does not exist: the drive has {pus} parallel units, numbered from 0")]
    Pu {
        /// The parallel unit.
        pu: PuIndex,
        /// Number of parallel units.
        pus: u32,
    },
}

/// A drive's geometry and address format; converts addresses and computes with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PpaSpace {
    geometry: Geometry,
    format: PpaFormat,
}

impl PpaSpace {
    /// Creates the space of a checked geometry, with a format whose fields are wide enough for it.
    pub(crate) fn new(geometry: Geometry, format: PpaFormat) -> PpaSpace {
        PpaSpace { geometry, format }
    }

    /// Creates the space of a geometry with the narrowest format.
    ///
    /// # Errors
    /// [`nvme::GeometryError`].
    pub fn from_geometry(geometry: Geometry) -> Result<PpaSpace, nvme::GeometryError> {
        geometry.check()?;
        Ok(PpaSpace { geometry, format: PpaFormat::from_geometry(&geometry)? })
    }

    /// Returns the geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the layout of device addresses.
    pub fn format(&self) -> &PpaFormat {
        &self.format
    }

    /// Checks that `address` exists.
    ///
    /// # Errors
    /// [`AddressError::Component`].
    #[inline]
    pub fn check(&self, address: Address) -> Result<(), AddressError> {
        if self.geometry.contains(address) { Ok(()) } else { Err(self.component(address)) }
    }

    #[cold]
    fn component(&self, address: Address) -> AddressError {
        let g = &self.geometry;
        let (what, limit) = if address.group >= g.groups {
            ("groups", g.groups)
        } else if address.pu >= g.pus {
            ("PUs per group", g.pus)
        } else if address.chunk >= g.chunks {
            ("chunks per PU", g.chunks)
        } else {
            ("sectors per chunk", g.sectors)
        };
        AddressError::Component { address, what, limit }
    }

    /// Converts a generic to a device address.
    ///
    /// # Errors
    /// [`AddressError::Component`].
    #[inline]
    pub fn ppa(&self, address: Address) -> Result<Ppa, AddressError> {
        self.check(address)?;
        Ok(self.format.pack(address))
    }

    /// Converts a device to a generic address.
    ///
    /// # Errors
    /// [`AddressError::Hole`].
    #[inline]
    pub fn address(&self, ppa: Ppa) -> Result<Address, AddressError> {
        self.geometry
            .address(&self.format, ppa)
            .map_err(|e| AddressError::Hole { ppa: e.ppa, address: e.address })
    }

    /// Converts a generic to a flat address.
    ///
    /// # Errors
    /// [`AddressError::Component`].
    #[inline]
    pub fn flat(&self, address: Address) -> Result<FlatSector, AddressError> {
        self.check(address)?;
        Ok(FlatSector(self.geometry.flat(address)))
    }

    /// Converts a flat to a generic address.
    ///
    /// # Errors
    /// [`AddressError::Flat`].
    #[inline]
    pub fn address_of(&self, flat: FlatSector) -> Result<Address, AddressError> {
        self.geometry
            .from_flat(flat.0)
            .ok_or(AddressError::Flat { flat, sectors: self.geometry.total_sectors() })
    }

    /// Converts a device to a flat address.
    ///
    /// # Errors
    /// [`AddressError::Hole`].
    pub fn flat_of(&self, ppa: Ppa) -> Result<FlatSector, AddressError> {
        Ok(FlatSector(self.geometry.flat(self.address(ppa)?)))
    }

    /// Converts a flat to a device address.
    ///
    /// # Errors
    /// [`AddressError::Flat`].
    pub fn ppa_of(&self, flat: FlatSector) -> Result<Ppa, AddressError> {
        Ok(self.format.pack(self.address_of(flat)?))
    }

    /// Returns the components of a device address, valid or not, for messages.
    pub(crate) fn components(&self, ppa: Ppa) -> Address {
        self.format.unpack(ppa)
    }

    /// Returns the parallel unit of an address.
    ///
    /// # Errors
    /// [`AddressError::Component`].
    pub fn pu(&self, address: Address) -> Result<PuIndex, AddressError> {
        self.check(address)?;
        Ok(PuIndex(address.group * self.geometry.pus + address.pu))
    }

    /// Returns the first sector of the first chunk of a parallel unit.
    ///
    /// # Errors
    /// [`AddressError::Pu`].
    pub fn pu_address(&self, pu: PuIndex) -> Result<Address, AddressError> {
        let (pus, g) = (self.geometry.total_pus(), &self.geometry);
        if pu.0 >= pus {
            return Err(AddressError::Pu { pu, pus });
        }
        Ok(Address { group: pu.0 / g.pus, pu: pu.0 % g.pus, chunk: 0, sector: 0 })
    }

    /// Returns the first sector of the chunk that contains an address.
    ///
    /// # Errors
    /// [`AddressError::Component`].
    pub fn chunk(&self, address: Address) -> Result<Address, AddressError> {
        self.check(address)?;
        Ok(Address { sector: 0, ..address })
    }

    /// Returns the index of a chunk on the drive, which is its index in the chunk report.
    ///
    /// # Errors
    /// [`AddressError::Component`].
    pub fn chunk_index(&self, address: Address) -> Result<u64, AddressError> {
        let flat = self.flat(address)?;
        Ok(flat.0 / u64::from(self.geometry.sectors))
    }

    /// Returns the next sector of the chunk; `None` at its end, or for an invalid address.
    #[inline]
    pub fn next_in_chunk(&self, address: Address) -> Option<Address> {
        let next = Address { sector: address.sector.checked_add(1)?, ..address };
        self.geometry.contains(next).then_some(next)
    }

    /// Returns the corresponding address on the next parallel unit in striping order, in which
    /// consecutive ones are on different channels: all groups first, then the next PU of each. The
    /// order wraps around. `None` for an invalid address.
    pub fn next_pu(&self, address: Address) -> Option<Address> {
        let g = &self.geometry;
        if !g.contains(address) {
            return None;
        }
        let (group, pu) = if address.group + 1 < g.groups {
            (address.group + 1, address.pu)
        } else {
            (0, (address.pu + 1) % g.pus)
        };
        Some(Address { group, pu, ..address })
    }

    /// Returns the index of a parallel unit in striping order.
    ///
    /// # Errors
    /// [`AddressError::Pu`].
    pub fn stripe_index(&self, pu: PuIndex) -> Result<u32, AddressError> {
        let a = self.pu_address(pu)?;
        Ok(a.pu * self.geometry.groups + a.group)
    }

    /// Iterates over all parallel units in striping order.
    pub fn striped(&self) -> impl Iterator<Item = PuIndex> + use<> {
        let (groups, pus) = (self.geometry.groups, self.geometry.pus);
        (0..pus).flat_map(move |pu| (0..groups).map(move |group| PuIndex(group * pus + pu)))
    }

    /// Iterates over the device addresses of `count` sectors of a chunk, starting at `first`.
    ///
    /// # Errors
    /// [`AddressError::Component`] if the range crosses the end of the chunk, or is empty at its
    /// end.
    pub fn extent(
        &self,
        first: Address,
        count: u32,
    ) -> Result<impl ExactSizeIterator<Item = Ppa> + use<>, AddressError> {
        let last = first.sector.saturating_add(count.saturating_sub(1));
        self.check(Address { sector: last, ..first })?;
        // The sector is the lowest field, so device addresses within a chunk are consecutive.
        let base = self.format.pack(first).0;
        Ok((0..count).map(move |i| Ppa(base + u64::from(i))))
    }
}

#[cfg(test)]
mod tests {
    use rng::Rng;

    use super::*;

    fn geometry(groups: u32, pus: u32, chunks: u32, units: u32, unit: u32) -> Geometry {
        Geometry {
            groups,
            pus,
            chunks,
            sectors: units * unit,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: unit,
            ws_opt: unit,
            mw_cunits: 0,
        }
    }

    fn check_sector(space: &PpaSpace, flat: u64) {
        let flat = FlatSector(flat);
        let a = space.address_of(flat).unwrap();
        let ppa = space.ppa(a).unwrap();
        assert_eq!(space.flat(a), Ok(flat));
        assert_eq!(space.address(ppa), Ok(a));
        assert_eq!((space.flat_of(ppa), space.ppa_of(flat)), (Ok(flat), Ok(ppa)));
        let pu = space.pu(a).unwrap();
        let first = space.pu_address(pu).unwrap();
        assert_eq!((first.group, first.pu), (a.group, a.pu));
        let number = space.chunk_index(a).unwrap();
        assert_eq!(number, flat.0 / u64::from(space.geometry().sectors));
        match space.next_in_chunk(a) {
            Some(next) => assert_eq!(space.flat(next).unwrap().0, flat.0 + 1),
            None => assert_eq!(a.sector + 1, space.geometry().sectors),
        }
    }

    #[test]
    fn forms_convert_both_ways_in_every_sector_of_an_odd_drive() {
        let space = PpaSpace::from_geometry(geometry(3, 5, 7, 3, 8)).unwrap();
        for flat in 0..space.geometry().total_sectors() {
            check_sector(&space, flat);
        }
    }

    #[test]
    fn forms_convert_both_ways_on_random_geometries_and_wide_formats() {
        let mut rng = Rng::new(7);
        for case in 0..300 {
            let mut n = |below| 1 + rng.below(below) as u32;
            let g = geometry(n(40), n(17), n(2000), n(300), n(24));
            let least = PpaFormat::from_geometry(&g).unwrap();
            let wider = PpaFormat {
                group_bits: least.group_bits + (n(4) - 1) as u8,
                pu_bits: least.pu_bits + (n(4) - 1) as u8,
                chunk_bits: least.chunk_bits + (n(4) - 1) as u8,
                sector_bits: least.sector_bits + (n(4) - 1) as u8,
            };
            let space = PpaSpace::new(g, wider);
            let sectors = g.total_sectors();
            for _ in 0..200 {
                check_sector(&space, rng.below(sectors));
            }
            assert!(matches!(
                space.address_of(FlatSector(sectors)),
                Err(AddressError::Flat { .. })
            ));
            // Every 64-bit value is either an address that packs to itself, or an error; never a
            // panic.
            for _ in 0..200 {
                let bits = rng.below(64);
                let ppa = Ppa(rng.next_u64() >> bits);
                match space.address(ppa) {
                    Ok(a) => assert_eq!(space.ppa(a), Ok(ppa), "case {case}"),
                    Err(e) => assert!(matches!(e, AddressError::Hole { ppa: p, .. } if p == ppa)),
                }
            }
        }
    }

    #[test]
    fn striping_visits_every_pu_once_and_neighbors_are_on_different_channels() {
        for (groups, pus) in [(1, 1), (1, 5), (5, 1), (3, 5), (16, 8)] {
            let space = PpaSpace::from_geometry(geometry(groups, pus, 7, 3, 8)).unwrap();
            let order: Vec<PuIndex> = space.striped().collect();
            assert_eq!(order.len() as u32, groups * pus);
            let mut a = space.pu_address(order[0]).unwrap();
            for (place, pu) in (0..).zip(&order) {
                assert_eq!(space.pu(a), Ok(*pu));
                assert_eq!(space.stripe_index(*pu), Ok(place));
                let next = space.next_pu(a).unwrap();
                assert!(groups == 1 || next.group != a.group);
                a = next;
            }
            assert_eq!(space.pu(a), Ok(order[0]), "after the last comes the first");
        }
    }

    #[test]
    fn what_names_nothing_is_said_by_its_part() {
        let space = PpaSpace::from_geometry(geometry(3, 5, 7, 3, 8)).unwrap();
        let good = Address { group: 2, pu: 4, chunk: 6, sector: 23 };
        space.check(good).unwrap();
        for (bad, want, n) in [
            (Address { group: 3, ..good }, "groups", 3),
            (Address { pu: 5, ..good }, "PUs per group", 5),
            (Address { chunk: 7, ..good }, "chunks per PU", 7),
            (Address { sector: 24, ..good }, "sectors per chunk", 24),
            (Address { group: u32::MAX, pu: u32::MAX, ..good }, "groups", 3),
        ] {
            let Err(AddressError::Component { address, what, limit }) = space.ppa(bad) else {
                panic!("{bad}")
            };
            assert_eq!((address, what, limit), (bad, want, n));
            assert!(
                space.flat(bad).is_err() && space.pu(bad).is_err() && space.chunk(bad).is_err()
            );
            assert_eq!((space.next_in_chunk(bad), space.next_pu(bad)), (None, None));
        }
        assert!(
            space.pu_address(PuIndex(15)).is_err()
                && space.stripe_index(PuIndex(u32::MAX)).is_err()
        );
        assert_eq!(space.extent(Address { sector: 20, ..good }, 4).unwrap().count(), 4);
        assert!(space.extent(Address { sector: 20, ..good }, 5).is_err());
        assert!(space.extent(Address { sector: 20, ..good }, u32::MAX).is_err());
        let text = space.ppa(Address { pu: 9, ..good }).unwrap_err().to_string();
        assert_eq!(
            text,
            "address 2/9/6/23 does not exist: there are 5 PUs per group, numbered from 0"
        );
    }
}
