//! [`Chunk`]: what of a chunk is programmed, what of that can be read, and what has become of it.

use crate::FlashGeometry;

/// The state of a chunk, beside its line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkState {
    /// Where what is programmed ends. The media programs a chunk in order: up to there everything is, also
    /// what has not been reported yet.
    pub(crate) write_pointer: u32,
    /// A program failed, or the chunk is known to be bad: retire it instead of erasing it.
    pub(crate) bad: bool,
    /// It has gone: nothing more can be written to it, and perhaps not be read.
    pub(crate) offline: bool,
    /// Something in it could not be read.
    pub(crate) had_read_error: bool,
    /// How often it has been erased, as far as is known.
    pub(crate) erases: u32,
    /// Its place among its line's chunks.
    pub(crate) member_index: u32,
}

impl ChunkState {
    /// One with nothing in it.
    pub(crate) fn free(erases: u32) -> ChunkState {
        ChunkState {
            write_pointer: 0,
            bad: false,
            offline: false,
            had_read_error: false,
            erases,
            member_index: 0,
        }
    }

    /// The write unit that ends at this sector is programmed, and with it everything before.
    #[inline]
    pub(crate) fn on_programmed(&mut self, end: u32) {
        self.write_pointer = self.write_pointer.max(end);
    }

    /// Where what can be read ends: what is behind waits for its pair, which is programmed or will never be
    /// if nothing more goes into the chunk. Not always at the end of a write unit.
    #[inline]
    pub(crate) fn readable_end(&self, shape: &FlashGeometry) -> u32 {
        let whole = self.write_pointer == shape.sectors_per_chunk || self.bad;
        self.write_pointer.saturating_sub(if whole { 0 } else { shape.mw_cunits })
    }
}
