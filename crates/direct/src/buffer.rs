//! [`Buffer`]: registered memory, handed out and taken back (`nvmed_get_buffer`, `nvmed_put_buffer`).
//!
//! Memory is registered with the device once, in arenas, and named by I/O virtual address ever after:
//! no request pays for translation. An arena is cut by halves (a buddy allocator), so that what comes
//! back grows together again; registrations are few and never given up.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use block::Payload;
use ring::{AddressSpace, Iova, PAGE_BYTES, RegisterError, SharedRegion};

use crate::DirectError;

/// Pages of an arena, unless one buffer needs more: 4 MiB.
const ARENA_PAGES: usize = 1024;

/// Memory for I/O, from [`Device::buffer`](crate::Device::buffer): whole pages, at a page's beginning.
/// Goes back to the device's other users when it is dropped; by then nothing may be outstanding that
/// names it. What is in it at first is whatever was in it last.
#[derive(Debug)]
pub struct Buffer {
    region: Arc<SharedRegion>,
    offset: usize,
    len: usize,
    iova: Iova,
    pool: Arc<Pool>,
    block: Block,
}

/// A piece of an arena: 2^order pages.
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
    /// By size, then place: what is taken first is what has been used.
    free: BTreeSet<Block>,
}

/// The memory that a device's users have.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: AddressSpace,
    arenas: Mutex<Arenas>,
}

impl Pool {
    pub(crate) fn new(memory: AddressSpace) -> Arc<Pool> {
        Arc::new(Pool { memory, arenas: Mutex::default() })
    }

    /// `bytes` of memory, at least 1.
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

    /// Bytes that are registered, and bytes of them that nobody has.
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
        // Over what an address can name is refused by the registration.
        let bytes = PAGE_BYTES.checked_shl(order.into()).unwrap_or(usize::MAX);
        // Memory that the other side can map, if that is another process.
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
    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of its first byte, for the device.
    #[inline]
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// All of it as the data of a request.
    #[inline]
    pub fn payload(&self) -> Payload {
        Payload::Contiguous(self.iova)
    }

    /// Where it is in this process, for who reads and writes it by its address; see
    /// [`Region::pointer`].
    pub fn pointer(&self) -> *mut u8 {
        self.region.pointer(self.offset, self.len)
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When `offset` and the length are not inside of the buffer.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        self.region.read(self.offset + offset, into);
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// As for [`read`](Buffer::read).
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        self.region.write(self.offset + offset, from);
    }

    /// Sets bytes to one value.
    ///
    /// # Panics
    /// As for [`read`](Buffer::read).
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        self.check(offset, len);
        self.region.fill(self.offset + offset, len, byte);
    }

    /// The region that it is in, and where it begins there.
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
