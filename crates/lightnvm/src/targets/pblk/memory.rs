//! Registered memory: the write buffer's [`Slots`], and [`Scratch`] for commands.
//!
//! A port never forgets a registration, so what is here is registered once per opened target.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ftl::{Entry, Oob};
use nvme::{MAX_VECTOR, Ppa, PpaList, SglDescriptor};
use ring::{AddressSpace, Iova, Region};

use super::PblkError;

/// Bytes of an address list, and of a list of data descriptors.
const LIST: usize = MAX_VECTOR as usize * 8;
const DESCRIPTORS: usize = MAX_VECTOR as usize * 16;

pub(crate) fn register(
    space: &AddressSpace,
    bytes: usize,
    what: &'static str,
) -> Result<(Arc<Region>, Iova), PblkError> {
    let region = Region::anonymous(bytes).map_err(|source| PblkError::Memory { what, source })?;
    let at = space.register(&region).map_err(|source| PblkError::Register { what, source })?;
    Ok((region, at))
}

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
    /// [`PblkError::Memory`], [`PblkError::Register`].
    pub(crate) fn new(
        space: &AddressSpace,
        count: u32,
        sector_bytes: u32,
        oob_bytes: u32,
    ) -> Result<Slots, PblkError> {
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

    /// Puts the out-of-band bytes of consecutive slots in place.
    #[inline]
    pub(crate) fn describe(&self, first_slot: u32, entries: &[Entry]) {
        let mut at = first_slot as usize * self.oob_bytes;
        for entry in entries {
            self.oob.write(at, &entry.oob().encode());
            at += self.oob_bytes;
        }
    }

    /// What a slot's out-of-band bytes say.
    pub(crate) fn described(&self, slot: u32) -> Option<Oob> {
        let mut bytes = [0; Oob::BYTES];
        self.oob.read(slot as usize * self.oob_bytes, &mut bytes);
        Oob::decode(&bytes)
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

/// For each command that can be outstanding, a list of addresses and a list of data descriptors,
/// which the drive may look at until the command ends.
#[derive(Debug)]
pub(crate) struct Scratch {
    region: Arc<Region>,
    at: Iova,
}

impl Scratch {
    const STRIDE: usize = LIST + DESCRIPTORS;

    /// Scratch for `tags` commands.
    ///
    /// # Errors
    /// [`PblkError::Memory`], [`PblkError::Register`].
    pub(crate) fn new(space: &AddressSpace, tags: u16) -> Result<Scratch, PblkError> {
        let bytes = usize::from(tags) * Scratch::STRIDE;
        let (region, at) = register(space, bytes, "lists of physical addresses")?;
        Ok(Scratch { region, at })
    }

    /// The address list of command `tag`: 1 to 64 addresses.
    #[inline]
    pub(crate) fn list(&self, tag: u16, mut ppas: impl ExactSizeIterator<Item = Ppa>) -> PpaList {
        let count = ppas.len() as u8;
        let first = ppas.next().unwrap_or(Ppa(0));
        if count <= 1 {
            return PpaList::One(first);
        }
        let start = usize::from(tag) * Scratch::STRIDE;
        self.region.word(start).store(first.0, Ordering::Relaxed);
        for (i, ppa) in ppas.enumerate() {
            self.region.word(start + 8 * (i + 1)).store(ppa.0, Ordering::Relaxed);
        }
        PpaList::List { at: self.at.offset(start as u64).0, count }
    }

    /// The data pointer that spreads sectors of `sector_bytes` over their places from `base` on:
    /// one data block if the places are consecutive, else a segment of one per run.
    pub(crate) fn spread(
        &self,
        tag: u16,
        base: Iova,
        sector_bytes: u32,
        places: impl Iterator<Item = u32>,
    ) -> SglDescriptor {
        let start = usize::from(tag) * Scratch::STRIDE + LIST;
        let (mut first, mut next, mut runs) = (0, 0, 0);
        let block = |first: u32, next: u32| SglDescriptor::DataBlock {
            address: base.offset(u64::from(first) * u64::from(sector_bytes)).0,
            length: (next - first) * sector_bytes,
        };
        let put = |run: usize, descriptor: SglDescriptor| {
            let [a, b] = descriptor.encode();
            self.region.word(start + 16 * run).store(a, Ordering::Relaxed);
            self.region.word(start + 16 * run + 8).store(b, Ordering::Relaxed);
        };
        for place in places {
            if place != next || next == first {
                if next != first {
                    put(runs, block(first, next));
                    runs += 1;
                }
                first = place;
            }
            next = place + 1;
        }
        if runs == 0 {
            return block(first, next);
        }
        put(runs, block(first, next));
        SglDescriptor::Segment {
            address: self.at.offset(start as u64).0,
            length: (runs as u32 + 1) * 16,
            last: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_places_are_one_block_and_others_a_list_of_runs() {
        let space = AddressSpace::default();
        let scratch = Scratch::new(&space, 2).unwrap();
        let block = |address, length| SglDescriptor::DataBlock { address, length };
        let one = scratch.spread(0, Iova(0x10_0000), 512, [3, 4, 5].into_iter());
        assert_eq!(one, block(0x10_0000 + 3 * 512, 3 * 512));
        let one = scratch.spread(0, Iova(0x10_0000), 512, [0].into_iter());
        assert_eq!(one, block(0x10_0000, 512));
        let some = scratch.spread(1, Iova(0x10_0000), 512, [0, 2, 3, 7].into_iter());
        let SglDescriptor::Segment { address, length: 48, last: true } = some else {
            panic!("{some:?}");
        };
        let mut bytes = [0; 48];
        space.read(Iova(address), &mut bytes).unwrap();
        let words: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
        let found: Vec<SglDescriptor> =
            words.chunks(2).map(|w| SglDescriptor::decode([w[0], w[1]])).collect();
        let at = |place: u64| 0x10_0000 + place * 512;
        assert_eq!(found, [block(at(0), 512), block(at(2), 1024), block(at(7), 512)]);
    }
}
