//! [`ProcessSession`]: one process, and the memory that it shares with the service.
//!
//! Guarantee: the shared memory is not trusted. A call is copied out once; a reply is written only
//! to the call's own slot. The memory outlives the process, because the device may be reading it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use exec_proto::{Call, slot_protocol};
use mem::{Iova, SharedRegion};
use rustix::thread::futex;
use volume::RequestBuffer;

use crate::invariants::{ServicePart, ServiceViolation, require_eq};

/// A process and its slots.
#[derive(Debug)]
pub(crate) struct ProcessSession {
    pub(crate) region: Arc<SharedRegion>,
    pub(crate) iova: Iova,
    pub(crate) process: u32,
    /// Readable when the process has ended; `None` after that, or if another session replaced this
    /// one.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Number of unanswered calls.
    pub(crate) pending_calls: usize,
    /// Bit mask of slots with unanswered calls.
    pub(crate) taken_slots: u64,
    /// Blocks reserved for the process's posted writes, without those of operations in flight.
    pub(crate) reserved_blocks: u64,
}

impl ProcessSession {
    /// Initializes the memory for a new process.
    pub(crate) fn clear(&self) {
        self.region.fill(0, exec_proto::DATA_OFFSET, 0);
        self.region.atomic_u64(0).store(exec_proto::MAGIC, Ordering::Release);
    }

    /// Takes the slots submitted since the last call.
    pub(crate) fn take_submitted(&mut self) -> u64 {
        self.take_bits(exec_proto::SUBMITTED_BITS)
    }

    /// Takes the slots with writes posted since the last call.
    pub(crate) fn take_posted_writes(&mut self) -> u64 {
        self.take_bits(exec_proto::POSTED_WRITE_BITS)
    }

    /// Takes the bits of a word, without slots that are in flight already.
    fn take_bits(&mut self, word: usize) -> u64 {
        if self.pidfd.is_none() {
            return 0;
        }
        let bits = slot_protocol::take_bits(self.region.atomic_u64(word))
            & u64::from(u32::MAX)
            & !self.taken_slots;
        self.taken_slots |= bits;
        self.pending_calls += bits.count_ones() as usize;
        bits
    }

    /// Copies the call out of a slot; `None` if it is malformed.
    pub(crate) fn call(&self, slot: usize) -> Option<Call> {
        let words = self.region.atomic_u64_array::<{ exec_proto::CALL_WORDS }>(
            exec_proto::header_offset(slot) + exec_proto::CALL_OFFSET,
        );
        Call::from_words(words.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// Returns the slot's data as a buffer for the volume.
    pub(crate) fn buffer(&self, slot: usize, len: usize) -> RequestBuffer {
        RequestBuffer {
            iova: self.iova.offset(exec_proto::data_offset(slot) as u64),
            len: len as u32,
        }
    }

    /// Frees the slot of a posted write.
    pub(crate) fn free(&mut self, slot: usize) {
        self.release_slot(slot);
        slot_protocol::free(self.region.atomic_u32(exec_proto::header_offset(slot)));
    }

    fn release_slot(&mut self, slot: usize) {
        self.pending_calls -= 1;
        self.taken_slots &= !(1 << slot);
    }

    /// Completes a call with its reply, and wakes the thread if it waits.
    pub(crate) fn complete(&mut self, slot: usize, answer: i64) {
        self.release_slot(slot);
        let header = exec_proto::header_offset(slot);
        self.region
            .atomic_u64(header + exec_proto::REPLY_OFFSET)
            .store(answer as u64, Ordering::Relaxed);
        let state = self.region.atomic_u32(header);
        if slot_protocol::complete(state) {
            // A failed wakeup cannot be handled.
            let _ = futex::wake(state, futex::Flags::empty(), 1);
        }
    }

    /// Grants the process a reservation of this many more blocks for posted writes.
    pub(crate) fn grant(&mut self, blocks: u64) {
        self.reserved_blocks += blocks;
        self.region.atomic_u64(exec_proto::RESERVED_BLOCKS).fetch_add(blocks, Ordering::Relaxed);
    }

    /// Revokes the unused part of the reservation, or all of it without a process. Returns the
    /// number of blocks.
    pub(crate) fn revoke(&mut self) -> u64 {
        let unused = self.region.atomic_u64(exec_proto::RESERVED_BLOCKS).swap(0, Ordering::Relaxed);
        let back = if self.is_reusable() {
            self.reserved_blocks
        } else {
            unused.min(self.reserved_blocks)
        };
        self.reserved_blocks -= back;
        back
    }

    /// Checks the slots; `answers_due` has one bit per slot with an unanswered call.
    pub(crate) fn check_invariants(&self, answers_due: u64) -> Result<(), ServiceViolation> {
        let subject = format_args!("process {}", self.process);
        let (part, due) = (ServicePart::Sessions, self.taken_slots.count_ones() as usize);
        require_eq(part, "unanswered calls", subject, due, self.pending_calls)?;
        let invariant = "every taken slot has a call that will be answered";
        require_eq(part, invariant, subject, self.taken_slots, answers_due)
    }

    /// Returns whether another process can use the memory.
    pub(crate) fn is_reusable(&self) -> bool {
        self.pidfd.is_none() && self.pending_calls == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_without_a_call_is_reported() {
        let region = SharedRegion::anonymous(exec_proto::SESSION_BYTES).unwrap();
        let mut session = ProcessSession {
            region,
            iova: Iova(0),
            process: 7,
            pidfd: None,
            pending_calls: 2,
            taken_slots: 0b101,
            reserved_blocks: 0,
        };
        session.check_invariants(0b101).unwrap();
        let found = session.check_invariants(0b001).unwrap_err();
        assert_eq!(found.invariant, "every taken slot has a call that will be answered");
        session.pending_calls = 1;
        let found = session.check_invariants(0b101).unwrap_err();
        let text = "sessions: unanswered calls is broken for process 7: expected 2, found 1";
        assert_eq!(found.to_string(), text);
    }
}
