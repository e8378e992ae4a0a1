//! [`Core`]: the state of a volume without its device, as a composition of parts.
//!
//! The fields of [`Core`] are private to this module. Its children are the operations that reach
//! several parts: requests, writeback, commits and checkpoints. A part sees its arguments only.

mod barrier;
mod checkpoint;
mod commit;
mod data_journal;
mod invariants;
#[cfg(test)]
mod invariants_tests;
mod namespace;
pub(crate) mod page_lookup;
mod read;
mod sync;
mod truncate;
mod whole_writes;
mod write;
mod writeback;

use block::{BlockDevice, Completion, Limits, Op as DeviceOp};
use mem::{AddressSpace, Iova, RegisterError};
use nvme::Status;
use time::Nanos;

use crate::device_io::DeviceTransfers;
use crate::metadata::tree::{InodeNode, Tree};
use crate::on_media::journal::JournalRing;
use crate::on_media::layout::{BLOCK, BlockRun};
use crate::on_media::record::EXTENT_BYTES;
use crate::on_media::superblock::Superblock;
use crate::parts::allocator::BlockAllocator;
use crate::parts::barriers::FlushBarriers;
use crate::parts::checkpoint::{CheckpointWriter, SegmentBuffer};
use crate::parts::lifecycle::Lifecycle;
use crate::parts::log::MetadataLog;
use crate::parts::page_cache::{FileBlock, PageCache, PageId};
use crate::parts::requests::{ActiveOps, ActiveRequest, OpSlot};
use crate::parts::staging::{StagingBuffers, StagingIndex};
use crate::parts::writeback_queue::WritebackQueue;
use crate::pipeline::namespace::{CreateMode, EntryName};
use crate::pipeline::truncate::FileSpan;
use crate::pipeline::whole_writes::atomic_unit;
use crate::pipeline::writeback::WriteExtent;
use crate::{
    DirEntry, Error, Ino, OpResult, Options, Stats, VolumeCompletion, VolumeOp, VolumeRequest,
};

/// Purpose of a transfer.
#[derive(Clone, Copy, Debug)]
enum TransferPurpose {
    /// Reads a block into a page.
    Load { at: FileBlock, page: PageId },
    /// Reads blocks into a request's data.
    Direct { slot: OpSlot, ino: Ino },
    /// Reads blocks into a staging buffer, and copies a part to a request's data.
    Staged(StagedRead),
    /// Writes blocks of a file from a staging buffer.
    Writeback(WriteExtent),
    /// Writes a part of a transaction.
    Journal,
    /// Flushes writes up to this number.
    Flush(u64),
    /// Writes a segment of a snapshot.
    SnapshotSegment(SegmentBuffer),
    /// Writes a superblock.
    Superblock,
    /// Discards free blocks.
    Discard(BlockRun),
}

/// A read through a staging buffer.
#[derive(Clone, Copy, Debug)]
struct StagedRead {
    slot: OpSlot,
    ino: Ino,
    staging: StagingIndex,
    /// The first byte of the buffer to be copied.
    offset: usize,
    /// Destination.
    to: Iova,
    /// Bytes to be copied.
    len: usize,
}

/// Result of a step: the request waits, or is complete.
enum OpStep {
    Wait,
    Done(OpResult),
}

/// Result of a step that may fail.
type StepResult = Result<OpStep, Error>;

/// Metadata from which a volume starts.
#[derive(Debug)]
pub(crate) struct StartState {
    pub(crate) superblock: Superblock,
    pub(crate) tree: Tree,
    pub(crate) allocator: BlockAllocator,
}

/// The state of a volume without its device.
#[derive(Debug)]
pub(crate) struct Core {
    options: Options,
    now: Nanos,
    /// Set by events for which requests may wait.
    made_progress: bool,
    stats: Stats,
    lifecycle: Lifecycle,
    requests: ActiveOps,
    transfers: DeviceTransfers<TransferPurpose>,
    tree: Tree,
    allocator: BlockAllocator,
    page_cache: PageCache,
    staging: StagingBuffers,
    writeback: WritebackQueue,
    barriers: FlushBarriers,
    log: MetadataLog,
    checkpoint: CheckpointWriter,
}

impl Core {
    /// Creates the state from loaded metadata, before the first checkpoint.
    pub(crate) fn new(
        options: Options,
        start: StartState,
        limits: &Limits,
        memory: &AddressSpace,
    ) -> Result<Core, RegisterError> {
        let StartState { superblock, tree, allocator } = start;
        let (ring, layout) = (JournalRing::new(&superblock), superblock.layout);
        let has_units = layout.unit_blocks > 1;
        let txn_bytes = options.txn_bytes as usize;
        let log = MetadataLog::new(ring, superblock.journal_txn, txn_bytes, has_units, memory)?;
        let mut transfers = DeviceTransfers::new(limits);
        transfers.set_atomic(atomic_unit(&layout, limits, options.cache_pages));
        let staging = StagingBuffers::new(memory)?;
        let checkpoint = CheckpointWriter::new(superblock, memory)?;
        let stats = Stats { journal_size: log.ring().sectors(), ..Stats::default() };
        Ok(Core {
            options,
            now: Nanos::ZERO,
            made_progress: false,
            stats,
            lifecycle: Lifecycle::default(),
            requests: ActiveOps::new(options.requests_max, memory.clone()),
            transfers,
            tree,
            allocator,
            page_cache: PageCache::new(memory, options.cache_pages)?,
            staging,
            writeback: WritebackQueue::new(),
            barriers: FlushBarriers::new(limits.volatile_cache),
            log,
            checkpoint,
        })
    }

    /// Records what a mount recovered from the journal.
    pub(crate) fn set_recovered(&mut self, transactions: u64, blocks: u64) {
        (self.stats.recovered, self.stats.recovered_blocks) = (transactions, blocks);
    }

    /// Records that the mount has completed.
    pub(crate) fn set_ready(&mut self, now: Nanos) {
        self.stats.ready_at = now;
    }

    pub(crate) fn set_now(&mut self, now: Nanos) {
        self.now = now;
    }

    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Returns whether no checkpoint is in progress.
    pub(crate) fn is_checkpoint_idle(&self) -> bool {
        self.checkpoint.is_idle()
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        self.checkpoint.superblock()
    }

    /// Returns the address space in which data of requests must be registered.
    pub(crate) fn memory(&self) -> &AddressSpace {
        self.requests.memory()
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            journal_used: self.log.ring().used(),
            dirty_pages: self.page_cache.dirty_len() as u64,
            journal_only_blocks: self.page_cache.journaled_len() as u64,
            discarded_blocks: self.allocator.discarded_blocks(),
            device_bytes_written: self.transfers.bytes_written(),
            ..self.stats
        }
    }

    /// Returns when work is due that needs no request, unless it waits for the device.
    pub(crate) fn deadline(&self) -> Nanos {
        let expire = self.options.dirty_expire;
        let barriers = self.barriers.ordered.deadline(self.options.barrier_delay);
        let own = [self.dirty_deadline(), self.log.deadline(expire), barriers];
        if self.lifecycle.aborted().is_some() {
            return Nanos::MAX;
        }
        // Work that is due already goes on when the device completes a request.
        own.into_iter().filter(|due| *due > self.now).min().unwrap_or(Nanos::MAX)
    }

    /// Accepts a request with reserved blocks; returns `false` if too many are in flight.
    pub(crate) fn submit(&mut self, request: &VolumeRequest, reserved_blocks: u64) -> bool {
        if self.lifecycle.is_closing() {
            self.unreserve(reserved_blocks);
            self.requests.reject(request.id, Error::ReadOnly);
            return true;
        }
        let is_accepted = self.requests.submit(request, reserved_blocks);
        self.made_progress |= is_accepted;
        is_accepted
    }

    pub(crate) fn pop_completion(&mut self) -> Option<VolumeCompletion> {
        self.requests.pop_completion()
    }

    /// Returns the number of requests in flight.
    pub(crate) fn active_count(&self) -> usize {
        self.requests.len()
    }

    /// Returns the number of blocks reserved for future writes, each with its unit.
    pub(crate) fn reserved_blocks(&self) -> u64 {
        self.allocator.reserved() / u64::from(self.unit_blocks())
    }

    /// Reserves blocks, each with its unit; returns `false` if too few are available.
    pub(crate) fn reserve(&mut self, blocks: u64) -> bool {
        let unit = u64::from(self.unit_blocks());
        self.has_free_blocks(blocks) && self.allocator.reserve(blocks.saturating_mul(unit))
    }

    /// Releases reserved blocks.
    pub(crate) fn unreserve(&mut self, blocks: u64) {
        self.allocator.unreserve(blocks * u64::from(self.unit_blocks()));
        self.made_progress = true;
    }

    /// Returns the entries of a directory after `cookie`.
    pub(crate) fn list(
        &self,
        dir: Ino,
        cookie: u64,
    ) -> Result<impl Iterator<Item = DirEntry<'_>>, Error> {
        let entries = self.tree.directory(dir)?.entries.entries_after(cookie);
        Ok(entries.map(|(name, e)| DirEntry { name, ino: e.child, kind: e.kind, cookie: e.cookie }))
    }

    pub(crate) fn parent(&self, ino: Ino) -> Result<Ino, Error> {
        self.tree.get(ino).map(|node| node.parent)
    }

    pub(crate) fn open(&mut self, ino: Ino) -> Result<(), Error> {
        self.tree.get_mut(ino)?.state.users.open();
        Ok(())
    }

    pub(crate) fn close_inode(&mut self, ino: Ino) -> Result<(), Error> {
        self.tree.get_mut(ino)?.state.users.close()?;
        self.add_orphan(ino);
        Ok(())
    }

    /// Does all work that is possible now. Returns whether a request completed.
    pub(crate) fn advance(&mut self) -> bool {
        let completions = self.requests.completions_len();
        self.expire_dirty();
        loop {
            self.made_progress = false;
            if !self.barriers.ordered.is_idle() {
                // Before requests complete that waited for the same transaction.
                self.end_barriers();
            }
            self.step_all();
            self.reap_orphans();
            self.write_back();
            self.poll_checkpoint();
            self.poll_commit();
            if !self.made_progress {
                return self.requests.completions_len() > completions;
            }
        }
    }

    /// Submits transfers until the device is full. Returns whether it submitted any.
    pub(crate) fn send<D: BlockDevice>(&mut self, device: &mut D) -> bool {
        self.transfers.send(device, self.now)
    }

    /// Advances every request as far as possible.
    fn step_all(&mut self) {
        for _ in 0..self.requests.len() {
            let Some((slot, mut active)) = self.requests.begin_step() else { return };
            match self.step(slot, &mut active) {
                Ok(OpStep::Wait) => {
                    if self.barriers.ordered.is_blocking() {
                        self.barriers.ordered.unblock();
                        self.stats.barrier_waits += u64::from(!active.waited_for_barrier);
                        active.waited_for_barrier = true;
                    }
                    self.requests.wait(slot, active);
                }
                Ok(OpStep::Done(outcome)) => self.complete_op(slot, &active, Ok(outcome)),
                Err(error) => self.complete_op(slot, &active, Err(error)),
            }
        }
    }

    fn complete_op(
        &mut self,
        slot: OpSlot,
        active: &ActiveRequest,
        result: Result<OpResult, Error>,
    ) {
        if let Some(ino) = active.pinned_inode {
            let state = &mut self.tree.existing_mut(ino).state;
            if state.users.unpin(slot) {
                state.io.unblock();
            }
            self.add_orphan(ino);
        }
        self.unreserve(active.reserved_blocks);
        let stats = &mut self.stats;
        let bytes = match result {
            Ok(OpResult::Bytes { len, .. }) => len.into(),
            _ => 0,
        };
        match active.op {
            VolumeOp::Read { .. } => {
                (stats.reads, stats.bytes_read) = (stats.reads + 1, stats.bytes_read + bytes)
            }
            VolumeOp::Write { .. } | VolumeOp::Append { .. } => {
                stats.writes += 1;
                stats.bytes_written += bytes;
            }
            VolumeOp::Sync { .. } | VolumeOp::SyncAll => stats.syncs += 1,
            VolumeOp::Barrier | VolumeOp::AwaitBarrier { .. } => {}
            _ => stats.changes += 1,
        }
        stats.failed += u64::from(result.is_err());
        self.requests.complete(slot, result);
        self.made_progress = true;
    }

    /// Requests that change, sync or close fail if the journal cannot be written. Barriers have an
    /// error of their own.
    fn step(&mut self, slot: OpSlot, active: &mut ActiveRequest) -> StepResult {
        let reads = matches!(
            active.op,
            VolumeOp::Read { .. } | VolumeOp::Barrier | VolumeOp::AwaitBarrier { .. }
        );
        if let Some(status) = self.lifecycle.aborted().filter(|_| !reads) {
            return Err(Error::Io { status });
        }
        let sync = matches!(active.op, VolumeOp::Sync { .. } | VolumeOp::SyncAll | VolumeOp::Close);
        if self.options.read_only && !reads && !sync {
            return Err(Error::ReadOnly);
        }
        match active.op {
            VolumeOp::Create { dir, ref name, access, exclusive, open } => self.create(
                active.time,
                EntryName { dir, name },
                access,
                CreateMode { exclusive, open },
            ),
            VolumeOp::MakeDirectory { dir, ref name, access } => {
                self.make_directory(active.time, EntryName { dir, name }, access)
            }
            VolumeOp::Unlink { dir, ref name } => {
                self.remove(active.time, EntryName { dir, name }, false)
            }
            VolumeOp::RemoveDirectory { dir, ref name } => {
                self.remove(active.time, EntryName { dir, name }, true)
            }
            VolumeOp::Rename { from, ref name, to, ref new, replace } => {
                let from = EntryName { dir: from, name };
                self.rename(active.time, from, EntryName { dir: to, name: new }, replace)
            }
            VolumeOp::SetAttr { ino, changes } => self.set_attr(active.time, ino, changes),
            VolumeOp::Read { ino, offset, data } => self.read(slot, active, ino, offset, data),
            VolumeOp::Write { ino, offset, data } => {
                self.write(slot, active, ino, Some(offset), data)
            }
            VolumeOp::Append { ino, data } => self.write(slot, active, ino, None, data),
            VolumeOp::Truncate { ino, size } => self.truncate(slot, active, ino, size),
            VolumeOp::Allocate { ino, offset, len, keep_size } => {
                self.allocate(slot, active, ino, FileSpan { offset, len }, keep_size)
            }
            VolumeOp::Punch { ino, offset, len } => {
                self.punch(slot, active, ino, FileSpan { offset, len })
            }
            VolumeOp::Sync { ino, data_only } => self.sync(active, ino, data_only),
            VolumeOp::SyncAll => self.sync_all(active),
            VolumeOp::Close => self.close(active),
            VolumeOp::Barrier => Ok(OpStep::Done(OpResult::Barrier(self.issue_barrier()?))),
            VolumeOp::AwaitBarrier { barrier } => self.await_barrier(barrier),
        }
    }

    /// Pins an inode for a request: it stays, even if its last name and user are removed.
    fn pin_inode(&mut self, active: &mut ActiveRequest, ino: Ino) -> Result<&mut InodeNode, Error> {
        let node = self.tree.get_mut(ino)?;
        if active.pinned_inode.is_none() {
            active.pinned_inode = Some(ino);
            node.state.users.pin();
        }
        Ok(node)
    }

    /// Adds an inode to the running transaction; `data` if its data could not be read without the
    /// change.
    fn add_inode_to_txn(&mut self, ino: Ino, data: bool) {
        self.barriers.ordered.record_change();
        self.add_written_inode(ino, data);
    }

    /// Adds an inode to the running transaction, because blocks were written or journaled that
    /// changed earlier.
    fn add_written_inode(&mut self, ino: Ino, data: bool) {
        let txn = self.log.running_txn();
        if self.tree.existing_mut(ino).state.txns.change(txn, data) {
            self.log.add_inode(ino);
        }
        self.log.record_change(self.now);
    }

    /// Returns whether the transaction and the journal have space for this many more bytes of
    /// records. If not, requests a commit or a checkpoint.
    fn ensure_journal_space(&mut self, bytes: usize) -> bool {
        self.ensure_change_space(bytes, 0)
    }

    /// Returns whether metadata may grow by this many bytes; each dirty or reserved block may add
    /// two extents.
    fn has_metadata_space(&self, bytes: usize) -> bool {
        let blocks = self.page_cache.dirty_len() as u64 + self.reserved_blocks();
        let coming = (blocks * (2 * EXTENT_BYTES) as u64).saturating_add(bytes as u64);
        self.tree.bytes().saturating_add(coming) <= self.superblock().layout.metadata_bytes()
    }

    /// Returns whether this many blocks can be written, including the metadata that they may add.
    pub(crate) fn has_free_blocks(&self, blocks: u64) -> bool {
        let bytes = usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(2 * EXTENT_BYTES);
        let writes = self.lifecycle.accepts_changes() && !self.options.read_only;
        let with_units = blocks.saturating_mul(self.unit_blocks().into());
        writes && self.allocator.available() >= with_units && self.has_metadata_space(bytes)
    }

    /// Returns whether blocks will become free soon.
    fn has_pending_frees(&mut self) -> bool {
        self.log.request_pending_frees()
            || self.allocator.discarding_blocks() > 0
            || self.tree.orphans_len() > 0
    }

    /// Handles the completion of a transfer.
    pub(crate) fn on_transfer_complete(&mut self, completion: &Completion) {
        let Some((what, status)) = self.transfers.on_completion(completion) else { return };
        self.made_progress = true;
        self.writeback.record_event();
        match what {
            TransferPurpose::Load { at, page } => self.on_page_loaded(at, page, status),
            TransferPurpose::Direct { slot, ino } => self.on_read_complete(slot, ino, status),
            TransferPurpose::Staged(read) => self.on_staged_read(&read, status),
            TransferPurpose::Writeback(run) => self.on_extent_written(run, status),
            TransferPurpose::Journal => self.on_journal_complete(status),
            TransferPurpose::Flush(upto) => {
                self.barriers.end_flush(status.is_success().then_some(upto));
                if !status.is_success() {
                    self.abort(status);
                }
            }
            TransferPurpose::SnapshotSegment(buffer) => self.on_segment_complete(buffer, status),
            TransferPurpose::Superblock => self.on_superblock_complete(status),
            // A discard is only advisory: the blocks are free whatever its result.
            TransferPurpose::Discard(blocks) => self.allocator.end_discard(blocks),
        }
    }

    /// Aborts the volume: nothing can be made durable any more.
    fn abort(&mut self, status: Status) {
        tracing::error!(%status, "volume aborted: nothing can be made durable any more");
        self.lifecycle.abort(status);
        self.made_progress = true;
    }

    /// Reads blocks of the volume.
    fn read_blocks(&mut self, what: TransferPurpose, blocks: BlockRun, at: Iova) {
        self.stats.device_bytes_read += u64::from(blocks.blocks) * BLOCK as u64;
        self.transfers.submit_blocks(what, DeviceOp::Read, blocks, at, false);
        self.made_progress = true;
    }
}
