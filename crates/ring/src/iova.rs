//! [`AddressSpace`]: the memory that a drive may touch on behalf of one host.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::Region;

/// An I/O virtual address: what PRP and SGL entries hold. Registration number and offset, so that
/// a look-up is one shift and one bounds check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Iova(pub u64);

impl Iova {
    /// The address `bytes` further on.
    #[inline]
    #[must_use]
    pub fn offset(self, bytes: u64) -> Iova {
        Iova(self.0.wrapping_add(bytes))
    }
}

impl fmt::Display for Iova {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

const SHIFT: u32 = 40;
const MAX_REGIONS: usize = 1024;

/// The registrations of one host (rule R1: memory is registered once and named by an I/O virtual
/// address; the drive checks every address against the registrations of the queue's owner).
///
/// A registration lasts as long as the address space: a drive may hold an address for as long as a
/// command is outstanding, and an in-process host that wants its memory back drops the whole port.
/// Look-ups take no lock.
#[derive(Clone, Debug)]
pub struct AddressSpace {
    regions: Arc<[OnceLock<Arc<Region>>]>,
}

/// A range of registered memory, found and checked.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    /// The region.
    pub region: &'a Arc<Region>,
    /// Where in the region the range starts.
    pub offset: usize,
    /// Which of the [`CAPACITY`](AddressSpace::CAPACITY) registrations it is: what a driver files
    /// its own facts about the region under.
    pub slot: usize,
}

/// The range is not registered, or not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {iova}..+{len} are not registered memory")]
pub struct Unregistered {
    /// The address.
    pub iova: Iova,
    /// Bytes asked for.
    pub len: u64,
}

/// A registration was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// All registrations are in use.
    #[error("all {MAX_REGIONS} memory registrations of this port are in use")]
    Full,
    /// The region does not fit the address format.
    #[error("a region of {len} bytes is over the 1 TiB that one registration can name")]
    TooLong {
        /// Bytes.
        len: usize,
    },
}

impl Default for AddressSpace {
    fn default() -> AddressSpace {
        AddressSpace { regions: (0..MAX_REGIONS).map(|_| OnceLock::new()).collect() }
    }
}

impl AddressSpace {
    /// Registrations at most.
    pub const CAPACITY: usize = MAX_REGIONS;

    /// Registers a region and returns the address of its first byte.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(&self, region: &Arc<Region>) -> Result<Iova, RegisterError> {
        if region.len() > 1 << SHIFT {
            return Err(RegisterError::TooLong { len: region.len() });
        }
        for (i, slot) in self.regions.iter().enumerate() {
            if slot.get().is_none() && slot.set(region.clone()).is_ok() {
                // Address 0 stays invalid, so that a zeroed entry is an error.
                return Ok(Iova((i as u64 + 1) << SHIFT));
            }
        }
        Err(RegisterError::Full)
    }

    /// Finds `len` bytes at `iova`.
    ///
    /// # Errors
    /// [`Unregistered`].
    #[inline]
    pub fn find(&self, iova: Iova, len: u64) -> Result<Buffer<'_>, Unregistered> {
        let offset = iova.0 & ((1 << SHIFT) - 1);
        let slot = ((iova.0 >> SHIFT) as usize).wrapping_sub(1);
        match self.regions.get(slot).and_then(OnceLock::get) {
            Some(region) if offset.saturating_add(len) <= region.len() as u64 => {
                Ok(Buffer { region, offset: offset as usize, slot })
            }
            _ => Err(Unregistered { iova, len }),
        }
    }

    /// Copies registered bytes out.
    ///
    /// # Errors
    /// [`Unregistered`].
    pub fn read(&self, iova: Iova, into: &mut [u8]) -> Result<(), Unregistered> {
        let buffer = self.find(iova, into.len() as u64)?;
        buffer.region.read(buffer.offset, into);
        Ok(())
    }

    /// Copies bytes into registered memory.
    ///
    /// # Errors
    /// [`Unregistered`].
    pub fn write(&self, iova: Iova, from: &[u8]) -> Result<(), Unregistered> {
        let buffer = self.find(iova, from.len() as u64)?;
        buffer.region.write(buffer.offset, from);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registered_bytes_are_found() {
        let space = AddressSpace::default();
        let (a, b) = (Region::anonymous(4096).unwrap(), Region::anonymous(8192).unwrap());
        let (ia, ib) = (space.register(&a).unwrap(), space.register(&b).unwrap());
        assert_ne!(ia, ib);
        space.write(ib.offset(8190), b"ab").unwrap();
        let mut out = [0; 2];
        b.read(8190, &mut out);
        assert_eq!(&out, b"ab");
        for (iova, len) in [
            (Iova(0), 1),
            (Iova(4096), 1),
            (ia.offset(4095), 2),
            (ia.offset(0), u64::MAX),
            (ib.offset(8193), 0),
            (Iova(u64::MAX), 1),
        ] {
            assert_eq!(space.find(iova, len).unwrap_err(), Unregistered { iova, len });
        }
        assert!(space.find(ib.offset(8192), 0).is_ok());
    }

    #[test]
    fn registrations_run_out() {
        let space = AddressSpace::default();
        let region = Region::anonymous(1).unwrap();
        for _ in 0..MAX_REGIONS {
            space.register(&region).unwrap();
        }
        assert_eq!(space.register(&region), Err(RegisterError::Full));
    }
}
