//! Registered memory of the write buffer ([`SlotMemory`]) and of the trim command ([`TrimRanges`]).

use std::sync::Arc;

use ftl::{LbaRun, Oob, SlotId, WriteUnit};
use mem::{AddressSpace, Iova, SharedRegion};
use nvme::DsmRange;
use serde::{Deserialize, Serialize};

use ocssd::vector::{MemoryError, register};

/// The memory of the write buffer [LightNVM17 §4.2.1]: a data buffer with one sector per slot, and
/// a context buffer with one out-of-band area per slot. Both are contiguous, so a write unit needs
/// one data pointer and one metadata pointer.
#[derive(Debug)]
pub(crate) struct SlotMemory {
    data: Arc<SharedRegion>,
    data_at: Iova,
    oob: Arc<SharedRegion>,
    oob_at: Iova,
    sector_bytes: usize,
    oob_bytes: usize,
}

/// The contents of all slots.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SlotContents {
    data: Arc<SharedRegion>,
    oob: Arc<SharedRegion>,
}

impl SlotMemory {
    /// Allocates and registers `count` zeroed slots.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(crate) fn new(
        space: &AddressSpace,
        count: u32,
        sector_bytes: u32,
        oob_bytes: u32,
    ) -> Result<SlotMemory, MemoryError> {
        let (sector_bytes, oob_bytes) = (sector_bytes as usize, oob_bytes as usize);
        let (data, data_at) = register(space, count as usize * sector_bytes, "the write buffer")?;
        let what = "the write buffer's out-of-band bytes";
        let (oob, oob_at) = register(space, count as usize * oob_bytes, what)?;
        Ok(SlotMemory { data, data_at, oob, oob_at, sector_bytes, oob_bytes })
    }

    /// Returns the contents of all slots, in their place.
    pub(super) fn contents(&self) -> SlotContents {
        SlotContents { data: self.data.clone(), oob: self.oob.clone() }
    }

    /// Copies the contents of all slots of another buffer. Returns `false`, and copies nothing, if
    /// the sizes differ.
    pub(super) fn copy_from(&self, other: &SlotContents) -> bool {
        if (self.data.len(), self.oob.len()) != (other.data.len(), other.oob.len()) {
            return false;
        }
        SharedRegion::copy(&other.data, 0, &self.data, 0, self.data.len());
        SharedRegion::copy(&other.oob, 0, &self.oob, 0, self.oob.len());
        true
    }

    /// Returns the address of a slot's data.
    #[inline]
    pub(crate) fn data_at(&self, slot: SlotId) -> Iova {
        self.data_at.offset(u64::from(slot.get()) * self.sector_bytes as u64)
    }

    /// Returns the address of a slot's out-of-band bytes.
    #[inline]
    pub(crate) fn oob_at(&self, slot: SlotId) -> Iova {
        self.oob_at.offset(u64::from(slot.get()) * self.oob_bytes as u64)
    }

    /// Writes the out-of-band bytes of a write unit to its slots.
    #[inline]
    pub(crate) fn write_oob(&self, unit: &WriteUnit<'_>) {
        let mut at = unit.first_slot.index() * self.oob_bytes;
        for oob in unit.oobs() {
            self.oob.write(at, &oob);
            at += self.oob_bytes;
        }
    }

    /// Copies a sector of registered memory into a slot. The range is registered, because requests
    /// are checked when they are accepted.
    #[inline]
    pub(crate) fn copy_in(&self, space: &AddressSpace, from: Iova, slot: SlotId) {
        if let Ok(from) = space.find(from, self.sector_bytes as u64) {
            let to = slot.index() * self.sector_bytes;
            SharedRegion::copy(from.region, from.offset, &self.data, to, self.sector_bytes);
        }
    }

    /// Copies a slot to a sector of registered memory.
    #[inline]
    pub(crate) fn copy_out(&self, space: &AddressSpace, slot: SlotId, to: Iova) {
        if let Ok(to) = space.find(to, self.sector_bytes as u64) {
            let from = slot.index() * self.sector_bytes;
            SharedRegion::copy(&self.data, from, to.region, to.offset, self.sector_bytes);
        }
    }

    /// Writes bytes to a slot, zero-padded to a sector.
    #[inline]
    pub(crate) fn store(&self, slot: SlotId, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.sector_bytes)];
        let at = slot.index() * self.sector_bytes;
        self.data.write(at, bytes);
        self.data.fill(at + bytes.len(), self.sector_bytes - bytes.len(), 0);
    }

    /// Reads the first bytes of a slot, at most a sector.
    pub(crate) fn load(&self, slot: SlotId, out: &mut [u8]) {
        let size = out.len().min(self.sector_bytes);
        self.data.read(slot.index() * self.sector_bytes, &mut out[..size]);
    }

    /// Reads the out-of-band bytes of a slot.
    pub(crate) fn load_oob(&self, slot: SlotId, out: &mut [u8; Oob::BYTES]) {
        self.oob.read(slot.index() * self.oob_bytes, out);
    }
}

/// Maximum number of ranges of a Map Trim command.
const TRIM_RANGES_MAX: usize = 256;

/// The ranges of logical sectors of the Map Trim command in flight; at most one is in flight
/// (`docs/format/ppa.md`).
#[derive(Debug)]
pub(crate) struct TrimRanges {
    region: Arc<SharedRegion>,
    at: Iova,
    count: u16,
}

impl TrimRanges {
    /// Allocates memory for the ranges, initially empty.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(crate) fn new(space: &AddressSpace) -> Result<TrimRanges, MemoryError> {
        let (region, at) = register(space, TRIM_RANGES_MAX * DsmRange::BYTES, "trims")?;
        Ok(TrimRanges { region, at, count: 0 })
    }

    /// Replaces the ranges by `runs`: 1 to 256 ranges of sectors.
    pub(crate) fn set(&mut self, runs: &[LbaRun]) {
        self.count = 0;
        for LbaRun { first, sectors } in runs.iter().take(TRIM_RANGES_MAX) {
            let (nlb, slba) = ((*sectors).into(), u64::from(first.get()).into());
            let range = DsmRange { attributes: 0.into(), nlb, slba };
            self.region.write(usize::from(self.count) * DsmRange::BYTES, &range.to_bytes());
            self.count += 1;
        }
    }

    /// Returns the address of the ranges.
    pub(crate) fn at(&self) -> Iova {
        self.at
    }

    /// Returns the number of ranges.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }
}
