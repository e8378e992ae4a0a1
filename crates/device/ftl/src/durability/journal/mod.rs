//! A journal on a few reserved chunks of flash: records behind a snapshot, in two copies, safe from
//! power cuts (LightNVM paper section 4.2.2: a snapshot "periodically as checkpoints in form of an
//! FTL log that persists operations on blocks").
//!
//! | file | noun |
//! |---|---|
//! | [`capacity`](JournalConfig) | what an owner wants room for, and how many chunks that takes |
//! | `frame` | one write unit: a header and its payload (`docs/format/journal.md`) |
//! | `backlog` | what is not durable yet, cut into frames |
//! | `chunks` | the reserved chunks, and which is used for what |
//! | `lane` | how far one copy is written |
//! | [`writer`](Journal) | the journal: records and snapshots in, flash operations out |
//! | `room` | when a copy is given up, and when a snapshot is due |
//! | `scan` | padding and headers at power-on |
//! | `replay` | one generation from its frames |
//! | [`recovery`](JournalRecovery) | what the chunks hold, and the journal that goes on with it |
//! | [`stats`](JournalStats) | what was written, and how far |
//! | [`error`](JournalError) | what is refused |
//!
//! # Generations
//!
//! The journal is a sequence of *generations*: a snapshot, then records. A generation counts when
//! its whole snapshot is on the media; from then on its predecessors are not needed, and their chunks
//! are erased. [`Journal::append`] puts a record into the frame that fills up; a full frame is
//! programmed, and [`Journal::flush`] has one programmed that is not full. Both copies of a frame are
//! on different parallel units where the chunks allow it. What [`Journal::durable`] has reached
//! comes back after a power cut, as long as one copy of every frame can be read.
//!
//! Where paired pages must be programmed before a unit can be read, the records behind a snapshot make it
//! readable; until then the generation before is kept. When there is none before, or when its chunks are
//! needed, a copy that has nothing else to write pads instead. So a journal can be told from others, and its
//! owner sees what it was made for, without writing anything. The padding takes no room that was announced:
//! where none is left there is less.
//!
//! # Why recovery finds the same however often it is cut
//!
//! 1. A copy's frames are programmed strictly in order, and a chunk holds frames of one generation and
//!    one copy only. So if a frame of a copy is missing, later ones of that copy are too, unless what
//!    was programmed cannot be read any more (which [`Recovered::truncated`] reports).
//! 2. Recovery writes padding only, at write pointers, and only if nothing that can be read without it is
//!    another owner's or another version's, and something is a journal's, or nothing can be read.
//! 3. After recovery every chunk that is not part of the generation found is erased before anything is
//!    programmed. So what could not be read, and perhaps can be next time, never stands beside
//!    something newer under the same number.
//! 4. The generation found goes on only if nothing in its chunks could be a frame that was not found. A
//!    torn unit could be: after a cut inside of a program a snapshot is due before the next record.
//!
//! # Faults
//!
//! A chunk in which a program failed takes no more; the frame, and those after it, go to another.
//! Such a chunk is erased once more and retired, like one whose erase failed. When chunks run short, first the second copy is given up,
//! then the second copy of the old generation; with none left for a snapshot the journal has
//! [`failed`](Journal::failed), and what it holds can still be recovered.

mod capacity;
mod chunks;
mod error;
mod frame;
mod free_space;
mod mirror;
mod pending_log;
mod recovery;
mod replay;
mod scan;
mod stats;
mod writer;

use clock::Nanos;

pub use capacity::{JournalConfig, chunks_needed, frame_payload_bytes};
pub use error::JournalError;
pub use recovery::{JournalRecovery, Recovered};
pub use stats::{JournalStats, Lsn};
pub use writer::Journal;

/// Flash operations of a journal outstanding at most; they are numbered below it.
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
    fn program(&mut self, now: Nanos, op: u32, chunk: u32, sector: u32, bytes: &[u8]);

    /// Erases a chunk.
    fn erase(&mut self, now: Nanos, op: u32, chunk: u32);
}

/// The flash below a journal that is being recovered.
pub trait JournalMedia: JournalFlash {
    /// Reads sectors of one write unit.
    fn read(&mut self, now: Nanos, op: u32, chunk: u32, sector: u32, sectors: u32);

    /// Copies what a finished read has found: as many bytes as `out` has, from its first sector on.
    /// Bytes of sectors that failed are of no interest.
    fn read_data(&mut self, op: u32, out: &mut [u8]);
}

/// What is known of a reserved chunk at power-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalChunkReport {
    /// Erased, nothing written.
    Free,
    /// Written up to this sector, and can be written further if there is room.
    Written(u32),
    /// Written up to this sector, and takes no more until it is erased: its erase was interrupted.
    Closed(u32),
    /// Written up to this sector, where a program failed: to be retired.
    Failed(u32),
    /// Not to be used, like a chunk whose erase failed.
    Bad,
}
