//! [`Slots`]: the registered memory of the write buffer.

use std::sync::Arc;

use ftl::WriteUnit;
use ring::{AddressSpace, Iova, Region};

use crate::vector::{MemoryError, register};

/// The write buffer (LightNVM paper section 4.2.1): a data buffer of one sector per slot, and beside
/// it a context buffer of one out-of-band area per slot. Both are contiguous, so that a write unit
/// is one data pointer and one metadata pointer.
#[derive(Debug)]
pub(crate) struct Slots {
    data: Arc<Region>,
    data_at: Iova,
    oob: Arc<Region>,
    oob_at: Iova,
    sector_bytes: usize,
    oob_bytes: usize,
}

impl Slots {
    /// `count` slots of zeros.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(crate) fn new(
        space: &AddressSpace,
        count: u32,
        sector_bytes: u32,
        oob_bytes: u32,
    ) -> Result<Slots, MemoryError> {
        let (sector_bytes, oob_bytes) = (sector_bytes as usize, oob_bytes as usize);
        let (data, data_at) = register(space, count as usize * sector_bytes, "the write buffer")?;
        let what = "the write buffer's out-of-band bytes";
        let (oob, oob_at) = register(space, count as usize * oob_bytes, what)?;
        Ok(Slots { data, data_at, oob, oob_at, sector_bytes, oob_bytes })
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
    pub(crate) fn describe(&self, unit: &WriteUnit<'_>) {
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
            Region::copy(from.region, from.offset, &self.data, to, self.sector_bytes);
        }
    }

    /// Copies a slot to a sector of registered memory.
    #[inline]
    pub(crate) fn copy_out(&self, space: &AddressSpace, slot: u32, to: Iova) {
        if let Ok(to) = space.find(to, self.sector_bytes as u64) {
            let from = slot as usize * self.sector_bytes;
            Region::copy(&self.data, from, to.region, to.offset, self.sector_bytes);
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
}
