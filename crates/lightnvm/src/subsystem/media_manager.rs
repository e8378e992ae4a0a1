//! [`MediaManager`]: a drive whose flash is shared out: partition table, chunk ownership, health.
//!
//! Owns a queue pair for its own commands. Poll-driven (rule R2): [`poll`](Component::poll) writes the
//! table's journal, erases what targets gave back, and reads cold chunks. What takes commands to answer
//! (making and removing targets) takes a `pump` instead, called between two looks at the queue.
//!
//! Targets ask for chunks with [`acquire`](MediaManager::acquire) and give them back with
//! [`release`](MediaManager::release); neither is on the path of an I/O.

use std::collections::VecDeque;

use clock::Nanos;
use ftl::journal::{Journal, Lsn};
use nvme::{ChunkDescriptor, ChunkState, Geometry, HealthLog};

use super::manager_io::ManagerIo;
use super::scrub::ScrubRead;
use super::{
    AcquireError, ChunkAllocator, ChunkAllocatorConfig, ChunkUse, DataTemperature, DriveHealth,
    Holdings, MediaManagerError, RATED_CYCLES, ReleaseError, RelocationReason, ScrubConfig,
    Scrubber, Table, TableWindow, Target, TargetId,
};
use crate::vector::VectorQueue;

/// The choices of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaManagerConfig {
    /// How chunks are handed out.
    pub allocator: ChunkAllocatorConfig,
    /// How cold chunks are looked after, and, if the rate is not 0, how often the partition table is written
    /// anew: when it has been open for `cold_after`, and every `repeat_after` from then on. `None` for not
    /// at all.
    pub scrub: Option<ScrubConfig>,
    /// Cycles that a chunk is good for: what a wear index of 255 stands for. A drive does not tell.
    pub rated_cycles: u32,
    /// What the random identifiers derive from.
    pub seed: u64,
    /// Calls of the pump without any answer after which a drive counts as dead.
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

/// What a target should do with a chunk of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelocationRequest {
    /// The chunk whose data should go elsewhere.
    pub chunk: u32,
    /// Why.
    pub reason: RelocationReason,
    /// Which chunk to [`acquire`](MediaManager::acquire) for it.
    pub temperature: DataTemperature,
}

/// How the table is on the media.
#[derive(Debug)]
pub(super) enum TableState {
    /// There is none, and nothing else either. `unfinished` chunks are left of a registration that
    /// was cut.
    Blank { partial_chunks: Vec<u32> },
    /// There is one that was closed in order. It was read without writing anything, and is read
    /// again before it is written.
    Closed,
    /// It can be written.
    Open(Box<Journal>),
}

/// A drive whose flash is shared out.
#[derive(Debug)]
pub struct MediaManager {
    /// The drive's serial number, for messages.
    pub(super) serial: String,
    pub(super) geometry: Geometry,
    pub(super) config: MediaManagerConfig,
    pub(super) table_window: TableWindow,
    pub(super) report: Vec<ChunkDescriptor>,
    pub(super) flash: ManagerIo,
    pub(super) table_state: TableState,
    pub(super) allocator: ChunkAllocator,
    pub(super) scrubber: Option<Scrubber>,
    pub(super) scrub_read: Option<ScrubRead>,
    /// When the table is written anew, if cold chunks are looked after.
    pub(super) next_table_rewrite: Nanos,
    /// Positions in the journal, and how many records are durable when it has got there.
    pub(super) in_flight_records: VecDeque<(Lsn, u64)>,
    pub(super) durable_records: u64,
    /// Whether something was written since the last mark that says that the table is closed.
    pub(super) needs_close_mark: bool,
    /// Whether the mark is being written, which nothing may follow.
    pub(super) writing_mark: bool,
    pub(super) failure: Option<MediaManagerError>,
    /// Whether something was asked or given back since the last poll.
    pub(super) has_new_work: bool,
    pub(super) now: Nanos,
}

impl MediaManager {
    #[expect(clippy::too_many_arguments, reason = "called in one place, with all there is")]
    pub(super) fn assemble(
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
            // It is open already because its mark was missing.
            needs_close_mark: matches!(medium, TableState::Open(_)),
            table_state: medium,
            allocator: pool,
            scrubber,
            scrub_read: None,
            next_table_rewrite: now + config.scrub.map_or(Nanos::ZERO, |scrub| scrub.cold_after),
            in_flight_records: VecDeque::new(),
            durable_records: 0,
            writing_mark: false,
            failure: None,
            has_new_work: true,
            now,
        };
        subsystem.import_report(report, now);
        subsystem
    }

    /// Lets the scrubber know which chunks are closed.
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

    /// The drive's serial number.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Its shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether there is a partition table on the drive.
    pub fn is_registered(&self) -> bool {
        !matches!(self.table_state, TableState::Blank { .. })
    }

    /// Where the partition table is, or would be.
    pub fn table_window(&self) -> &TableWindow {
        &self.table_window
    }

    /// The partition table.
    pub fn table(&self) -> &Table {
        self.allocator.table()
    }

    /// The chunks, and who has them.
    pub fn allocator(&self) -> &ChunkAllocator {
        &self.allocator
    }

    /// The target of this name.
    ///
    /// # Errors
    /// [`MediaManagerError::UnknownTarget`], with the names that there are.
    pub fn target(&self, name: &str) -> Result<&Target, MediaManagerError> {
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

    /// What a target has.
    pub fn holdings(&self, id: TargetId) -> Holdings {
        self.allocator.holdings(id)
    }

    /// The journal, for its counters, if the table has been opened for writing.
    pub fn journal(&self) -> Option<&Journal> {
        match &self.table_state {
            TableState::Open(journal) => Some(journal),
            _ => None,
        }
    }

    /// Why nothing can be changed any more, if so.
    pub fn failure(&self) -> Option<&MediaManagerError> {
        self.failure.as_ref()
    }

    /// Opens a target: returns its number. As long as it is open it cannot be removed. The chunks
    /// that it holds are those of [`BufferPool::acquired_by`]; [`Table::is_owned_by`] tells them apart, bad ones
    /// included.
    ///
    /// # Errors
    /// [`MediaManagerError::UnknownTarget`].
    pub fn open_target(&mut self, name: &str) -> Result<TargetId, MediaManagerError> {
        let id = self.target(name)?.id;
        self.allocator.open(id);
        Ok(id)
    }

    /// Closes a target, as often as it was opened.
    pub fn close_target(&mut self, id: TargetId) {
        self.allocator.close(id);
    }

    /// Hands a chunk of parallel unit `pu` to a sharing target that is open.
    ///
    /// # Errors
    /// [`AcquireError`]; what [is temporary](AcquireError::is_temporary) can be asked again after a poll, or at
    /// the instant it names.
    pub fn acquire(
        &mut self,
        now: Nanos,
        target: TargetId,
        pu: u32,
        heat: DataTemperature,
    ) -> Result<u32, AcquireError> {
        if !matches!(self.table_state, TableState::Open(_)) {
            return Err(AcquireError::Table("it was opened to be looked at".into()));
        }
        if let Some(error) = &self.failure {
            return Err(AcquireError::Table(error.to_string()));
        }
        let answer = self.allocator.acquire(now, target, pu, heat);
        self.has_new_work |= matches!(answer, Err(AcquireError::Pending { .. }));
        answer
    }

    /// Takes a chunk back; see [`Pool::release`].
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

    /// A target has found a chunk of its own to be bad.
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub fn retire(&mut self, target: TargetId, chunk: u32) -> Result<(), ReleaseError> {
        self.allocator.retire(target, chunk)?;
        self.has_new_work = true;
        self.on_chunk_erased(chunk);
        Ok(())
    }

    /// A target writes a chunk of its own no more: `sectors` of it can be read. The scrubber looks
    /// after it from now on.
    pub fn on_chunk_closed(&mut self, now: Nanos, target: TargetId, chunk: u32, sectors: u32) {
        if let Some(scrubber) =
            self.scrubber.as_mut().filter(|_| self.allocator.table().is_owned_by(target, chunk))
        {
            scrubber.on_chunk_closed(chunk, sectors.min(self.geometry.sectors), now);
        }
    }

    /// A target has erased a chunk of its own, or is writing it anew.
    pub fn on_chunk_erased(&mut self, chunk: u32) {
        if let Some(scrubber) = &mut self.scrubber {
            scrubber.on_chunk_erased(chunk);
        }
    }

    /// Somebody has found a chunk hard to read: a target, or the drive's chunk notifications.
    pub fn report_error(&mut self, chunk: u32, reason: RelocationReason) {
        if let Some(scrubber) = &mut self.scrubber {
            scrubber.report_error(chunk, reason);
        }
    }

    /// What a target should move. Advice ends when the chunk is released, retired or
    /// [emptied](MediaManager::on_chunk_erased), or by [`dismiss`](MediaManager::dismiss).
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

    /// A target does not follow an advice.
    pub fn dismiss(&mut self, chunk: u32) {
        if let Some(scrubber) = &mut self.scrubber {
            scrubber.dismiss(chunk);
        }
    }

    /// How cold chunks are looked after, if they are.
    pub fn scrub_config(&self) -> Option<ScrubConfig> {
        self.config.scrub
    }

    /// The scrubber, for its counters.
    pub fn scrubber(&self) -> Option<&Scrubber> {
        self.scrubber.as_ref()
    }

    /// Takes a newer report of all chunks: wear, chunks gone bad, chunks closed or erased meanwhile.
    ///
    /// # Errors
    /// [`MediaManagerError::TableDamaged`] for a report of another number of chunks.
    pub fn refresh(
        &mut self,
        now: Nanos,
        report: &[ChunkDescriptor],
    ) -> Result<(), MediaManagerError> {
        self.allocator.refresh(report).map_err(|source| self.damaged_error(source))?;
        self.import_report(report.to_vec(), now);
        Ok(())
    }

    /// How the drive is; `log` is its health log, if it was read.
    pub fn health(&self, log: Option<&HealthLog>) -> DriveHealth {
        DriveHealth::new(&self.allocator, &self.geometry, log)
    }

    /// Whether nothing is under way or waits to be.
    pub fn is_idle(&self) -> bool {
        self.is_quiescent() && self.allocator.pending_record_count() == 0
    }

    /// Whether nothing is under way; records that nobody waits for may still be in memory.
    pub(super) fn is_quiescent(&self) -> bool {
        let journal = match &self.table_state {
            TableState::Open(journal) => journal.is_idle(),
            _ => true,
        };
        self.flash.is_idle() && journal
    }

    /// Gives the queue up; nothing may be outstanding. [`close`](MediaManager::close) comes first
    /// unless power is to be cut.
    pub fn into_queue(self) -> VectorQueue {
        self.flash.into_queue()
    }

    /// How many records are durable.
    pub(super) fn durable_records(&self) -> u64 {
        self.durable_records
    }

    pub(super) fn damaged_error(&self, source: super::TableError) -> MediaManagerError {
        let chunks = super::registration::chunk_list(&self.table_window.chunks);
        MediaManagerError::TableDamaged { drive: self.serial.clone(), chunks, source }
    }
}
