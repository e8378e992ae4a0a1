//! Numbers that must not be mixed: [`LineId`], [`MapPageId`], [`Lba`], [`SlotId`], [`WriteSeq`], [`FrameId`]; and
//! conversions between integers of different width, without casts in the code that uses them.
//!
//! Indices are 32 bits wide in tables and on the media, and `usize` in slices. Widening is lossless, because
//! `usize` has at least 32 bits; narrowing is checked in debug builds.

use nvme::PhysSector;
use serde::{Deserialize, Serialize};

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

collections::position_type! {
    /// A logical sector of the FTL: one of the host's, or that of a translation page. Those of the pages follow the
    /// host's.
    pub struct Lba(pub u32), "LBA ";
}

collections::position_type! {
    /// A slot of the write buffer, or of the reads of translation pages: the memory of one sector.
    pub struct SlotId(pub u32), "slot ";
}

collections::position_type! {
    /// The sequence number of a write unit. Of two copies of a sector, the one in the unit with the larger number is
    /// newer.
    pub struct WriteSeq(pub u64), "";
}

impl WriteSeq {
    /// No unit has a larger one.
    pub(crate) const MAX: WriteSeq = WriteSeq(u64::MAX);
}

/// In place of a physical sector: none.
pub(crate) const NO_SECTOR: PhysSector = PhysSector(u32::MAX);

/// In place of a physical sector: the location of the logical sector is lost.
pub(crate) const LOST_SECTOR: PhysSector = PhysSector(u32::MAX - 1);

/// In place of an index of a table: none.
pub(crate) const NO_INDEX: u32 = u32::MAX;

/// Logical sectors that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LbaRun {
    /// The first one.
    pub first: Lba,
    /// Their number.
    pub sectors: u32,
}

impl LbaRun {
    /// Returns the first sector behind the run.
    #[inline]
    pub fn end(self) -> Lba {
        self.first + self.sectors
    }

    /// The sectors, in order.
    #[inline]
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Lba> + ExactSizeIterator + Clone {
        (self.first.get()..self.end().get()).map(Lba)
    }
}

collections::id_type! {
    /// A frame of the map cache: memory for the entries of one translation page.
    pub struct FrameId(pub(crate) u32), "frame ";
}

impl FrameId {
    /// In place of a frame: none.
    pub(crate) const NONE: FrameId = FrameId(u32::MAX);
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
    fn a_run_ends_behind_its_last_sector() {
        let run = LbaRun { first: Lba(7), sectors: 3 };
        assert!(run.iter().eq([7, 8, 9].map(Lba)));
        assert_eq!((run.end(), run.iter().len()), (Lba(10), 3));
        let empty = LbaRun { first: Lba(7), sectors: 0 };
        assert_eq!((empty.end(), empty.iter().next()), (Lba(7), None));
    }

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
