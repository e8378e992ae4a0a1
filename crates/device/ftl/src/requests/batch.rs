//! [`WriteBatch`]: writes that arrive together, and are admitted without being queued one by one.

use crate::ids::{Lba, ToU32};

/// A write of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchWrite {
    /// The tag of its [`Completion`](crate::Completion), if it has to wait.
    pub tag: u64,
    /// The first sector.
    pub slba: u64,
    /// Length in sectors.
    pub sectors: u32,
}

/// A write of a batch whose range is the host's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcceptedWrite {
    pub(crate) tag: u64,
    pub(crate) lba: Lba,
    pub(crate) sectors: u32,
}

/// The writes of a batch until the next [`Ftl::kick`](crate::Ftl::kick), and the number of those that
/// completed there.
///
/// Invariant: while a batch has writes, no other write is queued.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteBatch {
    writes: Vec<AcceptedWrite>,
    completed: u32,
}

impl WriteBatch {
    /// Whether no write waits for the next kick.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Adds a write.
    #[inline]
    pub(crate) fn push(&mut self, write: AcceptedWrite) {
        self.writes.push(write);
    }

    /// Removes and returns the writes. Their memory is to be [returned](WriteBatch::return_writes).
    #[inline]
    pub(crate) fn take_writes(&mut self) -> Vec<AcceptedWrite> {
        std::mem::take(&mut self.writes)
    }

    /// Returns the memory of the writes, and counts the `completed` ones.
    #[inline]
    pub(crate) fn return_writes(&mut self, mut writes: Vec<AcceptedWrite>, completed: usize) {
        writes.clear();
        self.writes = writes;
        self.completed += completed.to_u32();
    }

    /// Returns the number of writes that have completed since the last call.
    #[inline]
    pub(crate) fn take_completed(&mut self) -> u32 {
        std::mem::take(&mut self.completed)
    }
}
