//! [`SectorName`]: the address of a sector that the FTL chose.

use nvme::PhysSector;
use serde::{Deserialize, Serialize};

use crate::FlashGeometry;
use crate::ids::{ToU32, WriteSeq};

/// The name of a sector: its physical sector, and the *epoch* of that sector's chunk: the sequence number
/// of the first write unit with data that was written to the chunk since its erase.
///
/// The physical sector is in the lowest bits, as many as the number of sectors needs, and the epoch in the
/// others. Sequence numbers are not used twice, so that no later sector gets the name of an erased one.
/// Names are below 2^[`BITS`](SectorName::BITS).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SectorName(pub u64);

impl SectorName {
    /// Bits of a name at most. The rules of a drive have two more for other kinds of addresses.
    pub const BITS: u32 = 62;
}

/// Reasons why a name is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SectorNameError {
    /// The sectors of this FTL have logical addresses.
    #[error("the sectors of this FTL have no names: it was opened with logical addressing")]
    Logical,
    /// The physical sector does not exist.
    #[error("the name is of physical sector {sector}, but the flash has {sectors}")]
    PastEnd {
        /// The physical sector.
        sector: u64,
        /// Sectors of the flash.
        sectors: u64,
    },
    /// No sector in its chunk has a name.
    #[error("no sector in the chunk of the name has been written")]
    NeverWritten,
    /// The sector was erased since, or the name is none of this FTL's.
    #[error("the name is stale: its chunk was erased since")]
    Stale,
    /// The sector has no data: it was freed, moved, or never written.
    #[error("the named sector was freed or moved, or never written")]
    NotValid,
    /// The sector has another tag. Reads from the media complete with
    /// [`Status::APPLICATION_TAG_CHECK`](nvme::Status::APPLICATION_TAG_CHECK) instead.
    #[error("the named sector has another tag")]
    ForeignTag,
    /// The move is not known, or has been confirmed already.
    #[error("no move of the named sector waits to be confirmed")]
    NotMoved,
}

/// A completed write of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedWrite {
    /// The tag of the request.
    pub request: u64,
    /// The name of the sector.
    pub name: SectorName,
}

/// A sector that was moved to another location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedSector {
    /// Its name so far.
    pub old: SectorName,
    /// Its name from now on.
    pub new: SectorName,
    /// The host's tag.
    pub tag: u64,
}

/// A valid sector that a recovery found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FoundName {
    /// The name of the sector.
    pub name: SectorName,
    /// The host's tag.
    pub tag: u64,
}

/// Counters of an FTL whose sectors have names, in sectors, since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedSectorStats {
    /// Sectors that were written and got a name.
    pub writes: u64,
    /// Sectors that were freed.
    pub frees: u64,
    /// Moves of valid sectors, each with a new name.
    pub moves: u64,
    /// Moves that the owner of the names has confirmed.
    pub confirmed_moves: u64,
    /// Reads of names that are not current: stale ones, and those of sectors without data.
    pub stale_reads: u64,
    /// Reads with a tag that is not the sector's.
    pub foreign_reads: u64,
    /// Valid sectors that could not be read when they were to be moved.
    pub lost: u64,
}

/// The division of a name's bits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct NameFormat {
    sectors: u64,
    sector_bits: u32,
}

impl NameFormat {
    /// The format for flash of this geometry.
    pub(crate) fn new(geometry: &FlashGeometry) -> NameFormat {
        let sectors = geometry.total_sectors();
        NameFormat { sectors, sector_bits: u64::BITS - sectors.leading_zeros() }
    }

    /// Returns the first sequence number that is no epoch: it does not fit a name, or not the
    /// out-of-band bytes.
    pub(crate) fn epoch_end(self) -> WriteSeq {
        WriteSeq(1 << (SectorName::BITS - self.sector_bits).min(56))
    }

    /// Returns the name of a sector.
    pub(crate) fn name(self, phys: PhysSector, epoch: WriteSeq) -> SectorName {
        debug_assert!(epoch < self.epoch_end(), "epoch {epoch} does not fit a name");
        SectorName(epoch.get() << self.sector_bits | u64::from(phys.get()))
    }

    /// Returns the epoch of a name.
    pub(crate) fn epoch(self, name: SectorName) -> WriteSeq {
        WriteSeq(name.0 >> self.sector_bits)
    }

    /// Returns the physical sector of a name.
    ///
    /// # Errors
    /// [`SectorNameError::PastEnd`].
    pub(crate) fn sector(self, name: SectorName) -> Result<PhysSector, SectorNameError> {
        let sector = name.0 & ((1 << self.sector_bits) - 1);
        if sector >= self.sectors {
            return Err(SectorNameError::PastEnd { sector, sectors: self.sectors });
        }
        Ok(PhysSector(sector.to_u32()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_its_sector_and_epoch() {
        for sectors in [1, 1000, 4096, 0xe000_0000] {
            let format = NameFormat { sectors, sector_bits: 64 - u64::leading_zeros(sectors) };
            let last = WriteSeq(format.epoch_end().get() - 1);
            for epoch in [WriteSeq(1), last] {
                let phys = PhysSector((sectors - 1) as u32);
                let name = format.name(phys, epoch);
                assert_eq!((format.sector(name), format.epoch(name)), (Ok(phys), epoch));
                let past = format.sector(SectorName(name.0 + 1));
                assert!(matches!(past, Err(SectorNameError::PastEnd { .. })), "{past:?}");
            }
        }
    }
}
