//! [`ReadOnlyRegion`]: memory of another process that can only be read.
//!
//! It is a type of its own without write methods, because a store to such a mapping raises SIGSEGV.
//! As for a [`SharedRegion`](crate::SharedRegion), accesses are by value and bounds-checked.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags};

use crate::SharedMemoryError;
use crate::memfd::check_sealed;

/// A read-only mapping; see
/// [`SharedRegion::published_memfd`](crate::SharedRegion::published_memfd).
///
/// # Panics
/// Every access panics if the range exceeds the mapping: ranges never come from the other side.
#[derive(Debug)]
pub struct ReadOnlyRegion {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this region until it is dropped, is valid from any thread, and no
// references to it are given out.
unsafe impl Send for ReadOnlyRegion {}
// SAFETY: see above.
unsafe impl Sync for ReadOnlyRegion {}

impl ReadOnlyRegion {
    /// Maps memory of at most `most` bytes received from another process, for reads.
    ///
    /// # Errors
    /// [`SharedMemoryError`].
    pub fn import(memory: OwnedFd, most: u64) -> Result<Arc<ReadOnlyRegion>, SharedMemoryError> {
        let len = check_sealed(&memory, most)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing. The file
        // is sealed against shrinking: no access raises SIGBUS.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                &memory,
                0,
            )
        };
        let base = base.map_err(std::io::Error::from)?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| std::io::Error::other("mmap returned the null page"))?;
        Ok(Arc::new(ReadOnlyRegion { base, len }))
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a view is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn checked_pointer(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "bytes {offset}..+{len} of a view of {}",
            self.len
        );
        // SAFETY: the offset is within the mapping, or one past its end for a length of zero.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.checked_pointer(offset, into.len());
        // SAFETY: `from` is valid for the length; `into` cannot be part of the mapping, because no
        // references to the mapping exist.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    /// Reads the 32-bit word at `offset` with acquire order: writes before the store of the word
    /// are visible afterwards.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 4, or out of range.
    #[inline]
    pub fn load_u32(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4), "half word at odd offset {offset}");
        let at = self.checked_pointer(offset, 4);
        // SAFETY: valid and aligned (mappings start on a page); the reference lives as long as this
        // line. A relaxed load of four bytes writes nothing, so the mapping may be read-only (see
        // `core::sync::atomic`).
        let value = unsafe { AtomicU32::from_ptr(at.cast()) }.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }
}

impl Drop for ReadOnlyRegion {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this region, and no references to it remain.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedRegion;

    #[test]
    #[should_panic(expected = "of a view of 4096")]
    fn a_range_past_the_end_is_refused() {
        let region = SharedRegion::memfd(4096).unwrap();
        let memory = region.backing().unwrap().try_clone().unwrap().into();
        ReadOnlyRegion::import(memory, 4096).unwrap().read(4090, &mut [0; 7]);
    }
}
