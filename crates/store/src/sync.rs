//! Making things durable on demand, and closing.

use crate::core::{Active, Core, Progress, Step, Stepped};
use crate::log::Logged;
use crate::{Error, Ino, Outcome};

impl Core {
    pub(crate) fn sync(&mut self, active: &mut Active, ino: Ino, data_only: bool) -> Stepped {
        if active.progress == Progress::Start {
            let node = self.hold(active, ino)?;
            let errors = node.live.errors;
            node.live.held &= node.live.dirty.is_empty();
            active.progress = Progress::Written { upto: self.seq, errors };
        }
        if let Progress::Written { upto, errors } = active.progress {
            if self.tree.get(ino)?.live.errors != errors {
                return Err(Error::Io { status: self.last_error });
            }
            let (mut behind, unsent) = self.behind(ino, upto)?;
            if unsent {
                match self.log(ino, data_only) {
                    Logged::Yes => (behind, _) = self.behind(ino, upto)?,
                    Logged::Later => {}
                    Logged::No => self.want(ino, true),
                }
            }
            if behind {
                return Ok(Step::Wait);
            }
            let live = &self.tree.get(ino)?.live;
            let txn = if data_only { live.data_txn } else { live.txn };
            active.progress = Progress::Durable { txn, flush: live.unflushed };
            let waits = txn > self.durable;
            self.stats.commit_waiters += u64::from(waits);
        }
        self.durable(active)
    }

    /// Whether changes of a file up to `seq` are neither in place nor in the journal; and whether some of
    /// them are not even on their way.
    fn behind(&self, ino: Ino, seq: u64) -> Result<(bool, bool), Error> {
        let live = &self.tree.get(ino)?.live;
        let frames = live.dirty.iter().filter_map(|b| live.frames.get(b));
        let (mut behind, mut unsent) = (false, false);
        for frame in frames.map(|id| self.frames.get(*id)) {
            behind |= frame.behind(seq);
            unsent |= frame.dirty && frame.seq <= seq;
        }
        Ok((behind, unsent))
    }

    /// Waits for a transaction and a flush.
    fn durable(&mut self, active: &Active) -> Stepped {
        let Progress::Durable { txn, flush } = active.progress else {
            return Err(Error::Invalid("a sync that is none"));
        };
        if txn > self.durable {
            self.commit_wanted = self.commit_wanted.max(txn);
            return Ok(Step::Wait);
        }
        if flush > self.flushed {
            self.flush_wanted = self.flush_wanted.max(flush);
            return Ok(Step::Wait);
        }
        Ok(Step::Done(Outcome::Done))
    }

    pub(crate) fn sync_all(&mut self, active: &mut Active) -> Stepped {
        if active.progress == Progress::Start {
            let inos: Vec<Ino> = self.aging.iter().map(|(_, ino)| *ino).collect();
            for ino in inos {
                if let Some(node) = self.tree.find_mut(ino) {
                    node.live.held = false;
                }
                // What is in the journal is durable with it; closing writes it in place.
                if self.closing || self.tree.find(ino).is_some_and(|n| !n.live.dirty.is_empty()) {
                    self.want(ino, false);
                }
            }
            active.progress = Progress::Written { upto: self.seq, errors: self.errors };
        }
        if let Progress::Written { upto, errors } = active.progress {
            if self.errors != errors {
                return Err(Error::Io { status: self.last_error });
            }
            if self.frames.iter().any(|f| f.behind(upto)) {
                return Ok(Step::Wait);
            }
            // The transaction that runs, or the one that is on its way.
            let txn = if self.txn.is_empty() { self.txn.id - 1 } else { self.txn.id };
            active.progress = Progress::Durable { txn, flush: self.writes };
        }
        self.durable(active)
    }

    pub(crate) fn close(&mut self, active: &mut Active) -> Stepped {
        self.closing = true;
        if self.options.read_only {
            self.closed = true;
            return Ok(Step::Done(Outcome::Done));
        }
        // Itself is not among those that wait while it steps.
        if self.active() > 0 {
            return Ok(Step::Wait);
        }
        if active.progress == Progress::Start {
            // Whoever had something open has not any more.
            let orphans: Vec<Ino> =
                self.tree.iter().filter(|(_, n)| n.links == 0).map(|(ino, _)| ino).collect();
            for ino in orphans {
                if let Some(node) = self.tree.find_mut(ino) {
                    node.live.opens = 0;
                }
                self.doom(ino);
            }
            if !self.doomed.is_empty() {
                return Ok(Step::Wait);
            }
        }
        if active.progress != Progress::Closing {
            if matches!(self.sync_all(active)?, Step::Wait) {
                return Ok(Step::Wait);
            }
            active.progress = Progress::Closing;
        }
        if !self.discarded() {
            return Ok(Step::Wait);
        }
        if !self.checkpoint.last_begun() && !self.begin_last_checkpoint() {
            return Ok(Step::Wait);
        }
        if !self.checkpoint.is_idle() {
            return Ok(Step::Wait);
        }
        self.closed = true;
        Ok(Step::Done(Outcome::Done))
    }

    /// Whether all discards have ended.
    fn discarded(&self) -> bool {
        self.discarding == 0 && self.commit.frees.is_empty()
    }
}
