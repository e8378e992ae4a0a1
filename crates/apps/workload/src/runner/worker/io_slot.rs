//! Slots of a [`JobThread`]: one per outstanding request.

use std::collections::VecDeque;

use block::Limits;
use collections::Slab;
use nvme::Status;
use time::Nanos;

use crate::job::JobSpec;
use crate::runner::source::{IoKind, NextIo};

/// One outstanding request.
#[derive(Clone, Copy, Debug)]
pub(super) struct IoSlot {
    pub(super) wanted: Nanos,
    pub(super) issued: Nanos,
    pub(super) io: NextIo,
    /// Number of sectors submitted to the device.
    pub(super) sectors_submitted: u32,
    /// Number of fragments submitted and not completed.
    pub(super) fragments: u32,
    /// First error of a fragment.
    pub(super) status: Status,
    /// Sequence number of the write in [`VerifyState`], or 0 if it has none.
    pub(super) seq: u64,
}

pub(super) const EMPTY_SLOT: IoSlot = IoSlot {
    wanted: Nanos::ZERO,
    issued: Nanos::ZERO,
    io: NextIo { kind: IoKind::Flush, lba: 0, sectors: 0 },
    sectors_submitted: 0,
    fragments: 0,
    status: Status::SUCCESS,
    seq: 0,
};

/// Memory per slot without payloads, in bytes.
pub(crate) const SLOT_BYTES: u64 = (size_of::<IoSlot>() + 3 * size_of::<u32>()) as u64;

/// Returns the number of slots that a job allocates at its start.
///
/// It is the maximum of outstanding requests, limited to those that the device accepts, plus one on
/// its way. Slots of completions that wait for a busy CPU are allocated later, if needed. Jobs with
/// payloads allocate all slots at the start because their payload buffers are assigned per slot.
pub(crate) fn initial_slot_count(spec: &JobSpec, limits: &Limits) -> u32 {
    let depth = spec.depth();
    if spec.has_payloads() { depth } else { depth.min(limits.queue_depth.saturating_add(1)) }
}

/// The slots of a job, and the requests in them.
///
/// A slot is free, or its request is pending, on the device, completed and waiting for the CPU, or a
/// trim whose write is to be issued.
#[derive(Debug)]
pub(super) struct IoSlots {
    slots: Slab<IoSlot>,
    /// Maximum number of slots.
    depth: usize,
    /// Number of requests that are prepared and not handled.
    outstanding: u32,
    /// Slots of completed requests that wait for the CPU.
    completed: VecDeque<u32>,
    /// Slots of completed trims whose writes are to be issued.
    trimmed: VecDeque<u32>,
    /// Slot of a request that reaches the device at the slot's `issued` time.
    pending: Option<u32>,
    /// Whether the device does not accept the pending request.
    is_blocked: bool,
}

impl IoSlots {
    /// Creates at most `depth` slots, with memory for `reserved`; all of them at once if
    /// `has_payloads`.
    pub(super) fn new(depth: u32, reserved: usize, has_payloads: bool) -> IoSlots {
        let slots = match has_payloads {
            true => Slab::with_free(vec![EMPTY_SLOT; depth as usize]),
            false => Slab::with_capacity(reserved),
        };
        IoSlots {
            slots,
            depth: depth as usize,
            outstanding: 0,
            completed: VecDeque::with_capacity(reserved),
            trimmed: VecDeque::with_capacity(reserved),
            pending: None,
            is_blocked: false,
        }
    }

    /// Returns the number of slots so far.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> &IoSlot {
        &self.slots[slot]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> &mut IoSlot {
        &mut self.slots[slot]
    }

    /// Returns a slot that the device names; `None` if there is none.
    pub(super) fn find_mut(&mut self, slot: u32) -> Option<&mut IoSlot> {
        self.slots.get_mut(slot)
    }

    /// Returns the number of requests that are prepared and not handled.
    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Returns whether a slot for another request is available.
    #[inline]
    pub(super) fn has_free(&self) -> bool {
        self.slots.has_free() || self.slots.len() < self.depth
    }

    /// Allocates a slot: the one freed last, or a new one.
    #[inline]
    pub(super) fn allocate(&mut self) -> Option<u32> {
        let may_grow = self.slots.len() < self.depth;
        self.slots.take().or_else(|| may_grow.then(|| self.slots.insert(EMPTY_SLOT)))
    }

    /// Frees a slot.
    #[inline]
    pub(super) fn release(&mut self, slot: u32) {
        self.slots.release(slot);
    }

    /// Puts a request in an allocated slot; it reaches the device at its `issued` time.
    #[inline]
    pub(super) fn prepare(&mut self, slot: u32, request: IoSlot) {
        debug_assert!(self.pending.is_none(), "slots {:?} and {slot} are pending", self.pending);
        self.slots[slot] = request;
        self.pending = Some(slot);
        self.outstanding += 1;
    }

    /// Returns the slot of the request that is to reach the device.
    #[inline]
    pub(super) fn pending(&self) -> Option<u32> {
        self.pending
    }

    /// Records that the device accepted the pending request.
    #[inline]
    pub(super) fn end_pending(&mut self) {
        (self.pending, self.is_blocked) = (None, false);
    }

    /// Records that the device does not accept the pending request.
    pub(super) fn set_blocked(&mut self) {
        self.is_blocked = true;
    }

    /// Returns whether the device does not accept the pending request.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Processes the completion of a fragment of a request.
    ///
    /// # Errors
    /// `Err(())` if there is no such request.
    #[inline]
    pub(super) fn on_completion(&mut self, slot: u32, status: Status) -> Result<(), ()> {
        let Some(s) = self.slots.get_mut(slot).filter(|s| s.fragments > 0) else {
            return Err(());
        };
        s.fragments -= 1;
        if !status.is_success() && s.status.is_success() {
            s.status = status;
        }
        if s.fragments == 0 && self.pending != Some(slot) {
            self.completed.push_back(slot);
        }
        Ok(())
    }

    /// Returns whether a completed request waits for the CPU.
    #[inline]
    pub(super) fn has_completed(&self) -> bool {
        !self.completed.is_empty()
    }

    /// Removes and returns the next completed request.
    #[inline]
    pub(super) fn pop_completed(&mut self) -> Option<u32> {
        self.completed.pop_front()
    }

    /// Ends the handling of a completed request, which keeps its slot.
    #[inline]
    pub(super) fn end_outstanding(&mut self) {
        self.outstanding -= 1;
    }

    /// Keeps the slot of a completed trim until its write is issued.
    pub(super) fn keep_trimmed(&mut self, slot: u32) {
        self.trimmed.push_back(slot);
    }

    /// Returns the next completed trim whose write is to be issued.
    #[inline]
    pub(super) fn front_trimmed(&self) -> Option<NextIo> {
        self.trimmed.front().map(|slot| self.slots[*slot].io)
    }

    /// Removes and returns the slot of that trim.
    #[inline]
    pub(super) fn pop_trimmed(&mut self) -> Option<u32> {
        self.trimmed.pop_front()
    }

    /// Drops the trims whose writes will not be issued any more.
    pub(super) fn drop_trimmed(&mut self) {
        self.trimmed.drain(..).for_each(|slot| self.slots.release(slot));
    }

    /// Recounts the slots.
    ///
    /// # Errors
    /// The broken invariant with its values.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let mut listed: Vec<u32> =
            self.slots.free_indices().iter().chain(&self.trimmed).copied().collect();
        let idle = listed.len();
        listed.sort_unstable();
        listed.dedup();
        if listed.len() != idle {
            return Err(format!("slots: a slot is free or trimmed once: {listed:?} of {idle}"));
        }
        let used = self.slots.len() - idle;
        if used != self.outstanding as usize {
            let outstanding = self.outstanding;
            return Err(format!("slots: used slots are outstanding: {used}, {outstanding}"));
        }
        let over = |slot: &&u32| self.slots[**slot].fragments > 0;
        if let Some(slot) = self.completed.iter().find(over) {
            let s = &self.slots[*slot];
            return Err(format!("slots: a completed request has no fragments: {slot}, {s:?}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_count_is_reported_with_its_values() {
        let mut slots = IoSlots::new(2, 2, false);
        let slot = slots.allocate().unwrap();
        slots.prepare(slot, EMPTY_SLOT);
        assert_eq!(slots.check_invariants(), Ok(()));
        slots.end_pending();
        slots.get_mut(slot).fragments = 1;
        assert_eq!(slots.on_completion(slot, Status::SUCCESS), Ok(()));
        assert_eq!(slots.pop_completed(), Some(slot));
        slots.end_outstanding();
        slots.release(slot);
        assert_eq!(slots.check_invariants(), Ok(()));
        slots.release(slot);
        let broken = slots.check_invariants().unwrap_err();
        assert_eq!(broken, "slots: a slot is free or trimmed once: [0] of 2");
    }
}
