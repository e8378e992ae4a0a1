//! [`Buffer`]: registered memory of a vector, data and out-of-band bytes; [`Buffers`], which they
//! come from and go back to.
//!
//! A port never forgets a registration and has a limited number of them (rule R1), so memory is
//! registered in large slabs, cut into pieces of powers of two, and used again. Guarantees: a buffer
//! belongs to one owner at a time, which is the session while a command uses it; its piece goes back
//! when it is dropped, and never while a drive may still touch it. Slabs are memory of zeros that
//! takes no room until it is touched.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::{AddressSpace, Iova, PAGE_BYTES, SharedRegion};

use crate::vector::{MemoryError, register};

/// Bytes of a slab at least.
const SLAB_BYTES_MIN: usize = 64 << 20;

/// A piece of a slab.
#[derive(Clone, Debug)]
struct SlabBlock {
    region: Arc<SharedRegion>,
    at: Iova,
    offset: usize,
}

#[derive(Debug, Default)]
struct SlabFreeList {
    /// Unused pieces by their bytes, a power of two each.
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
        // The list is whole between any two statements that change it.
        self.free_list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the buffers of a drive's sessions come from. Clones share the memory.
#[derive(Clone, Debug)]
pub struct Buffers {
    pool: Arc<BufferPool>,
    sector_bytes: u32,
    oob_bytes: u32,
}

impl Buffers {
    /// Buffers that the drive at the other end of `space` may touch.
    pub(crate) fn new(space: &AddressSpace, sector_bytes: u32, oob_bytes: u32) -> Buffers {
        let pool = BufferPool {
            space: space.clone(),
            free_list: Mutex::default(),
            sessions: AtomicU32::new(0),
        };
        Buffers { pool: Arc::new(pool), sector_bytes, oob_bytes }
    }

    /// A buffer of zeros for `sectors` sectors and their out-of-band bytes.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn allocate(&self, sectors: u32) -> Result<Buffer, MemoryError> {
        let data = sectors as usize * self.sector_bytes as usize;
        let oob = sectors as usize * self.oob_bytes as usize;
        let bytes = (data + oob).max(PAGE_BYTES).next_power_of_two();
        let (piece, used) = self.allocate_block(bytes)?;
        if used {
            piece.region.fill(piece.offset, data + oob, 0);
        }
        let (sector_bytes, oob_bytes) = (self.sector_bytes, self.oob_bytes);
        Ok(Buffer {
            block: piece,
            pool: self.pool.clone(),
            bytes,
            sectors,
            sector_bytes,
            oob_bytes,
        })
    }

    /// A piece of `bytes`, and whether it may not be zeros.
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

    /// A number for a session on these buffers that no other has.
    pub(crate) fn next_session_id(&self) -> u32 {
        self.pool.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// Registrations made so far.
    pub fn slabs(&self) -> usize {
        self.pool.lock().slabs
    }
}

/// Cuts the first `bytes` off a piece of `size`, both powers of two, and keeps the rest.
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

/// A place that a buffer does not have, or bytes that are not whole sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} {what} bytes from sector {sector} on do not fit a buffer of {sectors} sectors with \
     {each} {what} bytes each"
)]
pub struct BufferRangeError {
    /// Data, or out-of-band.
    pub what: &'static str,
    /// First sector.
    pub sector: u32,
    /// Bytes given.
    pub bytes: usize,
    /// Sectors of the buffer.
    pub sectors: u32,
    /// Bytes of a sector's part.
    pub each: u32,
}

/// Memory for the data and the out-of-band bytes of a vector's sectors, in the vector's order.
///
/// It goes into a command and comes out of it again, so that nothing else uses it meanwhile.
#[derive(Debug)]
pub struct Buffer {
    block: SlabBlock,
    pool: Arc<BufferPool>,
    /// Bytes of the piece; 0 for one that is not used again.
    bytes: usize,
    sectors: u32,
    sector_bytes: u32,
    oob_bytes: u32,
}

impl Buffer {
    /// Sectors that fit.
    #[inline]
    pub fn sectors(&self) -> u32 {
        self.sectors
    }

    /// Bytes of a sector's data.
    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// Out-of-band bytes of a sector; 0 on a drive that has none.
    pub fn oob_bytes(&self) -> u32 {
        self.oob_bytes
    }

    /// Where the data of a sector is.
    #[inline]
    pub(crate) fn data_at(&self, sector: u32) -> Iova {
        self.block.at.offset(u64::from(sector) * u64::from(self.sector_bytes))
    }

    /// Where the out-of-band bytes of a sector are.
    #[inline]
    pub(crate) fn oob_at(&self, sector: u32) -> Iova {
        self.data_at(self.sectors).offset(u64::from(sector) * u64::from(self.oob_bytes))
    }

    /// Gives the memory up, which stays registered: a drive may still touch it.
    pub(crate) fn abandon(mut self) {
        self.bytes = 0;
    }

    /// Whether it comes from `buffers`.
    #[inline]
    pub(crate) fn is_from(&self, buffers: &Buffers) -> bool {
        Arc::ptr_eq(&self.pool, &buffers.pool)
    }

    fn data_offset(&self, sector: u32, bytes: usize) -> Result<usize, BufferRangeError> {
        self.checked_offset("data", sector, bytes, self.sector_bytes, 0)
    }

    fn oob_offset(&self, sector: u32, bytes: usize) -> Result<usize, BufferRangeError> {
        let start = self.sectors as usize * self.sector_bytes as usize;
        self.checked_offset("out-of-band", sector, bytes, self.oob_bytes, start)
    }

    /// Where in the region whole sectors are.
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

    /// Copies whole sectors in, from `sector` on.
    ///
    /// # Errors
    /// [`BufferRange`]; nothing was copied.
    pub fn write(&mut self, sector: u32, from: &[u8]) -> Result<(), BufferRangeError> {
        let at = self.data_offset(sector, from.len())?;
        self.block.region.write(at, from);
        Ok(())
    }

    /// Copies whole sectors out, from `sector` on.
    ///
    /// # Errors
    /// [`BufferRange`]; nothing was copied.
    pub fn read(&self, sector: u32, into: &mut [u8]) -> Result<(), BufferRangeError> {
        let at = self.data_offset(sector, into.len())?;
        self.block.region.read(at, into);
        Ok(())
    }

    /// Copies the out-of-band bytes of whole sectors in, from `sector` on.
    ///
    /// # Errors
    /// [`BufferRange`]; nothing was copied.
    pub fn write_oob(&mut self, sector: u32, from: &[u8]) -> Result<(), BufferRangeError> {
        let at = self.oob_offset(sector, from.len())?;
        self.block.region.write(at, from);
        Ok(())
    }

    /// Copies the out-of-band bytes of whole sectors out, from `sector` on.
    ///
    /// # Errors
    /// [`BufferRange`]; nothing was copied.
    pub fn read_oob(&self, sector: u32, into: &mut [u8]) -> Result<(), BufferRangeError> {
        let at = self.oob_offset(sector, into.len())?;
        self.block.region.read(at, into);
        Ok(())
    }

    /// Makes `count` sectors from `sector` on zeros, out-of-band bytes included.
    ///
    /// # Errors
    /// [`BufferRange`]; nothing has changed.
    pub fn zero(&mut self, sector: u32, count: u32) -> Result<(), BufferRangeError> {
        let data_bytes = count as usize * self.sector_bytes as usize;
        let oob_bytes = count as usize * self.oob_bytes as usize;
        let (data, oob) =
            (self.data_offset(sector, data_bytes)?, self.oob_offset(sector, oob_bytes)?);
        self.block.region.fill(data, data_bytes, 0);
        self.block.region.fill(oob, oob_bytes, 0);
        Ok(())
    }

    /// Makes the out-of-band bytes of `count` sectors from `sector` on zeros.
    ///
    /// # Errors
    /// [`BufferRange`]; nothing has changed.
    pub fn zero_oob(&mut self, sector: u32, count: u32) -> Result<(), BufferRangeError> {
        let bytes = count as usize * self.oob_bytes as usize;
        let at = self.oob_offset(sector, bytes)?;
        self.block.region.fill(at, bytes, 0);
        Ok(())
    }

    /// The data of all sectors.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.sectors as usize * self.sector_bytes as usize];
        self.block.region.read(self.block.offset, &mut bytes);
        bytes
    }
}

impl Drop for Buffer {
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
        let buffers = Buffers::new(&AddressSpace::default(), 512, 16);
        let mut rng = Rng::new(5);
        let mut held: Vec<(Buffer, u8)> = Vec::new();
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
        let buffers = Buffers::new(&AddressSpace::default(), 512, 0);
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
