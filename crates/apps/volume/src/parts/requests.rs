//! [`ActiveOps`]: the requests in flight, in order, and their completions.

use std::collections::VecDeque;

use collections::Slab;
use mem::{AddressSpace, Iova, IovaSlice};
use nvme::Status;

use crate::invariants::{VolumeViolation, require, require_eq};
use crate::{Error, Ino, OpResult, Time, VolumeCompletion, VolumeOp, VolumeRequest};

/// Index of a request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpSlot(u32);

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpState {
    Start,
    /// Next byte; bytes done.
    Write {
        offset: u64,
        done: u32,
    },
    /// Next byte, end, and transfers in flight.
    Read {
        next: u64,
        end: u64,
        pending: u32,
    },
    /// The request is its file's writer.
    Changing,
    /// Next block; blocks promised to the request.
    Allocate {
        next: u32,
        delalloc_blocks: u64,
    },
    /// Waits for pages that were dirty at that time; the error count at that time.
    Written {
        upto: u64,
        errors: u64,
    },
    /// Waits for a transaction and a flush.
    Durable {
        txn: u64,
        flush: u64,
    },
    /// Waits for the final checkpoint.
    Closing,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveRequest {
    pub(crate) id: u64,
    pub(crate) op: VolumeOp,
    pub(crate) time: Time,
    pub(crate) state: OpState,
    /// The inode that it pins.
    pub(crate) pinned_inode: Option<Ino>,
    /// The block that it waits for.
    pub(crate) awaited_block: Option<u32>,
    /// Error of one of its transfers.
    pub(crate) failed: Option<Status>,
    /// Blocks reserved for it.
    pub(crate) reserved_blocks: u64,
    /// Number of partial blocks that it has zeroed. Each is zeroed once, because the request is the
    /// file's writer. While the request waits for space, such a block may be written back, and must
    /// be if that frees the space.
    pub(crate) zeroed: usize,
    /// It has waited for a barrier.
    pub(crate) waited_for_barrier: bool,
}

/// All requests in flight.
#[derive(Debug)]
pub(crate) struct ActiveOps {
    slots: Slab<Option<ActiveRequest>>,
    /// Slots in use, without the request whose step is being executed.
    order: VecDeque<OpSlot>,
    completions: VecDeque<VolumeCompletion>,
    /// Memory in which data of requests is registered.
    memory: AddressSpace,
}

impl ActiveOps {
    pub(crate) fn new(requests_max: u32, memory: AddressSpace) -> ActiveOps {
        ActiveOps {
            slots: Slab::with_free(vec![None; requests_max as usize]),
            order: VecDeque::with_capacity(requests_max as usize),
            completions: VecDeque::with_capacity(requests_max as usize),
            memory,
        }
    }

    /// Accepts a request with reserved blocks; returns `false` if too many are in flight.
    pub(crate) fn submit(&mut self, request: &VolumeRequest, reserved_blocks: u64) -> bool {
        let Some(slot) = self.slots.take() else { return false };
        let VolumeRequest { id, op, time } = *request;
        self.slots[slot] = Some(ActiveRequest {
            id,
            op,
            time,
            state: OpState::Start,
            pinned_inode: None,
            awaited_block: None,
            failed: None,
            reserved_blocks,
            zeroed: 0,
            waited_for_barrier: false,
        });
        self.order.push_back(OpSlot(slot));
        true
    }

    /// Returns the number of requests in flight, without the one whose step is being executed.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Takes the next request, for a step.
    pub(crate) fn begin_step(&mut self) -> Option<(OpSlot, ActiveRequest)> {
        let slot = self.order.pop_front()?;
        Some((slot, *self.get(slot)))
    }

    /// Ends a step; the request waits for its next one.
    pub(crate) fn wait(&mut self, slot: OpSlot, active: ActiveRequest) {
        *self.get_mut(slot) = active;
        self.order.push_back(slot);
    }

    /// Ends the last step of a request.
    pub(crate) fn complete(&mut self, slot: OpSlot, result: Result<OpResult, Error>) {
        let id = self.get(slot).id;
        self.slots.remove(slot.0);
        self.completions.push_back(VolumeCompletion { id, result });
    }

    /// Completes a request that was not accepted.
    pub(crate) fn reject(&mut self, id: u64, error: Error) {
        self.completions.push_back(VolumeCompletion { id, result: Err(error) });
    }

    pub(crate) fn pop_completion(&mut self) -> Option<VolumeCompletion> {
        self.completions.pop_front()
    }

    /// Returns the number of completions to be reaped.
    pub(crate) fn completions_len(&self) -> usize {
        self.completions.len()
    }

    fn get(&self, slot: OpSlot) -> &ActiveRequest {
        let active = self.slots[slot.0].as_ref();
        active.unwrap_or_else(|| panic!("requests: {slot:?} has no request"))
    }

    fn get_mut(&mut self, slot: OpSlot) -> &mut ActiveRequest {
        let active = self.slots[slot.0].as_mut();
        active.unwrap_or_else(|| panic!("requests: {slot:?} has no request"))
    }

    /// Records the completion of one of a read's transfers.
    pub(crate) fn end_read(&mut self, slot: OpSlot, status: Status) {
        let active = self.get_mut(slot);
        let OpState::Read { pending, .. } = &mut active.state else {
            panic!("requests: a transfer of {slot:?} completes in state {:?}", active.state);
        };
        assert!(*pending > 0, "requests: {slot:?} has no transfer in flight");
        *pending -= 1;
        if !status.is_success() {
            active.failed.get_or_insert(status);
        }
    }

    /// Fails the requests that wait for a block.
    pub(crate) fn fail_waiters(&mut self, ino: Ino, block: u32, status: Status) {
        for active in self.slots.iter_mut().flatten() {
            if active.pinned_inode == Some(ino) && active.awaited_block == Some(block) {
                active.failed.get_or_insert(status);
            }
        }
    }

    /// Returns the memory in which data of requests must be registered.
    pub(crate) fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    /// Resolves registered memory.
    pub(crate) fn resolve(&self, iova: Iova, bytes: u64) -> Result<IovaSlice<'_>, Error> {
        self.memory.find(iova, bytes).map_err(|_| Error::BadAddress)
    }

    /// Returns all requests in flight.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (OpSlot, &ActiveRequest)> {
        (0..).map(OpSlot).zip(&self.slots).filter_map(|(slot, op)| Some((slot, op.as_ref()?)))
    }

    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        let mut listed = vec![0; self.slots.len()];
        let free = self.slots.free_indices();
        for slot in free.iter().copied().chain(self.order.iter().map(|slot| slot.0)) {
            listed[slot as usize] += 1;
        }
        for (index, count) in listed.into_iter().enumerate() {
            let subject = format_args!("slot {index}");
            require_eq!(Requests, "a slot is free or queued", subject, 1, count);
        }
        for slot in free {
            let op = &self.slots[*slot];
            let subject = format_args!("slot {slot}");
            require!(op.is_none(), Requests, "a free slot has no request", subject, "none", op);
        }
        for slot in &self.order {
            let op = &self.slots[slot.0];
            let subject = format_args!("slot {}", slot.0);
            require!(op.is_some(), Requests, "a queued slot has a request", subject, "one", op);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_free(&mut self) {
        let slot = self.slots.free_indices()[0];
        self.slots.release(slot);
    }
}
