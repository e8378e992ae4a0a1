//! Sync requests and closing.

use crate::pipeline::data_journal::JournalDecision;
use crate::pipeline::{ActiveOp, Core, OpState, OpStep, StepResult};
use crate::{Error, Ino, OpResult};

impl Core {
    pub(crate) fn sync(&mut self, active: &mut ActiveOp, ino: Ino, data_only: bool) -> StepResult {
        if active.state == OpState::Start {
            let node = self.pin_inode(active, ino)?;
            let errors = node.state.errors;
            node.state.writeback_paused &= node.state.dirty.is_empty();
            active.state = OpState::Written { upto: self.dirty_seq, errors };
        }
        if let OpState::Written { upto, errors } = active.state {
            if self.tree.get(ino)?.state.errors != errors {
                return Err(Error::Io { status: self.last_error });
            }
            let (mut behind, unsent) = self.unwritten(ino, upto)?;
            if unsent {
                match self.journal_data(ino, data_only) {
                    JournalDecision::Journaled => (behind, _) = self.unwritten(ino, upto)?,
                    JournalDecision::Deferred => {}
                    JournalDecision::InPlace => self.request_writeback(ino, true),
                }
            }
            if behind {
                return Ok(OpStep::Wait);
            }
            let live = &self.tree.get(ino)?.state;
            let txn = if data_only { live.data_txn } else { live.txn };
            active.state = OpState::Durable { txn, flush: live.unflushed_seq };
            let waits = txn > self.durable_txn;
            self.stats.commit_waiters += u64::from(waits);
        }
        self.wait_durable(active)
    }

    /// Returns whether changes of a file up to `seq` are neither in place nor in the journal, and
    /// whether some are not even being written.
    fn unwritten(&self, ino: Ino, seq: u64) -> Result<(bool, bool), Error> {
        let live = &self.tree.get(ino)?.state;
        let frames = live.dirty.iter().filter_map(|b| live.pages.get(b));
        let (mut behind, mut unsent) = (false, false);
        for frame in frames.map(|id| self.page_cache.get(*id)) {
            behind |= frame.is_unwritten(seq);
            unsent |= frame.dirty && frame.seq <= seq;
        }
        Ok((behind, unsent))
    }

    /// Waits for a transaction and a flush.
    fn wait_durable(&mut self, active: &ActiveOp) -> StepResult {
        let OpState::Durable { txn, flush } = active.state else {
            return Err(Error::Invalid("a sync that is none"));
        };
        if txn > self.durable_txn {
            self.commit_requested = self.commit_requested.max(txn);
            return Ok(OpStep::Wait);
        }
        if flush > self.flushed_seq {
            self.flush_requested = self.flush_requested.max(flush);
            return Ok(OpStep::Wait);
        }
        Ok(OpStep::Done(OpResult::Done))
    }

    pub(crate) fn sync_all(&mut self, active: &mut ActiveOp) -> StepResult {
        if active.state == OpState::Start {
            let inos: Vec<Ino> = self.dirty_inodes.iter().map(|(_, ino)| *ino).collect();
            for ino in inos {
                if let Some(node) = self.tree.find_mut(ino) {
                    node.state.writeback_paused = false;
                }
                // Journaled data is durable with the journal; closing writes it in place.
                if self.closing || self.tree.find(ino).is_some_and(|n| !n.state.dirty.is_empty()) {
                    self.request_writeback(ino, false);
                }
            }
            active.state = OpState::Written { upto: self.dirty_seq, errors: self.write_errors };
        }
        if let OpState::Written { upto, errors } = active.state {
            if self.write_errors != errors {
                return Err(Error::Io { status: self.last_error });
            }
            if self.page_cache.iter().any(|f| f.is_unwritten(upto)) {
                return Ok(OpStep::Wait);
            }
            // The running transaction, or the one being committed.
            let txn = if self.txn.is_empty() { self.txn.id - 1 } else { self.txn.id };
            active.state = OpState::Durable { txn, flush: self.write_seq };
        }
        self.wait_durable(active)
    }

    pub(crate) fn close(&mut self, active: &mut ActiveOp) -> StepResult {
        self.closing = true;
        if self.options.read_only {
            self.closed = true;
            return Ok(OpStep::Done(OpResult::Done));
        }
        // The request itself is not counted during its step.
        if self.active_count() > 0 {
            return Ok(OpStep::Wait);
        }
        if active.state == OpState::Start {
            // Files still open have no users any more.
            let orphans: Vec<Ino> =
                self.tree.iter().filter(|(_, n)| n.links == 0).map(|(ino, _)| ino).collect();
            for ino in orphans {
                if let Some(node) = self.tree.find_mut(ino) {
                    node.state.open_count = 0;
                }
                self.add_orphan(ino);
            }
            if !self.orphans.is_empty() {
                return Ok(OpStep::Wait);
            }
        }
        if active.state != OpState::Closing {
            if matches!(self.sync_all(active)?, OpStep::Wait) {
                return Ok(OpStep::Wait);
            }
            active.state = OpState::Closing;
        }
        if !self.is_discard_done() {
            return Ok(OpStep::Wait);
        }
        if !self.checkpoint.has_begun_final() && !self.begin_final_checkpoint() {
            return Ok(OpStep::Wait);
        }
        if !self.checkpoint.is_idle() {
            return Ok(OpStep::Wait);
        }
        self.closed = true;
        Ok(OpStep::Done(OpResult::Done))
    }

    /// Returns whether all discards have completed.
    fn is_discard_done(&self) -> bool {
        self.discarding == 0 && self.commit.freed_extents.is_empty()
    }
}
