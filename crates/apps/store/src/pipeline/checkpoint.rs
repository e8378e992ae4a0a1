//! [`Checkpoint`]: writes a snapshot of all metadata. After it, the earlier journal is not needed, because its
//! data has been written in place as well. The first checkpoint precedes the completion of a mount,
//! the last one is part of closing, and others run when a third of the journal is in use.

use std::sync::Arc;

use block::Op as DeviceOp;
use nvme::Status;
use ring::{Iova, SharedRegion};

use crate::layout::{BLOCK, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::pipeline::{Core, TransferPurpose};
use crate::snapshot::{SnapshotCursor, seal};
use crate::superblock::{SUPERBLOCK_BYTES, Superblock};

#[derive(Clone, Copy, Debug)]
enum CheckpointState {
    Idle,
    /// Segments and journaled data are being written.
    Writing(SnapshotCursor),
    /// Waits until the transactions that the snapshot may contain are durable.
    Committing {
        txn: u64,
    },
    /// Waits until the segments are durable.
    Flushing {
        write_seq: u64,
    },
    /// The first or second superblock is being written.
    Superblock {
        second: bool,
    },
}

/// A checkpoint in progress.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    state: CheckpointState,
    /// The superblock to be written.
    next_superblock: Option<Superblock>,
    begin: u64,
    /// The first transaction after the snapshot; data of earlier transactions must be in place.
    first_txn: u64,
    segments: u32,
    in_flight: u32,
    buffers: Vec<u32>,
    region: Arc<SharedRegion>,
    iova: Iova,
    segment: Vec<u8>,
    /// This is the final checkpoint of a close.
    is_final: bool,
}

impl Checkpoint {
    /// Creates the state; `region` has two segment buffers and one for a superblock.
    pub(crate) fn new(region: Arc<SharedRegion>, iova: Iova) -> Checkpoint {
        Checkpoint {
            state: CheckpointState::Idle,
            next_superblock: None,
            begin: 0,
            first_txn: 0,
            segments: 0,
            in_flight: 0,
            buffers: vec![0, 1],
            region,
            iova,
            segment: Vec::with_capacity(SEGMENT_BYTES + BLOCK),
            is_final: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, CheckpointState::Idle)
    }

    pub(crate) fn has_begun_final(&self) -> bool {
        self.is_final
    }
}

impl Core {
    /// Starts a checkpoint, unless one is in progress.
    pub(crate) fn begin_checkpoint(&mut self) -> bool {
        if !self.checkpoint.is_idle() || self.aborted.is_some() {
            return false;
        }
        let old = self.superblock;
        let checkpoint = &mut self.checkpoint;
        (checkpoint.begin, checkpoint.first_txn) = (self.ring.head, self.txn.id);
        checkpoint.segments = 0;
        checkpoint.next_superblock = Some(Superblock {
            generation: old.generation + 1,
            snapshot_area: 1 - old.snapshot_area,
            snapshot: old.snapshot + 1,
            journal_seq: self.ring.head,
            journal_txn: self.txn.id,
            epoch: self.ring.epoch,
            owner: Some(self.options.owner).filter(|_| !checkpoint.is_final),
            data_in_journal: !checkpoint.is_final,
            ..old
        });
        checkpoint.state = CheckpointState::Writing(SnapshotCursor::new(&self.tree));
        self.made_progress = true;
        true
    }

    /// Starts the final checkpoint, after which the volume is not in use.
    pub(crate) fn begin_final_checkpoint(&mut self) -> bool {
        if !self.checkpoint.is_idle() {
            return false;
        }
        self.checkpoint.is_final = true;
        self.begin_checkpoint()
    }

    /// Returns whether journaled data must be written in place, because the journal needs space or
    /// the volume is being closed.
    pub(crate) fn needs_journal_space(&self) -> bool {
        let full = self.ring.used() > self.ring.sectors / 2;
        !self.checkpoint.is_idle() && (self.checkpoint.is_final || full)
    }

    /// Advances a checkpoint.
    pub(crate) fn poll_checkpoint(&mut self) {
        if self.aborted.is_some() || self.options.read_only {
            return;
        }
        match self.checkpoint.state {
            CheckpointState::Idle => {
                if self.ring.used() > self.ring.sectors / 3 && !self.checkpoint.is_final {
                    self.begin_checkpoint();
                }
            }
            CheckpointState::Writing(mut cursor) => {
                while !cursor.is_at_end()
                    && let Some(buffer) = self.checkpoint.buffers.pop()
                {
                    self.write_segment(&mut cursor, buffer);
                    self.checkpoint.state = CheckpointState::Writing(cursor);
                }
                let placed = self.write_journaled_in_place(self.checkpoint.first_txn);
                if cursor.is_at_end() && self.checkpoint.in_flight == 0 && placed {
                    let txn = if self.txn.is_empty() { self.txn.id - 1 } else { self.txn.id };
                    self.checkpoint.state = CheckpointState::Committing { txn };
                    self.made_progress = true;
                }
            }
            CheckpointState::Committing { txn } => {
                if self.durable_txn >= txn {
                    self.checkpoint.state = CheckpointState::Flushing { write_seq: self.write_seq };
                    self.made_progress = true;
                } else {
                    self.commit_requested = self.commit_requested.max(txn);
                }
            }
            CheckpointState::Flushing { write_seq: need } => {
                if self.flushed_seq >= need {
                    self.write_superblock(false);
                } else {
                    self.flush_requested = self.flush_requested.max(need);
                }
            }
            CheckpointState::Superblock { .. } => {}
        }
    }

    fn write_segment(&mut self, cursor: &mut SnapshotCursor, buffer: u32) {
        let checkpoint = &mut self.checkpoint;
        let Some(next) = &checkpoint.next_superblock else { return };
        cursor.fill(&self.tree, &mut checkpoint.segment);
        let index = checkpoint.segments;
        let blocks = seal(&mut checkpoint.segment, next.snapshot, index, cursor.is_at_end());
        let layout = next.layout;
        let begin = index * SEGMENT_BLOCKS;
        if begin + blocks > layout.snapshot_blocks {
            // The limit on metadata and the size of the journal guarantee that it fits.
            return self.abort(Status::INTERNAL);
        }
        let at = buffer as usize * SEGMENT_BYTES;
        checkpoint.region.write(at, &checkpoint.segment);
        checkpoint.segments += 1;
        checkpoint.in_flight += 1;
        let (from, first) =
            (checkpoint.iova.offset(at as u64), layout.snapshot(next.snapshot_area) + begin);
        let what = TransferPurpose::SnapshotSegment(buffer);
        self.transfers.submit_blocks(what, DeviceOp::Write, (first, blocks), from, false);
        self.stats.checkpoint_bytes += u64::from(blocks) * BLOCK as u64;
        self.made_progress = true;
    }

    pub(crate) fn on_segment_complete(&mut self, buffer: u32, status: Status) {
        self.checkpoint.buffers.push(buffer);
        self.checkpoint.in_flight -= 1;
        self.write_seq += u64::from(self.volatile);
        if !status.is_success() {
            self.abort(status);
        }
    }

    fn write_superblock(&mut self, second: bool) {
        let checkpoint = &mut self.checkpoint;
        let Some(next) = &mut checkpoint.next_superblock else { return };
        next.segments = checkpoint.segments;
        let mut sector = [0; BLOCK];
        sector[..SUPERBLOCK_BYTES].copy_from_slice(&next.encode());
        checkpoint.region.write(2 * SEGMENT_BYTES, &sector);
        checkpoint.state = CheckpointState::Superblock { second };
        let block = if second { next.layout.second() } else { 0 };
        let lba = u64::from(block) * u64::from(next.layout.block_sectors());
        let from = checkpoint.iova.offset(2 * SEGMENT_BYTES as u64);
        self.transfers.submit_sectors(
            TransferPurpose::Superblock,
            DeviceOp::Write,
            (lba, 1),
            from,
            self.volatile,
        );
        self.made_progress = true;
    }

    pub(crate) fn on_superblock_complete(&mut self, status: Status) {
        if !status.is_success() {
            return self.abort(status);
        }
        if matches!(self.checkpoint.state, CheckpointState::Superblock { second: false }) {
            return self.write_superblock(true);
        }
        if let Some(next) = self.checkpoint.next_superblock.take() {
            self.superblock = next;
        }
        self.ring.tail = self.checkpoint.begin;
        self.checkpoint.state = CheckpointState::Idle;
        self.stats.checkpoints += 1;
    }
}
