//! [`Core`]: the state of a volume without its device: metadata, page cache, operations in flight, and functions
//! that all operations share.

pub(crate) mod checkpoint;
pub(crate) mod commit;
pub(crate) mod data_journal;
pub(crate) mod namespace;
pub(crate) mod page_lookup;
pub(crate) mod read;
pub(crate) mod sync;
pub(crate) mod truncate;
pub(crate) mod write;
pub(crate) mod writeback;

use std::collections::VecDeque;
use std::sync::Arc;

use block::{Completion, Limits, Op as DeviceOp};
use clock::Nanos;
use nvme::Status;
use ring::{AddressSpace, Iova, RegisterError, SharedRegion};

use crate::device_io::DeviceTransfers;
use crate::journal::JournalRing;
use crate::layout::{BLOCK, SEGMENT_BYTES};
use crate::parts::allocator::BlockAllocator;
use crate::parts::page_cache::{PageCache, PageId};
use crate::pipeline::checkpoint::Checkpoint;
use crate::pipeline::commit::{Commit, Txn};
use crate::pipeline::writeback::WriteExtent;
use crate::record::{EXTENT_BYTES, INODE_BYTES};
use crate::superblock::Superblock;
use crate::tree::{InodeNode, Tree};
use crate::{Error, Ino, Op, OpCompletion, OpResult, Options, Stats, Time};

/// Blocks of a staging buffer, from which data is written and into which unaligned data is read.
pub(crate) const STAGING_BUFFER_BLOCKS: u32 = 32;
/// Number of staging buffers.
const STAGING_BUFFERS: u32 = 8;
/// Maximum bytes of a transaction.
const TXN_BYTES_MAX: usize = 256 << 10;
/// Bytes of records that a written extent adds.
pub(crate) const EXTENT_RECORD_BYTES: usize = EXTENT_BYTES + INODE_BYTES;

/// Purpose of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransferPurpose {
    /// Reads a block into a page.
    Load { ino: Ino, block: u32, page: PageId },
    /// Reads blocks into a request's data.
    Direct { slot: u32, ino: Ino },
    /// Reads blocks into a staging buffer, part of which is copied to a request's data.
    Staged { slot: u32, ino: Ino, staging_index: u32, from: usize, to: Iova, len: usize },
    /// Writes blocks of a file from a staging buffer.
    Writeback(WriteExtent),
    /// Writes a part of a transaction.
    Journal,
    /// Flushes writes up to this number.
    Flush(u64),
    /// Writes a segment of a snapshot from one of two buffers.
    SnapshotSegment(u32),
    /// Writes a superblock.
    Superblock,
    /// Discards free blocks.
    Discard { start: u32, count: u32 },
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpState {
    Start,
    /// Next byte; bytes done.
    Write {
        offset: u64,
        done: u32,
    },
    /// Next byte, end, and transfers in flight.
    Read {
        next: u64,
        end: u64,
        pending: u32,
    },
    /// The request is its file's writer.
    Changing,
    /// Next block; blocks promised to the request.
    Allocate {
        next: u32,
        delalloc_blocks: u64,
    },
    /// Waits for pages that were dirty at that time; the error count at that time.
    Written {
        upto: u64,
        errors: u64,
    },
    /// Waits for a transaction and a flush.
    Durable {
        txn: u64,
        flush: u64,
    },
    /// Waits for the final checkpoint.
    Closing,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveOp {
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) time: Time,
    pub(crate) state: OpState,
    /// The inode that it pins.
    pub(crate) pinned_inode: Option<Ino>,
    /// The block that it waits for.
    pub(crate) awaited_block: Option<u32>,
    /// Error of one of its transfers.
    pub(crate) failed: Option<Status>,
    /// Blocks reserved for it.
    pub(crate) reserved_blocks: u64,
    /// Number of partial blocks that it has zeroed. Each is zeroed once, because the request is the
    /// file's writer. While the request waits for space, such a block may be written back, and must
    /// be if that frees the space.
    pub(crate) zeroed: usize,
}

/// Result of a step: the request waits, or is complete.
pub(crate) enum OpStep {
    Wait,
    Done(OpResult),
}

/// Result of a step that may fail.
pub(crate) type StepResult = Result<OpStep, Error>;

/// The state of a volume without its device.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) options: Options,
    pub(crate) superblock: Superblock,
    pub(crate) now: Nanos,
    pub(crate) tree: Tree,
    pub(crate) allocator: BlockAllocator,
    pub(crate) page_cache: PageCache,
    pub(crate) transfers: DeviceTransfers<TransferPurpose>,
    pub(crate) memory: AddressSpace,
    pub(crate) volatile: bool,

    pub(crate) slots: Vec<Option<ActiveOp>>,
    free_slots: Vec<u32>,
    order: VecDeque<u32>,
    pub(crate) completions: VecDeque<OpCompletion>,
    /// Set by events for which requests may wait.
    pub(crate) made_progress: bool,

    pub(crate) staging: Arc<SharedRegion>,
    pub(crate) staging_iova: Iova,
    pub(crate) free_staging: Vec<u32>,

    /// Sequence numbers of dirtied pages, and of writes that need a flush.
    pub(crate) dirty_seq: u64,
    pub(crate) write_seq: u64,
    pub(crate) flushed_seq: u64,
    pub(crate) flush_requested: u64,
    pub(crate) flushing: bool,
    /// Inodes with dirty pages by age; inodes to be written now.
    pub(crate) dirty_inodes: VecDeque<(Nanos, Ino)>,
    pub(crate) writeback_queue: VecDeque<Ino>,
    /// Number of failed data writes, and the last status.
    pub(crate) write_errors: u64,
    pub(crate) last_error: Status,

    pub(crate) txn: Txn,
    pub(crate) commit: Commit,
    pub(crate) ring: JournalRing,
    /// Maximum bytes of a transaction.
    pub(crate) txn_bytes_max: usize,
    /// Bytes of records that extents in flight will add.
    pub(crate) record_bytes_in_flight: usize,
    pub(crate) commit_requested: u64,
    /// The last durable transaction.
    pub(crate) durable_txn: u64,
    pub(crate) journal: Arc<SharedRegion>,
    pub(crate) journal_iova: Iova,
    /// Blocks with a discard in flight.
    pub(crate) discarding: u64,

    pub(crate) checkpoint: Checkpoint,
    pub(crate) orphans: VecDeque<Ino>,
    pub(crate) closing: bool,
    pub(crate) closed: bool,
    /// Writing the journal or a superblock failed; the volume accepts no more changes.
    pub(crate) aborted: Option<Status>,
    pub(crate) stats: Stats,
}

impl Core {
    /// Creates the state from loaded metadata, before the first checkpoint.
    pub(crate) fn new(
        options: Options,
        superblock: Superblock,
        (tree, space): (Tree, BlockAllocator),
        limits: &Limits,
        memory: &AddressSpace,
    ) -> Result<Core, RegisterError> {
        let ring = JournalRing {
            sectors: superblock.layout.journal_sectors(),
            sector_bytes: limits.sector_bytes,
            epoch: superblock.epoch,
            head: superblock.journal_seq,
            tail: superblock.journal_seq,
        };
        let txn_bytes = TXN_BYTES_MAX.min((ring.sectors / 4) as usize * ring.payload());
        let journal_bytes = (ring.sectors_for(2 * txn_bytes) + 1) * u64::from(limits.sector_bytes);
        let (journal, journal_at) = memory.allocate_registered(journal_bytes as usize)?;
        let (stages, stages_at) = memory.allocate_registered(
            STAGING_BUFFERS as usize * STAGING_BUFFER_BLOCKS as usize * BLOCK,
        )?;
        let (pieces, pieces_at) = memory.allocate_registered(2 * SEGMENT_BYTES + BLOCK)?;
        let requests = options.requests_max;
        Ok(Core {
            options,
            superblock,
            now: Nanos::ZERO,
            tree,
            allocator: space,
            page_cache: PageCache::new(memory, options.cache_pages)?,
            transfers: DeviceTransfers::new(limits),
            memory: memory.clone(),
            volatile: limits.volatile_cache,
            slots: vec![None; requests as usize],
            free_slots: (0..requests).rev().collect(),
            order: VecDeque::with_capacity(requests as usize),
            completions: VecDeque::with_capacity(requests as usize),
            made_progress: false,
            staging: stages,
            staging_iova: stages_at,
            free_staging: (0..STAGING_BUFFERS).rev().collect(),
            dirty_seq: 0,
            write_seq: 0,
            flushed_seq: 0,
            flush_requested: 0,
            flushing: false,
            dirty_inodes: VecDeque::new(),
            writeback_queue: VecDeque::new(),
            write_errors: 0,
            last_error: Status::SUCCESS,
            txn: Txn::new(superblock.journal_txn, txn_bytes),
            commit: Commit::default(),
            ring,
            txn_bytes_max: txn_bytes,
            record_bytes_in_flight: 0,
            commit_requested: 0,
            durable_txn: superblock.journal_txn - 1,
            journal,
            journal_iova: journal_at,
            discarding: 0,
            checkpoint: Checkpoint::new(pieces, pieces_at),
            orphans: VecDeque::new(),
            closing: false,
            closed: false,
            aborted: None,
            stats: Stats { journal_size: ring.sectors, ..Stats::default() },
        })
    }

    /// Accepts a request with reserved blocks; returns `false` if too many are in flight.
    pub(crate) fn submit(&mut self, request: &crate::Request, room: u64) -> bool {
        let Some(slot) = self.free_slots.pop() else { return false };
        let crate::Request { id, op, time } = *request;
        let progress = OpState::Start;
        let (holds, loads, failed, zeroed) = (None, None, None, 0);
        let active = ActiveOp {
            id,
            op,
            time,
            state: progress,
            pinned_inode: holds,
            awaited_block: loads,
            failed,
            reserved_blocks: room,
            zeroed,
        };
        self.slots[slot as usize] = Some(active);
        self.order.push_back(slot);
        self.made_progress = true;
        true
    }

    /// Returns the number of requests in flight.
    pub(crate) fn active_count(&self) -> usize {
        self.order.len()
    }

    /// Advances every request as far as possible.
    pub(crate) fn step_all(&mut self) {
        for _ in 0..self.order.len() {
            let Some(slot) = self.order.pop_front() else { return };
            let Some(mut active) = self.slots[slot as usize] else { continue };
            let result = self.step(slot, &mut active);
            match result {
                Ok(OpStep::Wait) => {
                    self.slots[slot as usize] = Some(active);
                    self.order.push_back(slot);
                }
                Ok(OpStep::Done(outcome)) => self.complete_op(slot, &active, Ok(outcome)),
                Err(error) => self.complete_op(slot, &active, Err(error)),
            }
        }
    }

    fn complete_op(&mut self, slot: u32, active: &ActiveOp, result: Result<OpResult, Error>) {
        if let Some(ino) = active.pinned_inode
            && let Some(node) = self.tree.find_mut(ino)
        {
            node.state.ref_count -= 1;
            if node.state.writer == Some(slot) {
                node.state.writer = None;
                node.state.io_blocked = false;
            }
            self.add_orphan(ino);
        }
        self.allocator.unreserve(active.reserved_blocks);
        let stats = &mut self.stats;
        let bytes = match result {
            Ok(OpResult::Bytes { len, .. }) => len.into(),
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
        self.completions.push_back(OpCompletion { id: active.id, result });
        self.made_progress = true;
    }

    /// Requests that change, sync or close fail if the journal cannot be written.
    fn step(&mut self, slot: u32, active: &mut ActiveOp) -> StepResult {
        let reads = matches!(active.op, Op::Read { .. });
        if let Some(status) = self.aborted.filter(|_| !reads) {
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
            Op::SetAttr { ino, changes } => self.set_attr(active.time, ino, changes),
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

    /// Pins an inode for a request: it stays, even if its last name and user are removed.
    pub(crate) fn pin_inode(
        &mut self,
        active: &mut ActiveOp,
        ino: Ino,
    ) -> Result<&mut InodeNode, Error> {
        let node = self.tree.get_mut(ino)?;
        if active.pinned_inode.is_none() {
            active.pinned_inode = Some(ino);
            node.state.ref_count += 1;
        }
        Ok(node)
    }

    /// Adds an inode to the running transaction; `data` if its data could not be read without the
    /// change.
    pub(crate) fn add_inode_to_txn(&mut self, ino: Ino, data: bool) {
        let Some(node) = self.tree.find_mut(ino) else { return };
        let txn = self.txn.id;
        node.state.txn = txn;
        if data {
            node.state.data_txn = txn;
        }
        if !std::mem::replace(&mut node.state.in_txn, true) {
            self.txn.inodes.push(ino);
        }
        self.txn.started_at.get_or_insert(self.now);
    }

    /// Returns whether the transaction and the journal have space for this many more bytes of
    /// records. If not, requests a commit or a checkpoint.
    pub(crate) fn ensure_journal_space(&mut self, bytes: usize) -> bool {
        self.ensure_journal_sectors(bytes, 0)
    }

    /// Returns whether there is journal space for records and additional sectors. Journaled blocks
    /// and extents in flight may need a transaction each.
    pub(crate) fn ensure_journal_sectors(&mut self, bytes: usize, sectors: u64) -> bool {
        let all = self.txn.bytes() + self.record_bytes_in_flight + bytes;
        let each =
            (self.record_bytes_in_flight / EXTENT_RECORD_BYTES + self.page_cache.journaled) as u64;
        let sectors = self.ring.sectors_for(all) + each + sectors + 2;
        let fits = all <= self.txn_bytes_max && sectors <= self.ring.free();
        if !fits && !self.txn.is_empty() {
            self.commit_requested = self.commit_requested.max(self.txn.id);
        }
        fits
    }

    /// Returns whether metadata may grow by this many bytes; each dirty or reserved block may add
    /// two extents.
    pub(crate) fn has_metadata_space(&self, bytes: usize) -> bool {
        let blocks = self.page_cache.dirty as u64 + self.allocator.reserved();
        let coming = (blocks * (2 * EXTENT_BYTES) as u64).saturating_add(bytes as u64);
        self.tree.bytes().saturating_add(coming) <= self.superblock.layout.metadata_bytes()
    }

    /// Returns whether this many blocks can be written, including the metadata that they may add.
    pub(crate) fn has_free_blocks(&self, blocks: u64) -> bool {
        let bytes = usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(2 * EXTENT_BYTES);
        let writes = self.aborted.is_none() && !self.options.read_only && !self.closing;
        writes && self.allocator.available() >= blocks && self.has_metadata_space(bytes)
    }

    /// Returns whether blocks will become free soon.
    pub(crate) fn has_pending_frees(&mut self) -> bool {
        if !self.txn.freed_extents.is_empty() {
            self.commit_requested = self.commit_requested.max(self.txn.id);
        }
        !self.txn.freed_extents.is_empty()
            || !self.commit.freed_extents.is_empty()
            || self.discarding > 0
            || !self.orphans.is_empty()
    }

    /// Handles the completion of a transfer.
    pub(crate) fn on_transfer_complete(&mut self, completion: &Completion) {
        let Some((what, status)) = self.transfers.on_completion(completion) else { return };
        self.made_progress = true;
        match what {
            TransferPurpose::Load { ino, block, page: frame } => {
                self.on_page_loaded(ino, block, frame, status)
            }
            TransferPurpose::Direct { slot, ino } => self.on_read_complete(slot, ino, status),
            TransferPurpose::Staged { slot, ino, staging_index: stage, from, to, len } => {
                if status.is_success() && self.copy_from_staging(stage, from, to, len).is_err() {
                    self.fail_transfer(slot, Status::DATA_TRANSFER_ERROR);
                }
                self.free_staging.push(stage);
                self.on_read_complete(slot, ino, status);
            }
            TransferPurpose::Writeback(run) => self.on_extent_written(run, status),
            TransferPurpose::Journal => self.on_journal_complete(status),
            TransferPurpose::Flush(upto) => {
                self.flushing = false;
                if status.is_success() {
                    self.flushed_seq = self.flushed_seq.max(upto);
                } else {
                    self.abort(status);
                }
            }
            TransferPurpose::SnapshotSegment(buffer) => self.on_segment_complete(buffer, status),
            TransferPurpose::Superblock => self.on_superblock_complete(status),
            // A discard is only advisory: the blocks are free whatever its result.
            TransferPurpose::Discard { start, count } => {
                self.discarding -= u64::from(count);
                self.stats.discarded_blocks += u64::from(count);
                self.allocator.free(start, count);
            }
        }
    }

    /// Records the failure of a request's transfer.
    pub(crate) fn fail_transfer(&mut self, slot: u32, status: Status) {
        if let Some(active) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            active.failed.get_or_insert(status);
        }
    }

    /// Aborts the volume: nothing can be made durable any more.
    pub(crate) fn abort(&mut self, status: Status) {
        self.aborted.get_or_insert(status);
        self.made_progress = true;
    }

    /// Reads blocks of the volume.
    pub(crate) fn read_blocks(&mut self, what: TransferPurpose, blocks: (u32, u32), at: Iova) {
        self.stats.device_bytes_read += u64::from(blocks.1) * BLOCK as u64;
        self.transfers.submit_blocks(what, DeviceOp::Read, blocks, at, false);
        self.made_progress = true;
    }
}
