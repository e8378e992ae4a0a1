//! [`CheckpointWriter`]: the current superblock, and the snapshot that will replace its snapshot.

use std::sync::Arc;

use mem::{AddressSpace, Iova, RegisterError, SharedRegion};

use crate::Owner;
use crate::invariants::{VolumeViolation, require, require_eq};
use crate::metadata::tree::Tree;
use crate::on_media::layout::{BLOCK, BlockRun, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::on_media::snapshot::{SnapshotCursor, seal};
use crate::on_media::superblock::{SUPERBLOCK_BYTES, Superblock};

/// Number of buffers for segments.
const SEGMENT_BUFFERS: u32 = 2;

/// Index of a buffer for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentBuffer(u32);

#[derive(Clone, Copy, Debug)]
pub(crate) enum CheckpointState {
    Idle,
    /// Segments and journaled data are being written.
    Writing,
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

/// State of the volume that a checkpoint begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckpointStart {
    /// The first sector of the journal, and the first transaction, after the snapshot.
    pub(crate) journal_seq: u64,
    pub(crate) journal_txn: u64,
    pub(crate) epoch: u64,
    /// The owner to be recorded, unless the checkpoint is final.
    pub(crate) owner: Owner,
}

/// A segment to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentWrite {
    pub(crate) buffer: SegmentBuffer,
    pub(crate) blocks: BlockRun,
    pub(crate) iova: Iova,
}

/// Next segment of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NextSegment {
    Write(SegmentWrite),
    /// All segments were encoded, or no buffer is free.
    None,
    /// The snapshot does not fit its area.
    Overflow,
}

/// A superblock to be written: one sector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuperblockWrite {
    pub(crate) lba: u64,
    pub(crate) iova: Iova,
}

/// Superblocks and the checkpoint in progress.
#[derive(Debug)]
pub(crate) struct CheckpointWriter {
    /// The superblock on the device.
    superblock: Superblock,
    state: CheckpointState,
    cursor: SnapshotCursor,
    /// The superblock to be written.
    next_superblock: Option<Superblock>,
    segments: u32,
    in_flight: u32,
    buffers: Vec<SegmentBuffer>,
    region: Arc<SharedRegion>,
    iova: Iova,
    segment: Vec<u8>,
    /// This is the final checkpoint of a close.
    is_final: bool,
}

impl CheckpointWriter {
    pub(crate) fn new(
        superblock: Superblock,
        memory: &AddressSpace,
    ) -> Result<CheckpointWriter, RegisterError> {
        // The last block is for a superblock.
        let bytes = SEGMENT_BUFFERS as usize * SEGMENT_BYTES + BLOCK;
        let (region, iova) = memory.allocate_registered(bytes)?;
        Ok(CheckpointWriter {
            superblock,
            state: CheckpointState::Idle,
            cursor: SnapshotCursor::ended(),
            next_superblock: None,
            segments: 0,
            in_flight: 0,
            buffers: (0..SEGMENT_BUFFERS).map(SegmentBuffer).collect(),
            region,
            iova,
            segment: Vec::with_capacity(SEGMENT_BYTES + BLOCK),
            is_final: false,
        })
    }

    /// Returns the superblock on the device.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub(crate) fn state(&self) -> CheckpointState {
        self.state
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, CheckpointState::Idle)
    }

    /// Returns whether the final checkpoint has begun.
    pub(crate) fn is_final(&self) -> bool {
        self.is_final
    }

    /// Makes the next checkpoint the final one, after which the volume is not in use.
    pub(crate) fn set_final(&mut self) {
        self.is_final = true;
    }

    /// Starts a checkpoint.
    pub(crate) fn begin(&mut self, start: CheckpointStart, tree: &Tree) {
        assert!(self.is_idle(), "checkpoint: one begins in state {:?}", self.state);
        let old = self.superblock;
        self.segments = 0;
        self.next_superblock = Some(Superblock {
            generation: old.generation + 1,
            snapshot_area: 1 - old.snapshot_area,
            snapshot: old.snapshot + 1,
            journal_seq: start.journal_seq,
            journal_txn: start.journal_txn,
            epoch: start.epoch,
            owner: Some(start.owner).filter(|_| !self.is_final),
            data_in_journal: !self.is_final,
            ..old
        });
        self.cursor = SnapshotCursor::new(tree);
        self.state = CheckpointState::Writing;
    }

    fn next_superblock(&self) -> &Superblock {
        let next = self.next_superblock.as_ref();
        next.unwrap_or_else(|| panic!("checkpoint: no next superblock in state {:?}", self.state))
    }

    /// Returns the first transaction after the snapshot; data of earlier ones must be in place.
    pub(crate) fn first_txn(&self) -> u64 {
        self.next_superblock().journal_txn
    }

    /// Encodes the next segment.
    pub(crate) fn next_segment(&mut self, tree: &Tree) -> NextSegment {
        if self.cursor.is_at_end() {
            return NextSegment::None;
        }
        let Some(buffer) = self.buffers.pop() else { return NextSegment::None };
        let next = *self.next_superblock();
        self.cursor.fill(tree, &mut self.segment);
        let is_last = self.cursor.is_at_end();
        let blocks = seal(&mut self.segment, next.snapshot, self.segments, is_last);
        let begin = self.segments * SEGMENT_BLOCKS;
        if begin + blocks > next.layout.snapshot_blocks {
            self.buffers.push(buffer);
            return NextSegment::Overflow;
        }
        let offset = buffer.0 as usize * SEGMENT_BYTES;
        self.region.write(offset, &self.segment);
        self.segments += 1;
        self.in_flight += 1;
        let first_block = next.layout.snapshot(next.snapshot_area) + begin;
        NextSegment::Write(SegmentWrite {
            buffer,
            blocks: BlockRun { first_block, blocks },
            iova: self.iova.offset(offset as u64),
        })
    }

    /// Ends the write of a segment.
    pub(crate) fn end_segment(&mut self, buffer: SegmentBuffer) {
        assert!(self.in_flight > 0, "checkpoint: {buffer:?} was written, and none is in flight");
        self.buffers.push(buffer);
        self.in_flight -= 1;
    }

    /// Returns whether all segments were written.
    pub(crate) fn is_snapshot_written(&self) -> bool {
        self.cursor.is_at_end() && self.in_flight == 0
    }

    /// Continues once a transaction is durable.
    pub(crate) fn await_commit(&mut self, txn: u64) {
        self.state = CheckpointState::Committing { txn };
    }

    /// Continues once a write is durable.
    pub(crate) fn await_flush(&mut self, write_seq: u64) {
        self.state = CheckpointState::Flushing { write_seq };
    }

    /// Encodes the next superblock, for its first or second location.
    pub(crate) fn begin_superblock(&mut self, second: bool) -> SuperblockWrite {
        let next = Superblock { segments: self.segments, ..*self.next_superblock() };
        self.next_superblock = Some(next);
        let mut sector = [0; BLOCK];
        sector[..SUPERBLOCK_BYTES].copy_from_slice(&next.encode());
        let offset = SEGMENT_BUFFERS as usize * SEGMENT_BYTES;
        self.region.write(offset, &sector);
        self.state = CheckpointState::Superblock { second };
        let block = if second { next.layout.second() } else { 0 };
        SuperblockWrite {
            lba: u64::from(block) * u64::from(next.layout.block_sectors()),
            iova: self.iova.offset(offset as u64),
        }
    }

    /// Ends a checkpoint whose superblocks are durable. Returns the first sector of the journal
    /// that is still needed.
    pub(crate) fn end(&mut self) -> u64 {
        self.superblock = *self.next_superblock();
        self.next_superblock = None;
        self.state = CheckpointState::Idle;
        self.superblock.journal_seq
    }

    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        require_eq!(
            Checkpoint,
            "a segment buffer is free or in flight",
            "all buffers",
            SEGMENT_BUFFERS,
            self.in_flight + self.buffers.len() as u32
        );
        require!(
            self.in_flight == 0 || matches!(self.state, CheckpointState::Writing),
            Checkpoint,
            "segments are written before the superblocks",
            format_args!("snapshot {}", self.superblock.snapshot + 1),
            CheckpointState::Writing,
            self.state
        );
        let expected = (!self.is_idle()).then_some(self.superblock.generation + 1);
        require_eq!(
            Checkpoint,
            "a checkpoint in progress has the next superblock",
            format_args!("generation {}", self.superblock.generation),
            expected,
            self.next_superblock.map(|next| next.generation)
        );
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_buffers(&mut self) {
        self.in_flight += 1;
    }
}
