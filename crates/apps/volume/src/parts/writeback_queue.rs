//! [`WritebackQueue`]: files with data that is not in place, by age, and those to be written now.

use std::collections::{BTreeSet, VecDeque};

use nvme::Status;
use time::Nanos;

use crate::Ino;
use crate::invariants::{VolumeViolation, require};

/// A file, and when it is older than all its unwritten data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgedInode {
    pub(crate) since: Nanos,
    pub(crate) ino: Ino,
}

/// Both queues may name inodes that were removed meanwhile.
#[derive(Debug)]
pub(crate) struct WritebackQueue {
    /// Inodes with dirty pages, oldest first.
    by_age: VecDeque<AgedInode>,
    /// Inodes to be written now.
    due: VecDeque<Ino>,
    /// Number of failed data writes, and the last status.
    errors: u64,
    last_error: Status,
    /// Number of events after which more blocks may be ready to be written in place.
    events: u64,
    /// The events before the last search through all journaled blocks.
    searched: Option<u64>,
}

impl WritebackQueue {
    pub(crate) fn new() -> WritebackQueue {
        WritebackQueue {
            by_age: VecDeque::new(),
            due: VecDeque::new(),
            errors: 0,
            last_error: Status::SUCCESS,
            events: 0,
            searched: None,
        }
    }

    /// Records that blocks may be ready to be written in place that were not before: a transfer
    /// completed, a barrier became durable, blocks were journaled, or changed with no barrier to wait
    /// for, a checkpoint began, or writes are tried again after an error.
    pub(crate) fn record_event(&mut self) {
        self.events += 1;
    }

    /// Returns the number of these events.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Records that all journaled blocks were searched, and that those that were ready are being
    /// written.
    pub(crate) fn end_search(&mut self) {
        self.searched = Some(self.events);
    }

    /// Returns whether a search through all journaled blocks would find none that is ready.
    pub(crate) fn was_searched(&self) -> bool {
        self.searched == Some(self.events)
    }

    pub(crate) fn oldest(&self) -> Option<AgedInode> {
        self.by_age.front().copied()
    }

    pub(crate) fn pop_oldest(&mut self) -> Option<AgedInode> {
        self.by_age.pop_front()
    }

    pub(crate) fn push_youngest(&mut self, inode: AgedInode) {
        self.by_age.push_back(inode);
    }

    /// Returns the inodes with dirty pages, oldest first.
    pub(crate) fn by_age(&self) -> impl Iterator<Item = Ino> + '_ {
        self.by_age.iter().map(|aged| aged.ino)
    }

    pub(crate) fn by_age_len(&self) -> usize {
        self.by_age.len()
    }

    pub(crate) fn push_due(&mut self, ino: Ino) {
        self.due.push_back(ino);
    }

    pub(crate) fn pop_due(&mut self) -> Option<Ino> {
        self.due.pop_front()
    }

    pub(crate) fn due_len(&self) -> usize {
        self.due.len()
    }

    /// Returns the inodes to be written now.
    pub(crate) fn due(&self) -> impl Iterator<Item = Ino> + '_ {
        self.due.iter().copied()
    }

    pub(crate) fn record_error(&mut self, status: Status) {
        self.errors += 1;
        self.last_error = status;
    }

    /// Returns the number of failed data writes.
    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }

    /// Returns the status of the last failed data write.
    pub(crate) fn last_error(&self) -> Status {
        self.last_error
    }

    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        let mut seen = BTreeSet::new();
        let mut before = Nanos::ZERO;
        for AgedInode { since, ino } in &self.by_age {
            require!(seen.insert(*ino), Writeback, "an inode is queued by age once", ino, 1, 2);
            require!(
                before <= *since,
                Writeback,
                "the queue by age is in order",
                ino,
                before,
                since
            );
            before = *since;
        }
        seen.clear();
        for ino in &self.due {
            require!(seen.insert(*ino), Writeback, "an inode is queued as due once", ino, 1, 2);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_queue(&mut self, ino: Ino) {
        self.due.push_back(ino);
        self.due.push_back(ino);
    }
}
