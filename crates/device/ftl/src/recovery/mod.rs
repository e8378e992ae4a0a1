//! [`Recovery`]: rebuilds the FTL from the media after a power loss or a clean shutdown [LightNVM17
//! §4.2.2].
//!
//! # Steps
//!
//! 1. The **journal**: the last snapshot, and the lines opened since. It is read first without
//!   padding: a journal of another owner or configuration is refused unchanged.
//! 2. Open chunks are **padded**, so that the paired pages of everything in them are programmed.
//! 3. Lines that may contain units sequenced at or after the snapshot's base are scanned: full ones
//!   by their **footers**, others by their out-of-band bytes. The latest version of a sector is the
//!   one in the unit with the largest sequence number; within a unit, the last.
//! 4. The **map pages**: a page's entry is valid if no version of the sector was found in a unit
//!   sequenced at or after the page's `base_seq`.
//!
//! So the amount read is bounded by the distance of two checkpoints (and the map), not by capacity.
//! Without a snapshot, or when a page or the end of the journal cannot be read, everything written
//! is scanned, by lines if line **headers** can be read, otherwise by chunks. A page then undoes
//! trims. Units readable without padding are read before anything is padded, and the drive is
//! refused if none belongs to an FTL.
//!
//! If the map is in frames, step 4 is left to the FTL, which reads the pages when it needs them
//! (see `mapping::reconcile`). A page that is unreadable then, or known to be lost, is rebuilt (see
//! `mapping::cache::rebuild`).
//!
//! # Trims that were flushed stay trimmed
//!
//! A flush writes the pages with trims only when everything issued before is on the media. So no
//! version of a sector that was trimmed before is in a unit sequenced at or after `base_seq`.
//!
//! A recovery can itself be cut: it writes only padding, at write pointers.

mod build;
mod device_l2p_import;
mod error;
mod journal;
mod line_metadata;
mod lines;
mod lost;
mod newest_copies;
mod oob_scan;
mod op;
mod pages;

pub(crate) use build::RecoveredState;
pub use error::RecoveryError;
use journal::{JournalContents, journal_chunk_report, without_padding};
use op::RecoveryOpPurpose;
pub use op::{RecoveryOp, RecoveryOpKind, RecoveryOpResult};

use crate::durability::journal::{Journal, JournalChunkReport, JournalRecovery};
use crate::durability::snapshot::{LineEntry, Snapshot};
use crate::ftl::{journal_chunks, owned_chunks};
use crate::{CapacityError, CapacityPlan, FlashGeometry, FtlConfig, NewFtlError, Oob};
use device_l2p_import::DeviceL2pImport;
use line_metadata::LineMetaScan;
use lost::ObservedLbas;
pub(crate) use lost::ScanObservations;
pub(crate) use newest_copies::{CopyRef, NewestCopies};

/// State of a chunk at power-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkReport {
    /// Erased, nothing written.
    Free,
    /// Written up to this sector, and can be written further.
    Open(u32),
    /// Written up to this sector, takes no more until erased.
    Closed(u32),
    /// A program failed after this sector: its data is to be moved and the chunk retired.
    ProgramFailed(u32),
    /// Not to be used.
    Bad,
    /// Belongs to another owner.
    NotOwned,
}

impl ChunkReport {
    /// Sectors that are written.
    pub(crate) fn written_sectors(self) -> u32 {
        match self {
            ChunkReport::Open(n) | ChunkReport::Closed(n) | ChunkReport::ProgramFailed(n) => n,
            ChunkReport::Free | ChunkReport::Bad | ChunkReport::NotOwned => 0,
        }
    }
}

/// Counters of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStats {
    /// Whether there was a snapshot to begin with.
    pub from_checkpoint: bool,
    /// Lines that were read: those in which a unit may be newer than the checkpoint.
    pub lines_read: u64,
    /// Lines whose footer was read.
    pub lines_by_metadata: u64,
    /// Lines whose out-of-band bytes were read.
    pub lines_by_oob: u64,
    /// Without a snapshot, lines that were found by their first metadata.
    pub lines_found: u64,
    /// Sectors whose out-of-band bytes were read.
    pub oob_sectors: u64,
    /// Sectors that were read with their data: the journal's, the map's, and metadata of lines.
    pub data_sectors: u64,
    /// Sectors of the journal, each counted once.
    pub journal_sectors: u64,
    /// Sectors of map pages.
    pub page_sectors: u64,
    /// Write units of padding.
    pub padding_units: u64,
    /// Map pages that said something else than what was found; 0, or something is wrong.
    pub map_mismatches: u64,
    /// Sectors whose latest version is lost, according to their map pages.
    pub uncorrectable_sectors: u64,
}

#[derive(Debug)]
enum Phase {
    Journal(Box<JournalRecovery>),
    LineHeaders,
    Pad,
    LineFooters,
    OobScan,
    MapPages,
    Done,
}

/// Jobs that are handed out at a time at most.
const OPS_PER_BATCH_MAX: usize = 1024;

/// Rebuilds a layer: hand out [`jobs`](Recovery::next_ops), report every one, and so on until there are
/// none; then [`finish`](Recovery::finish).
#[derive(Debug)]
pub struct Recovery {
    geometry: FlashGeometry,
    config: FtlConfig,
    observations: ScanObservations,
    usable_chunks: u32,
    journal_chunks: Vec<u32>,
    phase: Phase,
    journal: Option<Journal>,
    plan: CapacityPlan,
    snapshot: Option<Snapshot>,
    /// The recovery of the journal, while it is only looked at.
    journal_after_probe: Option<Box<JournalRecovery>>,
    /// Contents of the journal read so far.
    journal_contents: JournalContents,
    /// Lines as the journal knows them; without one, every chunk is a line.
    lines: Vec<LineEntry>,
    copies: NewestCopies,
    line_metas: LineMetaScan,
    /// Everything is read, because there is no snapshot or something of it is missing.
    full_scan: bool,
    /// The next chunk to pad, to read, or page to read.
    cursor: (usize, u32),
    /// Only what can be read without padding is being read; and how far each chunk was.
    readonly_probe: bool,
    probed_to: Vec<u32>,
    /// Chunks in the order in which they are read, and how far each was written before padding.
    scan_queue: Vec<(u32, u32)>,
    page_queue: Vec<(u32, u32)>,
    /// Pages whose latest version is lost.
    lost_pages: Vec<u32>,
    l2p_entries: Vec<u32>,
    poison: Vec<u32>,
    /// By operation of the batch, what it is for, until it completes.
    purposes: Vec<Option<RecoveryOpPurpose>>,
    stats: RecoveryStats,
    has_own_data: bool,
    foreign_evidence: (u64, u32),
    error: Option<RecoveryError>,
    /// Entries of the drive's own map, if it keeps one.
    device_l2p: Option<DeviceL2pImport>,
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
        shape: FlashGeometry,
        config: FtlConfig,
        found: Vec<ChunkReport>,
        counted: u32,
    ) -> Result<Recovery, RecoveryError> {
        Recovery::create(shape, config, found, counted, None)
    }

    /// Starts the recovery of an FTL whose drive keeps the map. `entries` are pairs of a logical
    /// sector and the flat physical sector of its latest version; `newest` is the largest sequence
    /// number of the map's entries, trims included. Only the journal is read, and open chunks are
    /// padded.
    ///
    /// # Errors
    ///
    /// As [`Ftl::new`](crate::Ftl::new). Invalid entries are reported by
    /// [`finish`](Recovery::finish).
    pub fn from_device_l2p(
        shape: FlashGeometry,
        config: FtlConfig,
        found: Vec<ChunkReport>,
        counted: u32,
        entries: impl IntoIterator<Item = (u32, u32)>,
        newest: u64,
    ) -> Result<Recovery, RecoveryError> {
        let given = DeviceL2pImport::new(entries.into_iter().collect(), newest);
        Recovery::create(shape, config, found, counted, Some(given))
    }

    fn create(
        shape: FlashGeometry,
        config: FtlConfig,
        found: Vec<ChunkReport>,
        counted: u32,
        given: Option<DeviceL2pImport>,
    ) -> Result<Recovery, RecoveryError> {
        let config = match given {
            Some(_) => config.for_device_l2p().map_err(NewFtlError::from)?,
            None => config,
        };
        let layout = CapacityPlan::new(&shape, &config, owned_chunks(&found), counted);
        let layout = layout.map_err(NewFtlError::from)?;
        let reserved = journal_chunks(&shape, &found, layout.journal.chunks);
        let chunks: Vec<(u32, JournalChunkReport)> = reserved
            .iter()
            .map(|&c| (c, journal_chunk_report(&shape, found[c as usize])))
            .collect();
        let recovery = |chunks: &[(u32, JournalChunkReport)]| {
            JournalRecovery::new(&shape, layout.journal_config(given.is_some()), chunks)
                .map_err(|e| NewFtlError::from(CapacityError::Journal(e)))
        };
        // Without what can only be read after padding nothing is padded.
        let as_is: Vec<(u32, JournalChunkReport)> =
            chunks.iter().map(|&(c, found)| (c, without_padding(&shape, found))).collect();
        let mut journal = recovery(&chunks)?;
        let mut next = None;
        if as_is != chunks {
            next = Some(Box::new(std::mem::replace(&mut journal, recovery(&as_is)?)));
        }
        Ok(Recovery {
            phase: Phase::Journal(Box::new(journal)),
            journal_after_probe: next,
            journal_contents: JournalContents::new(),
            journal: None,
            snapshot: None,
            lines: Vec::new(),
            copies: NewestCopies::default(),
            line_metas: LineMetaScan::default(),
            full_scan: false,
            cursor: (0, 0),
            readonly_probe: false,
            probed_to: vec![0; shape.total_chunks() as usize],
            scan_queue: Vec::new(),
            page_queue: Vec::new(),
            lost_pages: Vec::new(),
            l2p_entries: l2p_table(&layout),
            poison: Vec::new(),
            purposes: Vec::new(),
            stats: RecoveryStats::default(),
            has_own_data: false,
            foreign_evidence: (0, u32::MAX),
            error: None,
            device_l2p: given,
            lost: Vec::new(),
            geometry: shape,
            config,
            observations: ScanObservations { chunk_reports: found, ..ScanObservations::default() },
            usable_chunks: counted,
            journal_chunks: reserved,
            plan: layout,
        })
    }

    /// The next jobs, to be done in any order, but on each chunk in this one; empty when there are no
    /// more. Every job handed out before must have been reported.
    pub fn next_ops(&mut self) -> Vec<RecoveryOp> {
        let mut jobs = Vec::new();
        while jobs.is_empty() && self.error.is_none() {
            match self.phase {
                Phase::Journal(_) => self.journal_ops(&mut jobs),
                Phase::LineHeaders => self.header_ops(&mut jobs),
                Phase::Pad => self.pad_ops(&mut jobs),
                Phase::LineFooters => self.footer_ops(&mut jobs),
                Phase::OobScan => self.oob_phase_ops(&mut jobs),
                Phase::MapPages => self.page_ops(&mut jobs),
                Phase::Done => break,
            }
        }
        // Jobs are named by their place in the batch.
        self.purposes.clear();
        for (id, job) in jobs.iter_mut().enumerate() {
            job.id = id as u32;
            self.purposes.push(Some(job.purpose));
        }
        jobs
    }

    /// Takes the result of an operation that [`next_ops`](Recovery::next_ops) returned.
    ///
    /// # Panics
    /// If the operation is not outstanding, or the result is one of another kind of operation.
    pub fn complete(&mut self, id: u32, done: RecoveryOpResult<'_>) {
        let kind = self.purposes.get_mut(id as usize).and_then(Option::take);
        let kind = kind.unwrap_or_else(|| panic!("no recovery operation {id} is outstanding"));
        match (kind, done) {
            (RecoveryOpPurpose::Journal { op, .. }, RecoveryOpResult::Padded(status)) => {
                if let Phase::Journal(journal) = &mut self.phase {
                    journal.program_done(op, status);
                    self.stats.padding_units += 1;
                }
            }
            (
                RecoveryOpPurpose::Journal { op, first },
                RecoveryOpResult::Read { failed, data, .. },
            ) => {
                self.journal_read(op, first, failed, data);
            }
            (RecoveryOpPurpose::Pad { chunk, end }, RecoveryOpResult::Padded(status)) => {
                self.stats.padding_units += 1;
                self.on_padded(chunk, end, status);
            }
            (RecoveryOpPurpose::Oob { psn, count }, RecoveryOpResult::Read { failed, oob, .. }) => {
                self.stats.oob_sectors += u64::from(count);
                for i in 0..count.min(oob.len() as u32) {
                    let readable = failed >> i & 1 == 0;
                    let found = readable.then(|| Oob::decode(&oob[i as usize]));
                    self.import_sector(psn + i, found);
                }
            }
            (
                RecoveryOpPurpose::LineHeader { chunk },
                RecoveryOpResult::Read { failed, data, .. },
            ) => {
                self.stats.data_sectors += self.sectors_of(data);
                self.import_header(chunk, (failed == 0).then_some(data));
            }
            (
                RecoveryOpPurpose::LineFooter { candidate, unit_index: piece },
                RecoveryOpResult::Read { failed, data, .. },
            ) => {
                self.stats.data_sectors += self.sectors_of(data);
                self.import_footer_unit(candidate, piece, failed != 0, data);
            }
            (
                RecoveryOpPurpose::Check { candidate, member, psn },
                RecoveryOpResult::Read { failed, oob, .. },
            ) => {
                self.stats.oob_sectors += 1;
                let oob = oob.first().filter(|_| failed == 0).and_then(|o| Oob::decode(o));
                self.check_footer(candidate, member, psn, oob);
            }
            (
                RecoveryOpPurpose::Page { page: number },
                RecoveryOpResult::Read { failed, data, .. },
            ) => {
                self.stats.data_sectors += 1;
                self.stats.page_sectors += 1;
                // One that could not be read may have sent the others of its batch round again.
                if matches!(self.phase, Phase::MapPages) {
                    self.import_page(number, (failed == 0).then_some(data));
                }
            }
            (RecoveryOpPurpose::Pad { .. }, RecoveryOpResult::Read { .. })
            | (
                RecoveryOpPurpose::Oob { .. }
                | RecoveryOpPurpose::Page { .. }
                | RecoveryOpPurpose::LineHeader { .. }
                | RecoveryOpPurpose::LineFooter { .. }
                | RecoveryOpPurpose::Check { .. },
                RecoveryOpResult::Padded(_),
            ) => panic!("recovery operation {id} is reported as an operation of another kind"),
        }
    }

    pub(super) fn sectors_of(&self, data: &[u8]) -> u64 {
        (data.len() / self.geometry.sector_bytes.max(1) as usize) as u64
    }

    /// Returns the base sequence number: every unit with a smaller one is included in the map
    /// pages.
    pub(super) fn base_seq(&self) -> u64 {
        self.snapshot.as_ref().filter(|_| !self.full_scan).map_or(0, |s| s.base_seq)
    }

    /// Returns what has been read so far.
    pub fn stats(&self) -> RecoveryStats {
        self.stats
    }
}

/// A word per logical sector, for a map that is in memory.
fn l2p_table(layout: &CapacityPlan) -> Vec<u32> {
    let sectors = if layout.map_cache.frames > 0 { 0 } else { layout.logical };
    vec![0; sectors as usize]
}
