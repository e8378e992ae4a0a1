//! Registered memory: [`register`], and [`CommandLists`] for the commands of a queue.
//!
//! A port never releases a registration, so this memory is registered once per opened target.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mem::{AddressSpace, Iova, RegisterError, SharedRegion};
use nvme::{MAX_VECTOR_ADDRESSES, Ppa, PpaList, SglDescriptor};

/// Why memory for the drive cannot be provided.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The memory cannot be allocated.
    #[error("memory for {what}: {source}")]
    Memory {
        /// Purpose of the memory.
        what: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The memory cannot be registered.
    #[error("registering memory for {what}: {source}")]
    Register {
        /// Purpose of the memory.
        what: &'static str,
        /// Cause.
        #[source]
        source: RegisterError,
    },
}

/// Sizes of an address list and of a list of SGL descriptors, in bytes.
const PPA_LIST_BYTES: usize = MAX_VECTOR_ADDRESSES as usize * 8;
const SGL_BYTES: usize = MAX_VECTOR_ADDRESSES as usize * 16;

/// Allocates zeroed memory and registers it for access by the drive.
///
/// # Errors
/// [`MemoryError`].
pub fn register(
    space: &AddressSpace,
    bytes: usize,
    what: &'static str,
) -> Result<(Arc<SharedRegion>, Iova), MemoryError> {
    space.allocate_registered(bytes).map_err(|error| match error {
        RegisterError::Memory { kind, .. } => MemoryError::Memory { what, source: kind.into() },
        source => MemoryError::Register { what, source },
    })
}

/// An address list and a list of SGL descriptors for each outstanding command. The drive may read
/// them until the command completes.
#[derive(Debug)]
pub(crate) struct CommandLists {
    region: Arc<SharedRegion>,
    at: Iova,
}

impl CommandLists {
    const STRIDE: usize = PPA_LIST_BYTES + SGL_BYTES;

    /// Allocates lists for `tags` commands.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(crate) fn new(space: &AddressSpace, tags: u16) -> Result<CommandLists, MemoryError> {
        let bytes = usize::from(tags) * CommandLists::STRIDE;
        let (region, at) = register(space, bytes, "lists of physical addresses")?;
        Ok(CommandLists { region, at })
    }

    /// Writes the address list of command `tag`: 1 to 64 addresses.
    #[inline]
    pub(crate) fn ppa_list(&self, tag: u16, ppas: impl ExactSizeIterator<Item = Ppa>) -> PpaList {
        self.write_ppa_list(usize::from(tag) * CommandLists::STRIDE, ppas)
    }

    /// Writes a second address list of command `tag`, which must not use SGL descriptors.
    pub(crate) fn target_list(
        &self,
        tag: u16,
        ppas: impl ExactSizeIterator<Item = Ppa>,
    ) -> PpaList {
        self.write_ppa_list(usize::from(tag) * CommandLists::STRIDE + PPA_LIST_BYTES, ppas)
    }

    #[inline]
    fn write_ppa_list(
        &self,
        start: usize,
        mut ppas: impl ExactSizeIterator<Item = Ppa>,
    ) -> PpaList {
        let count = ppas.len() as u8;
        let first = ppas.next().unwrap_or(Ppa(0));
        if count <= 1 {
            return PpaList::One(first);
        }
        let words = self.region.atomic_u64_array::<{ MAX_VECTOR_ADDRESSES as usize }>(start);
        for (word, ppa) in words.iter().zip(std::iter::once(first).chain(ppas)) {
            word.store(ppa.0, Ordering::Relaxed);
        }
        PpaList::List { at: self.at.offset(start as u64).0, count }
    }

    /// Builds a data pointer for sectors of `sector_bytes` at the given indexes from `base`: one
    /// data block if the indexes are consecutive, otherwise a segment with one descriptor per run.
    pub(crate) fn sgl(
        &self,
        tag: u16,
        base: Iova,
        sector_bytes: u32,
        places: impl Iterator<Item = u32>,
    ) -> SglDescriptor {
        let start = usize::from(tag) * CommandLists::STRIDE + PPA_LIST_BYTES;
        let (mut first, mut next, mut runs) = (0, 0, 0);
        let block = |first: u32, next: u32| SglDescriptor::DataBlock {
            address: base.offset(u64::from(first) * u64::from(sector_bytes)).0,
            length: (next - first) * sector_bytes,
        };
        let put = |run: usize, descriptor: SglDescriptor| {
            let [a, b] = descriptor.encode();
            self.region.atomic_u64(start + 16 * run).store(a, Ordering::Relaxed);
            self.region.atomic_u64(start + 16 * run + 8).store(b, Ordering::Relaxed);
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
    fn consecutive_sectors_are_one_block_and_others_a_list_of_extents() {
        let space = AddressSpace::default();
        let scratch = CommandLists::new(&space, 2).unwrap();
        let block = |address, length| SglDescriptor::DataBlock { address, length };
        let one = scratch.sgl(0, Iova(0x10_0000), 512, [3, 4, 5].into_iter());
        assert_eq!(one, block(0x10_0000 + 3 * 512, 3 * 512));
        let one = scratch.sgl(0, Iova(0x10_0000), 512, [0].into_iter());
        assert_eq!(one, block(0x10_0000, 512));
        let some = scratch.sgl(1, Iova(0x10_0000), 512, [0, 2, 3, 7].into_iter());
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
