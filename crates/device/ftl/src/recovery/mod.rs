//! [`Recovery`]: rebuilds the FTL from the media after a power loss or a clean shutdown [LightNVM17
//! §4.2.2].
//!
//! # Steps
//!
//! 1. The **journal**: the last snapshot, and the lines opened since. It is read first without
//!    padding: a journal of another owner or configuration is refused unchanged.
//! 2. Open chunks are **padded**, so that the paired pages of everything in them are programmed.
//! 3. Lines that may contain units sequenced at or after the snapshot's base are scanned: full ones
//!    by their **footers**, others by their out-of-band bytes. The latest version of a sector is the
//!    one in the unit with the largest sequence number; within a unit, the last.
//! 4. The **map pages**: a page's entry is valid if no version of the sector was found in a unit
//!    sequenced at or after the page's `base_seq`.
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
//! # Sectors with names
//!
//! There are no map pages: the out-of-band bytes of all written sectors are read (see [`named`]).
//!
//! A recovery can itself be cut: it writes only padding, at write pointers.

mod build;
mod device_l2p_import;
mod error;
mod import;
mod journal;
mod line_metadata;
mod lines;
mod lost;
mod named;
mod newest_copies;
mod oob_scan;
mod op;
mod ownership;
mod pages;
mod recovered_map;
#[cfg(test)]
mod tests;

use nvme::{ChunkId, Status};
use serde::{Deserialize, Serialize};

pub(crate) use build::RecoveredState;
pub use device_l2p_import::DeviceL2pEntry;
pub use error::RecoveryError;
use journal::{JournalReadDone, JournalReader, journal_chunk_report};
use op::RecoveryOpPurpose;
pub use op::{RecoveryOp, RecoveryOpKind, RecoveryOpResult};

use crate::check::Violation;
use crate::durability::journal::{FoundJournalChunk, Journal};
use crate::durability::snapshot::Snapshot;
use crate::env::Env;
use crate::ftl::{journal_chunks, owned_chunks};
use crate::geometry::MapPages;
use crate::ids::{ToIndex, WriteSeq};
use crate::{CapacityError, CapacityPlan, FlashGeometry, FtlConfig, NewFtlError, Oob};
use device_l2p_import::DeviceL2pImport;
use line_metadata::{FooterUnit, LineMetaScan};
use lines::RecoveredLines;
pub(crate) use lost::ScanObservations;
pub(crate) use newest_copies::{CopyRef, NewestCopies};
use oob_scan::ChunkScan;
use ownership::OwnershipEvidence;
use pages::PageLoader;
pub(crate) use pages::PageLocation;
use recovered_map::RecoveredMap;

/// State of a chunk at power-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryStats {
    /// Whether the recovery began with a snapshot.
    pub from_checkpoint: bool,
    /// Lines that were read: those in which a unit may be newer than the checkpoint.
    pub lines_read: u64,
    /// Lines whose footer was read.
    pub lines_by_metadata: u64,
    /// Lines whose out-of-band bytes were read.
    pub lines_by_oob: u64,
    /// Without a snapshot, lines that were found by their headers.
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
    /// Entries of map pages that contradict the copies found; not 0 only after a defect.
    pub map_mismatches: u64,
    /// Sectors whose latest version is lost, according to their map pages.
    pub uncorrectable_sectors: u64,
}

#[derive(Debug)]
enum Phase {
    Journal(Box<JournalReader>),
    LineHeaders,
    Pad,
    LineFooters,
    OobScan,
    MapPages,
    Done,
}

/// Maximum number of operations per batch.
const OPS_PER_BATCH_MAX: usize = 1024;

/// The state from which the scan begins: the snapshot, unless everything is scanned.
#[derive(Debug, Default)]
struct Baseline {
    snapshot: Option<Snapshot>,
    /// Whether all of the media is read, because the snapshot or a part of it is missing.
    full_scan: bool,
    /// The state that the owner keeps in the journal.
    owner_state: Vec<u8>,
    /// Whether every unit is read, with a snapshot too: no map page includes any.
    has_names: bool,
}

impl Baseline {
    /// The snapshot, if the scan begins with it.
    fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref().filter(|_| !self.full_scan)
    }

    /// Returns the base sequence number: every unit with a smaller one is included in the map
    /// pages.
    fn base_seq(&self) -> WriteSeq {
        let with_pages = self.snapshot().filter(|_| !self.has_names);
        with_pages.map_or(WriteSeq(0), |s| s.base_seq)
    }
}

/// Rebuilds an FTL: execute the operations of [`next_ops`](Recovery::next_ops), report each one, and
/// repeat until there are none; then call [`finish`](Recovery::finish).
///
/// A composition of parts: the phases run the parts in turn, and pass the results of one to the others.
#[derive(Debug)]
pub struct Recovery {
    env: Env,
    phase: Phase,
    /// The journal, when it has been read.
    journal: Option<Journal>,
    baseline: Baseline,
    lines: RecoveredLines,
    scan: ChunkScan,
    line_metas: LineMetaScan,
    pages: PageLoader,
    map: RecoveredMap,
    observations: ScanObservations,
    evidence: OwnershipEvidence,
    /// Entries of the drive's map, if it keeps one.
    device_l2p: Option<DeviceL2pImport>,
    /// By operation of the batch, its purpose, until it completes.
    purposes: Vec<Option<RecoveryOpPurpose>>,
    stats: RecoveryStats,
    error: Option<RecoveryError>,
}

impl Recovery {
    /// Starts the recovery of an FTL on the chunks of `found`, which covers all of the flash.
    /// `counted` of its chunks count towards capacity: all but those that were bad when the FTL was
    /// created, because the capacity must not change. A snapshot overrides this number.
    ///
    /// # Errors
    ///
    /// As [`Ftl::new`](crate::Ftl::new).
    pub fn new(
        shape: FlashGeometry,
        config: FtlConfig,
        found: Vec<ChunkReport>,
        counted: u32,
    ) -> Result<Recovery, RecoveryError> {
        Recovery::create(shape, config, found, counted, None)
    }

    /// Starts the recovery of an FTL whose drive keeps the map. `entries` name the flat physical
    /// sectors of the latest versions of logical sectors; `newest` is the largest sequence number of
    /// the map's entries, trims included. Only the journal is read, and open chunks are padded.
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
        entries: impl IntoIterator<Item = DeviceL2pEntry>,
        newest: WriteSeq,
    ) -> Result<Recovery, RecoveryError> {
        let given = DeviceL2pImport::new(entries.into_iter().collect(), newest);
        Recovery::create(shape, config, found, counted, Some(given))
    }

    fn create(
        geometry: FlashGeometry,
        config: FtlConfig,
        found: Vec<ChunkReport>,
        counted: u32,
        given: Option<DeviceL2pImport>,
    ) -> Result<Recovery, RecoveryError> {
        let config = match given {
            Some(_) => config.for_device_l2p().map_err(NewFtlError::from)?,
            None => config,
        };
        let plan = CapacityPlan::new(&geometry, &config, owned_chunks(&found), counted);
        let plan = plan.map_err(NewFtlError::from)?;
        let env = Env { geometry, pages: MapPages::new(&geometry), config, plan };
        let reserved = journal_chunks(&geometry, &found, plan.journal.chunks);
        let report = |chunk: &ChunkId| FoundJournalChunk {
            chunk: *chunk,
            report: journal_chunk_report(&geometry, found[chunk.index()]),
        };
        let chunks: Vec<FoundJournalChunk> = reserved.iter().map(report).collect();
        let reader = JournalReader::new(&geometry, plan.journal_config(given.is_some()), &chunks)
            .map_err(|e| NewFtlError::from(CapacityError::Journal(e)))?;
        Ok(Recovery {
            phase: Phase::Journal(Box::new(reader)),
            journal: None,
            baseline: Baseline {
                owner_state: vec![0; env.config.owner_bytes.index()],
                has_names: env.config.addressing.is_named(),
                ..Baseline::default()
            },
            lines: RecoveredLines::new(reserved),
            scan: ChunkScan::new(geometry.total_chunks()),
            line_metas: LineMetaScan::default(),
            pages: PageLoader::default(),
            map: RecoveredMap::new(&env),
            observations: ScanObservations::new(found),
            evidence: OwnershipEvidence::none(),
            device_l2p: given,
            purposes: Vec::new(),
            stats: RecoveryStats::default(),
            error: None,
            env,
        })
    }

    /// Returns the next operations; none if the recovery is complete. Operations on the same chunk
    /// must be executed in this order, others in any order. All earlier operations must have been
    /// reported.
    pub fn next_ops(&mut self) -> Vec<RecoveryOp> {
        let mut ops = Vec::new();
        while ops.is_empty() && self.error.is_none() {
            match self.phase {
                Phase::Journal(_) => self.journal_ops(&mut ops),
                Phase::LineHeaders => self.header_ops(&mut ops),
                Phase::Pad => self.pad_ops(&mut ops),
                Phase::LineFooters => self.footer_ops(&mut ops),
                Phase::OobScan if self.device_l2p.is_some() => self.device_l2p_ops(&mut ops),
                Phase::OobScan => self.oob_ops(&mut ops),
                Phase::MapPages => self.page_ops(&mut ops),
                Phase::Done => break,
            }
        }
        // Operations are identified by their index in the batch.
        self.purposes.clear();
        for (id, op) in (0..).zip(&mut ops) {
            op.id = id;
            self.purposes.push(Some(op.purpose));
        }
        ops
    }

    fn header_ops(&mut self, ops: &mut Vec<RecoveryOp>) {
        self.line_metas.header_ops(&self.env, &self.observations, &self.lines, ops);
        if ops.is_empty() {
            let found = self.line_metas.make_lines(&self.env, &self.observations, &mut self.lines);
            self.stats.lines_found = found as u64;
            self.queue_line_scans();
            self.begin_footers();
        }
    }

    fn begin_footers(&mut self) {
        (self.phase, self.line_metas) = (Phase::LineFooters, LineMetaScan::default());
    }

    /// Pads chunks that were being written.
    fn pad_ops(&mut self, ops: &mut Vec<RecoveryOp>) {
        self.scan.pad_ops(&self.env.geometry, &self.observations.chunk_reports, ops);
        if ops.is_empty() {
            if self.baseline.full_scan {
                self.phase = Phase::OobScan;
            } else {
                self.begin_footers();
            }
        }
    }

    /// Adds the reads of footers, which replace out-of-band bytes.
    fn footer_ops(&mut self, ops: &mut Vec<RecoveryOp>) {
        let base = self.baseline.base_seq();
        if self.device_l2p.is_none() {
            let (env, seen) = (&self.env, &self.observations);
            self.line_metas.footer_ops(env, seen, &mut self.lines, base, ops);
        }
        if ops.is_empty() {
            let mut is_known = vec![false; self.env.geometry.total_chunks().index()];
            let mut by_metadata = 0;
            for line in self.lines.newer_than(base).filter(|line| line.has_footer) {
                line.chunks.iter().for_each(|c| is_known[c.index()] = true);
                by_metadata += 1;
            }
            self.scan.remove(&is_known);
            self.stats.lines_by_metadata = by_metadata;
            self.stats.lines_by_oob = self.stats.lines_read.saturating_sub(by_metadata);
            self.phase = Phase::OobScan;
            self.scan.rewind();
        }
    }

    /// Adds the reads of out-of-band bytes of the lines without footers.
    fn oob_ops(&mut self, ops: &mut Vec<RecoveryOp>) {
        self.scan.oob_ops(&self.env.geometry, &self.observations.chunk_reports, ops);
        if ops.is_empty() && !self.refuse_foreign() && !self.end_probe() {
            let snapshot = self.baseline.snapshot();
            self.pages.find(&self.env, snapshot, self.map.copies(), &self.observations);
            let is_cached = self.env.plan.map_cache.frames > 0;
            if !is_cached && self.pages.has_lost() {
                return self.restart_full_scan();
            }
            // With a cached map, the FTL reads pages when it needs them.
            self.phase = if is_cached { Phase::Done } else { Phase::MapPages };
        }
    }

    /// Adds the reads of sectors that may be lost: first those readable without padding, then, when
    /// all chunks are padded, the rest.
    fn device_l2p_ops(&mut self, ops: &mut Vec<RecoveryOp>) {
        if self.baseline.full_scan {
            self.scan.oob_ops(&self.env.geometry, &self.observations.chunk_reports, ops);
        } else if let Some(given) = &mut self.device_l2p {
            given.read_ops(&self.env, &self.observations, &self.map, ops);
        }
        if ops.is_empty() {
            if self.baseline.full_scan && self.refuse_foreign() || self.end_probe() {
                return;
            }
            self.phase = Phase::Done;
        }
    }

    fn page_ops(&mut self, ops: &mut Vec<RecoveryOp>) {
        self.pages.read_ops(ops);
        if ops.is_empty() {
            self.phase = Phase::Done;
        }
    }

    /// Records the error if no sector that was read belongs to an FTL. Returns whether there is an
    /// error.
    fn refuse_foreign(&mut self) -> bool {
        if let Err(error) = self.evidence.verify() {
            self.error = Some(error);
        }
        self.error.is_some()
    }

    /// Ends the probe. Returns whether units that need padding are to be read next.
    fn end_probe(&mut self) -> bool {
        let was_probe = self.scan.end_probe();
        if was_probe {
            self.phase = Phase::Pad;
        }
        was_probe
    }

    /// Takes the result of an operation that [`next_ops`](Recovery::next_ops) returned.
    ///
    /// # Panics
    /// If the operation is not outstanding, or the result is one of another kind of operation.
    pub fn complete(&mut self, id: u32, done: RecoveryOpResult<'_>) {
        let purpose = self.purposes.get_mut(id.index()).and_then(Option::take);
        let purpose =
            purpose.unwrap_or_else(|| panic!("no recovery operation {id} is outstanding"));
        match done {
            RecoveryOpResult::Padded(status) => self.pad_done(id, purpose, status),
            RecoveryOpResult::Read { failed, oob, data } => {
                self.read_done(id, purpose, failed, oob, data);
            }
        }
    }

    fn pad_done(&mut self, id: u32, purpose: RecoveryOpPurpose, status: Status) {
        match purpose {
            RecoveryOpPurpose::Journal { op, .. } => self.journal_reader().program_done(op, status),
            RecoveryOpPurpose::Pad { chunk, end } => {
                let ok = status.is_success();
                self.observations.on_padded(&self.env.geometry, chunk, end, ok);
            }
            RecoveryOpPurpose::Oob { .. }
            | RecoveryOpPurpose::Page { .. }
            | RecoveryOpPurpose::LineHeader { .. }
            | RecoveryOpPurpose::LineFooter { .. }
            | RecoveryOpPurpose::Check { .. } => of_another_kind(id),
        }
        self.stats.padding_units += 1;
    }

    fn read_done(
        &mut self,
        id: u32,
        purpose: RecoveryOpPurpose,
        failed: u64,
        oob: &[[u8; Oob::BYTES]],
        data: &[u8],
    ) {
        let geometry = self.env.geometry;
        let sectors = (data.len() / geometry.sector_bytes.max(1).index()) as u64;
        let readable = (failed == 0).then_some(data);
        match purpose {
            RecoveryOpPurpose::Journal { op, first } => {
                let mut stats = self.stats;
                let read = JournalReadDone { op, first, failed, data };
                self.journal_reader().read_done(geometry, read, &mut stats);
                self.stats = stats;
            }
            RecoveryOpPurpose::Oob { phys, count } => {
                self.stats.oob_sectors += u64::from(count);
                for (i, (phys, oob)) in phys.run(count).zip(oob).enumerate() {
                    let is_readable = failed >> i & 1 == 0;
                    if self.baseline.has_names {
                        self.import_named_sector(phys, is_readable.then_some(oob));
                        continue;
                    }
                    self.import_sector(phys, is_readable.then(|| Oob::decode(oob)));
                }
            }
            RecoveryOpPurpose::LineHeader { chunk } => {
                self.stats.data_sectors += sectors;
                self.line_metas.import_header(&self.env, chunk, readable);
            }
            RecoveryOpPurpose::LineFooter { candidate, unit_index } => {
                self.stats.data_sectors += sectors;
                let unit = FooterUnit { candidate, unit_index, data: readable };
                let (env, lines, checked) = (&self.env, &self.lines, self.baseline.full_scan);
                let found = self.line_metas.import_footer_unit(env, lines, unit, checked);
                self.import_footer(found);
            }
            RecoveryOpPurpose::Check { candidate, member, phys } => {
                self.stats.oob_sectors += 1;
                let oob = oob.first().filter(|_| failed == 0).and_then(|o| Oob::decode(o));
                let env = &self.env;
                let found = self.line_metas.check_footer(env, candidate, member, phys, oob);
                self.import_footer(found);
            }
            RecoveryOpPurpose::Page { page } => {
                self.stats.data_sectors += 1;
                self.stats.page_sectors += 1;
                // An unreadable page may have repeated the reads of the others in its batch.
                if matches!(self.phase, Phase::MapPages) {
                    self.import_page(page, readable);
                }
            }
            RecoveryOpPurpose::Pad { .. } => of_another_kind(id),
        }
    }

    /// The reader of the journal, for which an operation is outstanding.
    fn journal_reader(&mut self) -> &mut JournalReader {
        match &mut self.phase {
            Phase::Journal(reader) => reader,
            phase => panic!("an operation of the journal is outstanding in {phase:?}"),
        }
    }

    /// Returns what has been read so far.
    pub fn stats(&self) -> RecoveryStats {
        self.stats
    }

    /// Checks the parts, between two batches of operations.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn check_invariants(&self) -> Result<(), Violation> {
        self.lines.check_invariants()?;
        self.scan.check_invariants(&self.observations.chunk_reports)?;
        self.pages.check_invariants()
    }
}

fn of_another_kind(id: u32) -> ! {
    panic!("recovery operation {id} is reported as an operation of another kind")
}
