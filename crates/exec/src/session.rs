//! [`Session`]: the memory that one process shares with the service, and the process.
//!
//! Guarantee: nothing in it is trusted. A call is copied out once; what is answered goes to the slot's own
//! data. Memory outlives the process, because the device may be reading from it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ring::{Iova, Region};
use rustix::thread::futex;
use slots::{Call, hands};
use store::Buffer;

/// A process and its slots.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) region: Arc<Region>,
    pub(crate) at: Iova,
    pub(crate) process: u32,
    /// Readable when the process has ended; gone once that is known, or another session is the process's.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Calls that are not answered.
    pub(crate) under_way: usize,
    /// By slot, whether its call is not answered.
    pub(crate) taken: u64,
    /// Blocks that are reserved for what its process leaves, those of requests under way not included.
    pub(crate) room: u64,
}

impl Session {
    /// Makes memory ready for a process that knows nothing of it.
    pub(crate) fn clear(&self) {
        self.region.fill(0, slots::DATA_START, 0);
        self.region.word(0).store(slots::MAGIC, Ordering::Release);
    }

    /// Slots that have been posted since.
    pub(crate) fn posted(&mut self) -> u64 {
        self.take(slots::POSTED_BITS)
    }

    /// Slots that have been left since.
    pub(crate) fn left(&mut self) -> u64 {
        self.take(slots::LEFT_BITS)
    }

    /// Slots that a word says, as bits, without those that are under way already.
    fn take(&mut self, word: usize) -> u64 {
        if self.pidfd.is_none() {
            return 0;
        }
        let bits = hands::take(self.region.word(word)) & u64::from(u32::MAX) & !self.taken;
        self.taken |= bits;
        self.under_way += bits.count_ones() as usize;
        bits
    }

    /// The call in a slot; `None` if it makes no sense.
    pub(crate) fn call(&self, slot: usize) -> Option<Call> {
        let words = self.region.words::<{ slots::CALL_WORDS }>(slots::header(slot) + slots::CALL);
        Call::of(words.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// The slot's data as the store's requests name it.
    pub(crate) fn buffer(&self, slot: usize, len: usize) -> Buffer {
        Buffer { at: self.at.offset(slots::data(slot) as u64), len: len as u32 }
    }

    /// Gives a slot back that was left.
    pub(crate) fn free(&mut self, slot: usize) {
        self.end(slot);
        hands::free(self.region.half_word(slots::header(slot)));
    }

    fn end(&mut self, slot: usize) {
        self.under_way -= 1;
        self.taken &= !(1 << slot);
    }

    /// Answers a call: its thread goes on.
    pub(crate) fn answer(&mut self, slot: usize, answer: i64) {
        self.end(slot);
        let header = slots::header(slot);
        self.region.word(header + slots::ANSWER).store(answer as u64, Ordering::Relaxed);
        let state = self.region.half_word(header);
        if hands::answer(state) {
            // Waking nobody is no error that anything could be done about.
            let _ = futex::wake(state, futex::Flags::empty(), 1);
        }
    }

    /// Says that the process may leave writes of so many more blocks.
    pub(crate) fn grant(&mut self, blocks: u64) {
        self.room += blocks;
        self.region.word(slots::ROOM).fetch_add(blocks, Ordering::Relaxed);
    }

    /// Takes back what it has not used, or all when it has no process any more; how many blocks.
    pub(crate) fn revoke(&mut self) -> u64 {
        let unused = self.region.word(slots::ROOM).swap(0, Ordering::Relaxed);
        let back = if self.is_over() { self.room } else { unused.min(self.room) };
        self.room -= back;
        back
    }

    /// Whether its memory can be another process's.
    pub(crate) fn is_over(&self) -> bool {
        self.pidfd.is_none() && self.under_way == 0
    }
}
