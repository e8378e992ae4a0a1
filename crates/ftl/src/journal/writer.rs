//! [`Journal`]: records and snapshots in, flash operations out.

use clock::Nanos;
use nvme::Status;

use super::backlog::Backlog;
use super::capacity::Capacity;
use super::chunks::{Pool, Use};
use super::frame::{HEADER_BYTES, Header};
use super::lane::{Lane, PROGRAMS};
use super::room::Place;
use super::{JournalConfig, JournalError, JournalFlash, JournalStats, MAX_OPS, Position};
use crate::Shape;

/// Erases under way at most.
const ERASES: usize = 4;

/// What an operation number stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Program { lane: usize, epoch: u32, seq: u64, slot: usize },
    Pad { lane: usize, epoch: u32, slot: usize },
    Erase { slot: usize },
}

/// A journal: see the [module](super). It is driven by [`kick`](Journal::kick) after anything was
/// given to it or has ended; it owns no thread and reads no clock.
#[derive(Clone, Debug)]
pub struct Journal {
    pub(super) capacity: Capacity,
    pub(super) config: JournalConfig,
    unit: u32,
    pub(super) pool: Pool,
    pub(super) backlog: Backlog,
    pub(super) lanes: [Lane; 2],
    ops: [Option<Op>; MAX_OPS],
    /// The generation that would be found now; 0 if there is none.
    pub(super) committed: u64,
    /// The last generation of which a snapshot can be read without padding; kept until the next one can,
    /// unless its chunks are needed. 0 if there is none.
    pub(super) shown: u64,
    /// Which copies hold all of it that is durable.
    pub(super) copies: [bool; 2],
    /// Copies that the newest generation is to have.
    pub(super) width: usize,
    /// Whether a frame of the newest generation may be on the media: its number is used up.
    begun: bool,
    /// No generation up to this one is begun any more.
    newest: u64,
    /// Frames of records that the generation had room for when it was complete.
    pub(super) room_at_first: u64,
    /// Times that the snapshot was begun anew for want of chunks.
    pub(super) attempts: u32,
    pub(super) failed: Option<JournalError>,
    pub(super) stats: JournalStats,
    scratch: Vec<u8>,
    /// Nothing was given to it and nothing has ended since a kick that started nothing.
    still: bool,
}

/// How a recovered journal goes on.
pub(super) struct Resume {
    /// The generation found; 0 for none.
    pub(super) generation: u64,
    /// The newest of which there was a sign.
    pub(super) newest: u64,
    /// Frames found of it, and those of its snapshot.
    pub(super) frames: u32,
    pub(super) base_frames: u32,
    /// Records and snapshots found.
    pub(super) position: u64,
    /// Whether it can go on, and where: chunks and their next write units.
    pub(super) goes_on: bool,
    pub(super) open: [Option<(usize, u32)>; 2],
    /// Which copies are whole.
    pub(super) copies: [bool; 2],
}

impl Journal {
    /// A new journal on `chunks`, which are reserved for it, erased and good: spread evenly over
    /// two parallel units or more, each copy is on units of its own. [`chunks_needed`] says how
    /// many there should be; with too few for two copies there is one.
    ///
    /// # Errors
    /// [`JournalError::Unfit`], [`JournalError::Chunk`], [`JournalError::TooFewChunks`].
    ///
    /// [`chunks_needed`]: super::chunks_needed
    pub fn create(
        shape: &Shape,
        config: JournalConfig,
        chunks: &[u32],
    ) -> Result<Journal, JournalError> {
        let capacity = Capacity::of(shape, &config)?;
        let pool = Pool::new(shape, chunks.iter().copied())?;
        let (good, needed) = (pool.good(), capacity.needed());
        if good < needed {
            return Err(JournalError::TooFewChunks { good, needed, mirrored: 2 * needed });
        }
        let nothing = Resume {
            generation: 0,
            newest: 0,
            frames: 0,
            base_frames: 0,
            position: 0,
            goes_on: false,
            open: [None; 2],
            copies: [false; 2],
        };
        Ok(Journal::resume(shape, capacity, config, pool, &nothing))
    }

    /// A journal that goes on with what was found.
    pub(super) fn resume(
        shape: &Shape,
        capacity: Capacity,
        config: JournalConfig,
        pool: Pool,
        from: &Resume,
    ) -> Journal {
        let payload = capacity.payload_bytes;
        let mut journal = Journal {
            capacity,
            config,
            unit: shape.unit,
            backlog: Backlog::new(payload, from.generation, from.frames, from.position),
            lanes: [Lane::default(); 2],
            ops: [None; MAX_OPS],
            committed: from.generation,
            shown: from.generation,
            copies: from.copies,
            width: capacity.copies(pool.good()) as usize,
            begun: from.generation > 0,
            newest: from.newest,
            room_at_first: 0,
            attempts: 0,
            failed: None,
            stats: JournalStats {
                retired_chunks: u64::from(pool.retired()),
                ..JournalStats::default()
            },
            scratch: Vec::with_capacity(capacity.unit_bytes),
            still: false,
            pool,
        };
        if from.generation == 0 {
            journal.backlog.begin(from.newest + 1, None);
            journal.lanes[..journal.width].iter_mut().for_each(|lane| lane.restart(0));
            return journal;
        }
        let whole = capacity.generation_frames(journal.pool.good());
        journal.room_at_first = whole.saturating_sub(from.base_frames.into());
        for (i, lane) in journal.lanes.iter_mut().enumerate() {
            lane.generation = from.generation;
            if from.goes_on && (i < journal.width || from.open[i].is_some()) {
                lane.restart(0);
                lane.slot = from.open[i].map(|(slot, _)| slot);
                lane.unit = from.open[i].map_or(0, |(_, unit)| unit);
            }
        }
        journal
    }

    /// Adds a record of any length, empty ones included. It is programmed once its frame is full, or
    /// with the next [`flush`](Journal::flush); it is durable when [`durable`](Journal::durable) has
    /// reached the position returned. Until then it is in memory: at most what the generation has
    /// room for is taken.
    ///
    /// # Errors
    /// [`JournalError::RecordTooLarge`]; [`JournalError::SnapshotNeeded`] when the generation has no
    /// room, or cannot be continued; what [`failed`](Journal::failed) says. Nothing was added then.
    pub fn append(&mut self, record: &[u8]) -> Result<Position, JournalError> {
        self.alive()?;
        self.still = false;
        let (frames, room) = (self.backlog.frames_of_record(record.len()), self.room());
        let (bytes, longest) = (record.len() as u64, u64::from(u32::MAX));
        if frames > room || bytes > longest {
            let max = self.record_bytes_max();
            if bytes > max {
                return Err(JournalError::RecordTooLarge { bytes, max });
            }
            return Err(JournalError::SnapshotNeeded { frames, room });
        }
        self.backlog.record(record);
        self.stats.records += 1;
        self.stats.bytes += bytes;
        Ok(self.position())
    }

    /// Has everything appended so far programmed, in a frame that is not full if need be, and returns
    /// the position to wait for.
    pub fn flush(&mut self) -> Position {
        self.still = false;
        self.backlog.seal();
        self.position()
    }

    /// Begins a generation with a snapshot: once it is durable, everything given before is forgotten.
    /// Records appended from now on are durable only after it.
    ///
    /// # Errors
    /// [`JournalError::SnapshotTooLarge`]; [`JournalError::SnapshotUnderWay`] while the last one is
    /// being written; what [`failed`](Journal::failed) says. Nothing was changed then.
    pub fn snapshot(&mut self, bytes: Vec<u8>) -> Result<Position, JournalError> {
        self.alive()?;
        self.still = false;
        let (size, max) = (bytes.len() as u64, self.config.snapshot_bytes);
        if size > max {
            return Err(JournalError::SnapshotTooLarge { bytes: size, max });
        }
        if let Some(base) = self.backlog.base() {
            // One of which nothing is programmed can be replaced.
            if self.begun {
                return Err(JournalError::SnapshotUnderWay { generation: base.generation });
            }
            self.backlog.forget_base();
        } else {
            self.backlog.seal();
            self.newest = self.newest.max(self.backlog.generation());
        }
        self.backlog.begin(self.newest + 1, Some(bytes));
        self.begun = false;
        self.stats.bytes += size;
        self.width = self.capacity.copies(self.pool.good()) as usize;
        self.attempts = 0;
        self.enter_newest();
        Ok(self.position())
    }

    /// The position of everything given so far.
    pub fn position(&self) -> Position {
        Position(self.backlog.position())
    }

    /// The position up to which everything is durable: in both copies, or in the one there is.
    pub fn durable(&self) -> Position {
        Position(self.backlog.durable())
    }

    /// Why the journal takes nothing more, if it does not: no chunks are left for a snapshot. What it
    /// holds can still be recovered.
    pub fn failed(&self) -> Option<&JournalError> {
        self.failed.as_ref()
    }

    /// Counters.
    pub fn stats(&self) -> JournalStats {
        self.stats
    }

    /// Whether nothing is under way, and [`kick`](Journal::kick) would start nothing.
    pub fn is_idle(&self) -> bool {
        let blocked = self.failed.is_some() || self.lanes.iter().all(|lane| !lane.live);
        self.ops.iter().all(Option::is_none)
            && (self.failed.is_some() || self.pool.to_erase().is_none())
            && (blocked || self.backlog.is_empty())
            && (self.failed.is_some()
                || !self.covers()
                || self.lanes.iter().all(|lane| lane.uncovered == 0))
    }

    pub(super) fn alive(&self) -> Result<(), JournalError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Whether nothing has changed since a [`kick`](Journal::kick) that started nothing: another would
    /// start nothing, and [`wants_snapshot`](Journal::wants_snapshot) says what it said.
    #[inline]
    pub fn is_still(&self) -> bool {
        self.still
    }

    /// Starts what can be started; says whether anything was.
    pub fn kick(&mut self, now: Nanos, flash: &mut impl JournalFlash) -> bool {
        if self.still {
            return false;
        }
        let mut any = false;
        while self.failed.is_none() {
            let mut moved = self.start_erases(now, flash);
            if !self.pool.holds_back() {
                moved |= self.fill(0, now, flash);
                moved |= self.fill(1, now, flash);
            }
            if !moved {
                break;
            }
            any = true;
        }
        self.still = !any;
        any
    }

    fn free_op(&self) -> Option<usize> {
        self.ops.iter().position(Option::is_none)
    }

    fn start_erases(&mut self, now: Nanos, flash: &mut impl JournalFlash) -> bool {
        let mut moved = false;
        let erasing = |op: &&Option<Op>| matches!(op, Some(Op::Erase { .. }));
        while self.ops.iter().filter(erasing).count() < ERASES
            && let (Some(op), Some(slot)) = (self.free_op(), self.pool.to_erase())
        {
            self.ops[op] = Some(Op::Erase { slot });
            self.pool.slots[slot].used = Use::Erasing;
            flash.erase(now, op as u32, self.pool.slots[slot].chunk);
            moved = true;
        }
        moved
    }

    /// Starts programs of a lane.
    fn fill(&mut self, i: usize, now: Nanos, flash: &mut impl JournalFlash) -> bool {
        let mut moved = false;
        loop {
            let lane = self.lanes[i];
            if !lane.live || lane.failing || lane.in_flight == PROGRAMS {
                return moved;
            }
            let Some(segment) = self.backlog.at(lane.next) else {
                return self.covers() && self.cover(i, now, flash) || moved;
            };
            let (generation, base) = (segment.generation, segment.is_base());
            let (frames, last_of_base) = (segment.frames, base && lane.next + 1 == segment.end());
            let open = lane.slot.filter(|_| lane.generation == generation);
            let Some(slot) = open.filter(|_| lane.unit < self.capacity.units) else {
                if lane.in_flight > 0 || lane.padding {
                    return moved;
                }
                match self.place(i, generation, base) {
                    Place::Found => continue,
                    Place::Changed => moved = true,
                    Place::Wait => return moved,
                    Place::Cover => return self.cover(i, now, flash) || moved,
                }
                continue;
            };
            let Some(op) = self.free_op() else { return moved };
            self.ops[op] = Some(Op::Program { lane: i, epoch: lane.epoch, seq: lane.next, slot });
            self.encode(i, lane.next);
            self.pool.slots[slot].programs += 1;
            self.begun |= generation == self.backlog.generation();
            self.lanes[i].issued();
            if last_of_base {
                let left = self.capacity.units - self.lanes[i].unit;
                let uncovered = self.capacity.cover_units(self.pool.good(), frames, left);
                self.lanes[i].based(lane.next + 1, uncovered);
            }
            let (chunk, sector) = (self.pool.slots[slot].chunk, lane.unit * self.unit);
            flash.program(now, op as u32, chunk, sector, &self.scratch);
            moved = true;
        }
    }

    /// Whether copies that have nothing else to write pad until their snapshot can be read: only when no
    /// older one can be. Otherwise it is left to records, and to the want of chunks.
    pub(super) fn covers(&self) -> bool {
        self.shown == 0
    }

    /// Whether padding can make a lane's snapshot readable, which is the generation's that would be found
    /// now.
    pub(super) fn is_coverable(&self, i: usize) -> bool {
        let lane = &self.lanes[i];
        lane.live && lane.slot.is_some() && lane.generation == self.committed && lane.uncovered > 0
    }

    /// Starts a program of padding in a lane that has nothing else to write: one at a time, so that a
    /// record waits for no more.
    fn cover(&mut self, i: usize, now: Nanos, flash: &mut impl JournalFlash) -> bool {
        let lane = self.lanes[i];
        if lane.uncovered == 0 || lane.in_flight > 0 || lane.padding {
            return false;
        }
        let (Some(slot), Some(op)) = (lane.slot, self.free_op()) else { return false };
        self.ops[op] = Some(Op::Pad { lane: i, epoch: lane.epoch, slot });
        self.pool.slots[slot].programs += 1;
        self.lanes[i].pads();
        let (chunk, sector) = (self.pool.slots[slot].chunk, lane.unit * self.unit);
        flash.program(now, op as u32, chunk, sector, &Header::padding().encode());
        true
    }

    /// Puts frame number `seq` as a lane has it into the scratch buffer.
    fn encode(&mut self, lane: usize, seq: u64) {
        let Some(segment) = self.backlog.at(seq) else { return };
        let (kind, payload, continues) = segment.frame(seq, self.capacity.payload_bytes);
        let header = Header {
            kind,
            replica: lane as u8,
            owner: self.config.owner,
            generation: segment.generation,
            index: segment.index + (seq - segment.first) as u32,
            length: payload.len() as u32,
            continues,
            payload_crc: crc32c::crc32c(payload),
        };
        self.scratch.clear();
        self.scratch.extend_from_slice(&header.encode());
        self.scratch.extend_from_slice(payload);
        debug_assert_eq!(self.scratch.len(), HEADER_BYTES + payload.len());
    }

    fn take_op(&mut self, op: u32) -> Option<Op> {
        self.ops.get_mut(op as usize)?.take()
    }

    /// A program has ended. [`kick`](Journal::kick) afterwards.
    pub fn program_done(&mut self, op: u32, status: Status) {
        self.still = false;
        let (lane, epoch, seq, slot) = match self.take_op(op) {
            Some(Op::Program { lane, epoch, seq, slot }) => (lane, epoch, Some(seq), slot),
            Some(Op::Pad { lane, epoch, slot }) => (lane, epoch, None, slot),
            Some(Op::Erase { .. }) | None => {
                debug_assert!(false, "operation {op} is no program");
                return;
            }
        };
        let ok = status.is_success();
        self.pool.slots[slot].programs -= 1;
        if ok {
            self.stats.frames += u64::from(seq.is_some());
            self.stats.padding += u64::from(seq.is_none());
        } else {
            self.stats.program_failures += 1;
            self.pool.program_failed(slot);
        }
        if self.lanes[lane].live && self.lanes[lane].epoch == epoch {
            match seq {
                Some(seq) => self.lanes[lane].ended(seq, ok),
                None => self.lanes[lane].padded(ok),
            }
            self.settle();
            self.show();
        }
    }

    /// An erase has ended. [`kick`](Journal::kick) afterwards.
    pub fn erase_done(&mut self, op: u32, status: Status) {
        self.still = false;
        let Some(Op::Erase { slot }) = self.take_op(op) else {
            debug_assert!(false, "operation {op} is no erase");
            return;
        };
        let ok = status.is_success();
        self.pool.erased(slot, ok);
        if ok {
            self.stats.erases += 1;
        } else {
            self.stats.erase_failures += 1;
            self.stats.retired_chunks += 1;
        }
    }

    /// Notes what is durable now, and what need not be kept therefore.
    pub(super) fn settle(&mut self) {
        let live = self.lanes.iter().filter(|lane| lane.live);
        let joined = live.clone().map(|lane| lane.joined).min();
        if joined > self.backlog.front() {
            // Every copy has skipped the frames in front: they are never written, and the snapshot
            // behind them stands for them.
            self.backlog.forget_older();
        }
        let Some(done) = live.map(|lane| lane.done).min() else { return };
        let Some(generation) = self.backlog.durable_to(done) else { return };
        self.committed = generation;
        self.copies = [self.lanes[0].live, self.lanes[1].live];
        self.attempts = 0;
        self.stats.generations += 1;
        let shown = self.shown;
        self.pool.release(|of, _| of != generation && of != shown);
        self.room_at_first = self.room();
    }

    /// Lets go of the generation before, once the snapshot of this one can be read as it is.
    fn show(&mut self) {
        if self.shown != self.committed && self.shows() {
            self.let_go();
        }
    }

    /// Whether the snapshot of the generation that would be found now can be read as it is.
    fn shows(&self) -> bool {
        self.lanes.iter().any(|lane| lane.shows(self.committed))
    }

    /// Lets go of the generation before the one that would be found now; says whether it was there.
    pub(super) fn let_go(&mut self) -> bool {
        if self.shown == self.committed {
            return false;
        }
        let now = if self.shows() { self.committed } else { 0 };
        let before = std::mem::replace(&mut self.shown, now);
        self.pool.release(|of, _| of == before)
    }
}
