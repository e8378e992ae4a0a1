//! [`VectorRequestTable`]: outstanding vectors and their commands.
//!
//! A vector is split into as many commands as necessary. They are submitted in order, those of an
//! earlier vector first.
//!
//! Invariants: a slot is free, waiting (with addresses not submitted), in flight, or completed, and
//! in exactly one list. A slot completes when all its addresses were submitted and all its commands
//! have completed. Slots keep their address lists, so that nothing is allocated once they have
//! grown to the load.

use std::collections::VecDeque;

use collections::Slab;
use nvme::{Ppa, Status};

use super::{FailedMask, VectorBuffer, VectorKind};
use crate::vector::VectorCompletion;

/// A vector.
#[derive(Debug)]
pub(crate) struct VectorRequest {
    pub(crate) seq: u64,
    pub(crate) kind: VectorKind,
    /// Addresses; of a copy, the sources.
    pub(crate) ppas: Vec<Ppa>,
    /// Destinations of a copy.
    pub(crate) targets: Vec<Ppa>,
    pub(crate) buffer: Option<VectorBuffer>,
    pub(crate) oob: bool,
    /// Number of addresses submitted.
    pub(crate) issued: u32,
    /// Number of commands submitted and not completed.
    pub(crate) commands_in_flight: u32,
    pub(crate) failed: FailedMask,
    /// First address and status of the first failed command in vector order.
    pub(crate) status: (u32, Status),
}

impl VectorRequest {
    fn empty() -> VectorRequest {
        VectorRequest {
            seq: 0,
            kind: VectorKind::Read,
            ppas: Vec::new(),
            targets: Vec::new(),
            buffer: None,
            oob: false,
            issued: 0,
            commands_in_flight: 0,
            failed: FailedMask::new(),
            status: (0, Status::SUCCESS),
        }
    }

    fn is_complete(&self) -> bool {
        self.commands_in_flight == 0 && self.issued as usize == self.ppas.len()
    }
}

/// The vectors of a session.
#[derive(Debug)]
pub(crate) struct VectorRequestTable {
    slots: Slab<VectorRequest>,
    /// Vectors with addresses that were not submitted, in order.
    waiting: VecDeque<u32>,
    /// Completed vectors that were not reaped.
    completed: VecDeque<u32>,
    last_seq: u64,
}

impl VectorRequestTable {
    /// Creates a table for `count` vectors.
    pub(crate) fn new(count: u16) -> VectorRequestTable {
        let count = usize::from(count);
        VectorRequestTable {
            slots: Slab::with_free((0..count).map(|_| VectorRequest::empty())),
            waiting: VecDeque::with_capacity(count),
            completed: VecDeque::with_capacity(count),
            last_seq: 0,
        }
    }

    /// Returns the number of vectors that were not reaped.
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.in_use()
    }

    /// Returns the maximum number of vectors.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether the table is full.
    pub(crate) fn is_full(&self) -> bool {
        !self.slots.has_free()
    }

    /// Adds a vector to the waiting list and returns its sequence number. Returns the buffer if the
    /// table is full.
    pub(crate) fn insert(
        &mut self,
        kind: VectorKind,
        ppas: &[Ppa],
        targets: &[Ppa],
        buffer: Option<VectorBuffer>,
        oob: bool,
    ) -> Result<u64, Option<VectorBuffer>> {
        let Some(slot) = self.slots.take() else { return Err(buffer) };
        self.last_seq += 1;
        let r = &mut self.slots[slot];
        r.seq = self.last_seq;
        (r.kind, r.oob, r.buffer) = (kind, oob, buffer);
        r.ppas.clear();
        r.ppas.extend_from_slice(ppas);
        r.targets.clear();
        r.targets.extend_from_slice(targets);
        (r.issued, r.commands_in_flight) = (0, 0);
        r.status = (u32::MAX, Status::SUCCESS);
        self.waiting.push_back(slot);
        Ok(self.last_seq)
    }

    /// Returns the first waiting vector and its slot.
    #[inline]
    pub(crate) fn next_to_issue(&mut self) -> Option<(u32, &mut VectorRequest)> {
        let slot = *self.waiting.front()?;
        Some((slot, &mut self.slots[slot]))
    }

    /// Records that `count` addresses of the first waiting vector were submitted as one command.
    #[inline]
    pub(crate) fn on_issued(&mut self, count: u32) {
        let Some(slot) = self.waiting.front() else { return };
        let r = &mut self.slots[*slot];
        r.issued += count;
        r.commands_in_flight += 1;
        if r.issued as usize == r.ppas.len() {
            self.waiting.pop_front();
        }
    }

    /// Records the completion of a command of `slot` whose first address is `at`.
    #[inline]
    pub(crate) fn on_command_complete(&mut self, slot: u32, at: u32, ended: &VectorCompletion) {
        let r = &mut self.slots[slot];
        r.failed.insert_word(at, ended.failed);
        if !ended.status.is_success() && at < r.status.0 {
            r.status = (at, ended.status);
        }
        r.commands_in_flight -= 1;
        if r.is_complete() {
            self.completed.push_back(slot);
        }
    }

    /// Completes all waiting vectors, with `status` for the addresses that were not submitted.
    pub(crate) fn abort_waiting(&mut self, status: Status) {
        while let Some(slot) = self.waiting.pop_front() {
            let r = &mut self.slots[slot];
            let len = r.ppas.len() as u32;
            (r.issued..len).for_each(|i| r.failed.insert(i));
            if r.issued < r.status.0 {
                r.status = (r.issued, status);
            }
            r.issued = len;
            if r.is_complete() {
                self.completed.push_back(slot);
            }
        }
    }

    /// Removes a completed vector: the oldest, or the one with this sequence number.
    #[inline]
    pub(crate) fn pop_completed(&mut self, ticket: Option<u64>) -> Option<&mut VectorRequest> {
        let slot = match ticket {
            None => self.completed.pop_front()?,
            Some(ticket) => {
                let is_it = |slot: &u32| self.slots[*slot].seq == ticket;
                let at = self.completed.iter().position(is_it)?;
                self.completed.remove(at)?
            }
        };
        self.slots.release(slot);
        Some(&mut self.slots[slot])
    }

    /// Returns the operation of a vector that was not reaped.
    pub(crate) fn kind_of(&self, ticket: u64) -> Option<VectorKind> {
        let mut slots = (0..).zip(&self.slots);
        slots.find(|(slot, r)| r.seq == ticket && !self.slots.is_free(*slot)).map(|(_, r)| r.kind)
    }

    /// Removes the buffers of vectors that have not completed; the drive may still access them.
    pub(crate) fn buffers_in_use(&mut self) -> impl Iterator<Item = VectorBuffer> + '_ {
        let over = &self.completed;
        let slots = self.slots.iter_mut().enumerate();
        slots
            .filter(|(slot, _)| !over.contains(&(*slot as u32)))
            .filter_map(|(_, r)| r.buffer.take())
    }
}
