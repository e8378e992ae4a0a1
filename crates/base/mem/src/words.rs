//! [`WordArray`] and [`SharedWord`]: words of a region at addresses that are checked once.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::SharedRegion;

/// Elements of `N` 64-bit words each, one after the other in a region.
///
/// The range is checked when the array is made. An access checks the index only: the entries of a
/// ring are accessed several times per command.
#[derive(Debug)]
pub struct WordArray<const N: usize> {
    first: NonNull<[AtomicU64; N]>,
    count: usize,
    /// Keeps the mapping.
    _region: Arc<SharedRegion>,
}

// SAFETY: the elements are atomics in the mapping of a region, which is valid from any thread and
// which the array keeps.
unsafe impl<const N: usize> Send for WordArray<N> {}
// SAFETY: see above.
unsafe impl<const N: usize> Sync for WordArray<N> {}

impl<const N: usize> WordArray<N> {
    /// Returns the array of `count` elements from `offset` on.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8, or the range exceeds the region.
    pub fn new(region: Arc<SharedRegion>, offset: usize, count: usize) -> WordArray<N> {
        assert!(offset.is_multiple_of(8), "words at odd offset {offset}");
        let bytes = count.checked_mul(8 * N);
        let bytes = bytes.unwrap_or_else(|| panic!("{count} elements of {N} words"));
        let first = NonNull::new(region.pointer(offset, bytes).cast());
        let first = first.unwrap_or_else(|| unreachable!("a mapping is not at address 0"));
        WordArray { first, count, _region: region }
    }

    /// Returns an element.
    ///
    /// # Panics
    /// If there is no element with this index.
    #[inline]
    pub fn get(&self, index: usize) -> &[AtomicU64; N] {
        assert!(index < self.count, "element {index} of {}", self.count);
        // SAFETY: the element is in the range that was checked, aligned (mappings start on a page),
        // and atomics may be shared; the reference lives no longer than the array, which keeps the
        // region.
        unsafe { self.first.add(index).as_ref() }
    }
}

/// A 32-bit word in a region, for doorbells.
#[derive(Debug)]
pub struct SharedWord {
    word: NonNull<AtomicU32>,
    /// Keeps the mapping.
    _region: Arc<SharedRegion>,
}

// SAFETY: the word is an atomic in the mapping of a region, which is valid from any thread and which
// the value keeps.
unsafe impl Send for SharedWord {}
// SAFETY: see above.
unsafe impl Sync for SharedWord {}

impl SharedWord {
    /// Returns the word at `offset`.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 4, or out of range.
    pub fn new(region: Arc<SharedRegion>, offset: usize) -> SharedWord {
        let word = NonNull::from(region.atomic_u32(offset));
        SharedWord { word, _region: region }
    }

    /// Returns the word.
    #[inline]
    pub fn get(&self) -> &AtomicU32 {
        // SAFETY: `word` is from a reference into the mapping, which the value keeps.
        unsafe { self.word.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn elements_are_where_the_region_has_their_bytes() {
        let region = SharedRegion::anonymous(4096).unwrap();
        let array = WordArray::<2>::new(region.clone(), 4096 - 3 * 16, 3);
        array.get(2)[1].store(7, Relaxed);
        array.get(0)[0].store(9, Relaxed);
        assert_eq!(region.atomic_u64(4096 - 8).load(Relaxed), 7);
        assert_eq!(region.atomic_u64(4096 - 48).load(Relaxed), 9);
        let word = SharedWord::new(region.clone(), 4092);
        word.get().store(1, Relaxed);
        drop(region);
        assert_eq!(array.get(2)[1].load(Relaxed), 1 << 32 | 7, "the array keeps the region");
        drop(array);
        assert_eq!(word.get().load(Relaxed), 1);
    }

    #[test]
    fn what_is_beyond_the_array_or_the_region_is_refused() {
        let region = SharedRegion::anonymous(4096).unwrap();
        let array = WordArray::<8>::new(region.clone(), 0, 64);
        assert!(catch_unwind(|| array.get(64)).is_err());
        for (offset, count) in [(0, 65), (8, 64), (4, 1), (4104, 0), (0, usize::MAX)] {
            let region = region.clone();
            let made = catch_unwind(|| WordArray::<8>::new(region, offset, count));
            assert!(made.is_err(), "{count} elements at {offset}");
        }
        for offset in [4096, 2, usize::MAX - 3] {
            let region = region.clone();
            assert!(catch_unwind(|| SharedWord::new(region, offset)).is_err(), "{offset}");
        }
    }
}
