//! [`Journal`]: takes records and snapshots, and issues flash operations.

use nvme::{ChunkId, Status};
use serde::{Deserialize, Serialize};
use time::Nanos;

use super::capacity::JournalCapacity;
use super::chunks::{ChunkPool, ChunkRole};
use super::error::WornOut;
use super::frame::{FrameHeader, HEADER_BYTES};
use super::free_space::NextWrite;
use super::generations::Generations;
use super::mirror::{MirrorCopy, PROGRAMS_MAX};
use super::pending_log::{FrameSeq, PendingLog};
use super::{JournalConfig, JournalError, JournalFlash, JournalStats, Lsn, OPS_MAX};
use crate::FlashGeometry;
use crate::check::Violation;
use crate::ids::{ToIndex, ToU32};

/// Maximum number of erases in flight.
const ERASES_MAX: usize = 4;

/// Meaning of an operation number.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Op {
    Program { copy: usize, epoch: u32, seq: FrameSeq, pool_index: usize },
    Pad { copy: usize, epoch: u32, pool_index: usize },
    Erase { pool_index: usize },
}

/// A journal: see the [module](super). It advances in [`kick`](Journal::kick), called after a record was
/// appended or an operation ended. It owns no thread and reads no clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Journal {
    pub(super) capacity: JournalCapacity,
    pub(super) config: JournalConfig,
    ws_opt: u32,
    pub(super) pool: ChunkPool,
    pub(super) pending_log: PendingLog,
    pub(super) mirrors: [MirrorCopy; 2],
    ops: [Option<Op>; OPS_MAX],
    pub(super) generations: Generations,
    /// Copies that the newest generation is to have.
    pub(super) copy_count: usize,
    /// Free frames of the generation when it became complete.
    pub(super) initial_available_frames: u64,
    /// Number of times that the snapshot was restarted for lack of chunks.
    pub(super) attempts: u32,
    pub(super) failed: Option<WornOut>,
    pub(super) stats: JournalStats,
    scratch: Vec<u8>,
    /// Whether nothing was appended and no operation ended since a kick that started nothing.
    unchanged: bool,
}

/// Where a recovered journal continues.
pub(super) struct ResumePoint {
    /// The generation found; 0 for none.
    pub(super) generation: u64,
    /// The newest generation with any frame.
    pub(super) newest: u64,
    /// Frames found of the generation, and those of its snapshot.
    pub(super) frames: u32,
    pub(super) base_frames: u32,
    /// Records and snapshots found.
    pub(super) position: u64,
    /// Whether the generation can be continued, and where: chunks and their next write units.
    pub(super) can_continue: bool,
    pub(super) open: [Option<(usize, u32)>; 2],
    /// Whether each copy is complete.
    pub(super) copies: [bool; 2],
}

impl Journal {
    /// A new journal on `chunks`, which are reserved for it, erased and good: spread evenly over
    /// two parallel units or more, each copy is on units of its own. [`chunks_needed`] says how
    /// many there should be; with too few for two copies there is one.
    ///
    /// # Errors
    /// [`JournalError::InvalidParameter`], [`JournalError::Chunk`], [`JournalError::TooFewChunks`].
    ///
    /// [`chunks_needed`]: super::chunks_needed
    pub fn create(
        shape: &FlashGeometry,
        config: JournalConfig,
        chunks: &[ChunkId],
    ) -> Result<Journal, JournalError> {
        let capacity = JournalCapacity::new(shape, &config)?;
        let pool = ChunkPool::new(shape, chunks.iter().copied())?;
        let (good, needed) = (pool.usable_count(), capacity.copy_chunks_min());
        if good < needed {
            return Err(JournalError::TooFewChunks { good, needed, mirrored: 2 * needed });
        }
        let nothing = ResumePoint {
            generation: 0,
            newest: 0,
            frames: 0,
            base_frames: 0,
            position: 0,
            can_continue: false,
            open: [None; 2],
            copies: [false; 2],
        };
        Ok(Journal::resume(shape, capacity, config, pool, &nothing))
    }

    /// Creates a journal that continues what was found.
    pub(super) fn resume(
        shape: &FlashGeometry,
        capacity: JournalCapacity,
        config: JournalConfig,
        pool: ChunkPool,
        from: &ResumePoint,
    ) -> Journal {
        let payload = capacity.payload_bytes;
        let mut journal = Journal {
            capacity,
            config,
            ws_opt: shape.ws_opt,
            pending_log: PendingLog::new(payload, from.generation, from.frames, from.position),
            mirrors: [MirrorCopy::default(); 2],
            ops: [None; OPS_MAX],
            generations: Generations::found(from.generation, from.newest, from.copies),
            copy_count: capacity.copy_count(pool.usable_count()).index(),
            initial_available_frames: 0,
            attempts: 0,
            failed: None,
            stats: JournalStats {
                retired_chunks: u64::from(pool.retired_count()),
                ..JournalStats::default()
            },
            scratch: Vec::with_capacity(capacity.unit_bytes),
            unchanged: false,
            pool,
        };
        if from.generation == 0 {
            journal.pending_log.begin_generation(from.newest + 1, None);
            journal.mirrors[..journal.copy_count]
                .iter_mut()
                .for_each(|lane| lane.restart(FrameSeq(0)));
            return journal;
        }
        let whole = capacity.generation_frames(journal.pool.usable_count());
        journal.initial_available_frames = whole.saturating_sub(from.base_frames.into());
        for (i, lane) in journal.mirrors.iter_mut().enumerate() {
            lane.generation = from.generation;
            if from.can_continue && (i < journal.copy_count || from.open[i].is_some()) {
                lane.restart(FrameSeq(0));
                lane.pool_index = from.open[i].map(|(slot, _)| slot);
                lane.next_unit = from.open[i].map_or(0, |(_, unit)| unit);
            }
        }
        journal
    }

    /// Appends a record of any length, including 0. It is programmed once its frame is full, or
    /// with the next [`flush`](Journal::flush). It is durable when [`durable`](Journal::durable)
    /// has reached the returned position. Until then it is in memory, which is bounded by the
    /// capacity of the generation.
    ///
    /// # Errors
    ///
    /// [`JournalError::RecordTooLarge`]; [`JournalError::SnapshotNeeded`] if the generation has no
    /// capacity, or cannot be continued; the error of [`failed`](Journal::failed). Then nothing was
    /// added.
    pub fn append(&mut self, record: &[u8]) -> Result<Lsn, JournalError> {
        self.ensure_not_failed()?;
        self.unchanged = false;
        let (frames, room) =
            (self.pending_log.frames_of_record(record.len()), self.available_frames());
        let (bytes, longest) = (record.len() as u64, u64::from(u32::MAX));
        if frames > room || bytes > longest {
            let max = self.record_bytes_max();
            if bytes > max {
                return Err(JournalError::RecordTooLarge { bytes, max });
            }
            return Err(JournalError::SnapshotNeeded { frames, available: room });
        }
        self.pending_log.record(record);
        self.stats.records += 1;
        self.stats.bytes += bytes;
        Ok(self.position())
    }

    /// Requests that everything appended so far be programmed, in a partly filled frame if
    /// necessary. Returns the position to wait for.
    pub fn flush(&mut self) -> Lsn {
        self.unchanged = false;
        self.pending_log.seal();
        self.position()
    }

    /// Begins a generation with a snapshot: once it is durable, everything given before is forgotten.
    /// Records appended from now on are durable only after it.
    ///
    /// # Errors
    /// [`JournalError::SnapshotTooLarge`]; [`JournalError::SnapshotInProgress`] while the last one is
    /// being written; what [`failed`](Journal::failed) says. Nothing was changed then.
    pub fn snapshot(&mut self, bytes: Vec<u8>) -> Result<Lsn, JournalError> {
        self.ensure_not_failed()?;
        self.unchanged = false;
        let (size, max) = (bytes.len() as u64, self.config.snapshot_bytes);
        if size > max {
            return Err(JournalError::SnapshotTooLarge { bytes: size, max });
        }
        if let Some(base) = self.pending_log.base() {
            // A generation can be replaced until its first frame is programmed.
            if self.generations.is_begun() {
                return Err(JournalError::SnapshotInProgress { generation: base.generation });
            }
            self.pending_log.discard_base();
        } else {
            self.pending_log.seal();
            self.generations.use_up(self.pending_log.generation());
        }
        self.pending_log.begin_generation(self.generations.begin(), Some(bytes));
        self.stats.bytes += size;
        self.copy_count = self.capacity.copy_count(self.pool.usable_count()).index();
        self.attempts = 0;
        self.join_newest_generation();
        Ok(self.position())
    }

    /// The position of everything given so far.
    pub fn position(&self) -> Lsn {
        Lsn(self.pending_log.position())
    }

    /// The position up to which everything is durable: in both copies, or in the one there is.
    pub fn durable(&self) -> Lsn {
        Lsn(self.pending_log.durable())
    }

    /// Returns why the journal accepts nothing more: no chunks are left for a snapshot. Its
    /// contents can still be recovered.
    pub fn failed(&self) -> Option<JournalError> {
        self.failed.map(JournalError::from)
    }

    /// Returns the counters.
    pub fn stats(&self) -> JournalStats {
        self.stats
    }

    /// Checks the order of the generations.
    pub(crate) fn check_invariants(&self) -> Result<(), Violation> {
        self.generations.check_invariants()
    }

    /// Breaks the order: commits a generation that never began.
    #[cfg(test)]
    pub(crate) fn break_generations(&mut self) {
        self.generations.break_order();
    }

    /// Returns the chunks of the journal, retired ones included.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = ChunkId> {
        self.pool.chunks.iter().map(|slot| slot.chunk)
    }

    /// Returns whether no operation is in flight and [`kick`](Journal::kick) would start none.
    pub fn is_idle(&self) -> bool {
        let blocked = self.failed.is_some() || self.mirrors.iter().all(|lane| !lane.live);
        self.ops.iter().all(Option::is_none)
            && (self.failed.is_some() || self.pool.next_to_erase().is_none())
            && (blocked || self.pending_log.is_empty())
            && (self.failed.is_some()
                || !self.can_pad_for_pairing()
                || self.mirrors.iter().all(|lane| lane.pairing_remaining == 0))
    }

    pub(super) fn ensure_not_failed(&self) -> Result<(), JournalError> {
        self.failed().map_or(Ok(()), Err)
    }

    /// Returns whether nothing changed since a [`kick`](Journal::kick) that started nothing: another
    /// would start nothing, and [`needs_snapshot`](Journal::needs_snapshot) returns the same.
    #[inline]
    pub fn is_unchanged(&self) -> bool {
        self.unchanged
    }

    /// Starts all possible operations. Returns whether any was started.
    pub fn kick(&mut self, now: Nanos, flash: &mut impl JournalFlash) -> bool {
        if self.unchanged {
            return false;
        }
        let mut any = false;
        while self.failed.is_none() {
            let mut moved = self.start_erases(now, flash);
            if !self.pool.needs_erase_first() {
                moved |= self.fill(0, now, flash);
                moved |= self.fill(1, now, flash);
            }
            if !moved {
                break;
            }
            any = true;
        }
        self.unchanged = !any;
        any
    }

    fn free_op(&self) -> Option<usize> {
        self.ops.iter().position(Option::is_none)
    }

    fn start_erases(&mut self, now: Nanos, flash: &mut impl JournalFlash) -> bool {
        let mut moved = false;
        let erasing = |op: &&Option<Op>| matches!(op, Some(Op::Erase { .. }));
        while self.ops.iter().filter(erasing).count() < ERASES_MAX
            && let (Some(op), Some(slot)) = (self.free_op(), self.pool.next_to_erase())
        {
            self.ops[op] = Some(Op::Erase { pool_index: slot });
            self.pool.chunks[slot].role = ChunkRole::Erasing;
            flash.erase(now, op.to_u32(), self.pool.chunks[slot].chunk);
            moved = true;
        }
        moved
    }

    /// Starts programs of a copy.
    fn fill(&mut self, i: usize, now: Nanos, flash: &mut impl JournalFlash) -> bool {
        let mut moved = false;
        loop {
            let lane = self.mirrors[i];
            if !lane.live || lane.failing || lane.in_flight == PROGRAMS_MAX {
                return moved;
            }
            let Some(segment) = self.pending_log.segment_at(lane.next_seq) else {
                return self.can_pad_for_pairing() && self.pad_for_pairing(i, now, flash) || moved;
            };
            let (generation, base) = (segment.generation, segment.is_base());
            let (frames, last_of_base) =
                (segment.frames, base && lane.next_seq + 1 == segment.end());
            let open = lane.pool_index.filter(|_| lane.generation == generation);
            let Some(slot) = open.filter(|_| lane.next_unit < self.capacity.units) else {
                if lane.in_flight > 0 || lane.padding {
                    return moved;
                }
                match self.choose_next_write(i, generation, base) {
                    NextWrite::Ready => continue,
                    NextWrite::Retry => moved = true,
                    NextWrite::Wait => return moved,
                    NextWrite::PadForPairing => {
                        return self.pad_for_pairing(i, now, flash) || moved;
                    }
                }
                continue;
            };
            let Some(op) = self.free_op() else { return moved };
            self.ops[op] = Some(Op::Program {
                copy: i,
                epoch: lane.epoch,
                seq: lane.next_seq,
                pool_index: slot,
            });
            self.encode(i, lane.next_seq);
            self.pool.chunks[slot].programs += 1;
            if generation == self.pending_log.generation() {
                self.generations.mark_begun();
            }
            self.mirrors[i].on_program_issued();
            if last_of_base {
                let left = self.capacity.units - self.mirrors[i].next_unit;
                let uncovered =
                    self.capacity.base_pairing_units(self.pool.usable_count(), frames, left);
                self.mirrors[i].base_written(lane.next_seq + 1, uncovered);
            }
            let (chunk, sector) = (self.pool.chunks[slot].chunk, lane.next_unit * self.ws_opt);
            flash.program(now, op.to_u32(), chunk, sector, &self.scratch);
            moved = true;
        }
    }

    /// Returns whether copies without other work pad until their snapshot can be read: only if no
    /// older one is readable. Otherwise records, or the need for chunks, make it readable.
    pub(super) fn can_pad_for_pairing(&self) -> bool {
        self.generations.readable() == 0
    }

    /// Returns whether padding can make a copy's snapshot readable, and that is the generation that
    /// recovery would find now.
    pub(super) fn is_paddable(&self, i: usize) -> bool {
        let lane = &self.mirrors[i];
        lane.live
            && lane.pool_index.is_some()
            && lane.generation == self.generations.committed()
            && lane.pairing_remaining > 0
    }

    /// Starts a program of padding in a copy without other work: one at a time, so that a record
    /// waits for at most one.
    fn pad_for_pairing(&mut self, i: usize, now: Nanos, flash: &mut impl JournalFlash) -> bool {
        let lane = self.mirrors[i];
        if lane.pairing_remaining == 0 || lane.in_flight > 0 || lane.padding {
            return false;
        }
        let (Some(slot), Some(op)) = (lane.pool_index, self.free_op()) else { return false };
        self.ops[op] = Some(Op::Pad { copy: i, epoch: lane.epoch, pool_index: slot });
        self.pool.chunks[slot].programs += 1;
        self.mirrors[i].on_pad_issued();
        let (chunk, sector) = (self.pool.chunks[slot].chunk, lane.next_unit * self.ws_opt);
        flash.program(now, op.to_u32(), chunk, sector, &FrameHeader::padding().encode());
        true
    }

    /// Encodes a copy's frame `seq` into the scratch buffer.
    fn encode(&mut self, lane: usize, seq: FrameSeq) {
        let Some(segment) = self.pending_log.segment_at(seq) else { return };
        let (kind, payload, continues) = segment.frame(seq, self.capacity.payload_bytes);
        let header = FrameHeader {
            kind,
            replica: lane as u8,
            owner: self.config.owner,
            generation: segment.generation,
            index: segment.index + (seq - segment.first_seq).to_u32(),
            length: payload.len().to_u32(),
            continues,
            payload_crc: crc32c::crc32c(payload),
        };
        self.scratch.clear();
        self.scratch.extend_from_slice(&header.encode());
        self.scratch.extend_from_slice(payload);
        debug_assert_eq!(self.scratch.len(), HEADER_BYTES + payload.len());
    }

    fn pop_op(&mut self, op: u32) -> Option<Op> {
        self.ops.get_mut(op.index())?.take()
    }

    /// Reports the end of a program. Call [`kick`](Journal::kick) afterwards.
    pub fn program_done(&mut self, op: u32, status: Status) {
        self.unchanged = false;
        let (lane, epoch, seq, slot) = match self.pop_op(op) {
            Some(Op::Program { copy: lane, epoch, seq, pool_index: slot }) => {
                (lane, epoch, Some(seq), slot)
            }
            Some(Op::Pad { copy: lane, epoch, pool_index: slot }) => (lane, epoch, None, slot),
            Some(Op::Erase { .. }) | None => {
                panic!("journal operation {op} is no program in flight");
            }
        };
        let ok = status.is_success();
        self.pool.chunks[slot].programs -= 1;
        if ok {
            self.stats.frames += u64::from(seq.is_some());
            self.stats.padding += u64::from(seq.is_none());
        } else {
            self.stats.program_failures += 1;
            self.pool.on_program_failed(slot);
        }
        if self.mirrors[lane].live && self.mirrors[lane].epoch == epoch {
            match seq {
                Some(seq) => self.mirrors[lane].on_program_complete(seq, ok),
                None => self.mirrors[lane].on_pad_complete(ok),
            }
            self.advance_durable();
            self.release_previous_if_readable();
        }
    }

    /// Reports the end of an erase. Call [`kick`](Journal::kick) afterwards.
    pub fn erase_done(&mut self, op: u32, status: Status) {
        self.unchanged = false;
        let Some(Op::Erase { pool_index: slot }) = self.pop_op(op) else {
            panic!("journal operation {op} is no erase in flight");
        };
        let ok = status.is_success();
        self.pool.on_erased(slot, ok);
        if ok {
            self.stats.erases += 1;
        } else {
            self.stats.erase_failures += 1;
            self.stats.retired_chunks += 1;
        }
    }

    /// Updates the durable position, and drops what need not be kept any more.
    pub(super) fn advance_durable(&mut self) {
        let live = self.mirrors.iter().filter(|lane| lane.live);
        let joined = live.clone().map(|lane| lane.joined_seq).min();
        if joined > self.pending_log.front() {
            // Every copy skipped the older frames: they are never written, and the snapshot
            // supersedes them.
            self.pending_log.discard_older();
        }
        let Some(done) = live.map(|lane| lane.done_seq).min() else { return };
        let Some(generation) = self.pending_log.mark_durable_to(done) else { return };
        self.generations.commit(generation, [self.mirrors[0].live, self.mirrors[1].live]);
        self.attempts = 0;
        self.stats.generations += 1;
        let shown = self.generations.readable();
        self.pool.release(|of, _| of != generation && of != shown);
        self.initial_available_frames = self.available_frames();
    }

    /// Releases the previous generation once the snapshot of this one can be read without padding.
    fn release_previous_if_readable(&mut self) {
        if self.generations.keeps_previous() && self.is_committed_readable() {
            self.release_previous();
        }
    }

    /// Returns whether the snapshot of the committed generation can be read without padding.
    fn is_committed_readable(&self) -> bool {
        let committed = self.generations.committed();
        self.mirrors.iter().any(|lane| lane.is_readable_without_padding(committed))
    }

    /// Releases the generation before the one that recovery would find now. Returns whether there
    /// was one.
    pub(super) fn release_previous(&mut self) -> bool {
        if !self.generations.keeps_previous() {
            return false;
        }
        let now = if self.is_committed_readable() { self.generations.committed() } else { 0 };
        let before = self.generations.replace_readable(now);
        self.pool.release(|of, _| of == before)
    }
}
