//! A journal on a few reserved chunks of flash: records behind a snapshot, in two copies, safe from
//! power cuts [LightNVM17 §4.2.2]. The format is in `docs/format/journal.md`.
//!
//! # Generations
//!
//! The journal is a sequence of *generations*: a snapshot, then records. A generation counts when
//! its whole snapshot is on the media. From then on its predecessors are not needed, and their
//! chunks are erased. [`Journal::append`] puts a record into the open frame; a full frame is
//! programmed, and [`Journal::flush`] programs one that is not full. Both copies of a frame are on
//! different parallel units where the chunks allow it. Records up to [`Journal::durable`] are
//! recovered after a power cut, as long as one copy of every frame can be read.
//!
//! On flash with paired pages, records behind a snapshot make it readable. Until then the previous
//! generation is kept. If there is none, or its chunks are needed, a copy without other work pads
//! instead, so that a recovery can identify the journal and its owner without writing. Padding uses only
//! capacity beyond the announced records: if none is left, there is less padding.
//!
//! # Recovery is idempotent
//!
//! 1. A copy's frames are programmed strictly in order, and a chunk holds frames of one generation
//!    and one copy only. So if a frame of a copy is missing, later ones of that copy are too, unless
//!    programmed units cannot be read any more (reported by [`Recovered::truncated`]).
//! 2. Recovery writes padding only, at write pointers. It pads only if no unit that is readable
//!    without padding belongs to another owner or version, and either one belongs to a journal or
//!    none is readable.
//! 3. After recovery every chunk outside the generation found is erased before anything is
//!    programmed. So a unit that was unreadable, and may be readable the next time, never coexists
//!    with a newer one under the same number.
//! 4. The journal continues the generation found only if no unit in its chunks could be a frame
//!    that was not found. A torn unit could be one: after a cut inside a program, a snapshot is due
//!    before the next record.
//!
//! # Faults
//!
//! A chunk with a failed program takes no more frames; the failed frame and those after it go to
//! another chunk. The chunk is erased once more and retired, as after a failed erase. When chunks
//! run short, the journal first drops the second copy, then the second copy of the old generation.
//! With none left for a snapshot the journal has [`failed`](Journal::failed); its contents can
//! still be recovered.

mod capacity;
mod chunks;
mod error;
mod frame;
mod free_space;
mod generations;
mod mirror;
mod pending_log;
mod recovery;
mod replay;
mod scan;
mod stats;
mod writer;

use nvme::ChunkId;
use time::Nanos;

pub use capacity::{JournalConfig, chunks_needed, frame_payload_bytes};
pub use error::JournalError;
pub use recovery::{JournalRecovery, Recovered};
pub use stats::{JournalStats, Lsn};
pub use writer::Journal;

/// Maximum number of outstanding flash operations of a journal. Operation numbers are below it.
pub const OPS_MAX: usize = 16;

/// The flash below a journal.
///
/// Operations are started by these calls and reported later through `program_done`, `erase_done` and
/// `read_done` of the [`Journal`] or [`JournalRecovery`] that started them; never from within the
/// call. Operations on one chunk must be executed in the order in which they were started; otherwise
/// order is free, and ends are reported in any order, also those of one chunk. A chunk in which a program
/// failed must refuse further programs until it is erased.
pub trait JournalFlash {
    /// Programs one write unit of `chunk` from `sector` on: `bytes`, and zeros up to its end.
    fn program(&mut self, now: Nanos, op: u32, chunk: ChunkId, sector: u32, bytes: &[u8]);

    /// Erases a chunk.
    fn erase(&mut self, now: Nanos, op: u32, chunk: ChunkId);
}

/// The flash below a journal that is being recovered.
pub trait JournalMedia: JournalFlash {
    /// Reads sectors of one write unit.
    fn read(&mut self, now: Nanos, op: u32, chunk: ChunkId, sector: u32, sectors: u32);

    /// Copies the data of a completed read into `out`, from its first sector on. The bytes of failed
    /// sectors are undefined.
    fn read_data(&mut self, op: u32, out: &mut [u8]);
}

/// A chunk that is reserved for a journal, at power-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundJournalChunk {
    /// The chunk.
    pub chunk: ChunkId,
    /// The state that the drive reports for it.
    pub report: JournalChunkReport,
}

/// State of a reserved chunk at power-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalChunkReport {
    /// Erased, nothing written.
    Free,
    /// Written up to this sector, and writable from there.
    Written(u32),
    /// Written up to this sector, and takes no more until it is erased: its erase was interrupted.
    Closed(u32),
    /// Written up to this sector, where a program failed: to be retired.
    Failed(u32),
    /// Not to be used, like a chunk whose erase failed.
    Bad,
}
