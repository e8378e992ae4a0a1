//! Queue pairs of a [`ControllerHandle`]: creation, deletion, and recreation after a reset.
//!
//! The memory of deleted queues is reused, and that of queues which the drive may still have is
//! reserved until [`reclaim`](ControllerHandle::reclaim).

use nvme::{AdminCommand, QueuePriority, Status};

use super::ControllerHandle;
use crate::controller::admin::ProgressFn;
use crate::data::PrpLists;
use crate::queue_pair::memory::{QueueMemory, RangeMemory};
use crate::{Completed, CompletionEvent, DriverError, QueuePair, RingAddresses};

impl ControllerHandle {
    /// Creates a queue pair with rings of `depth` entries (at least 2), for `depth - 1` commands.
    /// The drive raises interrupt `vector` after completions if there is one.
    ///
    /// # Errors
    /// [`DriverError`]: no queue left, a depth of less than 2, no memory, or an error of the drive.
    /// Nothing is left allocated then.
    pub fn create_queue_pair(
        &mut self,
        depth: u16,
        vector: Option<u16>,
        progress: &mut dyn FnMut(),
    ) -> Result<QueuePair, DriverError> {
        if depth < 2 {
            return Err(DriverError::Depth { depth, allowed: "a queue has at least 2" });
        }
        if u32::from(depth) > self.max_entries {
            let allowed = "more than the controller's queues can have (CAP.MQES)";
            return Err(DriverError::Depth { depth, allowed });
        }
        let granted = self.info.io_queues;
        let qid = self.next_qid().ok_or(DriverError::NoFreeQueue { granted })?;
        let memory = self.queues.allocate(&self.port, depth)?;
        if let Some((shadows, _)) = &self.shadows {
            shadows.clear_queue(qid);
        }
        let made = self.create_on_device(qid, &memory, vector, progress);
        if let Err(error) = made {
            match error.is_unresponsive() {
                false => self.queues.free(memory),
                // The drive may still write there, and may have created the queue.
                true => {
                    self.queues.insert(qid, memory);
                    self.queues.set_indeterminate(qid);
                }
            }
            return Err(error);
        }
        let rings = memory.rings();
        let mut pair = QueuePair::open(&self.port, qid, rings, depth, vector)?;
        if let Some((shadows, _)) = &self.shadows {
            pair.set_shadow_doorbells(shadows);
        }
        self.queues.insert(qid, memory);
        Ok(pair)
    }

    /// Returns the identifier of the queue pair that would be created next; `None` if none is left.
    pub fn next_qid(&self) -> Option<u16> {
        self.queues.next_qid()
    }

    /// Allocates memory for the ranges of discards of a queue with `tags` tags.
    pub(crate) fn alloc_ranges(&mut self, tags: u16) -> Result<RangeMemory, DriverError> {
        self.queues.allocate_ranges(&self.port, tags)
    }

    /// Frees the ranges of a queue that the drive has deleted.
    pub(crate) fn free_ranges(&mut self, ranges: RangeMemory) {
        self.queues.free_ranges(ranges);
    }

    /// Allocates memory for the PRP lists of a queue with `tags` tags, if the drive needs them.
    pub(crate) fn alloc_prp_lists(
        &mut self,
        tags: u16,
    ) -> Result<Option<Box<PrpLists>>, DriverError> {
        if !self.info.needs_prp_lists() {
            return Ok(None);
        }
        let lists = self.queues.allocate_prp_lists(&self.port, &self.info, tags)?;
        Ok(Some(Box::new(lists)))
    }

    /// Frees the PRP lists of a queue that the drive has deleted.
    pub(crate) fn free_prp_lists(&mut self, lists: Option<Box<PrpLists>>) {
        if let Some(lists) = lists {
            self.queues.free_prp_lists(*lists);
        }
    }

    /// Returns the commands that delete queue `qid` and recreate it in the same memory, in order;
    /// `None` if the queue is not one of this controller's.
    pub(crate) fn recreate_commands(
        &self,
        qid: u16,
        vector: Option<u16>,
    ) -> Option<[AdminCommand; 4]> {
        let memory = self.queues.memory(qid)?;
        let [create_cq, create_sq] = create_queue_commands(qid, memory, vector);
        let (delete_sq, delete_cq) =
            (AdminCommand::DeleteSq { qid }, AdminCommand::DeleteCq { qid });
        Some([delete_sq, delete_cq, create_cq, create_sq])
    }

    /// Returns the commands that create queue `qid` on a controller that has forgotten it, in
    /// order.
    pub(crate) fn create_commands(
        &self,
        qid: u16,
        vector: Option<u16>,
    ) -> Option<[AdminCommand; 2]> {
        Some(create_queue_commands(qid, self.queues.memory(qid)?, vector))
    }

    /// Clears the rings of queue `qid`, and its doorbells in memory. Returns the addresses of the
    /// rings.
    pub(crate) fn clear_rings(&self, qid: u16) -> Option<RingAddresses> {
        let memory = self.queues.memory(qid)?;
        if let Some((shadows, _)) = &self.shadows {
            shadows.clear_queue(qid);
        }
        memory.zero();
        Some(memory.rings())
    }

    /// Creates the completion queue, then the submission queue.
    fn create_on_device(
        &mut self,
        qid: u16,
        memory: &QueueMemory,
        vector: Option<u16>,
        progress: ProgressFn<'_>,
    ) -> Result<(), DriverError> {
        let [create_cq, create_sq] = create_queue_commands(qid, memory, vector);
        self.admin.run(create_cq, qid, progress)?;
        let created = self.admin.run(create_sq, qid, progress);
        if created.as_ref().is_err_and(|error| !error.is_unresponsive()) {
            self.admin.run(AdminCommand::DeleteCq { qid }, qid, progress)?;
        }
        created.map(drop)
    }

    /// Deletes a queue pair. Passes each outstanding command to `back` exactly once: with the
    /// drive's answer if there is one, else with [`Status::ABORTED_SQ_DELETED`].
    ///
    /// # Errors
    /// [`DriverError`]. The pair is gone and its commands have been passed to `back` nevertheless.
    /// Its identifier is not reused, or only after [`reclaim`](ControllerHandle::reclaim) if the
    /// drive did not answer.
    pub fn delete_queue_pair(
        &mut self,
        pair: QueuePair,
        back: &mut dyn FnMut(Completed),
        progress: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        self.delete_with_observer(pair, &mut |_| {}, back, progress)
    }

    /// Deletes a queue pair; `ended` sees the drive's completions before they are passed to `back`.
    pub(crate) fn delete_with_observer(
        &mut self,
        mut pair: QueuePair,
        ended: &mut dyn FnMut(&CompletionEvent),
        back: &mut dyn FnMut(Completed),
        progress: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        let qid = pair.qid();
        let known = self.queues.memory(qid).is_some();
        let deleted = if known {
            self.delete(AdminCommand::DeleteSq { qid }, qid, progress)
        } else {
            Err(DriverError::ForeignQueue { queue: qid })
        };
        while let Some(event) = pair.fetch() {
            ended(&event);
            pair.complete_event(event).map(&mut *back);
        }
        while let Some(completed) = pair.orphan_next(Status::ABORTED_SQ_DELETED) {
            back(completed);
        }
        let deleted =
            deleted.and_then(|()| self.delete(AdminCommand::DeleteCq { qid }, qid, progress));
        match deleted {
            Ok(()) => self.queues.remove(qid),
            Err(error) => {
                if known && error.is_unresponsive() {
                    self.queues.set_indeterminate(qid);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Deletes the queues that the drive may or may not have because it did not answer in time.
    /// Their identifiers and memory can then be reused. Sends nothing if there are none.
    ///
    /// # Errors
    /// [`DriverError`]: the drive still does not answer.
    pub fn reclaim(&mut self, progress: &mut dyn FnMut()) -> Result<(), DriverError> {
        while let Some(qid) = self.queues.indeterminate() {
            for delete in [AdminCommand::DeleteSq { qid }, AdminCommand::DeleteCq { qid }] {
                match self.admin.run(delete, qid, progress) {
                    // If the drive does not have the queue, it needs no deletion.
                    Ok(_) | Err(DriverError::Command { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            self.queues.reclaimed();
        }
        Ok(())
    }

    /// Deletes one queue of a pair, unless the controller has forgotten it in a reset.
    fn delete(
        &mut self,
        command: AdminCommand,
        qid: u16,
        progress: ProgressFn<'_>,
    ) -> Result<(), DriverError> {
        match self.admin.run(command, qid, progress) {
            Err(DriverError::Command { status, .. })
                if self.resets() > 0 && status.is(Status::INVALID_QID) =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }
}

/// Returns the commands that create queue `qid` on its memory: the completion queue first.
fn create_queue_commands(qid: u16, memory: &QueueMemory, vector: Option<u16>) -> [AdminCommand; 2] {
    let entries = u32::from(memory.depth());
    let priority = QueuePriority::default();
    let (at, cq_at) = memory.bus_addresses();
    [
        AdminCommand::CreateCq { qid, entries, at: cq_at, vector },
        AdminCommand::CreateSq { qid, entries, at, cqid: qid, priority },
    ]
}
