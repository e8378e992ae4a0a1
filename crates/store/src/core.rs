//! [`Core`]: everything of a store but its device: what is in memory, what is under way, and what the
//! steps of all operations share.

use std::collections::VecDeque;
use std::sync::Arc;

use block::{Completion, Limits, Op as DeviceOp};
use clock::Nanos;
use nvme::Status;
use ring::{AddressSpace, Iova, Region, RegisterError};

use crate::checkpoint::Checkpoint;
use crate::commit::{Commit, Txn};
use crate::flights::Flights;
use crate::frames::{FrameId, Frames};
use crate::journal::Ring;
use crate::layout::{BLOCK, PIECE_BYTES};
use crate::record::{EXTENT_BYTES, INODE_BYTES};
use crate::space::Space;
use crate::superblock::Superblock;
use crate::tree::{Node, Tree};
use crate::writeback::Run;
use crate::{Done, Error, Ino, Op, Options, Outcome, Stats, Time};

/// Blocks of a staging buffer, from which data is written, and into which what is not aligned is read.
pub(crate) const STAGE_BLOCKS: u32 = 32;
/// Staging buffers.
const STAGES: u32 = 8;
/// Bytes of a transaction at most.
const TXN_BYTES: usize = 256 << 10;
/// Bytes of records that a run of written blocks brings with it.
pub(crate) const RUN_BYTES: usize = EXTENT_BYTES + INODE_BYTES;

/// What a transfer is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// A block into a frame.
    Load { ino: Ino, block: u32, frame: FrameId },
    /// Blocks into the data of a request.
    Direct { slot: u32, ino: Ino },
    /// Blocks into a staging buffer, of which a part goes to the data of a request.
    Staged { slot: u32, ino: Ino, stage: u32, from: usize, to: Iova, len: usize },
    /// Blocks of a file from a staging buffer.
    Run(Run),
    /// A part of a transaction.
    Journal,
    /// A flush, of writes up to this one.
    Flush(u64),
    /// A piece of a snapshot, from one of two buffers.
    Piece(u32),
    /// A superblock.
    Superblock,
    /// Blocks that nobody has.
    Discard { start: u32, count: u32 },
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Start,
    /// The next byte; bytes done.
    Write {
        offset: u64,
        done: u32,
    },
    /// The next byte, the end, and transfers under way.
    Read {
        next: u64,
        end: u64,
        pending: u32,
    },
    /// It is the writer of its file.
    Changing,
    /// The next block; blocks promised to it.
    Allocate {
        next: u32,
        promised: u64,
    },
    /// Waits for what was dirty then; errors by then.
    Written {
        upto: u64,
        errors: u64,
    },
    /// Waits for a transaction, and for a flush.
    Durable {
        txn: u64,
        flush: u64,
    },
    /// Waits for the last snapshot.
    Closing,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Active {
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) time: Time,
    pub(crate) progress: Progress,
    /// The inode that it holds on to.
    pub(crate) holds: Option<Ino>,
    /// The block that it waits for.
    pub(crate) loads: Option<u32>,
    /// What went wrong with a transfer for it.
    pub(crate) failed: Option<Status>,
    /// Blocks that are reserved for it.
    pub(crate) room: u64,
    /// Parts of blocks that it has made zeros: each once, because it is the file's writer. While it waits for room
    /// the block may be in place, and has to be if the room is to come from there.
    pub(crate) zeroed: usize,
}

/// How a step of a request ended: it waits, or is done.
pub(crate) enum Step {
    Wait,
    Done(Outcome),
}

/// A step that may fail.
pub(crate) type Stepped = Result<Step, Error>;

/// All of a store but its device.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) options: Options,
    pub(crate) superblock: Superblock,
    pub(crate) now: Nanos,
    pub(crate) tree: Tree,
    pub(crate) space: Space,
    pub(crate) frames: Frames,
    pub(crate) flights: Flights<What>,
    pub(crate) memory: AddressSpace,
    pub(crate) volatile: bool,

    pub(crate) slots: Vec<Option<Active>>,
    free_slots: Vec<u32>,
    order: VecDeque<u32>,
    pub(crate) done: VecDeque<Done>,
    /// Something happened that requests may have waited for.
    pub(crate) moved: bool,

    pub(crate) stages: Arc<Region>,
    pub(crate) stages_at: Iova,
    pub(crate) free_stages: Vec<u32>,

    /// Numbers of dirtied frames, and of writes that need a flush.
    pub(crate) seq: u64,
    pub(crate) writes: u64,
    pub(crate) flushed: u64,
    pub(crate) flush_wanted: u64,
    pub(crate) flushing: bool,
    /// Inodes with dirty frames, by age; those that are to be written now.
    pub(crate) aging: VecDeque<(Nanos, Ino)>,
    pub(crate) wanted: VecDeque<Ino>,
    /// Writes of data that failed, and what the last one said.
    pub(crate) errors: u64,
    pub(crate) last_error: Status,

    pub(crate) txn: Txn,
    pub(crate) commit: Commit,
    pub(crate) ring: Ring,
    /// Bytes of a transaction at most.
    pub(crate) txn_bytes: usize,
    /// Bytes of records that runs under way will bring.
    pub(crate) coming: usize,
    pub(crate) commit_wanted: u64,
    /// The last transaction that is durable.
    pub(crate) durable: u64,
    pub(crate) journal: Arc<Region>,
    pub(crate) journal_at: Iova,
    /// Blocks whose discard is under way.
    pub(crate) discarding: u64,

    pub(crate) checkpoint: Checkpoint,
    pub(crate) doomed: VecDeque<Ino>,
    pub(crate) closing: bool,
    pub(crate) closed: bool,
    /// The journal or a superblock could not be written: nothing changes any more.
    pub(crate) wedged: Option<Status>,
    pub(crate) stats: Stats,
}

impl Core {
    /// A store of what was read, before its first checkpoint.
    pub(crate) fn new(
        options: Options,
        superblock: Superblock,
        (tree, space): (Tree, Space),
        limits: &Limits,
        memory: &AddressSpace,
    ) -> Result<Core, RegisterError> {
        let ring = Ring {
            sectors: superblock.layout.journal_sectors(),
            sector_bytes: limits.sector_bytes,
            epoch: superblock.epoch,
            head: superblock.journal_seq,
            tail: superblock.journal_seq,
        };
        let txn_bytes = TXN_BYTES.min((ring.sectors / 4) as usize * ring.payload());
        let journal_bytes = (ring.sectors_for(2 * txn_bytes) + 1) * u64::from(limits.sector_bytes);
        let (journal, journal_at) = memory.provide(journal_bytes as usize)?;
        let (stages, stages_at) =
            memory.provide(STAGES as usize * STAGE_BLOCKS as usize * BLOCK)?;
        let (pieces, pieces_at) = memory.provide(2 * PIECE_BYTES + BLOCK)?;
        let requests = options.requests;
        Ok(Core {
            options,
            superblock,
            now: Nanos::ZERO,
            tree,
            space,
            frames: Frames::new(memory, options.frames)?,
            flights: Flights::new(limits),
            memory: memory.clone(),
            volatile: limits.volatile_cache,
            slots: vec![None; requests as usize],
            free_slots: (0..requests).rev().collect(),
            order: VecDeque::with_capacity(requests as usize),
            done: VecDeque::with_capacity(requests as usize),
            moved: false,
            stages,
            stages_at,
            free_stages: (0..STAGES).rev().collect(),
            seq: 0,
            writes: 0,
            flushed: 0,
            flush_wanted: 0,
            flushing: false,
            aging: VecDeque::new(),
            wanted: VecDeque::new(),
            errors: 0,
            last_error: Status::SUCCESS,
            txn: Txn::new(superblock.journal_txn, txn_bytes),
            commit: Commit::default(),
            ring,
            txn_bytes,
            coming: 0,
            commit_wanted: 0,
            durable: superblock.journal_txn - 1,
            journal,
            journal_at,
            discarding: 0,
            checkpoint: Checkpoint::new(pieces, pieces_at),
            doomed: VecDeque::new(),
            closing: false,
            closed: false,
            wedged: None,
            stats: Stats { journal_size: ring.sectors, ..Stats::default() },
        })
    }

    /// Takes a request, for which so many blocks are reserved; `false` if there are too many.
    pub(crate) fn submit(&mut self, request: &crate::Request, room: u64) -> bool {
        let Some(slot) = self.free_slots.pop() else { return false };
        let crate::Request { id, op, time } = *request;
        let progress = Progress::Start;
        let (holds, loads, failed, zeroed) = (None, None, None, 0);
        let active = Active { id, op, time, progress, holds, loads, failed, room, zeroed };
        self.slots[slot as usize] = Some(active);
        self.order.push_back(slot);
        self.moved = true;
        true
    }

    /// Requests under way.
    pub(crate) fn active(&self) -> usize {
        self.order.len()
    }

    /// Takes every request as far as it goes.
    pub(crate) fn step_all(&mut self) {
        for _ in 0..self.order.len() {
            let Some(slot) = self.order.pop_front() else { return };
            let Some(mut active) = self.slots[slot as usize] else { continue };
            let result = self.step(slot, &mut active);
            match result {
                Ok(Step::Wait) => {
                    self.slots[slot as usize] = Some(active);
                    self.order.push_back(slot);
                }
                Ok(Step::Done(outcome)) => self.end(slot, &active, Ok(outcome)),
                Err(error) => self.end(slot, &active, Err(error)),
            }
        }
    }

    fn end(&mut self, slot: u32, active: &Active, result: Result<Outcome, Error>) {
        if let Some(ino) = active.holds
            && let Some(node) = self.tree.find_mut(ino)
        {
            node.live.refs -= 1;
            if node.live.writer == Some(slot) {
                node.live.writer = None;
                node.live.gate = false;
            }
            self.doom(ino);
        }
        self.space.unreserve(active.room);
        let stats = &mut self.stats;
        let bytes = match result {
            Ok(Outcome::Bytes { len, .. }) => len.into(),
            _ => 0,
        };
        match active.op {
            Op::Read { .. } => {
                (stats.reads, stats.bytes_read) = (stats.reads + 1, stats.bytes_read + bytes)
            }
            Op::Write { .. } | Op::Append { .. } => {
                stats.writes += 1;
                stats.bytes_written += bytes;
            }
            Op::Sync { .. } | Op::SyncAll => stats.syncs += 1,
            _ => stats.changes += 1,
        }
        stats.failed += u64::from(result.is_err());
        self.slots[slot as usize] = None;
        self.free_slots.push(slot);
        self.done.push_back(Done { id: active.id, result });
        self.moved = true;
    }

    /// A request that changes, syncs or closes cannot go on if the journal cannot be written.
    fn step(&mut self, slot: u32, active: &mut Active) -> Stepped {
        let reads = matches!(active.op, Op::Read { .. });
        if let Some(status) = self.wedged.filter(|_| !reads) {
            return Err(Error::Io { status });
        }
        let sync = matches!(active.op, Op::Sync { .. } | Op::SyncAll | Op::Close);
        if self.options.read_only && !reads && !sync {
            return Err(Error::ReadOnly);
        }
        match active.op {
            Op::Create { dir, ref name, access, exclusive, open } => {
                self.create(active.time, dir, name, access, (exclusive, open))
            }
            Op::MakeDirectory { dir, ref name, access } => {
                self.make_directory(active.time, dir, name, access)
            }
            Op::Unlink { dir, ref name } => self.remove(active.time, dir, name, false),
            Op::RemoveDirectory { dir, ref name } => self.remove(active.time, dir, name, true),
            Op::Rename { from, ref name, to, ref new, replace } => {
                self.rename(active.time, (from, name), (to, new), replace)
            }
            Op::Change { ino, changes } => self.change(active.time, ino, changes),
            Op::Read { ino, offset, data } => self.read(slot, active, ino, offset, data),
            Op::Write { ino, offset, data } => self.write(slot, active, ino, Some(offset), data),
            Op::Append { ino, data } => self.write(slot, active, ino, None, data),
            Op::Truncate { ino, size } => self.truncate(slot, active, ino, size),
            Op::Allocate { ino, offset, len, keep_size } => {
                self.allocate(slot, active, ino, (offset, len), keep_size)
            }
            Op::Punch { ino, offset, len } => self.punch(slot, active, ino, offset, len),
            Op::Sync { ino, data_only } => self.sync(active, ino, data_only),
            Op::SyncAll => self.sync_all(active),
            Op::Close => self.close(active),
        }
    }

    /// The request holds on to an inode: it stays, even if its last name and user go.
    pub(crate) fn hold(&mut self, active: &mut Active, ino: Ino) -> Result<&mut Node, Error> {
        let node = self.tree.get_mut(ino)?;
        if active.holds.is_none() {
            active.holds = Some(ino);
            node.live.refs += 1;
        }
        Ok(node)
    }

    /// Something of an inode has changed in the running transaction; `data` if its data could not be
    /// read without it.
    pub(crate) fn note(&mut self, ino: Ino, data: bool) {
        let Some(node) = self.tree.find_mut(ino) else { return };
        let txn = self.txn.id;
        node.live.txn = txn;
        if data {
            node.live.data_txn = txn;
        }
        if !std::mem::replace(&mut node.live.noted, true) {
            self.txn.inodes.push(ino);
        }
        self.txn.opened.get_or_insert(self.now);
    }

    /// Whether there is room for so many more records' bytes, in the transaction and in the journal. If
    /// not, it is seen to.
    pub(crate) fn admit(&mut self, bytes: usize) -> bool {
        self.admit_sectors(bytes, 0)
    }

    /// The same, with sectors besides. What is to be written in place, and what is on its way, may come to
    /// a transaction each.
    pub(crate) fn admit_sectors(&mut self, bytes: usize, sectors: u64) -> bool {
        let all = self.txn.bytes() + self.coming + bytes;
        let each = (self.coming / RUN_BYTES + self.frames.logged) as u64;
        let sectors = self.ring.sectors_for(all) + each + sectors + 2;
        let fits = all <= self.txn_bytes && sectors <= self.ring.free();
        if !fits && !self.txn.is_empty() {
            self.commit_wanted = self.commit_wanted.max(self.txn.id);
        }
        fits
    }

    /// Whether metadata may grow by so many bytes; what is dirty or reserved may bring two extents each.
    pub(crate) fn has_metadata_room(&self, bytes: usize) -> bool {
        let blocks = self.frames.dirty as u64 + self.space.reserved();
        let coming = (blocks * (2 * EXTENT_BYTES) as u64).saturating_add(bytes as u64);
        self.tree.bytes().saturating_add(coming) <= self.superblock.layout.metadata_bytes()
    }

    /// Whether so many blocks can be written, with what they may bring of metadata.
    pub(crate) fn has_room(&self, blocks: u64) -> bool {
        let bytes = usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(2 * EXTENT_BYTES);
        let writes = self.wedged.is_none() && !self.options.read_only && !self.closing;
        writes && self.space.available() >= blocks && self.has_metadata_room(bytes)
    }

    /// Whether blocks will be free soon that are not yet.
    pub(crate) fn frees_coming(&mut self) -> bool {
        if !self.txn.frees.is_empty() {
            self.commit_wanted = self.commit_wanted.max(self.txn.id);
        }
        !self.txn.frees.is_empty()
            || !self.commit.frees.is_empty()
            || self.discarding > 0
            || !self.doomed.is_empty()
    }

    /// A transfer has ended.
    pub(crate) fn ended(&mut self, completion: &Completion) {
        let Some((what, status)) = self.flights.ended(completion) else { return };
        self.moved = true;
        match what {
            What::Load { ino, block, frame } => self.loaded(ino, block, frame, status),
            What::Direct { slot, ino } => self.read_ended(slot, ino, status),
            What::Staged { slot, ino, stage, from, to, len } => {
                if status.is_success() && self.copy_out_of_stage(stage, from, to, len).is_err() {
                    self.fail(slot, Status::DATA_TRANSFER_ERROR);
                }
                self.free_stages.push(stage);
                self.read_ended(slot, ino, status);
            }
            What::Run(run) => self.run_ended(run, status),
            What::Journal => self.journal_ended(status),
            What::Flush(upto) => {
                self.flushing = false;
                if status.is_success() {
                    self.flushed = self.flushed.max(upto);
                } else {
                    self.wedge(status);
                }
            }
            What::Piece(buffer) => self.piece_ended(buffer, status),
            What::Superblock => self.superblock_ended(status),
            // A discard is a hint: whatever came of it, the blocks are free.
            What::Discard { start, count } => {
                self.discarding -= u64::from(count);
                self.stats.discarded_blocks += u64::from(count);
                self.space.give(start, count);
            }
        }
    }

    /// A transfer for a request has failed.
    pub(crate) fn fail(&mut self, slot: u32, status: Status) {
        if let Some(active) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            active.failed.get_or_insert(status);
        }
    }

    /// Nothing can be made durable any more.
    pub(crate) fn wedge(&mut self, status: Status) {
        self.wedged.get_or_insert(status);
        self.moved = true;
    }

    /// Reads blocks of the volume.
    pub(crate) fn read_blocks(&mut self, what: What, blocks: (u32, u32), at: Iova) {
        self.stats.device_bytes_read += u64::from(blocks.1) * BLOCK as u64;
        self.flights.blocks(what, DeviceOp::Read, blocks, at, false);
        self.moved = true;
    }
}
