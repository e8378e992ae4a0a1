//! [`HugeArray`]: a large array of words.

use std::io;
use std::ops::{Deref, DerefMut};

use crate::SharedRegion;

/// An array of `u32` that is zero until written and uses huge pages where available. A mapping
/// table of a 2 TB drive takes memory only for mapped sectors, and a random look-up costs one cache
/// miss, not two.
#[derive(Debug)]
pub struct HugeArray {
    /// `None` for an empty array, because a mapping is never empty.
    region: Option<SharedRegion>,
    len: usize,
}

impl HugeArray {
    /// Creates an array of `len` zeros.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns.
    pub fn zeroed(len: usize) -> io::Result<HugeArray> {
        let region = if len == 0 { None } else { Some(SharedRegion::map_anonymous(len * 4)?) };
        Ok(HugeArray { region, len })
    }

    /// Returns the memory; `None` for an empty array.
    pub(crate) fn region(&self) -> Option<&SharedRegion> {
        self.region.as_ref()
    }

    /// Creates the array of private memory, if its length is a multiple of a word's.
    pub(crate) fn of_region(region: Option<SharedRegion>) -> Option<HugeArray> {
        let bytes = region.as_ref().map_or(0, SharedRegion::len);
        bytes.is_multiple_of(4).then_some(HugeArray { region, len: bytes / 4 })
    }
}

impl Clone for HugeArray {
    /// # Panics
    /// If there is no address space for another mapping.
    fn clone(&self) -> HugeArray {
        let copy = |region: &SharedRegion| {
            let copied = region.map_duplicate();
            copied.unwrap_or_else(|e| panic!("no memory for a copy of {} words: {e}", self.len))
        };
        HugeArray { region: self.region.as_ref().map(copy), len: self.len }
    }
}

impl Deref for HugeArray {
    type Target = [u32];
    #[inline]
    fn deref(&self) -> &[u32] {
        match &self.region {
            // SAFETY: the private mapping holds `len` words, is page aligned, was zeroed by the
            // kernel, and is accessible only through this array, which is borrowed.
            Some(r) => unsafe { std::slice::from_raw_parts(r.base().cast(), self.len) },
            None => &[],
        }
    }
}

impl DerefMut for HugeArray {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u32] {
        match &self.region {
            // SAFETY: as in `deref`; the array is borrowed mutably.
            Some(r) => unsafe { std::slice::from_raw_parts_mut(r.base().cast(), self.len) },
            None => &mut [],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zero_until_written() {
        let mut t = HugeArray::zeroed(3_000_000).unwrap();
        assert_eq!(t.len(), 3_000_000);
        assert_eq!(t[2_999_999], 0);
        t[2_999_999] = 7;
        assert_eq!(t[2_999_999], 7);
        assert!(t[..2_999_999].iter().all(|w| *w == 0));
        assert!(HugeArray::zeroed(0).unwrap().is_empty());
    }

    #[test]
    fn a_copy_is_its_own() {
        let mut t = HugeArray::zeroed(100_001).unwrap();
        (t[0], t[100_000]) = (1, 2);
        let copy = t.clone();
        t[0] = 9;
        assert_eq!((copy[0], copy[1], copy[100_000], copy.len()), (1, 0, 2, 100_001));
        assert!(HugeArray::zeroed(0).unwrap().clone().is_empty());
    }
}
