//! Sync requests and closing.

use crate::parts::requests::{ActiveRequest, OpState};
use crate::pipeline::data_journal::JournalDecision;
use crate::pipeline::{Core, OpStep, StepResult};
use crate::{Error, Ino, OpResult};

impl Core {
    pub(super) fn sync(
        &mut self,
        active: &mut ActiveRequest,
        ino: Ino,
        data_only: bool,
    ) -> StepResult {
        if active.state == OpState::Start {
            let node = self.pin_inode(active, ino)?;
            let errors = node.state.writeback.errors();
            if !node.state.pages.dirty().is_empty() {
                node.state.writeback.resume();
                self.writeback.record_event();
            }
            active.state = OpState::Written { upto: self.page_cache.dirty_seq(), errors };
        }
        if let OpState::Written { upto, errors } = active.state {
            if self.tree.get(ino)?.state.writeback.errors() != errors {
                return Err(Error::Io { status: self.writeback.last_error() });
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
            let txns = &self.tree.get(ino)?.state.txns;
            let txn = txns.last(data_only);
            active.state = OpState::Durable { txn, flush: txns.unflushed_seq() };
            let waits = txn > self.log.durable_txn();
            self.stats.commit_waiters += u64::from(waits);
        }
        self.wait_durable(active)
    }

    /// Returns whether changes of a file up to `seq` are neither in place nor in the journal, and
    /// whether some are not even being written.
    fn unwritten(&self, ino: Ino, seq: u64) -> Result<(bool, bool), Error> {
        let pages = &self.tree.get(ino)?.state.pages;
        let frames = pages.dirty().iter().filter_map(|block| pages.get(*block));
        let (mut behind, mut unsent) = (false, false);
        for frame in frames.map(|id| self.page_cache.get(id)) {
            behind |= frame.is_unwritten(seq);
            unsent |= frame.is_unsent(seq);
        }
        Ok((behind, unsent))
    }

    /// Waits for a transaction and a flush.
    fn wait_durable(&mut self, active: &ActiveRequest) -> StepResult {
        let OpState::Durable { txn, flush } = active.state else {
            unreachable!("requests: a sync in state {:?}", active.state);
        };
        if self.log.require_durable(txn) && self.barriers.require_flushed(flush) {
            return Ok(OpStep::Done(OpResult::Done));
        }
        Ok(OpStep::Wait)
    }

    pub(super) fn sync_all(&mut self, active: &mut ActiveRequest) -> StepResult {
        if active.state == OpState::Start {
            self.writeback.record_event();
            self.barriers.ordered.request_all();
            let inos: Vec<Ino> = self.writeback.by_age().collect();
            for ino in inos {
                if let Some(node) = self.tree.find_mut(ino) {
                    node.state.writeback.resume();
                }
                // Journaled data is durable with the journal; closing writes it in place.
                let is_closing = self.lifecycle.is_closing();
                let node = self.tree.find(ino);
                if is_closing || node.is_some_and(|n| !n.state.pages.dirty().is_empty()) {
                    self.request_writeback(ino, false);
                }
            }
            let upto = self.page_cache.dirty_seq();
            active.state = OpState::Written { upto, errors: self.writeback.errors() };
        }
        if let OpState::Written { upto, errors } = active.state {
            if self.writeback.errors() != errors {
                return Err(Error::Io { status: self.writeback.last_error() });
            }
            if self.page_cache.iter().any(|f| f.is_unwritten(upto)) {
                return Ok(OpStep::Wait);
            }
            let (txn, flush) = (self.log.last_txn(), self.barriers.write_seq());
            active.state = OpState::Durable { txn, flush };
        }
        self.wait_durable(active)
    }

    pub(super) fn close(&mut self, active: &mut ActiveRequest) -> StepResult {
        self.lifecycle.begin_close();
        if self.options.read_only {
            self.lifecycle.end_close();
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
                    node.state.users.close_all();
                }
                self.add_orphan(ino);
            }
            if self.tree.orphans_len() > 0 {
                return Ok(OpStep::Wait);
            }
        }
        if !self.barriers.ordered.is_idle() {
            return Ok(OpStep::Wait);
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
        if !self.checkpoint.is_final() && !self.begin_final_checkpoint() {
            return Ok(OpStep::Wait);
        }
        if !self.checkpoint.is_idle() {
            return Ok(OpStep::Wait);
        }
        self.lifecycle.end_close();
        Ok(OpStep::Done(OpResult::Done))
    }

    /// Returns whether all discards have completed.
    fn is_discard_done(&self) -> bool {
        self.allocator.discarding_blocks() == 0 && self.log.is_commit_without_frees()
    }
}
