//! [`LineId`], [`MapPageId`]; conversions between integers of different width, without casts in the code that uses them.
//!
//! Indices are 32 bits wide in tables and on the media, and `usize` in slices. Widening is lossless, because
//! `usize` has at least 32 bits; narrowing is checked in debug builds.

const _: () = assert!(usize::BITS >= u32::BITS, "an index of 32 bits fits usize");

collections::id_type! {
    /// A line, as an index in the table of lines. It is displayed as its number.
    pub struct LineId(u32), "";
}

impl LineId {
    /// In place of a line: no line.
    pub const NONE: LineId = LineId(u32::MAX);

    /// All lines that there may be, in order.
    pub(crate) fn all() -> impl Iterator<Item = LineId> + Clone {
        (0..LineId::NONE.0).map(LineId)
    }
}

collections::position_type! {
    /// A page of the map: the translation page that maps the logical sectors from `number × sectors per page` on.
    pub struct MapPageId(pub u32), "page ";
}

impl MapPageId {
    /// In place of a page: no page.
    pub(crate) const NONE: MapPageId = MapPageId(u32::MAX);
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_their_tables() {
        for number in [0, 1, 77, u32::MAX - 1] {
            let line = LineId::new(number);
            assert_eq!((line.get(), LineId::from_index(line.index())), (number, line));
            assert!(line < LineId::NONE && line.to_string() == number.to_string());
        }
        assert_eq!(size_of::<LineId>(), 4);
        assert!(LineId::all().take(3).eq([0, 1, 2].map(LineId::new)));
    }
}
