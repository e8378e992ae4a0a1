//! Conversions between integers of different width, without casts in the code that uses them.
//!
//! Indices are 32 bits wide in tables and on the media, and `usize` in slices. Widening is lossless, because
//! `usize` has at least 32 bits; narrowing is checked in debug builds.

const _: () = assert!(usize::BITS >= u32::BITS, "an index of 32 bits fits usize");

/// Conversion into an index of a slice.
pub(crate) trait ToIndex: Copy {
    /// Returns the value as an index.
    fn index(self) -> usize;
}

impl ToIndex for u8 {
    #[inline]
    fn index(self) -> usize {
        usize::from(self)
    }
}

impl ToIndex for u32 {
    #[inline]
    fn index(self) -> usize {
        self as usize
    }
}

impl ToIndex for u64 {
    /// The value must fit memory.
    #[inline]
    fn index(self) -> usize {
        debug_assert!(usize::try_from(self).is_ok(), "{self} is no index");
        self as usize
    }
}

/// Conversion of a count or an index into 32 bits. The value must fit.
pub(crate) trait ToU32: Copy {
    /// Returns the value in 32 bits.
    fn to_u32(self) -> u32;
}

impl ToU32 for usize {
    #[inline]
    fn to_u32(self) -> u32 {
        debug_assert!(u32::try_from(self).is_ok(), "{self} does not fit 32 bits");
        self as u32
    }
}

impl ToU32 for u64 {
    #[inline]
    fn to_u32(self) -> u32 {
        debug_assert!(u32::try_from(self).is_ok(), "{self} does not fit 32 bits");
        self as u32
    }
}
