//! [`Recovery`]: the layer from what is on the media after power was lost, or after an orderly end
//! (LightNVM paper section 4.2.2).
//!
//! | file | noun |
//! |---|---|
//! | `mod` | the phases, and the jobs that whoever owns the flash does for them |
//! | [`job`](Job) | what is to be done on the flash |
//! | [`error`](RecoveryError) | why what is there cannot be used |
//! | `journal` | the journal, read first without padding it |
//! | `sectors` | padding of open chunks, and out-of-band bytes |
//! | `pages` | the pages of the map |
//! | `given` | what the drive says when it keeps the map |
//! | `copies` | of every sector the newest copy |
//! | `metas` | lines that are known by their first and last metadata |
//! | `lost` | sectors whose newest copy cannot be read |
//! | `lines` | lines as they were, and what has become of their chunks |
//! | `finish` | what was found becomes a layer |
//!
//! # What is read
//!
//! 1. The **journal**: the last snapshot, and which lines were opened since. First without padding: what is
//!    somebody else's, or of another configuration, is refused as it is.
//! 2. Open chunks are **padded**, so that the paired pages of everything in them are programmed.
//! 3. What the lines hold in which a unit may be numbered from the snapshot's base on:
//!    (the **last** metadata of those that are full, the out-of-band bytes of the others):
//!    of all **copies** of a sector the one in the unit with the largest number is the newest, and in
//!    a unit the last.
//! 4. The **pages** of the map: what a page says of a sector holds if no copy was found in a unit
//!    numbered from the page's `low` on.
//!
//! So what is read is bounded by the distance of two checkpoints (and the map), not by capacity.
//! Without a snapshot, or when a page or the end of the journal cannot be read, all that is written is
//! read so, in lines that **first** metadata tells of, or else chunk by chunk; a page then takes back
//! what was trimmed. What can be read without padding is read before anything is padded, and refused
//! if none of it is a layer's.
//!
//! Of a map in frames the last step is left to the layer, which looks at the pages when they are needed
//! (see `counting`); one that cannot be read then, or is known to be lost, is rebuilt (see `salvage`).
//!
//! # Why a flushed trim stays trimmed
//!
//! A flush writes the pages of what was trimmed only when everything that was issued before is on
//! the media, so that no copy of a sector that was trimmed before is in a unit numbered `low` or
//! more.
//!
//! A recovery can itself be cut: it writes nothing but padding, at write pointers.

mod copies;
mod error;
mod finish;
mod given;
mod job;
mod journal;
mod lines;
mod lost;
mod metas;
mod pages;
mod sectors;

pub use error::RecoveryError;
use job::JobKind;
pub use job::{Job, JobDone, Work};
use journal::{Known, journal_chunk, without_padding};

use crate::ftl::{owned, reserved};
use crate::journal::{ChunkFound, Journal, JournalRecovery};
use crate::snapshot::{LineEntry, Snapshot};
use crate::{CapacityError, FtlConfig, Layout, NewFtlError, Oob, Shape};
pub(crate) use copies::{Copies, Copy};
use given::Given;
use lost::Names;
pub(crate) use lost::Sightings;
use metas::Metas;

/// What is known of a chunk at power-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Erased, nothing written.
    Free,
    /// Written up to this sector, and can be written further.
    Open(u32),
    /// Written up to this sector, takes no more until erased.
    Closed(u32),
    /// A program failed after this sector: its data is to be moved and the chunk retired.
    Failing(u32),
    /// Not to be used.
    Bad,
    /// Somebody else's.
    Foreign,
}

impl Found {
    /// Sectors that are written.
    pub(crate) fn written(self) -> u32 {
        match self {
            Found::Open(n) | Found::Closed(n) | Found::Failing(n) => n,
            Found::Free | Found::Bad | Found::Foreign => 0,
        }
    }
}

/// What a recovery has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStats {
    /// Whether there was a snapshot to begin with.
    pub from_checkpoint: bool,
    /// Lines that were read: those in which a unit may be newer than the checkpoint.
    pub lines_read: u64,
    /// Of these, those whose last metadata was read.
    pub lines_by_metadata: u64,
    /// Of these, those whose out-of-band bytes were read.
    pub lines_by_oob: u64,
    /// Without a snapshot, lines that were found by their first metadata.
    pub lines_found: u64,
    /// Sectors whose out-of-band bytes were read.
    pub oob_sectors: u64,
    /// Sectors that were read with their data: the journal's, the map's, and metadata of lines.
    pub data_sectors: u64,
    /// Of these, those of the journal, each once.
    pub journal_sectors: u64,
    /// Of these, pages of the map.
    pub page_sectors: u64,
    /// Write units of padding.
    pub padding_units: u64,
    /// Map pages that said something else than what was found; 0, or something is wrong.
    pub contradictions: u64,
    /// Sectors whose newest copy is lost, as what the map's pages say of them shows.
    pub lost: u64,
}

#[derive(Debug)]
enum Phase {
    Journal(Box<JournalRecovery>),
    Firsts,
    Pad,
    Lasts,
    Copies,
    Pages,
    Done,
}

/// Jobs that are handed out at a time at most.
const BATCH: usize = 1024;

/// Rebuilds a layer: hand out [`jobs`](Recovery::jobs), report every one, and so on until there are
/// none; then [`finish`](Recovery::finish).
#[derive(Debug)]
pub struct Recovery {
    shape: Shape,
    config: FtlConfig,
    seen: Sightings,
    counted: u32,
    reserved: Vec<u32>,
    phase: Phase,
    journal: Option<Journal>,
    layout: Layout,
    snapshot: Option<Snapshot>,
    /// The recovery of the journal, while it is only looked at.
    next: Option<Box<JournalRecovery>>,
    /// What has been read of the journal, until it has all been.
    known: Known,
    /// Lines as the journal knows them; without one, every chunk is a line.
    lines: Vec<LineEntry>,
    copies: Copies,
    metas: Metas,
    /// Everything is read, because there is no snapshot or something of it is missing.
    all: bool,
    /// The next chunk to pad, to read, or page to read.
    cursor: (usize, u32),
    /// Only what can be read without padding is being read; and how far each chunk was.
    looking: bool,
    looked_at: Vec<u32>,
    /// Chunks in the order in which they are read, and how far each was written before padding.
    to_read: Vec<(u32, u32)>,
    to_load: Vec<(u32, u32)>,
    /// Pages whose newest copy is lost.
    lost_pages: Vec<u32>,
    words: Vec<u32>,
    poison: Vec<u32>,
    kinds: Vec<JobKind>,
    stats: RecoveryStats,
    ours: bool,
    foreign: (u64, u32),
    error: Option<RecoveryError>,
    /// What the drive's own map says, if it keeps one.
    given: Option<Given>,
    /// Logical sectors that are lost.
    lost: Vec<u32>,
}

impl Recovery {
    /// A recovery of the layer on the chunks that `found` tells of, all of the flash. `counted` of the
    /// layer's count towards capacity: all but those that were bad when the layer was first made,
    /// because the capacity must not change; a snapshot knows better.
    ///
    /// # Errors
    /// As [`Ftl::new`](crate::Ftl::new).
    pub fn new(
        shape: Shape,
        config: FtlConfig,
        found: Vec<Found>,
        counted: u32,
    ) -> Result<Recovery, RecoveryError> {
        Recovery::with(shape, config, found, counted, None)
    }

    /// A recovery of the layer of a drive that keeps the map, whose `entries` are pairs of a logical
    /// sector and the flat physical one that has its newest copy, and of whose entries, trims included,
    /// `newest` is the largest number. Nothing is read but the journal, and open chunks are padded.
    ///
    /// # Errors
    /// As [`Ftl::new`](crate::Ftl::new). Entries that cannot be are reported by [`finish`](Recovery::finish).
    pub fn from_map(
        shape: Shape,
        config: FtlConfig,
        found: Vec<Found>,
        counted: u32,
        entries: impl IntoIterator<Item = (u32, u32)>,
        newest: u64,
    ) -> Result<Recovery, RecoveryError> {
        let given = Given::new(entries.into_iter().collect(), newest);
        Recovery::with(shape, config, found, counted, Some(given))
    }

    fn with(
        shape: Shape,
        config: FtlConfig,
        found: Vec<Found>,
        counted: u32,
        given: Option<Given>,
    ) -> Result<Recovery, RecoveryError> {
        let config = match given {
            Some(_) => config.of_drive_map().map_err(NewFtlError::from)?,
            None => config,
        };
        let layout = Layout::of(&shape, &config, owned(&found), counted);
        let layout = layout.map_err(NewFtlError::from)?;
        let reserved = reserved(&shape, &found, layout.journal);
        let chunks: Vec<(u32, ChunkFound)> =
            reserved.iter().map(|&c| (c, journal_chunk(&shape, found[c as usize]))).collect();
        let recovery = |chunks: &[(u32, ChunkFound)]| {
            JournalRecovery::new(&shape, layout.journal_config(given.is_some()), chunks)
                .map_err(|e| NewFtlError::from(CapacityError::Journal(e)))
        };
        // Without what can only be read after padding nothing is padded.
        let as_is: Vec<(u32, ChunkFound)> =
            chunks.iter().map(|&(c, found)| (c, without_padding(&shape, found))).collect();
        let mut journal = recovery(&chunks)?;
        let mut next = None;
        if as_is != chunks {
            next = Some(Box::new(std::mem::replace(&mut journal, recovery(&as_is)?)));
        }
        Ok(Recovery {
            phase: Phase::Journal(Box::new(journal)),
            next,
            known: Known::new(),
            journal: None,
            snapshot: None,
            lines: Vec::new(),
            copies: Copies::default(),
            metas: Metas::default(),
            all: false,
            cursor: (0, 0),
            looking: false,
            looked_at: vec![0; shape.total_chunks() as usize],
            to_read: Vec::new(),
            to_load: Vec::new(),
            lost_pages: Vec::new(),
            words: words(&layout),
            poison: Vec::new(),
            kinds: Vec::new(),
            stats: RecoveryStats::default(),
            ours: false,
            foreign: (0, u32::MAX),
            error: None,
            given,
            lost: Vec::new(),
            shape,
            config,
            seen: Sightings { found, ..Sightings::default() },
            counted,
            reserved,
            layout,
        })
    }

    /// The next jobs, to be done in any order, but on each chunk in this one; empty when there are no
    /// more. Every job handed out before must have been reported.
    pub fn jobs(&mut self) -> Vec<Job> {
        let mut jobs = Vec::new();
        while jobs.is_empty() && self.error.is_none() {
            match self.phase {
                Phase::Journal(_) => self.journal_jobs(&mut jobs),
                Phase::Firsts => self.first_jobs(&mut jobs),
                Phase::Pad => self.pad_jobs(&mut jobs),
                Phase::Lasts => self.last_jobs(&mut jobs),
                Phase::Copies => self.copy_jobs(&mut jobs),
                Phase::Pages => self.page_jobs(&mut jobs),
                Phase::Done => break,
            }
        }
        // Jobs are named by their place in the batch.
        self.kinds.clear();
        for (id, job) in jobs.iter_mut().enumerate() {
            job.id = id as u32;
            self.kinds.push(job.kind);
        }
        jobs
    }

    /// A job has been done.
    pub fn done(&mut self, id: u32, done: JobDone<'_>) {
        let Some(&kind) = self.kinds.get(id as usize) else { return };
        match (kind, done) {
            (JobKind::Journal { op, .. }, JobDone::Padded(status)) => {
                if let Phase::Journal(journal) = &mut self.phase {
                    journal.program_done(op, status);
                    self.stats.padding_units += 1;
                }
            }
            (JobKind::Journal { op, first }, JobDone::Read { failed, data, .. }) => {
                self.journal_read(op, first, failed, data);
            }
            (JobKind::Pad { chunk, end }, JobDone::Padded(status)) => {
                self.stats.padding_units += 1;
                self.padded(chunk, end, status);
            }
            (JobKind::Copies { psn, count }, JobDone::Read { failed, oob, .. }) => {
                self.stats.oob_sectors += u64::from(count);
                for i in 0..count.min(oob.len() as u32) {
                    let readable = failed >> i & 1 == 0;
                    let found = readable.then(|| Oob::decode(&oob[i as usize]));
                    self.sector(psn + i, found);
                }
            }
            (JobKind::First { chunk }, JobDone::Read { failed, data, .. }) => {
                self.stats.data_sectors += self.sectors_of(data);
                self.first(chunk, (failed == 0).then_some(data));
            }
            (JobKind::Last { candidate, piece }, JobDone::Read { failed, data, .. }) => {
                self.stats.data_sectors += self.sectors_of(data);
                self.last_piece(candidate, piece, failed != 0, data);
            }
            (JobKind::Check { candidate, member, psn }, JobDone::Read { failed, oob, .. }) => {
                self.stats.oob_sectors += 1;
                let oob = oob.first().filter(|_| failed == 0).and_then(|o| Oob::decode(o));
                self.check(candidate, member, psn, oob);
            }
            (JobKind::Page { number }, JobDone::Read { failed, data, .. }) => {
                self.stats.data_sectors += 1;
                self.stats.page_sectors += 1;
                // One that could not be read may have sent the others of its batch round again.
                if matches!(self.phase, Phase::Pages) {
                    self.page(number, (failed == 0).then_some(data));
                }
            }
            // What was asked for is what is reported.
            (JobKind::Pad { .. }, JobDone::Read { .. })
            | (
                JobKind::Copies { .. }
                | JobKind::Page { .. }
                | JobKind::First { .. }
                | JobKind::Last { .. }
                | JobKind::Check { .. },
                JobDone::Padded(_),
            ) => {}
        }
    }

    pub(super) fn sectors_of(&self, data: &[u8]) -> u64 {
        (data.len() / self.shape.sector_bytes.max(1) as usize) as u64
    }

    /// What every unit with a smaller number wrote is in the map's pages.
    pub(super) fn base(&self) -> u64 {
        self.snapshot.as_ref().filter(|_| !self.all).map_or(0, |s| s.base)
    }

    /// What has been read.
    pub fn stats(&self) -> RecoveryStats {
        self.stats
    }
}

/// A word per logical sector, for a map that is in memory.
fn words(layout: &Layout) -> Vec<u32> {
    let sectors = if layout.map_frames > 0 { 0 } else { layout.logical };
    vec![0; sectors as usize]
}
