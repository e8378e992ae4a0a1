//! [`Slots`]: the registered memory of the write buffer; [`TrimRanges`]: of a command that tells of trims.

use std::sync::Arc;

use ftl::{Oob, WriteUnit};
use nvme::DsmRange;
use ring::{AddressSpace, Iova, SharedRegion};

use crate::vector::{MemoryError, register};

/// The write buffer (LightNVM paper section 4.2.1): a data buffer of one sector per slot, and beside
/// it a context buffer of one out-of-band area per slot. Both are contiguous, so that a write unit
/// is one data pointer and one metadata pointer.
#[derive(Debug)]
pub(crate) struct SlotMemory {
    data: Arc<SharedRegion>,
    data_at: Iova,
    oob: Arc<SharedRegion>,
    oob_at: Iova,
    sector_bytes: usize,
    oob_bytes: usize,
}

impl SlotMemory {
    /// `count` slots of zeros.
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

    /// Copies all slots of another buffer; whether it is of the same size.
    pub(super) fn copy_from(&self, other: &SlotMemory) -> bool {
        let sizes = |slots: &SlotMemory| (slots.data.len(), slots.oob.len());
        if sizes(self) != sizes(other) {
            return false;
        }
        SharedRegion::copy(&other.data, 0, &self.data, 0, self.data.len());
        SharedRegion::copy(&other.oob, 0, &self.oob, 0, self.oob.len());
        true
    }

    /// Where a slot's sector is.
    #[inline]
    pub(crate) fn data_at(&self, slot: u32) -> Iova {
        self.data_at.offset(u64::from(slot) * self.sector_bytes as u64)
    }

    /// Where a slot's out-of-band bytes are.
    #[inline]
    pub(crate) fn oob_at(&self, slot: u32) -> Iova {
        self.oob_at.offset(u64::from(slot) * self.oob_bytes as u64)
    }

    /// Puts the out-of-band bytes of a write unit in place.
    #[inline]
    pub(crate) fn write_oob(&self, unit: &WriteUnit<'_>) {
        let mut at = unit.first_slot as usize * self.oob_bytes;
        for oob in unit.oobs() {
            self.oob.write(at, &oob);
            at += self.oob_bytes;
        }
    }

    /// Copies a sector of registered memory into a slot. Requests were checked when they were
    /// taken, so the range is registered.
    #[inline]
    pub(crate) fn copy_in(&self, space: &AddressSpace, from: Iova, slot: u32) {
        if let Ok(from) = space.find(from, self.sector_bytes as u64) {
            let to = slot as usize * self.sector_bytes;
            SharedRegion::copy(from.region, from.offset, &self.data, to, self.sector_bytes);
        }
    }

    /// Copies a slot to a sector of registered memory.
    #[inline]
    pub(crate) fn copy_out(&self, space: &AddressSpace, slot: u32, to: Iova) {
        if let Ok(to) = space.find(to, self.sector_bytes as u64) {
            let from = slot as usize * self.sector_bytes;
            SharedRegion::copy(&self.data, from, to.region, to.offset, self.sector_bytes);
        }
    }

    /// Puts bytes, and zeros up to a sector, into a slot.
    #[inline]
    pub(crate) fn store(&self, slot: u32, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.sector_bytes)];
        let at = slot as usize * self.sector_bytes;
        self.data.write(at, bytes);
        self.data.fill(at + bytes.len(), self.sector_bytes - bytes.len(), 0);
    }

    /// Copies the first bytes of a slot, at most a sector.
    pub(crate) fn load(&self, slot: u32, out: &mut [u8]) {
        let size = out.len().min(self.sector_bytes);
        self.data.read(slot as usize * self.sector_bytes, &mut out[..size]);
    }

    /// Copies the out-of-band bytes of a slot.
    pub(crate) fn load_oob(&self, slot: u32, out: &mut [u8; Oob::BYTES]) {
        self.oob.read(slot as usize * self.oob_bytes, out);
    }
}

/// Runs of a Map Trim at most.
const TRIM_RANGES_MAX: usize = 256;

/// The runs of logical sectors of the one Map Trim that is under way (`docs/format/ppa.md`).
#[derive(Debug)]
pub(crate) struct TrimRanges {
    region: Arc<SharedRegion>,
    at: Iova,
    count: u16,
}

impl TrimRanges {
    /// None yet.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(crate) fn new(space: &AddressSpace) -> Result<TrimRanges, MemoryError> {
        let (region, at) = register(space, TRIM_RANGES_MAX * DsmRange::BYTES, "trims")?;
        Ok(TrimRanges { region, at, count: 0 })
    }

    /// Puts 1 to 256 runs, first sectors and how many, in place of the last ones.
    pub(crate) fn set(&mut self, runs: &[(u32, u32)]) {
        let runs = &runs[..runs.len().min(TRIM_RANGES_MAX)];
        for (i, &(first, count)) in runs.iter().enumerate() {
            let range =
                DsmRange { attributes: 0.into(), nlb: count.into(), slba: u64::from(first).into() };
            self.region.write(i * DsmRange::BYTES, &range.to_bytes());
        }
        self.count = runs.len() as u16;
    }

    /// Where they are.
    pub(crate) fn at(&self) -> Iova {
        self.at
    }

    /// How many.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }
}
