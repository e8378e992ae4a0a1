//! [`Buffer`]: registered memory, allocated and freed (`nvmed_get_buffer`, `nvmed_put_buffer`).
//!
//! Memory is registered with the device once, in arenas, and is named by I/O virtual address from
//! then on. No request pays for address translation. A buddy allocator splits the arenas, so that
//! freed blocks merge again. Registrations are few and stay until the device is closed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use block::Payload;
use mem::{AddressSpace, Iova, PAGE_BYTES, RegisterError, SharedRegion};

use crate::DirectError;

/// Pages of an arena (4 MiB), unless one buffer needs more.
const ARENA_PAGES: usize = 1024;

/// Memory for I/O, from [`IoDevice::buffer`](crate::IoDevice::buffer): whole pages, page-aligned.
///
/// Dropping a buffer returns it to the device's pool. No outstanding request may refer to it by
/// then. Its initial contents are unspecified: a previous user's data may still be in it.
#[derive(Debug)]
pub struct Buffer {
    region: Arc<SharedRegion>,
    offset: usize,
    len: usize,
    iova: Iova,
    pool: Arc<Pool>,
    block: Block,
}

/// A block of an arena: 2^order pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Block {
    order: u8,
    arena: u32,
    page: u32,
}

#[derive(Debug)]
struct Arena {
    region: Arc<SharedRegion>,
    iova: Iova,
    order: u8,
}

#[derive(Debug, Default)]
struct Arenas {
    arenas: Vec<Arena>,
    /// Free blocks by size, then address. The lowest block is taken first, so that used memory is
    /// reused.
    free: BTreeSet<Block>,
}

/// The buffer allocator of a device.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: AddressSpace,
    arenas: Mutex<Arenas>,
}

impl Pool {
    pub(crate) fn new(memory: AddressSpace) -> Arc<Pool> {
        Arc::new(Pool { memory, arenas: Mutex::default() })
    }

    /// Allocates `bytes` of memory, at least 1.
    pub(crate) fn allocate(self: &Arc<Pool>, bytes: usize) -> Result<Buffer, DirectError> {
        let pages = bytes.max(1).div_ceil(PAGE_BYTES);
        let order = pages.next_power_of_two().trailing_zeros() as u8;
        let mut arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        let from = Block { order, arena: 0, page: 0 };
        let found = arenas.free.range(from..).next().copied();
        let mut block = match found {
            Some(block) => {
                arenas.free.remove(&block);
                block
            }
            None => arenas.grow(&self.memory, order)?,
        };
        while block.order > order {
            block.order -= 1;
            let page = block.page + (1 << block.order);
            arenas.free.insert(Block { page, ..block });
        }
        let arena = &arenas.arenas[block.arena as usize];
        let offset = block.page as usize * PAGE_BYTES;
        Ok(Buffer {
            region: arena.region.clone(),
            offset,
            len: bytes.max(1),
            iova: arena.iova.offset(offset as u64),
            pool: self.clone(),
            block,
        })
    }

    fn free(&self, mut block: Block) {
        let mut arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = arenas.arenas[block.arena as usize].order;
        while block.order < whole {
            let other = Block { page: block.page ^ (1 << block.order), ..block };
            if !arenas.free.remove(&other) {
                break;
            }
            block.page &= !(1 << block.order);
            block.order += 1;
        }
        arenas.free.insert(block);
    }

    /// Returns the registered bytes, and how many of them are free.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = |order: u8| (PAGE_BYTES as u64) << order;
        let all = arenas.arenas.iter().map(|a| bytes(a.order)).sum();
        (all, arenas.free.iter().map(|b| bytes(b.order)).sum())
    }
}

impl Arenas {
    fn grow(&mut self, memory: &AddressSpace, order: u8) -> Result<Block, DirectError> {
        let order = order.max(ARENA_PAGES.trailing_zeros() as u8);
        // The registration refuses a size beyond the address range.
        let bytes = PAGE_BYTES.checked_shl(order.into()).unwrap_or(usize::MAX);
        // Memory that another process can map, if the device is in one.
        let (region, at) = memory.allocate_registered(bytes).map_err(|error| match error {
            RegisterError::Memory { len, kind } => {
                DirectError::Memory { bytes: len, source: kind.into() }
            }
            error => error.into(),
        })?;
        let arena = self.arenas.len() as u32;
        self.arenas.push(Arena { region, iova: at, order });
        Ok(Block { order, arena, page: 0 })
    }
}

impl Buffer {
    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the I/O virtual address of the first byte.
    #[inline]
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// Returns the whole buffer as the payload of a request.
    #[inline]
    pub fn payload(&self) -> Payload {
        Payload::Contiguous(self.iova)
    }

    /// Returns the buffer's address in this process; see [`SharedRegion::pointer`] for the rules of
    /// access.
    pub fn pointer(&self) -> *mut u8 {
        self.region.pointer(self.offset, self.len)
    }

    /// Copies bytes out of the buffer.
    ///
    /// # Panics
    /// If `offset` plus the length is beyond the end of the buffer.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        self.region.read(self.offset + offset, into);
    }

    /// Copies bytes into the buffer.
    ///
    /// # Panics
    /// As for [`read`](Buffer::read).
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        self.region.write(self.offset + offset, from);
    }

    /// Sets `len` bytes from `offset` to one value.
    ///
    /// # Panics
    /// As for [`read`](Buffer::read).
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        self.check(offset, len);
        self.region.fill(self.offset + offset, len, byte);
    }

    /// Returns the buffer's region and its offset there.
    #[inline]
    pub(crate) fn region(&self) -> (&SharedRegion, usize) {
        (&self.region, self.offset)
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        let fits = offset <= self.len && len <= self.len - offset;
        assert!(fits, "bytes {offset}..+{len} of a buffer of {}", self.len);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.free(self.block);
    }
}

#[cfg(test)]
mod tests {
    use rng::Rng;

    use super::*;

    fn pool() -> Arc<Pool> {
        Pool::new(AddressSpace::default())
    }

    #[test]
    fn buffers_have_bytes_of_their_own_and_grow_together_when_they_come_back() {
        let pool = pool();
        let mut rng = Rng::new(1);
        let mut held: Vec<(Buffer, u8)> = Vec::new();
        for round in 0..4000u32 {
            if held.len() > 100 || !held.is_empty() && rng.chance(0.4) {
                let (buffer, value) = held.swap_remove(rng.below(held.len() as u64) as usize);
                let mut bytes = vec![0; buffer.len()];
                buffer.read(0, &mut bytes);
                assert!(bytes.iter().all(|b| *b == value), "somebody else wrote to it");
            } else {
                let most = if rng.chance(0.02) { 6 << 20 } else { 60_000 };
                let bytes = 1 + rng.below(most);
                let buffer = pool.allocate(bytes as usize).unwrap();
                assert!(buffer.iova().0.is_multiple_of(PAGE_BYTES as u64));
                buffer.fill(0, buffer.len(), round as u8);
                held.push((buffer, round as u8));
            }
        }
        held.clear();
        let (all, free) = pool.bytes();
        assert_eq!(all, free);
        let arenas = pool.arenas.lock().unwrap();
        assert_eq!(arenas.free.len(), arenas.arenas.len(), "each arena is whole again");
    }

    #[test]
    fn memory_that_cannot_be_is_refused() {
        let pool = pool();
        assert!(matches!(pool.allocate(usize::MAX), Err(DirectError::Memory { .. })));
        assert!(matches!(
            pool.allocate(3 << 40),
            Err(DirectError::Register(_) | DirectError::Memory { .. })
        ));
        assert_eq!(pool.bytes(), (0, 0));
    }

    #[test]
    #[should_panic(expected = "of a buffer of 100")]
    fn a_buffer_ends_where_it_was_asked_to() {
        pool().allocate(100).unwrap().write(99, &[1, 2]);
    }
}
