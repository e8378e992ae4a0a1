//! [`Subsystem`]: a drive whose flash is shared out: partition table, chunk ownership, health.
//!
//! Owns a queue pair for its own commands. Poll-driven (rule R2): [`poll`](Component::poll) writes the
//! table's journal, erases what targets gave back, and reads cold chunks. What takes commands to answer
//! (making and removing targets) takes a `pump` instead, called between two looks at the queue.
//!
//! Targets ask for chunks with [`acquire`](Subsystem::acquire) and give them back with
//! [`release`](Subsystem::release); neither is on the path of an I/O.

use std::collections::VecDeque;

use clock::Nanos;
use ftl::journal::{Journal, Position};
use nvme::{ChunkDescriptor, ChunkState, Geometry, HealthLog};

use super::flash::CoreFlash;
use super::scrub::ScrubRead;
use super::{
    ChunkUse, CoreError, Denied, Health, Heat, Holding, Pool, PoolConfig, RATED_CYCLES, Reason,
    ReleaseError, Reserve, ScrubConfig, Scrubber, Table, Target, TargetId,
};
use crate::vector::VectorQueue;

/// The choices of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreConfig {
    /// How chunks are handed out.
    pub pool: PoolConfig,
    /// How cold chunks are looked after, and, if the rate is not 0, how often the partition table is written
    /// anew: when it has been open for `cold_after`, and every `repeat_after` from then on. `None` for not
    /// at all.
    pub scrub: Option<ScrubConfig>,
    /// Cycles that a chunk is good for: what a wear index of 255 stands for. A drive does not tell.
    pub rated_cycles: u32,
    /// What the random identifiers derive from.
    pub seed: u64,
    /// Calls of the pump without any answer after which a drive counts as dead.
    pub patience_polls: u64,
}

impl Default for CoreConfig {
    fn default() -> CoreConfig {
        CoreConfig {
            pool: PoolConfig::default(),
            scrub: None,
            rated_cycles: RATED_CYCLES,
            seed: 1,
            patience_polls: 10_000_000,
        }
    }
}

/// What a target should do with a chunk of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveChunk {
    /// The chunk whose data should go elsewhere.
    pub chunk: u32,
    /// Why.
    pub reason: Reason,
    /// Which chunk to [`acquire`](Subsystem::acquire) for it.
    pub heat: Heat,
}

/// How the table is on the media.
#[derive(Debug)]
pub(super) enum Medium {
    /// There is none, and nothing else either. `unfinished` chunks are left of a registration that
    /// was cut.
    Blank { unfinished: Vec<u32> },
    /// There is one that was closed in order. It was read without writing anything, and is read
    /// again before it is written.
    Found,
    /// It can be written.
    Open(Box<Journal>),
}

/// A drive whose flash is shared out.
#[derive(Debug)]
pub struct Subsystem {
    /// The drive's serial number, for messages.
    pub(super) drive: String,
    pub(super) geometry: Geometry,
    pub(super) config: CoreConfig,
    pub(super) reserve: Reserve,
    pub(super) report: Vec<ChunkDescriptor>,
    pub(super) flash: CoreFlash,
    pub(super) medium: Medium,
    pub(super) pool: Pool,
    pub(super) scrubber: Option<Scrubber>,
    pub(super) scrubbing: Option<ScrubRead>,
    /// When the table is written anew, if cold chunks are looked after.
    pub(super) next_table: Nanos,
    /// Positions in the journal, and how many records are durable when it has got there.
    pub(super) sent: VecDeque<(Position, u64)>,
    pub(super) durable: u64,
    /// Whether something was written since the last mark that says that the table is closed.
    pub(super) unmarked: bool,
    /// Whether the mark is being written, which nothing may follow.
    pub(super) marking: bool,
    pub(super) failed: Option<CoreError>,
    /// Whether something was asked or given back since the last poll.
    pub(super) touched: bool,
    pub(super) now: Nanos,
}

impl Subsystem {
    #[expect(clippy::too_many_arguments, reason = "called in one place, with all there is")]
    pub(super) fn assemble(
        drive: String,
        geometry: Geometry,
        config: CoreConfig,
        reserve: Reserve,
        report: Vec<ChunkDescriptor>,
        flash: CoreFlash,
        medium: Medium,
        pool: Pool,
        now: Nanos,
    ) -> Subsystem {
        let reads = flash.sectors_max().min(geometry.ws_opt.max(1));
        let scrubber = config.scrub.map(|scrub| Scrubber::new(scrub, reads));
        let mut subsystem = Subsystem {
            drive,
            geometry,
            config,
            reserve,
            report: Vec::new(),
            flash,
            // It is open already because its mark was missing.
            unmarked: matches!(medium, Medium::Open(_)),
            medium,
            pool,
            scrubber,
            scrubbing: None,
            next_table: now + config.scrub.map_or(Nanos::ZERO, |scrub| scrub.cold_after),
            sent: VecDeque::new(),
            durable: 0,
            marking: false,
            failed: None,
            touched: true,
            now,
        };
        subsystem.note_report(report, now);
        subsystem
    }

    /// Lets the scrubber know which chunks are closed.
    fn note_report(&mut self, report: Vec<ChunkDescriptor>, now: Nanos) {
        if let Some(scrubber) = &mut self.scrubber {
            for (chunk, d) in (0..).zip(&report) {
                let owned = self.pool.table().chunks().get(chunk as usize);
                let owned = owned.is_some_and(|c| c.state == ChunkUse::Owned);
                let state = d.chunk_state().filter(|_| owned);
                let known = self.report.get(chunk as usize).and_then(|d| d.chunk_state());
                if state == Some(ChunkState::Closed) && known != Some(ChunkState::Closed) {
                    scrubber.closed(
                        chunk,
                        d.wp.get().min(self.geometry.sectors.into()) as u32,
                        now,
                    );
                } else if state != Some(ChunkState::Closed) {
                    scrubber.emptied(chunk);
                }
            }
        }
        self.report = report;
    }

    /// The drive's serial number.
    pub fn drive(&self) -> &str {
        &self.drive
    }

    /// Its shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether there is a partition table on the drive.
    pub fn is_registered(&self) -> bool {
        !matches!(self.medium, Medium::Blank { .. })
    }

    /// Where the partition table is, or would be.
    pub fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    /// The partition table.
    pub fn table(&self) -> &Table {
        self.pool.table()
    }

    /// The chunks, and who has them.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The target of this name.
    ///
    /// # Errors
    /// [`CoreError::Unknown`], with the names that there are.
    pub fn target(&self, name: &str) -> Result<&Target, CoreError> {
        self.table().named(name).ok_or_else(|| {
            let known: Vec<&str> =
                self.table().targets().iter().map(|t| t.spec.name.as_str()).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            CoreError::Unknown { drive: self.drive.clone(), name: name.into(), known }
        })
    }

    /// What a target has.
    pub fn holding(&self, id: TargetId) -> Holding {
        self.pool.holding(id)
    }

    /// The journal, for its counters, if the table has been opened for writing.
    pub fn journal(&self) -> Option<&Journal> {
        match &self.medium {
            Medium::Open(journal) => Some(journal),
            _ => None,
        }
    }

    /// Why nothing can be changed any more, if so.
    pub fn failed(&self) -> Option<&CoreError> {
        self.failed.as_ref()
    }

    /// Opens a target: returns its number. As long as it is open it cannot be removed. The chunks
    /// that it holds are those of [`Pool::handed_to`]; [`Table::owns`] tells them apart, bad ones
    /// included.
    ///
    /// # Errors
    /// [`CoreError::Unknown`].
    pub fn open_target(&mut self, name: &str) -> Result<TargetId, CoreError> {
        let id = self.target(name)?.id;
        self.pool.open(id);
        Ok(id)
    }

    /// Closes a target, as often as it was opened.
    pub fn close_target(&mut self, id: TargetId) {
        self.pool.close(id);
    }

    /// Hands a chunk of parallel unit `pu` to a sharing target that is open.
    ///
    /// # Errors
    /// [`Denied`]; what [is temporary](Denied::is_temporary) can be asked again after a poll, or at
    /// the instant it names.
    pub fn acquire(
        &mut self,
        now: Nanos,
        target: TargetId,
        pu: u32,
        heat: Heat,
    ) -> Result<u32, Denied> {
        if !matches!(self.medium, Medium::Open(_)) {
            return Err(Denied::Table("it was opened to be looked at".into()));
        }
        if let Some(error) = &self.failed {
            return Err(Denied::Table(error.to_string()));
        }
        let answer = self.pool.acquire(now, target, pu, heat);
        self.touched |= matches!(answer, Err(Denied::Pending { .. }));
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
        self.pool.release(target, chunk, clean)?;
        self.touched = true;
        self.emptied(chunk);
        Ok(())
    }

    /// A target has found a chunk of its own to be bad.
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub fn retire(&mut self, target: TargetId, chunk: u32) -> Result<(), ReleaseError> {
        self.pool.retire(target, chunk)?;
        self.touched = true;
        self.emptied(chunk);
        Ok(())
    }

    /// A target writes a chunk of its own no more: `sectors` of it can be read. The scrubber looks
    /// after it from now on.
    pub fn closed(&mut self, now: Nanos, target: TargetId, chunk: u32, sectors: u32) {
        if let Some(scrubber) =
            self.scrubber.as_mut().filter(|_| self.pool.table().owns(target, chunk))
        {
            scrubber.closed(chunk, sectors.min(self.geometry.sectors), now);
        }
    }

    /// A target has erased a chunk of its own, or is writing it anew.
    pub fn emptied(&mut self, chunk: u32) {
        if let Some(scrubber) = &mut self.scrubber {
            scrubber.emptied(chunk);
        }
    }

    /// Somebody has found a chunk hard to read: a target, or the drive's chunk notifications.
    pub fn suspect(&mut self, chunk: u32, reason: Reason) {
        if let Some(scrubber) = &mut self.scrubber {
            scrubber.suspect(chunk, reason);
        }
    }

    /// What a target should move. Advice ends when the chunk is released, retired or
    /// [emptied](Subsystem::emptied), or by [`dismiss`](Subsystem::dismiss).
    pub fn advice(&self, target: TargetId) -> impl Iterator<Item = MoveChunk> + '_ {
        let all = self.scrubber.iter().flat_map(Scrubber::advice);
        all.filter(move |(chunk, _)| self.table().owns(target, *chunk)).map(|(chunk, reason)| {
            let cold = matches!(reason, Reason::ColdOnYoung { .. });
            MoveChunk { chunk, reason, heat: if cold { Heat::Cold } else { Heat::Hot } }
        })
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
    /// [`CoreError::Damaged`] for a report of another number of chunks.
    pub fn refresh(&mut self, now: Nanos, report: &[ChunkDescriptor]) -> Result<(), CoreError> {
        self.pool.refresh(report).map_err(|source| self.damaged(source))?;
        self.note_report(report.to_vec(), now);
        Ok(())
    }

    /// How the drive is; `log` is its health log, if it was read.
    pub fn health(&self, log: Option<&HealthLog>) -> Health {
        Health::of(&self.pool, &self.geometry, log)
    }

    /// Whether nothing is under way or waits to be.
    pub fn is_idle(&self) -> bool {
        self.is_still() && self.pool.untaken() == 0
    }

    /// Whether nothing is under way; records that nobody waits for may still be in memory.
    pub(super) fn is_still(&self) -> bool {
        let journal = match &self.medium {
            Medium::Open(journal) => journal.is_idle(),
            _ => true,
        };
        self.flash.is_idle() && journal
    }

    /// Gives the queue up; nothing may be outstanding. [`close`](Subsystem::close) comes first
    /// unless power is to be cut.
    pub fn into_queue(self) -> VectorQueue {
        self.flash.into_queue()
    }

    /// How many records are durable.
    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    pub(super) fn damaged(&self, source: super::TableError) -> CoreError {
        let chunks = super::registration::chunk_list(&self.reserve.chunks);
        CoreError::Damaged { drive: self.drive.clone(), chunks, source }
    }
}
