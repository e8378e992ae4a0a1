//! [`VectorBuffer`]: registered memory for the data and out-of-band bytes of a vector; [`VectorBufferPool`]: the
//! pool that buffers are allocated from.
//!
//! A port has a limited number of registrations and never releases one (ARCHITECTURE.md, R1).
//! Memory is therefore registered in large slabs, divided into blocks of powers of two, and reused.
//!
//! Invariants: a buffer has one owner at a time; while a command uses it, that is the session.
//! Dropping a buffer returns its block to the pool, but never while a drive may still access it.
//! Slabs are zeroed memory that occupies no physical memory until it is accessed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mem::{AddressSpace, Iova, PAGE_BYTES, SharedRegion};

use crate::vector::{MemoryError, register};

/// Minimum size of a slab in bytes.
const SLAB_BYTES_MIN: usize = 64 << 20;

/// A block of a slab.
#[derive(Clone, Debug)]
struct SlabBlock {
    region: Arc<SharedRegion>,
    at: Iova,
    offset: usize,
}

#[derive(Debug, Default)]
struct SlabFreeList {
    /// Free blocks by size in bytes, each a power of two.
    free: BTreeMap<usize, Vec<SlabBlock>>,
    slabs: usize,
}

#[derive(Debug)]
struct BufferPool {
    space: AddressSpace,
    free_list: Mutex<SlabFreeList>,
    sessions: AtomicU32,
}

impl BufferPool {
    fn lock(&self) -> MutexGuard<'_, SlabFreeList> {
        // The free list is consistent between any two statements that change it, so a poisoned lock
        // is usable.
        self.free_list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pool of buffers for a drive's sessions. Clones share the memory.
#[derive(Clone, Debug)]
pub struct VectorBufferPool {
    pool: Arc<BufferPool>,
    sector_bytes: u32,
    oob_bytes: u32,
}

impl VectorBufferPool {
    /// Creates a pool of memory that the drive behind `space` may access.
    pub(crate) fn new(space: &AddressSpace, sector_bytes: u32, oob_bytes: u32) -> VectorBufferPool {
        let pool = BufferPool {
            space: space.clone(),
            free_list: Mutex::default(),
            sessions: AtomicU32::new(0),
        };
        VectorBufferPool { pool: Arc::new(pool), sector_bytes, oob_bytes }
    }

    /// Allocates a zeroed buffer for `sectors` sectors and their out-of-band bytes.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn allocate(&self, sectors: u32) -> Result<VectorBuffer, MemoryError> {
        let data = sectors as usize * self.sector_bytes as usize;
        let oob = sectors as usize * self.oob_bytes as usize;
        let bytes = (data + oob).max(PAGE_BYTES).next_power_of_two();
        let (piece, used) = self.allocate_block(bytes)?;
        if used {
            piece.region.fill(piece.offset, data + oob, 0);
        }
        let (sector_bytes, oob_bytes) = (self.sector_bytes, self.oob_bytes);
        Ok(VectorBuffer {
            block: piece,
            pool: self.pool.clone(),
            bytes,
            sectors,
            sector_bytes,
            oob_bytes,
        })
    }

    /// Allocates a block of `bytes`. Returns it, and whether it was used before and may not be
    /// zeroed.
    fn allocate_block(&self, bytes: usize) -> Result<(SlabBlock, bool), MemoryError> {
        let mut pieces = self.pool.lock();
        let fits = pieces.free.range_mut(bytes..).find(|(_, list)| !list.is_empty());
        if let Some((size, piece)) = fits.and_then(|(size, list)| Some((*size, list.pop()?))) {
            return Ok((split_block(&mut pieces, piece, size, bytes), true));
        }
        let size = bytes.max(SLAB_BYTES_MIN);
        let (region, at) = register(&self.pool.space, size, "buffers of sectors")?;
        pieces.slabs += 1;
        let slab = SlabBlock { region, at, offset: 0 };
        Ok((split_block(&mut pieces, slab, size, bytes), false))
    }

    /// Returns a unique id for a session on these buffers.
    pub(crate) fn next_session_id(&self) -> u32 {
        self.pool.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of registrations made so far.
    pub fn slabs(&self) -> usize {
        self.pool.lock().slabs
    }
}

/// Splits the first `bytes` off a block of `size`, both powers of two, and returns the rest to the
/// free list.
fn split_block(
    pieces: &mut SlabFreeList,
    piece: SlabBlock,
    size: usize,
    bytes: usize,
) -> SlabBlock {
    let mut half = size / 2;
    while half >= bytes {
        let rest = SlabBlock {
            region: piece.region.clone(),
            at: piece.at.offset(half as u64),
            offset: piece.offset + half,
        };
        pieces.free.entry(half).or_default().push(rest);
        half /= 2;
    }
    piece
}

/// An access outside the buffer, or of a partial sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} {what} bytes from sector {sector} on do not fit a buffer of {sectors} sectors with \
     {each} {what} bytes each"
)]
pub struct BufferRangeError {
    /// Data or out-of-band.
    pub what: &'static str,
    /// First sector.
    pub sector: u32,
    /// Number of bytes given.
    pub bytes: usize,
    /// Sectors of the buffer.
    pub sectors: u32,
    /// Bytes per sector.
    pub each: u32,
}

/// Memory for the data and out-of-band bytes of a vector's sectors, in the order of the vector.
///
/// A command takes ownership of the buffer and returns it on completion, so that it has no other
/// user meanwhile.
#[derive(Debug)]
pub struct VectorBuffer {
    block: SlabBlock,
    pool: Arc<BufferPool>,
    /// Size of the block in bytes; 0 if it must not be reused.
    bytes: usize,
    sectors: u32,
    sector_bytes: u32,
    oob_bytes: u32,
}

impl VectorBuffer {
    /// Returns the capacity in sectors.
    #[inline]
    pub fn sectors(&self) -> u32 {
        self.sectors
    }

    /// Returns the data bytes per sector.
    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// Returns the out-of-band bytes per sector; 0 on a drive without.
    pub fn oob_bytes(&self) -> u32 {
        self.oob_bytes
    }

    /// Returns the address of a sector's data.
    #[inline]
    pub(crate) fn data_at(&self, sector: u32) -> Iova {
        self.block.at.offset(u64::from(sector) * u64::from(self.sector_bytes))
    }

    /// Returns the address of a sector's out-of-band bytes.
    #[inline]
    pub(crate) fn oob_at(&self, sector: u32) -> Iova {
        self.data_at(self.sectors).offset(u64::from(sector) * u64::from(self.oob_bytes))
    }

    /// Abandons the memory, which stays registered and is never reused, because a drive may still
    /// access it.
    pub(crate) fn abandon(mut self) {
        self.bytes = 0;
    }

    /// Returns whether the buffer was allocated from `buffers`.
    #[inline]
    pub(crate) fn is_from(&self, buffers: &VectorBufferPool) -> bool {
        Arc::ptr_eq(&self.pool, &buffers.pool)
    }

    fn data_offset(&self, sector: u32, bytes: usize) -> Result<usize, BufferRangeError> {
        self.checked_offset("data", sector, bytes, self.sector_bytes, 0)
    }

    fn oob_offset(&self, sector: u32, bytes: usize) -> Result<usize, BufferRangeError> {
        let start = self.sectors as usize * self.sector_bytes as usize;
        self.checked_offset("out-of-band", sector, bytes, self.oob_bytes, start)
    }

    /// Returns the offset of whole sectors in the region.
    fn checked_offset(
        &self,
        what: &'static str,
        sector: u32,
        bytes: usize,
        each: u32,
        start: usize,
    ) -> Result<usize, BufferRangeError> {
        let size = each as usize;
        let fits = match bytes.checked_div(size) {
            None => bytes == 0,
            Some(count) => {
                bytes.is_multiple_of(size) && sector as usize + count <= self.sectors as usize
            }
        };
        let refused = BufferRangeError { what, sector, bytes, sectors: self.sectors, each };
        let fits = fits && sector <= self.sectors;
        fits.then(|| self.block.offset + start + sector as usize * size).ok_or(refused)
    }

    /// Copies whole sectors into the buffer, starting at `sector`.
    ///
    /// # Errors
    /// [`BufferRangeError`]; nothing was copied.
    pub fn write(&mut self, sector: u32, from: &[u8]) -> Result<(), BufferRangeError> {
        let at = self.data_offset(sector, from.len())?;
        self.block.region.write(at, from);
        Ok(())
    }

    /// Copies whole sectors out of the buffer, starting at `sector`.
    ///
    /// # Errors
    /// [`BufferRangeError`]; nothing was copied.
    pub fn read(&self, sector: u32, into: &mut [u8]) -> Result<(), BufferRangeError> {
        let at = self.data_offset(sector, into.len())?;
        self.block.region.read(at, into);
        Ok(())
    }

    /// Copies out-of-band bytes of whole sectors into the buffer, starting at `sector`.
    ///
    /// # Errors
    /// [`BufferRangeError`]; nothing was copied.
    pub fn write_oob(&mut self, sector: u32, from: &[u8]) -> Result<(), BufferRangeError> {
        let at = self.oob_offset(sector, from.len())?;
        self.block.region.write(at, from);
        Ok(())
    }

    /// Copies out-of-band bytes of whole sectors out of the buffer, starting at `sector`.
    ///
    /// # Errors
    /// [`BufferRangeError`]; nothing was copied.
    pub fn read_oob(&self, sector: u32, into: &mut [u8]) -> Result<(), BufferRangeError> {
        let at = self.oob_offset(sector, into.len())?;
        self.block.region.read(at, into);
        Ok(())
    }

    /// Zeroes `count` sectors starting at `sector`, out-of-band bytes included.
    ///
    /// # Errors
    /// [`BufferRangeError`]; nothing was changed.
    pub fn zero(&mut self, sector: u32, count: u32) -> Result<(), BufferRangeError> {
        let data_bytes = count as usize * self.sector_bytes as usize;
        let oob_bytes = count as usize * self.oob_bytes as usize;
        let (data, oob) =
            (self.data_offset(sector, data_bytes)?, self.oob_offset(sector, oob_bytes)?);
        self.block.region.fill(data, data_bytes, 0);
        self.block.region.fill(oob, oob_bytes, 0);
        Ok(())
    }

    /// Zeroes the out-of-band bytes of `count` sectors starting at `sector`.
    ///
    /// # Errors
    /// [`BufferRangeError`]; nothing was changed.
    pub fn zero_oob(&mut self, sector: u32, count: u32) -> Result<(), BufferRangeError> {
        let bytes = count as usize * self.oob_bytes as usize;
        let at = self.oob_offset(sector, bytes)?;
        self.block.region.fill(at, bytes, 0);
        Ok(())
    }

    /// Returns the data of all sectors.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.sectors as usize * self.sector_bytes as usize];
        self.block.region.read(self.block.offset, &mut bytes);
        bytes
    }
}

impl Drop for VectorBuffer {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let piece = self.block.clone();
        self.pool.lock().free.entry(self.bytes).or_default().push(piece);
    }
}

#[cfg(test)]
mod tests {
    use rng::Rng;

    use super::*;

    #[test]
    fn buffers_never_overlap_and_their_memory_is_reused() {
        let buffers = VectorBufferPool::new(&AddressSpace::default(), 512, 16);
        let mut rng = Rng::new(5);
        let mut held: Vec<(VectorBuffer, u8)> = Vec::new();
        for i in 0..4_000u32 {
            if rng.chance(0.5) && !held.is_empty() {
                let at = rng.below(held.len() as u64) as usize;
                let (buffer, mark) = held.swap_remove(at);
                let mut oob = vec![0; buffer.sectors() as usize * 16];
                buffer.read_oob(0, &mut oob).unwrap();
                assert!(buffer.to_vec().iter().chain(&oob).all(|b| *b == mark), "torn by another");
            } else {
                let mut buffer = buffers.allocate(rng.below(200) as u32).unwrap();
                assert!(buffer.to_vec().iter().all(|b| *b == 0), "zeros");
                let (sectors, mark) = (buffer.sectors() as usize, i as u8);
                buffer.write(0, &vec![mark; sectors * 512]).unwrap();
                buffer.write_oob(0, &vec![mark; sectors * 16]).unwrap();
                held.push((buffer, mark));
            }
            held.truncate(300);
        }
        assert_eq!(buffers.slabs(), 1, "about 20 MiB at most are held");
        drop(held);
        let large = buffers.allocate((SLAB_BYTES_MIN / 512) as u32).unwrap();
        assert_eq!((large.sectors() as usize * 512, buffers.slabs()), (SLAB_BYTES_MIN, 2));
    }

    #[test]
    fn ranges_that_a_buffer_does_not_have_are_refused() {
        let buffers = VectorBufferPool::new(&AddressSpace::default(), 512, 0);
        let mut buffer = buffers.allocate(4).unwrap();
        buffer.write(2, &[7; 1024]).unwrap();
        buffer.write(4, &[]).unwrap();
        buffer.write_oob(1, &[]).unwrap();
        for (sector, bytes) in [(3, 1024), (0, 100), (5, 0), (u32::MAX, 512)] {
            let refused = buffer.write(sector, &vec![0; bytes]).unwrap_err();
            assert_eq!((refused.sector, refused.bytes), (sector, bytes));
        }
        assert!(buffer.write_oob(0, &[0]).is_err(), "the drive has none");
        assert_eq!(buffer.to_vec()[1024..], [7; 1024]);
        buffer.zero(3, 1).unwrap();
        assert_eq!(buffer.to_vec()[1024..1536], [7; 512]);
        assert_eq!(buffer.to_vec()[1536..], [0; 512]);
        assert!(buffer.zero(3, 2).is_err());
    }
}
