//! [`QueueTable`]: the registered memory of a drive's I/O queues.
//!
//! Invariants: memory that the drive may still write to is not given to another queue. If it is
//! unknown whether the drive has a queue, the queue's memory and identifier stay reserved until
//! [`reclaimed`](QueueTable::reclaimed).

use transport::Port;

use crate::data::PrpLists;
use crate::queue_pair::memory::{QueueMemory, RangeMemory};
use crate::{ControllerInfo, DriverError};

/// The memory of existing queues, and that of deleted queues, which is reused.
#[derive(Debug)]
pub(super) struct QueueTable {
    /// Memory of each existing queue, by queue identifier minus one.
    existing: Vec<Option<QueueMemory>>,
    /// Queues that the drive may or may not have, since it did not answer in time.
    indeterminate: Vec<u16>,
    /// Memory of deleted queues.
    spare: Vec<QueueMemory>,
    spare_ranges: Vec<RangeMemory>,
    spare_lists: Vec<PrpLists>,
}

impl QueueTable {
    /// Returns a table for `queues` queues that do not exist yet.
    pub(super) fn new(queues: u16) -> QueueTable {
        QueueTable {
            existing: vec![None; usize::from(queues)],
            indeterminate: Vec::new(),
            spare: Vec::new(),
            spare_ranges: Vec::new(),
            spare_lists: Vec::new(),
        }
    }

    /// Returns the lowest identifier of a queue that does not exist; `None` if all exist.
    pub(super) fn next_qid(&self) -> Option<u16> {
        self.existing.iter().position(Option::is_none).map(|slot| slot as u16 + 1)
    }

    /// Returns the memory of an existing queue.
    pub(super) fn memory(&self, qid: u16) -> Option<&QueueMemory> {
        self.existing.get(usize::from(qid).checked_sub(1)?)?.as_ref()
    }

    /// Allocates zeroed memory for a queue with rings of `depth` entries.
    ///
    /// # Errors
    /// As [`QueueMemory::new`].
    pub(super) fn allocate(&mut self, port: &Port, depth: u16) -> Result<QueueMemory, DriverError> {
        match self.spare.iter().position(|m| m.depth() == depth) {
            Some(i) => {
                let used = self.spare.swap_remove(i);
                used.zero();
                Ok(used)
            }
            None => QueueMemory::new(port, depth),
        }
    }

    /// Frees the memory of a queue that the drive does not have.
    pub(super) fn free(&mut self, memory: QueueMemory) {
        self.spare.push(memory);
    }

    /// Records that a queue exists, with its memory. The identifier comes from
    /// [`next_qid`](QueueTable::next_qid).
    pub(super) fn insert(&mut self, qid: u16, memory: QueueMemory) {
        self.existing[usize::from(qid) - 1] = Some(memory);
    }

    /// Removes a queue that the drive has deleted, and frees its memory.
    pub(super) fn remove(&mut self, qid: u16) {
        let slot = usize::from(qid).wrapping_sub(1);
        self.spare.extend(self.existing.get_mut(slot).and_then(Option::take));
    }

    /// Records that the drive may or may not have an existing queue.
    pub(super) fn set_indeterminate(&mut self, qid: u16) {
        self.indeterminate.push(qid);
        debug_assert_eq!(self.check_invariants(), Ok(()));
    }

    /// Returns a queue that the drive may or may not have.
    pub(super) fn indeterminate(&self) -> Option<u16> {
        self.indeterminate.last().copied()
    }

    /// Removes the queue that [`indeterminate`](QueueTable::indeterminate) returned: the drive no
    /// longer has it.
    pub(super) fn reclaimed(&mut self) {
        if let Some(qid) = self.indeterminate.pop() {
            self.remove(qid);
        }
    }

    /// Allocates memory for the ranges of discards of a queue with `tags` tags.
    pub(super) fn allocate_ranges(
        &mut self,
        port: &Port,
        tags: u16,
    ) -> Result<RangeMemory, DriverError> {
        match self.spare_ranges.iter().position(|r| r.tags() >= tags.into()) {
            Some(i) => Ok(self.spare_ranges.swap_remove(i)),
            None => RangeMemory::new(port, tags),
        }
    }

    /// Frees the ranges of a queue that the drive has deleted.
    pub(super) fn free_ranges(&mut self, ranges: RangeMemory) {
        self.spare_ranges.push(ranges);
    }

    /// Allocates memory for the PRP lists of a queue with `tags` tags.
    pub(super) fn allocate_prp_lists(
        &mut self,
        port: &Port,
        info: &ControllerInfo,
        tags: u16,
    ) -> Result<PrpLists, DriverError> {
        // All lists are for one namespace, whose format does not change.
        let most = info.max_wire_bytes();
        match self.spare_lists.iter().position(|l| l.is_compatible(tags, most)) {
            Some(i) => {
                let mut lists = self.spare_lists.swap_remove(i);
                lists.reset();
                Ok(lists)
            }
            None => PrpLists::new(port, tags, info),
        }
    }

    /// Frees the PRP lists of a queue that the drive has deleted.
    pub(super) fn free_prp_lists(&mut self, lists: PrpLists) {
        self.spare_lists.push(lists);
    }

    /// Checks that every indeterminate queue keeps its memory. Returns the identifier of one that
    /// does not.
    pub(super) fn check_invariants(&self) -> Result<(), u16> {
        match self.indeterminate.iter().find(|&&qid| self.memory(qid).is_none()) {
            Some(&qid) => Err(qid),
            None => Ok(()),
        }
    }
}
