//! [`ChunkRecord`]: the state of a chunk, in one 64-bit word.
//!
//! A chunk's state changes with one store, so that a killed process leaves either the old state or
//! the new one in an image. `docs/format/image.md` has the byte map.
//!
//! ```text
//! bits 24:0   write pointer, in sectors
//! bits 31:25  flags
//! bits 55:32  wear, in program/erase cycles
//! bits 63:56  check byte in an image, 0 in memory
//! ```

use nvme::ChunkState;
use serde::{Deserialize, Serialize};

use crate::NandLayout;

/// The state of a chunk, as callers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    /// State of the chunk. A free chunk is erased, an open one partly programmed. A closed chunk
    /// takes no programs until it is erased: it is full, a program failed, or an erase is in
    /// progress or was interrupted. An offline chunk stays offline.
    pub state: ChunkState,
    /// Program/erase cycles.
    pub wear: u32,
    /// Write pointer in sectors. The size of the chunk if its last erase was interrupted or is in
    /// progress; 0 if the chunk is offline.
    pub write_pointer: u32,
}

/// The state of a chunk as a 64-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkRecord(pub(crate) u64);

/// Bits of the write pointer: a chunk has at most 2²⁴ sectors, and the pointer may equal that
/// number.
const WRITE_POINTER_BITS: u32 = 25;
const WRITE_POINTER_MASK: u64 = (1 << WRITE_POINTER_BITS) - 1;
const WEAR_SHIFT: u32 = 32;
pub(crate) const WEAR_MAX: u32 = (1 << 24) - 1;
const CHECK_SHIFT: u32 = 56;

/// A program is in progress.
pub(crate) const PROGRAMMING: u64 = 1 << 25;
/// An erase is in progress.
pub(crate) const ERASING: u64 = 1 << 26;
/// The program of the unit at the write pointer failed: the chunk takes no more programs.
pub(crate) const CLOSED: u64 = 1 << 27;
/// A power cut interrupted an erase: the chunk must be erased again.
pub(crate) const INTERRUPTED: u64 = 1 << 28;
/// The chunk is bad.
pub(crate) const BAD: u64 = 1 << 29;
/// The chunk's die has failed.
pub(crate) const DIE_FAILED: u64 = 1 << 30;
/// A unit is torn, or a sector was made uncorrectable.
pub(crate) const HAS_DEFECTS: u64 = 1 << 31;

const FLAGS: u64 = 0x7f << WRITE_POINTER_BITS;
/// The flags that prevent a program.
const NOT_WRITABLE: u64 = FLAGS & !HAS_DEFECTS;

impl ChunkRecord {
    /// A factory-bad chunk.
    pub(crate) const FACTORY_BAD: ChunkRecord = ChunkRecord(BAD);
    /// An erased chunk without wear.
    pub(crate) const ERASED: ChunkRecord = ChunkRecord(0);

    /// Returns the write pointer in sectors.
    #[inline]
    pub(crate) fn write_pointer(self) -> u32 {
        (self.0 & WRITE_POINTER_MASK) as u32
    }

    /// Returns the program/erase cycles.
    #[inline]
    pub(crate) fn wear(self) -> u32 {
        (self.0 >> WEAR_SHIFT) as u32 & WEAR_MAX
    }

    /// Whether any of the flags is set.
    #[inline]
    pub(crate) fn has_any(self, flags: u64) -> bool {
        self.0 & flags != 0
    }

    /// Whether no flag is set.
    #[inline]
    pub(crate) fn has_no_flags(self) -> bool {
        self.0 & FLAGS == 0
    }

    #[inline]
    pub(crate) fn with(self, flags: u64) -> ChunkRecord {
        ChunkRecord(self.0 | flags)
    }

    #[inline]
    pub(crate) fn without(self, flags: u64) -> ChunkRecord {
        ChunkRecord(self.0 & !flags)
    }

    #[inline]
    pub(crate) fn with_write_pointer(self, pointer: u32) -> ChunkRecord {
        ChunkRecord(self.0 & !WRITE_POINTER_MASK | u64::from(pointer))
    }

    /// Returns the record with the write pointer advanced by `more` sectors.
    #[inline]
    pub(crate) fn advanced(self, more: u32) -> ChunkRecord {
        ChunkRecord(self.0 + u64::from(more))
    }

    pub(crate) fn with_wear(self, wear: u32) -> ChunkRecord {
        let wear = u64::from(wear.min(WEAR_MAX));
        ChunkRecord(self.0 & !(u64::from(WEAR_MAX) << WEAR_SHIFT) | wear << WEAR_SHIFT)
    }

    /// Whether a program may begin at `sector`.
    #[inline]
    pub(crate) fn can_program_at(self, sector: u32) -> bool {
        self.0 & (NOT_WRITABLE | WRITE_POINTER_MASK) == u64::from(sector)
    }

    /// Whether the program that began at `sector` is in progress and the chunk has not changed
    /// since.
    #[inline]
    pub(crate) fn is_programming(self, sector: u32) -> bool {
        self.0 & (NOT_WRITABLE | WRITE_POINTER_MASK) == PROGRAMMING | u64::from(sector)
    }

    /// Returns the chunk's state for callers.
    pub(crate) fn info(self, layout: &NandLayout) -> ChunkInfo {
        let pointer = self.write_pointer();
        let state = if self.has_any(BAD | DIE_FAILED) {
            ChunkState::Offline
        } else if self.has_any(CLOSED | INTERRUPTED | ERASING)
            || pointer == layout.sectors_per_chunk()
        {
            ChunkState::Closed
        } else if pointer == 0 && !self.has_any(PROGRAMMING) {
            ChunkState::Free
        } else {
            ChunkState::Open
        };
        let write_pointer = if state == ChunkState::Offline { 0 } else { pointer };
        ChunkInfo { state, wear: self.wear(), write_pointer }
    }

    /// Returns the word as stored in an image, with its check byte.
    #[inline]
    pub(crate) fn to_image_word(self) -> u64 {
        self.0 | u64::from(self.check()) << CHECK_SHIFT
    }

    /// Decodes a word of an image; `None` if the check byte or the state is invalid.
    pub(crate) fn from_image_word(word: u64, layout: &NandLayout) -> Option<ChunkRecord> {
        let record = ChunkRecord(word & ((1 << CHECK_SHIFT) - 1));
        let end = record.write_pointer()
            + if record.has_any(PROGRAMMING) { layout.write_unit() } else { 0 };
        let fits = record.to_image_word() == word
            && end <= layout.sectors_per_chunk()
            && record.write_pointer().is_multiple_of(layout.write_unit())
            && !(record.has_any(PROGRAMMING) && record.has_any(ERASING));
        fits.then_some(record)
    }

    /// Returns the check byte, which depends on every bit of the word and is not 0 for a word of
    /// zeros.
    #[inline]
    fn check(self) -> u8 {
        let folded = (self.0 ^ self.0 >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (folded >> 56) as u8 ^ 0xa5
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn fields_do_not_touch_each_other() {
        let r = ChunkRecord::ERASED.with_wear(WEAR_MAX).with_write_pointer(1 << 24).with(FLAGS);
        assert_eq!((r.write_pointer(), r.wear()), (1 << 24, WEAR_MAX));
        assert!(r.has_any(HAS_DEFECTS) && r.has_any(PROGRAMMING));
        assert_eq!(r.0 >> CHECK_SHIFT, 0);
        assert_eq!(r.with_wear(u32::MAX).wear(), WEAR_MAX, "wear saturates");
        assert_eq!(r.without(FLAGS).with_wear(0).with_write_pointer(0), ChunkRecord::ERASED);
    }

    #[test]
    fn a_word_that_is_not_a_record_is_found() {
        let layout = NandLayout::new(&testing::config());
        let unit = layout.write_unit();
        let good =
            ChunkRecord::ERASED.with_wear(1234).with_write_pointer(2 * unit).with(PROGRAMMING);
        assert_eq!(ChunkRecord::from_image_word(good.to_image_word(), &layout), Some(good));
        assert_eq!(ChunkRecord::from_image_word(0, &layout), None, "a page of zeros");
        assert_eq!(ChunkRecord::from_image_word(u64::MAX, &layout), None);
        // The check byte detects 255 of 256 corruptions, and all single-bit errors.
        for bit in 0..64 {
            assert_eq!(
                ChunkRecord::from_image_word(good.to_image_word() ^ 1 << bit, &layout),
                None,
                "bit {bit}"
            );
        }
        for impossible in [
            ChunkRecord::ERASED.with_write_pointer(unit - 1),
            ChunkRecord::ERASED.with_write_pointer(layout.sectors_per_chunk() + unit),
            ChunkRecord::ERASED.with_write_pointer(layout.sectors_per_chunk()).with(PROGRAMMING),
            ChunkRecord::ERASED.with(PROGRAMMING | ERASING),
        ] {
            assert_eq!(
                ChunkRecord::from_image_word(impossible.to_image_word(), &layout),
                None,
                "{impossible:?}"
            );
        }
    }
}
