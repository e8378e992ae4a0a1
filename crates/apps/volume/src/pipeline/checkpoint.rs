//! Checkpoints: a snapshot of all metadata is written, then superblocks that name it. After that, the
//! earlier journal is not needed, because its data has been written in place as well. The first
//! checkpoint precedes the completion of a mount, the last one is part of closing, and others run
//! when a third of the journal is in use.

use block::Op as DeviceOp;
use nvme::Status;

use crate::device_io::SectorRun;
use crate::on_media::layout::BLOCK;
use crate::parts::checkpoint::{
    CheckpointStart, CheckpointState, NextSegment, SegmentBuffer, SegmentWrite, SuperblockWrite,
};
use crate::pipeline::{Core, TransferPurpose};

impl Core {
    /// Starts a checkpoint, unless one is in progress.
    pub(crate) fn begin_checkpoint(&mut self) -> bool {
        if !self.checkpoint.is_idle() || self.lifecycle.aborted().is_some() {
            return false;
        }
        let start = CheckpointStart {
            journal_seq: self.log.ring().head(),
            journal_txn: self.log.running_txn(),
            epoch: self.log.ring().epoch(),
            owner: self.options.owner,
        };
        self.checkpoint.begin(start, &self.tree);
        self.writeback.record_event();
        self.made_progress = true;
        true
    }

    /// Starts the final checkpoint, after which the volume is not in use.
    pub(super) fn begin_final_checkpoint(&mut self) -> bool {
        if !self.checkpoint.is_idle() {
            return false;
        }
        self.checkpoint.set_final();
        self.begin_checkpoint()
    }

    /// Returns whether journaled data must be written in place now, because the volume is being
    /// closed, or the journal needs space. Otherwise a failed write is repeated later.
    pub(super) fn must_be_in_place(&self) -> bool {
        let ring = self.log.ring();
        let is_full = ring.used() > ring.sectors() / 2;
        self.lifecycle.is_closing() || !self.checkpoint.is_idle() && is_full
    }

    /// Advances a checkpoint.
    pub(super) fn poll_checkpoint(&mut self) {
        if self.lifecycle.aborted().is_some() || self.options.read_only {
            return;
        }
        match self.checkpoint.state() {
            CheckpointState::Idle => {
                let ring = self.log.ring();
                if ring.used() > ring.sectors() / 3 && !self.checkpoint.is_final() {
                    self.begin_checkpoint();
                }
            }
            CheckpointState::Writing => {
                self.write_segments();
                let is_in_place = self.write_journaled_in_place(self.checkpoint.first_txn());
                if self.checkpoint.is_snapshot_written() && is_in_place {
                    self.checkpoint.await_commit(self.log.last_txn());
                    self.made_progress = true;
                }
            }
            CheckpointState::Committing { txn } => {
                if self.log.require_durable(txn) {
                    self.checkpoint.await_flush(self.barriers.write_seq());
                    self.made_progress = true;
                }
            }
            CheckpointState::Flushing { write_seq } => {
                if self.barriers.require_flushed(write_seq) {
                    self.write_superblock(false);
                }
            }
            CheckpointState::Superblock { .. } => {}
        }
    }

    /// Writes segments as far as buffers permit.
    fn write_segments(&mut self) {
        loop {
            let SegmentWrite { buffer, blocks, iova } =
                match self.checkpoint.next_segment(&self.tree) {
                    NextSegment::Write(write) => write,
                    NextSegment::None => return,
                    // The limit on metadata and the size of the journal guarantee that it fits.
                    NextSegment::Overflow => return self.abort(Status::INTERNAL),
                };
            let what = TransferPurpose::SnapshotSegment(buffer);
            self.transfers.submit_blocks(what, DeviceOp::Write, blocks, iova, false);
            self.stats.checkpoint_bytes += u64::from(blocks.blocks) * BLOCK as u64;
            self.made_progress = true;
        }
    }

    pub(super) fn on_segment_complete(&mut self, buffer: SegmentBuffer, status: Status) {
        self.checkpoint.end_segment(buffer);
        self.barriers.record_write();
        if !status.is_success() {
            self.abort(status);
        }
    }

    fn write_superblock(&mut self, second: bool) {
        let SuperblockWrite { lba, iova } = self.checkpoint.begin_superblock(second);
        self.transfers.submit_sectors(
            TransferPurpose::Superblock,
            DeviceOp::Write,
            SectorRun { lba, sectors: 1 },
            iova,
            self.barriers.is_volatile(),
        );
        self.made_progress = true;
    }

    pub(super) fn on_superblock_complete(&mut self, status: Status) {
        if !status.is_success() {
            return self.abort(status);
        }
        if matches!(self.checkpoint.state(), CheckpointState::Superblock { second: false }) {
            return self.write_superblock(true);
        }
        let needed_from = self.checkpoint.end();
        self.log.discard_before(needed_from);
        self.stats.checkpoints += 1;
    }
}
