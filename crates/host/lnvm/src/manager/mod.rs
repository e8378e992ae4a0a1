//! [`MediaManager`]: a drive that is divided between targets, with partition table, chunk ownership
//! and health.
//!
//! Owns a queue pair for its own commands. It is driven by polls (ARCHITECTURE.md, R2):
//! [`poll`](Component::poll) writes the journal of the table, erases released chunks, and reads
//! cold chunks. Operations that wait for commands, such as creating and removing targets, take a
//! `progress`, which they call between polls.
//!
//! Targets obtain chunks by [`acquire`](MediaManager::acquire) and return them by
//! [`release`](MediaManager::release); neither is on the I/O path.

mod io;
mod partition;
mod registration;
mod step;
mod table_probe;

use std::collections::VecDeque;

use ftl::journal::{Journal, Lsn};
use nvme::{ChunkDescriptor, ChunkState, Geometry, HealthLog};
use time::Nanos;

use crate::ScrubRead;
use crate::{
    AcquireError, ChunkAllocator, ChunkAllocatorConfig, ChunkUse, DataTemperature, DriveHealth,
    Holdings, MediaManagerError, RATED_CYCLES, ReleaseError, RelocationReason, ScrubConfig,
    Scrubber, Table, TableWindow, TargetEntry, TargetId,
};
use io::ManagerIo;
use ocssd::vector::VectorQueue;

/// Configuration of a media manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaManagerConfig {
    /// Configuration of the chunk allocation.
    pub allocator: ChunkAllocatorConfig,
    /// Scrub of cold chunks; `None` disables it. If the rate is not 0, the partition table is
    /// rewritten as well: `cold_after` after it was opened, and every `repeat_after` from then on.
    pub scrub: Option<ScrubConfig>,
    /// Rated cycles of a chunk, which correspond to a wear index of 255. Drives do not report them.
    pub rated_cycles: u32,
    /// Seed of the random identifiers.
    pub seed: u64,
    /// Number of polls without a completion after which a drive counts as failed.
    pub poll_limit: u64,
}

impl Default for MediaManagerConfig {
    fn default() -> MediaManagerConfig {
        MediaManagerConfig {
            allocator: ChunkAllocatorConfig::default(),
            scrub: None,
            rated_cycles: RATED_CYCLES,
            seed: 1,
            poll_limit: 10_000_000,
        }
    }
}

/// A request to a target to relocate the data of one of its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelocationRequest {
    /// The chunk whose data is to be relocated.
    pub chunk: u32,
    /// Reason.
    pub reason: RelocationReason,
    /// Temperature to [`acquire`](MediaManager::acquire) the destination with.
    pub temperature: DataTemperature,
}

/// State of the table on the media.
#[derive(Debug)]
enum TableState {
    /// No table and no other data. `partial_chunks` remain of an interrupted registration.
    Blank { partial_chunks: Vec<u32> },
    /// A table that was closed cleanly. It was read without writes, and is read again before it is
    /// written.
    Closed,
    /// A table that can be written.
    Open(Box<Journal>),
}

/// Positions of the journal in flight.
#[derive(Debug, Default)]
struct RecordDurability {
    /// In order of position.
    in_flight: VecDeque<JournalPosition>,
    durable_records: u64,
}

/// A position of the journal in flight.
#[derive(Clone, Copy, Debug)]
struct JournalPosition {
    lsn: Lsn,
    /// Number of records that are durable once the position is.
    records: u64,
}

impl RecordDurability {
    /// Adds a position of the journal, with which `records` records become durable.
    fn add(&mut self, lsn: Lsn, records: u64) {
        self.in_flight.push_back(JournalPosition { lsn, records });
    }

    /// Removes the next position up to `durable`. Returns the number of durable records.
    fn advance(&mut self, durable: Lsn) -> Option<u64> {
        let reached = self.in_flight.pop_front_if(|position| position.lsn <= durable)?;
        self.durable_records = self.durable_records.max(reached.records);
        Some(self.durable_records)
    }

    /// Returns the number of durable records.
    fn durable_records(&self) -> u64 {
        self.durable_records
    }
}

/// The work of the scrub.
#[derive(Debug)]
struct ScrubProgress {
    /// The read in flight.
    read: Option<ScrubRead>,
    /// Time of the next rewrite of the table, if cold chunks are scrubbed.
    next_table_rewrite: Nanos,
}

/// The mark that the table is closed.
#[derive(Debug)]
struct CloseMark {
    /// Whether anything was written since the last mark.
    is_needed: bool,
    /// Whether the mark is being written; nothing may follow it.
    is_being_written: bool,
}

/// A drive that is divided between targets.
#[derive(Debug)]
pub struct MediaManager {
    /// Serial number of the drive, for messages.
    serial: String,
    geometry: Geometry,
    config: MediaManagerConfig,
    table_window: TableWindow,
    report: Vec<ChunkDescriptor>,
    flash: ManagerIo,
    table_state: TableState,
    allocator: ChunkAllocator,
    scrubber: Option<Scrubber>,
    scrub_progress: ScrubProgress,
    durability: RecordDurability,
    close_mark: CloseMark,
    failure: Option<MediaManagerError>,
    /// Whether chunks were acquired or released since the last poll.
    has_new_work: bool,
    now: Nanos,
}

impl MediaManager {
    #[expect(clippy::too_many_arguments, reason = "called in one place, with all there is")]
    fn assemble(
        drive: String,
        geometry: Geometry,
        config: MediaManagerConfig,
        reserve: TableWindow,
        report: Vec<ChunkDescriptor>,
        flash: ManagerIo,
        medium: TableState,
        pool: ChunkAllocator,
        now: Nanos,
    ) -> MediaManager {
        let reads = flash.sectors_max().min(geometry.ws_opt.max(1));
        let scrubber = config.scrub.map(|scrub| Scrubber::new(scrub, reads));
        let mut subsystem = MediaManager {
            serial: drive,
            geometry,
            config,
            table_window: reserve,
            report: Vec::new(),
            flash,
            close_mark: CloseMark {
                // It is open already because its mark was missing.
                is_needed: matches!(medium, TableState::Open(_)),
                is_being_written: false,
            },
            table_state: medium,
            allocator: pool,
            scrubber,
            scrub_progress: ScrubProgress {
                read: None,
                next_table_rewrite: now
                    + config.scrub.map_or(Nanos::ZERO, |scrub| scrub.cold_after),
            },
            durability: RecordDurability::default(),
            failure: None,
            has_new_work: true,
            now,
        };
        subsystem.import_report(report, now);
        subsystem
    }

    /// Reports the closed chunks to the scrubber.
    fn import_report(&mut self, report: Vec<ChunkDescriptor>, now: Nanos) {
        if let Some(scrubber) = &mut self.scrubber {
            for (chunk, d) in (0..).zip(&report) {
                let owned = self.allocator.table().chunks().get(chunk as usize);
                let owned = owned.is_some_and(|c| c.state == ChunkUse::Owned);
                let state = d.chunk_state().filter(|_| owned);
                let known = self.report.get(chunk as usize).and_then(|d| d.chunk_state());
                if state == Some(ChunkState::Closed) && known != Some(ChunkState::Closed) {
                    scrubber.on_chunk_closed(
                        chunk,
                        d.wp.get().min(self.geometry.sectors.into()) as u32,
                        now,
                    );
                } else if state != Some(ChunkState::Closed) {
                    scrubber.on_chunk_erased(chunk);
                }
            }
        }
        self.report = report;
    }

    /// Returns the serial number of the drive.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Returns the geometry of the drive.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns whether the drive has a partition table.
    pub fn is_registered(&self) -> bool {
        !matches!(self.table_state, TableState::Blank { .. })
    }

    /// Returns the chunks that the partition table uses, or would use.
    pub fn table_window(&self) -> &TableWindow {
        &self.table_window
    }

    /// Returns the partition table.
    pub fn table(&self) -> &Table {
        self.allocator.table()
    }

    /// Returns the chunk allocator.
    pub fn allocator(&self) -> &ChunkAllocator {
        &self.allocator
    }

    /// Returns the target with this name.
    ///
    /// # Errors
    /// [`MediaManagerError::UnknownTarget`], with the existing names.
    pub fn target(&self, name: &str) -> Result<&TargetEntry, MediaManagerError> {
        self.table().target_by_name(name).ok_or_else(|| {
            let known: Vec<&str> =
                self.table().targets().iter().map(|t| t.spec.name.as_str()).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            MediaManagerError::UnknownTarget {
                drive: self.serial.clone(),
                name: name.into(),
                known,
            }
        })
    }

    /// Returns the chunk counts of a target.
    pub fn holdings(&self, id: TargetId) -> Holdings {
        self.allocator.holdings(id)
    }

    /// Returns the journal, for its counters, if the table was opened for writing.
    pub fn journal(&self) -> Option<&Journal> {
        match &self.table_state {
            TableState::Open(journal) => Some(journal),
            _ => None,
        }
    }

    /// Returns the error after which no changes are possible, if any.
    pub fn failure(&self) -> Option<&MediaManagerError> {
        self.failure.as_ref()
    }

    /// Opens a target and returns its id. An open target cannot be removed.
    /// [`ChunkAllocator::acquired_by`] lists its acquired chunks; [`Table::is_owned_by`] includes
    /// bad ones.
    ///
    /// # Errors
    /// [`MediaManagerError::UnknownTarget`].
    pub fn open_target(&mut self, name: &str) -> Result<TargetId, MediaManagerError> {
        let id = self.target(name)?.id;
        self.allocator.open(id);
        Ok(id)
    }

    /// Closes a target once.
    pub fn close_target(&mut self, id: TargetId) {
        self.allocator.close(id);
    }

    /// Acquires a chunk of parallel unit `pu` for an open, sharing target.
    ///
    /// # Errors
    /// [`AcquireError`]. A [temporary](AcquireError::is_temporary) error permits a retry after a
    /// poll, or at the time that it names.
    pub fn acquire(
        &mut self,
        now: Nanos,
        target: TargetId,
        pu: u32,
        heat: DataTemperature,
    ) -> Result<u32, AcquireError> {
        if !matches!(self.table_state, TableState::Open(_)) {
            return Err(AcquireError::Table("it was opened read-only".into()));
        }
        if let Some(error) = &self.failure {
            return Err(AcquireError::Table(error.to_string()));
        }
        let answer = self.allocator.acquire(now, target, pu, heat);
        self.has_new_work |= matches!(answer, Err(AcquireError::Pending { .. }));
        answer
    }

    /// Releases a chunk; see [`ChunkAllocator::release`].
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub fn release(
        &mut self,
        target: TargetId,
        chunk: u32,
        clean: bool,
    ) -> Result<(), ReleaseError> {
        self.allocator.release(target, chunk, clean)?;
        self.has_new_work = true;
        self.on_chunk_erased(chunk);
        Ok(())
    }

    /// Retires a chunk that its owner found to be bad.
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub fn retire(&mut self, target: TargetId, chunk: u32) -> Result<(), ReleaseError> {
        self.allocator.retire(target, chunk)?;
        self.has_new_work = true;
        self.on_chunk_erased(chunk);
        Ok(())
    }

    /// Reports that a target has closed one of its chunks, with `sectors` readable sectors. The
    /// scrubber includes the chunk from now on.
    pub fn on_chunk_closed(&mut self, now: Nanos, target: TargetId, chunk: u32, sectors: u32) {
        if let Some(scrubber) =
            self.scrubber.as_mut().filter(|_| self.allocator.table().is_owned_by(target, chunk))
        {
            scrubber.on_chunk_closed(chunk, sectors.min(self.geometry.sectors), now);
        }
    }

    /// Reports that a target has erased one of its chunks, or rewrites it.
    pub fn on_chunk_erased(&mut self, chunk: u32) {
        if let Some(scrubber) = &mut self.scrubber {
            scrubber.on_chunk_erased(chunk);
        }
    }

    /// Reports that a chunk is hard to read, found by a target or by a chunk notification of the
    /// drive.
    pub fn report_error(&mut self, chunk: u32, reason: RelocationReason) {
        if let Some(scrubber) = &mut self.scrubber {
            scrubber.report_error(chunk, reason);
        }
    }

    /// Returns the relocation requests for a target. A request ends when the chunk is released,
    /// retired or [erased](MediaManager::on_chunk_erased), or by
    /// [`dismiss`](MediaManager::dismiss).
    pub fn recommendations(
        &self,
        target: TargetId,
    ) -> impl Iterator<Item = RelocationRequest> + '_ {
        let all = self.scrubber.iter().flat_map(Scrubber::recommendations);
        all.filter(move |(chunk, _)| self.table().is_owned_by(target, *chunk)).map(
            |(chunk, reason)| {
                let cold = matches!(reason, RelocationReason::ColdOnLowWear { .. });
                RelocationRequest {
                    chunk,
                    reason,
                    temperature: if cold { DataTemperature::Cold } else { DataTemperature::Hot },
                }
            },
        )
    }

    /// Dismisses a relocation request that the target does not follow.
    pub fn dismiss(&mut self, chunk: u32) {
        if let Some(scrubber) = &mut self.scrubber {
            scrubber.dismiss(chunk);
        }
    }

    /// Returns the scrub configuration, if cold chunks are scrubbed.
    pub fn scrub_config(&self) -> Option<ScrubConfig> {
        self.config.scrub
    }

    /// Returns the scrubber, for its counters.
    pub fn scrubber(&self) -> Option<&Scrubber> {
        self.scrubber.as_ref()
    }

    /// Imports a newer report of all chunks: wear, chunks that became bad, chunks closed or erased
    /// meanwhile.
    ///
    /// # Errors
    /// [`MediaManagerError::TableDamaged`] for a report with another number of chunks.
    pub fn refresh(
        &mut self,
        now: Nanos,
        report: &[ChunkDescriptor],
    ) -> Result<(), MediaManagerError> {
        self.allocator.refresh(report).map_err(|source| self.damaged_error(source))?;
        self.import_report(report.to_vec(), now);
        Ok(())
    }

    /// Returns the health of the drive; `log` is its health log, if it was read.
    pub fn health(&self, log: Option<&HealthLog>) -> DriveHealth {
        DriveHealth::new(&self.allocator, &self.geometry, log)
    }

    /// Returns whether no operation is in flight or pending.
    pub fn is_idle(&self) -> bool {
        self.is_quiescent() && self.allocator.pending_record_count() == 0
    }

    /// Returns whether no operation is in flight; records that are not awaited may still be in
    /// memory.
    fn is_quiescent(&self) -> bool {
        let journal = match &self.table_state {
            TableState::Open(journal) => journal.is_idle(),
            _ => true,
        };
        self.flash.is_idle() && journal
    }

    /// Returns the queue; no command may be outstanding. [`close`](MediaManager::close) must
    /// precede, except for a simulated power cut.
    pub fn into_queue(self) -> VectorQueue {
        self.flash.into_queue()
    }

    /// Returns the number of durable records.
    fn durable_records(&self) -> u64 {
        self.durability.durable_records()
    }

    fn damaged_error(&self, source: crate::TableError) -> MediaManagerError {
        let chunks = registration::chunk_list(&self.table_window.chunks);
        MediaManagerError::TableDamaged { drive: self.serial.clone(), chunks, source }
    }
}
