//! Queue pairs of a [`Controller`]: made, deleted, and made again after a reset; and their memory, which
//! is used again.
//!
//! Guarantee: memory that the drive may still write to is nobody else's; a queue of which it is not known
//! whether the drive has it keeps its number until that is put in order.

use nvme::{AdminCommand, QueuePriority, Status};
use ring::Iova;

use super::ControllerHandle;
use crate::admin::ProgressFn;
use crate::data::PrpLists;
use crate::memory::{QueueMemory, RangeMemory};
use crate::{Completed, DriverError, Event, QueuePair};

impl ControllerHandle {
    /// Makes a queue pair with rings of `depth` entries (2 or more; it takes `depth - 1` commands),
    /// which raises interrupt `vector` after completions if there is one.
    ///
    /// # Errors
    /// [`DriverError`]: no queue left, a depth of less than 2, no memory, or the drive refuses;
    /// nothing is left behind then.
    pub fn create_queue_pair(
        &mut self,
        depth: u16,
        vector: Option<u16>,
        pump: &mut dyn FnMut(),
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
        let slot = usize::from(qid) - 1;
        let memory = match self.spare.iter().position(|m| m.depth() == depth) {
            Some(i) => {
                let used = self.spare.swap_remove(i);
                used.zero();
                used
            }
            None => QueueMemory::new(&self.port, depth)?,
        };
        if let Some((shadows, _)) = &self.shadows {
            shadows.clear_queue(qid);
        }
        let made = self.create_on_device(qid, &memory, vector, pump);
        if let Err(error) = made {
            match error.is_unresponsive() {
                false => self.spare.push(memory),
                // It may still write there, and know the queue.
                true => {
                    self.queues[slot] = Some(memory);
                    self.indeterminate_queues.push(qid);
                }
            }
            return Err(error);
        }
        let rings = (memory.submission(), memory.completion());
        let mut pair = QueuePair::open(&self.port, qid, rings, depth, vector)?;
        if let Some((shadows, _)) = &self.shadows {
            pair.set_shadow_doorbells(shadows);
        }
        self.queues[slot] = Some(memory);
        Ok(pair)
    }

    /// The number of the queue pair that would be made now; `None` if none is left.
    pub fn next_qid(&self) -> Option<u16> {
        self.queues.iter().position(Option::is_none).map(|slot| slot as u16 + 1)
    }

    /// Memory for the ranges of discards of a queue with `tags` tags.
    pub(crate) fn alloc_ranges(&mut self, tags: u16) -> Result<RangeMemory, DriverError> {
        match self.spare_ranges.iter().position(|r| r.tags() >= tags.into()) {
            Some(i) => Ok(self.spare_ranges.swap_remove(i)),
            None => RangeMemory::new(&self.port, tags),
        }
    }

    /// The same, of a queue that the drive has let go of.
    pub(crate) fn free_ranges(&mut self, ranges: RangeMemory) {
        self.spare_ranges.push(ranges);
    }

    /// Memory for lists of pages of a queue with `tags` tags, if the drive needs them.
    pub(crate) fn alloc_prp_lists(
        &mut self,
        tags: u16,
    ) -> Result<Option<Box<PrpLists>>, DriverError> {
        if !self.info.needs_prp_lists() {
            return Ok(None);
        }
        // They are one namespace's, whose format is what it is.
        let most = self.info.max_wire_bytes();
        match self.spare_lists.iter().position(|l| l.is_compatible(tags, most)) {
            Some(i) => {
                let mut lists = self.spare_lists.swap_remove(i);
                lists.reset();
                Ok(Some(lists.into()))
            }
            None => PrpLists::new(&self.port, tags, &self.info).map(|lists| Some(lists.into())),
        }
    }

    /// The same, of a queue that the drive has let go of.
    pub(crate) fn free_prp_lists(&mut self, lists: Option<Box<PrpLists>>) {
        self.spare_lists.extend(lists.map(|lists| *lists));
    }

    /// The commands that delete queue `qid` and make it again on the same memory, in order; `None`
    /// for a queue that is not one of this controller's.
    pub(crate) fn recreate_commands(
        &self,
        qid: u16,
        vector: Option<u16>,
    ) -> Option<[AdminCommand; 4]> {
        let memory = self.queue_memory(qid)?;
        let [create_cq, create_sq] = create_queue_commands(qid, memory, vector);
        let (delete_sq, delete_cq) =
            (AdminCommand::DeleteSq { qid }, AdminCommand::DeleteCq { qid });
        Some([delete_sq, delete_cq, create_cq, create_sq])
    }

    /// The commands that make queue `qid` again on a controller that has forgotten it, in order.
    pub(crate) fn create_commands(
        &self,
        qid: u16,
        vector: Option<u16>,
    ) -> Option<[AdminCommand; 2]> {
        Some(create_queue_commands(qid, self.queue_memory(qid)?, vector))
    }

    /// Zeroes the rings of queue `qid`, and its doorbells in memory, and returns where they are.
    pub(crate) fn clear_rings(&self, qid: u16) -> Option<(Iova, Iova)> {
        let memory = self.queue_memory(qid)?;
        if let Some((shadows, _)) = &self.shadows {
            shadows.clear_queue(qid);
        }
        memory.zero();
        Some((memory.submission(), memory.completion()))
    }

    fn queue_memory(&self, qid: u16) -> Option<&QueueMemory> {
        self.queues.get(usize::from(qid).checked_sub(1)?)?.as_ref()
    }

    /// Creates the completion queue, then the submission queue.
    fn create_on_device(
        &mut self,
        qid: u16,
        memory: &QueueMemory,
        vector: Option<u16>,
        pump: ProgressFn<'_>,
    ) -> Result<(), DriverError> {
        let [create_cq, create_sq] = create_queue_commands(qid, memory, vector);
        self.admin.run(create_cq, qid, pump)?;
        let created = self.admin.run(create_sq, qid, pump);
        if created.as_ref().is_err_and(|error| !error.is_unresponsive()) {
            self.admin.run(AdminCommand::DeleteCq { qid }, qid, pump)?;
        }
        created.map(drop)
    }

    /// Deletes a queue pair. Commands that are outstanding come back through `back`, exactly once:
    /// with the drive's answer if it still gives one, else with [`Status::ABORTED_SQ_DELETED`].
    ///
    /// # Errors
    /// [`DriverError`]; the pair is gone and its commands have come back all the same, but its
    /// identifier is not used again, or only after [`reclaim`](Controller::reclaim) if the drive did
    /// not answer.
    pub fn delete_queue_pair(
        &mut self,
        pair: QueuePair,
        back: &mut dyn FnMut(Completed),
        pump: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        self.delete_with_observer(pair, &mut |_| {}, back, pump)
    }

    /// The same; `ended` sees the drive's answers before they are given back.
    pub(crate) fn delete_with_observer(
        &mut self,
        mut pair: QueuePair,
        ended: &mut dyn FnMut(&Event),
        back: &mut dyn FnMut(Completed),
        pump: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        let qid = pair.qid();
        let slot = usize::from(qid).wrapping_sub(1);
        let known = self.queues.get(slot).is_some_and(Option::is_some);
        let deleted = if known {
            self.delete(AdminCommand::DeleteSq { qid }, qid, pump)
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
        let deleted = deleted.and_then(|()| self.delete(AdminCommand::DeleteCq { qid }, qid, pump));
        match deleted {
            Ok(()) => self.spare.extend(self.queues.get_mut(slot).and_then(Option::take)),
            Err(error) => {
                if known && error.is_unresponsive() {
                    self.indeterminate_queues.push(qid);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Deletes the queues of which it is not known whether the drive has them, since it did not answer
    /// in time when they were made or deleted; their numbers and their memory can be used again then.
    /// Nothing is sent when there are none.
    ///
    /// # Errors
    /// [`DriverError`]: the drive does not answer still.
    pub fn reclaim(&mut self, pump: &mut dyn FnMut()) -> Result<(), DriverError> {
        while let Some(qid) = self.indeterminate_queues.last().copied() {
            for delete in [AdminCommand::DeleteSq { qid }, AdminCommand::DeleteCq { qid }] {
                match self.admin.run(delete, qid, pump) {
                    // One that the drive does not have is gone as well.
                    Ok(_) | Err(DriverError::Command { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            self.indeterminate_queues.pop();
            let slot = usize::from(qid).wrapping_sub(1);
            self.spare.extend(self.queues.get_mut(slot).and_then(Option::take));
        }
        Ok(())
    }

    /// Deletes one of a pair's queues, if the controller has not forgotten it in a reset.
    fn delete(
        &mut self,
        command: AdminCommand,
        qid: u16,
        pump: ProgressFn<'_>,
    ) -> Result<(), DriverError> {
        match self.admin.run(command, qid, pump) {
            Err(DriverError::Command { status, .. })
                if self.resets > 0 && status.is(Status::INVALID_QID) =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }
}

/// The commands that make queue `qid` on its memory: the completion queue first.
fn create_queue_commands(qid: u16, memory: &QueueMemory, vector: Option<u16>) -> [AdminCommand; 2] {
    let entries = u32::from(memory.depth());
    let priority = QueuePriority::default();
    let (at, cq_at) = memory.bus_addresses();
    [
        AdminCommand::CreateCq { qid, entries, at: cq_at, vector },
        AdminCommand::CreateSq { qid, entries, at, cqid: qid, priority },
    ]
}
