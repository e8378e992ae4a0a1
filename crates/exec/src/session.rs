//! [`Session`]: the memory that one process shares with the service, and the process.
//!
//! Guarantee: nothing in it is trusted. A call is copied out once; what is answered goes to the slot's own
//! data. Memory outlives the process, because the device may be reading from it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ring::{Iova, SharedRegion};
use rustix::thread::futex;
use slots::{Call, slot_protocol};
use store::Buffer;

/// A process and its slots.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) region: Arc<SharedRegion>,
    pub(crate) iova: Iova,
    pub(crate) process: u32,
    /// Readable when the process has ended; gone once that is known, or another session is the process's.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Calls that are not answered.
    pub(crate) pending_calls: usize,
    /// By slot, whether its call is not answered.
    pub(crate) taken_slots: u64,
    /// Blocks that are reserved for what its process leaves, those of requests under way not included.
    pub(crate) reserved_blocks: u64,
}

impl Session {
    /// Makes memory ready for a process that knows nothing of it.
    pub(crate) fn clear(&self) {
        self.region.fill(0, slots::DATA_OFFSET, 0);
        self.region.atomic_u64(0).store(slots::MAGIC, Ordering::Release);
    }

    /// Slots that have been posted since.
    pub(crate) fn take_submitted(&mut self) -> u64 {
        self.take_bits(slots::SUBMITTED_BITS)
    }

    /// Slots that have been left since.
    pub(crate) fn take_posted_writes(&mut self) -> u64 {
        self.take_bits(slots::POSTED_WRITE_BITS)
    }

    /// Slots that a word says, as bits, without those that are under way already.
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

    /// The call in a slot; `None` if it makes no sense.
    pub(crate) fn call(&self, slot: usize) -> Option<Call> {
        let words = self.region.atomic_u64_array::<{ slots::CALL_WORDS }>(
            slots::header_offset(slot) + slots::CALL_OFFSET,
        );
        Call::from_words(words.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// The slot's data as the store's requests name it.
    pub(crate) fn buffer(&self, slot: usize, len: usize) -> Buffer {
        Buffer { iova: self.iova.offset(slots::data_offset(slot) as u64), len: len as u32 }
    }

    /// Gives a slot back that was left.
    pub(crate) fn free(&mut self, slot: usize) {
        self.release_slot(slot);
        slot_protocol::free(self.region.atomic_u32(slots::header_offset(slot)));
    }

    fn release_slot(&mut self, slot: usize) {
        self.pending_calls -= 1;
        self.taken_slots &= !(1 << slot);
    }

    /// Answers a call: its thread goes on.
    pub(crate) fn complete(&mut self, slot: usize, answer: i64) {
        self.release_slot(slot);
        let header = slots::header_offset(slot);
        self.region
            .atomic_u64(header + slots::REPLY_OFFSET)
            .store(answer as u64, Ordering::Relaxed);
        let state = self.region.atomic_u32(header);
        if slot_protocol::complete(state) {
            // Waking nobody is no error that anything could be done about.
            let _ = futex::wake(state, futex::Flags::empty(), 1);
        }
    }

    /// Says that the process may leave writes of so many more blocks.
    pub(crate) fn grant(&mut self, blocks: u64) {
        self.reserved_blocks += blocks;
        self.region.atomic_u64(slots::RESERVED_BLOCKS).fetch_add(blocks, Ordering::Relaxed);
    }

    /// Takes back what it has not used, or all when it has no process any more; how many blocks.
    pub(crate) fn revoke(&mut self) -> u64 {
        let unused = self.region.atomic_u64(slots::RESERVED_BLOCKS).swap(0, Ordering::Relaxed);
        let back = if self.is_reusable() {
            self.reserved_blocks
        } else {
            unused.min(self.reserved_blocks)
        };
        self.reserved_blocks -= back;
        back
    }

    /// Whether its memory can be another process's.
    pub(crate) fn is_reusable(&self) -> bool {
        self.pidfd.is_none() && self.pending_calls == 0
    }
}
