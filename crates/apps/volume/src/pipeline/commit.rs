//! Commits: the running transaction is closed, waits for a flush of the data that it covers, and is
//! written to the journal.

use block::Op as DeviceOp;
use mem::Iova;
use nvme::Status;

use crate::device_io::SectorRun;
use crate::on_media::layout::BlockRun;
use crate::parts::log::JournalWrite;
use crate::pipeline::{Core, TransferPurpose};

impl Core {
    /// Advances flushes and commits.
    pub(super) fn poll_commit(&mut self) {
        if self.lifecycle.aborted().is_some() {
            return;
        }
        let has_barriers = !self.barriers.ordered.is_idle();
        if has_barriers {
            self.poll_barriers();
        }
        if self.log.is_close_due(self.now, self.options.dirty_expire)
            && !(has_barriers && self.barriers.ordered.has_later_changes())
        {
            self.close_txn();
        }
        if let Some(write_seq) = self.log.awaited_write_seq()
            && self.barriers.require_flushed(write_seq)
        {
            self.write_txn();
        }
        if let Some(write_seq) = self.barriers.begin_flush() {
            self.stats.flushes += 1;
            self.transfers.submit_flush(TransferPurpose::Flush(write_seq));
            self.made_progress = true;
        }
    }

    /// Closes the running transaction, and starts the next one.
    pub(super) fn close_txn(&mut self) {
        let tree = &mut self.tree;
        self.log.close_txn(self.barriers.write_seq(), |ino| {
            let node = tree.find_mut(ino)?;
            node.state.txns.close();
            Some(node.record())
        });
        self.made_progress = true;
    }

    fn write_txn(&mut self) {
        let layout = self.superblock().layout;
        let begin = u64::from(layout.journal()) * u64::from(layout.block_sectors());
        for write in self.log.begin_commit().into_iter().flatten() {
            let JournalWrite { first_sector, sectors, iova } = write;
            self.transfers.submit_sectors(
                TransferPurpose::Journal,
                DeviceOp::Write,
                SectorRun { lba: begin + first_sector, sectors },
                iova,
                self.barriers.is_volatile(),
            );
        }
        self.stats.journal_sectors += self.log.commit_sectors();
        self.made_progress = true;
    }

    pub(super) fn on_journal_complete(&mut self, status: Status) {
        if !status.is_success() {
            self.abort(status);
            return;
        }
        if !self.log.end_journal_write() || self.lifecycle.aborted().is_some() {
            return;
        }
        let freed = self.log.end_commit();
        self.stats.commits += 1;
        for blocks in &freed {
            self.free_blocks(*blocks);
        }
        self.log.reuse(freed);
    }

    fn free_blocks(&mut self, blocks: BlockRun) {
        if !self.options.discard {
            self.allocator.free(blocks);
            return;
        }
        self.allocator.begin_discard(blocks);
        let what = TransferPurpose::Discard(blocks);
        // A discard transfers no data.
        self.transfers.submit_blocks(what, DeviceOp::Discard, blocks, Iova(0), false);
    }
}
