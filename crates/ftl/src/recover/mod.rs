//! [`Recovery`]: the layer from what is on the media after power was lost, or after an orderly end
//! (LightNVM paper section 4.2.2).
//!
//! | file | noun |
//! |---|---|
//! | `mod` | the phases, and the jobs that whoever owns the flash does for them |
//! | [`job`](Job) | what is to be done on the flash |
//! | `given` | what the drive says when it keeps the map |
//! | `copies` | of every sector the newest copy |
//! | `metas` | lines that are known by their first and last metadata |
//! | `lost` | sectors whose newest copy cannot be read |
//! | `lines` | lines as they were, and what has become of their chunks |
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
//! (see `counting`); one that cannot be read then loses what is in it, and not more.
//!
//! # Why a flushed trim stays trimmed
//!
//! A flush writes the pages of what was trimmed only when everything that was issued before is on
//! the media, so that no copy of a sector that was trimmed before is in a unit numbered `low` or
//! more.
//!
//! A recovery can itself be cut: it writes nothing but padding, at write pointers.

mod copies;
mod given;
mod job;
mod lines;
mod lost;
mod metas;

use std::collections::BTreeSet;

use clock::Nanos;
use nvme::Status;

use job::JobKind;
pub use job::{Job, JobDone, Work};

use crate::checkpoint::Checkpoint;
use crate::counting::Counting;
use crate::drive_map::DriveMap;
use crate::ftl::{owned, reserved};
use crate::issued::Issued;
use crate::journal::{ChunkFound, JournalError, JournalFlash, JournalMedia, JournalRecovery};
use crate::journal::{Journal, Recovered};
use crate::map_page::MapPage;
use crate::snapshot::{Changed, LineEntry, Opened, Snapshot, Unusable};
use crate::{CapacityError, Ftl, FtlConfig, Layout, Location, NewFtlError, Oob, Shape};
pub(crate) use copies::Copies;
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

/// Why what is on the media cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The layer does not fit the flash.
    #[error(transparent)]
    New(#[from] NewFtlError),
    /// The journal is somebody else's, or of another version.
    #[error("the layer's journal: {0}")]
    Journal(JournalError),
    /// The drive, or the configuration, is not what it was.
    #[error("{0}: open it with the geometry and configuration that it was written with")]
    Changed(Changed),
    /// The drive's own map cannot be: what it names was never written, or twice.
    #[error("the drive's map has logical sector {lba} at flat sector {psn}: {what}")]
    Map {
        /// The logical sector.
        lba: u32,
        /// Where it is said to be, flat.
        psn: u32,
        /// What cannot be.
        what: &'static str,
    },
    /// The drive's own map knows of nothing, but there is data.
    #[error(
        "the drive's map is empty, but flat sector {psn} holds logical sector {lba}: the map was lost, \
         or this was written without one; restore it, or reset the chunks if what is there is not needed"
    )]
    MapLost {
        /// A logical sector.
        lba: u32,
        /// Where it is, flat.
        psn: u32,
    },
    /// Jobs have not been reported.
    #[error("the recovery was ended before all of it was done")]
    Unfinished,
    /// Nothing that is written was written by a translation layer.
    #[error(
        "none of {sectors} readable sectors, the first of them flat sector {first}, was written by a \
         translation layer: reset the chunks if what is there is not needed"
    )]
    Foreign {
        /// Sectors.
        sectors: u64,
        /// The first, flat.
        first: u32,
    },
    /// A sector of a layer of another size.
    #[error(
        "flat sector {psn} holds logical sector {lba}, but this configuration makes only {sectors}: \
         open the drive with the over_provisioning, active_pus and streams that it was written with"
    )]
    OtherLayout {
        /// The sector, flat.
        psn: u32,
        /// What is in it.
        lba: u32,
        /// Logical sectors there are, map pages included.
        sectors: u32,
    },
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

/// The journal's way to the flash: jobs.
struct Jobs<'a> {
    shape: Shape,
    jobs: &'a mut Vec<Job>,
    data: &'a [u8],
}

impl JournalFlash for Jobs<'_> {
    fn program(&mut self, _now: Nanos, op: u32, chunk: u32, sector: u32, bytes: &[u8]) {
        let (count, bytes) = (self.shape.unit, bytes.to_vec());
        self.jobs.push(Job::pad(JobKind::Journal(op), chunk, sector, count, bytes));
    }

    fn erase(&mut self, _now: Nanos, _op: u32, _chunk: u32) {
        // A recovery erases nothing: the journal does, once it goes on.
    }
}

impl JournalMedia for Jobs<'_> {
    fn read(&mut self, _now: Nanos, op: u32, chunk: u32, sector: u32, sectors: u32) {
        let psn = self.shape.first_psn(chunk) + sector;
        self.jobs.push(Job::read(JobKind::Journal(op), psn, sectors, true));
    }

    fn data(&mut self, _op: u32, out: &mut [u8]) {
        let n = out.len().min(self.data.len());
        out[..n].copy_from_slice(&self.data[..n]);
    }
}

impl Recovery {
    /// A recovery of the layer on the chunks that `found` tells of, all of the flash. `counted` of the
    /// layer's count towards capacity: all but those that were bad when the layer was first made,
    /// because the capacity must not change; a snapshot knows better.
    ///
    /// # Errors
    /// As [`Ftl::new`].
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
    /// As [`Ftl::new`]. Entries that cannot be are reported by [`finish`](Recovery::finish).
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
        // A drive that keeps the map is not asked for lines.
        let line_metadata = config.line_metadata && given.is_none();
        let config = FtlConfig { line_metadata, ..config };
        if given.is_some() && config.map_cache_sectors > 0 {
            return Err(NewFtlError::from(CapacityError::MapCacheOfDriveMap).into());
        }
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
            match &mut self.phase {
                Phase::Journal(journal) => {
                    let way = &mut Jobs { shape: self.shape, jobs: &mut jobs, data: &[] };
                    journal.kick(Nanos::ZERO, way);
                    if let Some(result) = journal.finish() {
                        match result {
                            Ok(recovered) if self.next.is_some() => self.looked(recovered),
                            Ok(recovered) => self.begin(recovered),
                            Err(e) => self.error = Some(RecoveryError::Journal(e)),
                        }
                    } else if jobs.is_empty() {
                        self.error = Some(RecoveryError::Unfinished);
                    }
                }
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
            (JobKind::Journal(op), JobDone::Padded(status)) => {
                if let Phase::Journal(journal) = &mut self.phase {
                    journal.program_done(op, status);
                    self.stats.padding_units += 1;
                }
            }
            (JobKind::Journal(op), JobDone::Read { failed, data, .. }) => {
                if let Phase::Journal(journal) = &mut self.phase {
                    let mut none = Vec::new();
                    let way = &mut Jobs { shape: self.shape, jobs: &mut none, data };
                    journal.read_done(op, failed, way);
                    self.stats.data_sectors +=
                        (data.len() / self.shape.sector_bytes.max(1) as usize) as u64;
                }
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

    fn sectors_of(&self, data: &[u8]) -> u64 {
        (data.len() / self.shape.sector_bytes.max(1) as usize) as u64
    }

    /// The journal has been looked at, without padding: if it is not refused, it is read.
    fn looked(&mut self, found: Recovered) {
        let Some(journal) = self.next.take() else { return };
        if let Some(Err(e)) = found.snapshot.as_ref().map(|bytes| self.take_snapshot(bytes)) {
            self.error = Some(e);
        }
        self.phase = Phase::Journal(journal);
    }

    /// The journal has been read.
    fn begin(&mut self, recovered: Recovered) {
        self.journal = Some(recovered.journal);
        let usable = match &recovered.snapshot {
            Some(bytes) => self.take_snapshot(bytes),
            None => Ok(None),
        };
        match usable {
            Ok(snapshot) => self.snapshot = snapshot,
            Err(e) => {
                self.error = Some(e);
                return;
            }
        }
        self.all = self.snapshot.is_none() || recovered.truncated;
        if self.given.is_some() {
            return self.begin_with_map(&recovered.records);
        }
        if !self.all {
            let opened = recovered.records.iter().map(|r| Opened::decode(r, &self.shape));
            match opened.collect::<Option<Vec<Opened>>>() {
                Some(opened) => self.lines = self.lines_with(opened),
                None => self.all = true,
            }
        }
        self.stats.from_checkpoint = !self.all;
        if self.all {
            return self.read_everything();
        }
        self.phase = Phase::Pad;
        self.cursor = (0, 0);
        self.choose_what_to_read();
    }

    fn take_snapshot(&mut self, bytes: &[u8]) -> Result<Option<Snapshot>, RecoveryError> {
        let Some(counted) = Snapshot::counted(bytes) else { return Ok(None) };
        let layout = Layout::of(&self.shape, &self.config, owned(&self.seen.found), counted);
        let layout = layout.map_err(NewFtlError::from)?;
        match Snapshot::decode(bytes, &self.shape, &layout) {
            Ok(snapshot) => {
                (self.counted, self.layout) = (counted, layout);
                self.words = words(&layout);
                Ok(Some(snapshot))
            }
            Err(Unusable::Garbled) => Ok(None),
            Err(Unusable::Changed(changed)) => Err(RecoveryError::Changed(changed)),
        }
    }

    /// Pads chunks that were being written.
    fn pad_jobs(&mut self, jobs: &mut Vec<Job>) {
        let shape = self.shape;
        let (unit, pair) = (shape.unit, shape.pair.next_multiple_of(shape.unit));
        while self.cursor.0 < self.to_read.len() && jobs.len() < BATCH {
            let (chunk, written) = self.to_read[self.cursor.0];
            self.cursor.0 += 1;
            if !matches!(self.seen.found[chunk as usize], Found::Open(_)) || written == 0 {
                continue;
            }
            let target = written.next_multiple_of(unit).saturating_add(pair).min(shape.sectors);
            let mut at = written;
            while at < target {
                let count = unit - at % unit;
                let kind = JobKind::Pad { chunk, end: at + count };
                jobs.push(Job::pad(kind, chunk, at, count, Vec::new()));
                at += count;
            }
        }
        if jobs.is_empty() {
            self.cursor = (0, 0);
            if self.all {
                self.phase = Phase::Copies;
            } else {
                (self.phase, self.metas) = (Phase::Lasts, Metas::default());
            }
        }
    }

    fn padded(&mut self, chunk: u32, end: u32, status: Status) {
        let found = &mut self.seen.found[chunk as usize];
        match *found {
            Found::Open(n) if status.is_success() => {
                *found = Found::Open(n.max(end));
                // Whatever was there before the chunk was erased is not.
                let first_psn = self.shape.first_psn(chunk);
                for sector in n..end {
                    self.seen.names.note(&self.shape, first_psn + sector, None);
                }
            }
            Found::Open(n) => *found = Found::Failing(n),
            _ => {}
        }
    }

    fn copy_jobs(&mut self, jobs: &mut Vec<Job>) {
        if self.given.is_some() {
            return self.map_jobs(jobs);
        }
        self.oob_jobs(jobs);
        if jobs.is_empty() && !self.refuse_foreign() && !self.end_look() {
            self.find_pages();
            // Of a map in frames the pages are read when they are needed.
            let pages = if self.layout.map_frames > 0 { Phase::Done } else { Phase::Pages };
            (self.phase, self.cursor) = (pages, (0, 0));
        }
    }

    /// Reads the out-of-band bytes of all chunks that are to be read, as far as that goes now.
    fn oob_jobs(&mut self, jobs: &mut Vec<Job>) {
        while jobs.len() < BATCH {
            let Some(&(chunk, written)) = self.to_read.get(self.cursor.0) else { break };
            let looked_at = &mut self.looked_at[chunk as usize];
            let end = match self.seen.found[chunk as usize] {
                Found::Open(_) if self.looking => {
                    let readable = written.saturating_sub(self.shape.pair);
                    readable - readable % self.shape.unit
                }
                _ => written,
            };
            let at = self.cursor.1.max(*looked_at);
            if at >= end {
                if self.looking {
                    *looked_at = end;
                }
                self.cursor = (self.cursor.0 + 1, 0);
                continue;
            }
            let (psn, count) = (self.shape.first_psn(chunk) + at, (end - at).min(64));
            jobs.push(Job::read(JobKind::Copies { psn, count }, psn, count, false));
            self.cursor.1 = at + count;
        }
    }

    /// Whether all that could be read is no layer's.
    fn refuse_foreign(&mut self) -> bool {
        if let (false, (sectors @ 1.., first)) = (self.ours, self.foreign) {
            self.error = Some(RecoveryError::Foreign { sectors, first });
        }
        self.error.is_some()
    }

    /// After what can be read without padding comes what cannot. Says whether that is to come.
    fn end_look(&mut self) -> bool {
        if self.looking {
            (self.looking, self.phase, self.cursor) = (false, Phase::Pad, (0, 0));
            return true;
        }
        false
    }

    /// A sector: `None` for one that cannot be read, `Some(None)` for one that is not a layer's.
    fn sector(&mut self, psn: u32, found: Option<Option<Oob>>) {
        let Some(oob) = found else {
            self.seen.unreadable.insert(psn);
            return;
        };
        if self.given.is_some() {
            return self.label(psn, oob);
        }
        let Some(oob) = oob else {
            self.foreign = (self.foreign.0 + 1, self.foreign.1.min(psn));
            return;
        };
        self.ours = true;
        self.seen.names.note(&self.shape, psn, oob.lba);
        let sectors = self.layout.logical + self.layout.meta;
        match oob.lba {
            Some(lba) if lba >= sectors => {
                let error = RecoveryError::OtherLayout { psn, lba, sectors };
                self.error.get_or_insert(error);
            }
            // What is older than the base is in the map's pages, or was overwritten.
            Some(_) if oob.sequence < self.base() => {}
            Some(lba) => self.copies.add(lba, psn, oob),
            None => {}
        }
    }

    /// What every unit with a smaller number wrote is in the map's pages.
    fn base(&self) -> u64 {
        self.snapshot.as_ref().filter(|_| !self.all).map_or(0, |s| s.base)
    }

    /// Where the current pages of the map are.
    fn find_pages(&mut self) {
        let logical = self.layout.logical;
        let known = self.snapshot.as_ref().map(|s| s.pages.clone()).unwrap_or_default();
        self.to_load = (0..self.layout.meta)
            .filter_map(|page| {
                let from_snapshot = || known.get(page as usize)?.checked_sub(1);
                let newest = self.copies.get(logical + page).map(|c| c.psn);
                let base = if self.all { None } else { from_snapshot() };
                Some((newest.or(base)?, page))
            })
            .collect();
    }

    fn page_jobs(&mut self, jobs: &mut Vec<Job>) {
        while jobs.len() < BATCH {
            let Some(&(psn, number)) = self.to_load.get(self.cursor.0) else { break };
            jobs.push(Job::read(JobKind::Page { number }, psn, 1, true));
            self.cursor.0 += 1;
        }
        if jobs.is_empty() {
            self.phase = Phase::Done;
        }
    }

    fn page(&mut self, number: u32, bytes: Option<&[u8]>) {
        let page = bytes.and_then(|b| MapPage::decode(&self.shape, number, b));
        let Some(page) = page else {
            // Without it, what is in it must be found the long way.
            if !self.all {
                self.start_over();
            }
            return;
        };
        let count = MapPage::count(&self.shape);
        let first = number * count;
        for (i, lba) in (0..count).zip(first..self.layout.logical) {
            let mapped = page.get(i);
            let copy = self.copies.get(lba);
            if copy.is_some_and(|c| c.sequence >= page.low) {
                continue;
            }
            // When everything was read, a page takes back what was trimmed, and knows of what could
            // not be read; what else it says was found.
            let known =
                !self.all || mapped.psn.is_some_and(|psn| self.seen.cannot_look(&self.shape, psn));
            if known || mapped.psn.is_none() {
                self.copies.forget(lba);
                if mapped.psn.is_some_and(|psn| self.seen.is_stale(&self.shape, lba, psn)) {
                    self.lose(lba);
                    continue;
                }
                self.words[lba as usize] = mapped.psn.map_or(0, |psn| psn + 1);
                if mapped.poison {
                    self.poison.push(lba);
                }
            } else if mapped.psn.is_some_and(|psn| self.seen.is_stale(&self.shape, lba, psn)) {
                self.copies.forget(lba);
                self.lose(lba);
            } else {
                let found = copy.map(|c| c.psn);
                self.stats.contradictions += u64::from(found != mapped.psn);
            }
        }
    }

    /// Reads everything.
    fn start_over(&mut self) {
        self.all = true;
        self.stats.from_checkpoint = false;
        self.copies = Copies::default();
        self.seen.names = Names::default();
        self.lost.clear();
        self.seen.unreadable.clear();
        self.words.fill(0);
        self.poison.clear();
        self.looked_at.fill(0);
        self.read_everything();
    }

    /// What has been read.
    pub fn stats(&self) -> RecoveryStats {
        self.stats
    }

    /// The layer as it was, less what was not durable. If too many chunks went bad, it can be read
    /// and trimmed, and writes fail with [`Status::CAPACITY_EXCEEDED`].
    ///
    /// # Errors
    /// [`RecoveryError`].
    pub fn finish(mut self) -> Result<Ftl, RecoveryError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let (Some(journal), Phase::Done) = (self.journal.take(), &self.phase) else {
            return Err(RecoveryError::Unfinished);
        };
        self.place_lost();
        debug_assert!(self.names_places_once(), "two sectors in one place");
        let ftl = Ftl::empty(self.shape, self.config, self.layout, journal);
        let mut ftl = ftl.map_err(NewFtlError::from)?;
        let base = self.base().max(1);
        let oldest = self.lines.iter().map(|l| l.newest).filter(|n| *n != u64::MAX);
        let next = match self.first_number() {
            Some(next) => next,
            None => self.copies.next().max(base).max(oldest.max().unwrap_or(0) + 1),
        };
        ftl.issued = Issued::from(next);
        let Layout { meta, checkpoint_sectors, .. } = self.layout;
        let since = (next - base).saturating_mul(self.shape.unit.into());
        ftl.checkpoint = Checkpoint::new(meta, checkpoint_sectors, since, base);
        self.fill_map(&mut ftl);
        if self.layout.map_frames > 0 {
            self.leave_pages(&mut ftl);
        }
        self.adopt_lines(&mut ftl);
        self.record_lost(&mut ftl);
        if self.given.is_some() {
            let map = DriveMap::new(&ftl.shape, &ftl.layout, next, &self.poison);
            ftl.drive_map = Some(Box::new(map));
            ftl.want_compaction();
        } else if self.all {
            // What there is of a journal does not say what was found.
            ftl.want_compaction();
            ftl.checkpoint();
        }
        Ok(ftl)
    }

    /// Leaves the map's pages on the media, and to the layer what is newer than they are.
    fn leave_pages(&mut self, ftl: &mut Ftl) {
        let (logical, count) = (self.layout.logical, MapPage::count(&self.shape));
        let copies = std::mem::take(&mut self.copies);
        let written = self.to_load.iter().map(|(_, page)| *page);
        let found = copies.iter().filter(|(lba, _)| *lba < logical).map(|(lba, _)| lba / count);
        let to_count: BTreeSet<u32> = written.chain(found).collect();
        let seen = Sightings {
            found: self.seen.found.clone(),
            names: std::mem::take(&mut self.seen.names),
            unreadable: std::mem::take(&mut self.seen.unreadable),
        };
        let pages = to_count.into_iter();
        ftl.counting = Counting::new(self.layout.meta, pages, copies, self.all, seen);
        ftl.lines.counting = ftl.counting.is_counting();
    }

    fn fill_map(&self, ftl: &mut Ftl) {
        let logical = self.layout.logical;
        for (lba, word) in (0..).zip(&self.words) {
            if let Some(psn) = word.checked_sub(1) {
                ftl.map.set(lba, Location::Flash(psn));
                ftl.reverse.set(psn, Some(lba), false);
            }
        }
        for &lba in &self.poison {
            match ftl.map.get(lba) {
                Location::Flash(psn) => ftl.reverse.set(psn, Some(lba), true),
                Location::Unmapped => {
                    ftl.map.set(lba, Location::Lost);
                }
                Location::Buffer(_) | Location::Lost => {}
            }
        }
        for &(psn, page) in &self.to_load {
            ftl.map.set(logical + page, Location::Flash(psn));
            ftl.reverse.set(psn, Some(logical + page), false);
        }
        if self.layout.map_frames > 0 {
            return;
        }
        for (lba, copy) in self.copies.iter().filter(|(lba, _)| *lba < logical) {
            ftl.map.set(lba, Location::Flash(copy.psn));
            ftl.reverse.set(copy.psn, Some(lba), copy.poison);
            ftl.touch_page_of(lba);
        }
    }
}

/// A word per logical sector, for a map that is in memory.
fn words(layout: &Layout) -> Vec<u32> {
    let sectors = if layout.map_frames > 0 { 0 } else { layout.logical };
    vec![0; sectors as usize]
}

/// What of a chunk of the journal can be read as it is.
fn without_padding(shape: &Shape, found: ChunkFound) -> ChunkFound {
    match found {
        ChunkFound::Written(n) if n < shape.sectors && shape.pair > 0 => {
            ChunkFound::Closed(n.saturating_sub(shape.pair_units() * shape.unit))
        }
        found => found,
    }
}

fn journal_chunk(shape: &Shape, found: Found) -> ChunkFound {
    match found {
        Found::Free => ChunkFound::Free,
        Found::Open(n) if n.is_multiple_of(shape.unit) => ChunkFound::Written(n),
        Found::Closed(n) if n == shape.sectors => ChunkFound::Written(n),
        // Nothing that this layer writes ends inside a write unit.
        Found::Open(n) | Found::Closed(n) => ChunkFound::Closed(n - n % shape.unit),
        Found::Failing(n) => ChunkFound::Failed(n - n % shape.unit),
        Found::Bad | Found::Foreign => ChunkFound::Bad,
    }
}
