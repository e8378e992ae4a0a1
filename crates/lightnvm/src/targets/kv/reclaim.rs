//! What must be durable before a chunk is erased, and what is done when there are no free chunks.
//!
//! **Why nothing durable is lost.** A chunk is condemned when nothing in it is current any more: every
//! record was overwritten, deleted or moved, and what did that is in a unit that has begun to fill.
//! So once every unit that has begun by then is durable, no power cut can make anything in the chunk
//! current again, and it may be erased; [`Order`](super::order::Order) knows when. A batch is in its
//! units as a whole before it makes anything garbage, and a value's records and whole chunks are
//! complete before it takes the place of the older one.
//!
//! **Why there is always room to go on.** Only cleaning takes the last `reserve` free chunks. What is
//! live is bounded ([`Kv::admit`](super::Kv)) so that some packed chunk has fewer live bytes than a
//! chunk holds once it is cleaned: moving those records frees more than it takes. Chunks whose
//! records have been moved wait for units to fill up; when nothing else can go on the units are
//! padded instead.

use std::mem::take;

use super::chunks::ChunkRole;
use super::key::Key;
use super::{Kv, KvError};

/// A chunk in which nothing is current.
#[derive(Debug)]
pub(crate) struct ObsoleteChunk {
    pub(crate) chunk: u32,
    /// Every unit with a smaller number must be durable first.
    pub(crate) unit_seq: u64,
    /// The keys of values' records in it, each as often as there are records.
    pub(crate) keys: Vec<Key>,
}

impl Kv {
    /// Nothing in a chunk is current any more.
    pub(super) fn mark_obsolete(&mut self, chunk: u32, keys: Vec<Key>) {
        if self.chunks.get(chunk).role != ChunkRole::LargeValue {
            self.chunks.packed_count -= 1;
        }
        let c = self.chunks.get_mut(chunk);
        debug_assert!(
            c.live_bytes == 0 && c.unfinished_records == 0,
            "chunk {chunk} is condemned alive: {c:?}"
        );
        c.role = ChunkRole::Obsolete;
        c.records = Vec::new();
        self.obsolete.push_back(ObsoleteChunk {
            chunk,
            unit_seq: self.durable_prefix.next_seq(),
            keys,
        });
        self.progressed = true;
    }

    /// Erases what can be erased.
    pub(super) fn step_reclaim(&mut self) {
        while self
            .obsolete
            .front()
            .is_some_and(|d| self.durable_prefix.is_durable_below(d.unit_seq))
        {
            self.obsolete_durable.extend(self.obsolete.pop_front());
            self.progressed = true;
        }
        let mut i = 0;
        while let Some(dead) = self.obsolete_durable.get(i) {
            let chunk = dead.chunk;
            if self.chunks.get(chunk).readers > 0 {
                i += 1;
                continue;
            }
            let address = std::iter::once(self.addresses.chunk(chunk));
            let user = super::KvCommandTag::Erase { chunk }.to_bits();
            if self.queue.reset(address, user).is_err() {
                return;
            }
            let dead = self.obsolete_durable.swap_remove(i);
            self.erasing.insert(chunk, dead);
        }
    }

    /// An erase has ended. Either way nothing of what was in the chunk can come back.
    pub(super) fn on_erase_complete(&mut self, chunk: u32, success: bool) {
        let Some(ObsoleteChunk { keys, .. }) = self.erasing.remove(&chunk) else { return };
        if success {
            self.stats.chunks_erased += 1;
            self.chunks.release(chunk);
        } else {
            self.stats.erase_failures += 1;
            self.retire(chunk);
        }
        for key in keys {
            if let Some(tombstone) = self.index.release_older(key.as_bytes()) {
                let bytes = super::record::record_bytes(key.len(), 0, tombstone.bytes);
                self.chunks.sub_live(tombstone.chunk, bytes);
                self.tombstone_bytes -= u64::from(bytes);
                self.tombstones -= 1;
            }
        }
    }

    /// A chunk that failed has been moved out of: what users wait for is durable when what was moved
    /// is, and what was in the units that never were written is not waited for any more.
    pub(super) fn retire_failed_chunk(&mut self, chunk: u32) {
        let number = self.durable_prefix.next_seq();
        for waiter in &mut self.durability_waiters {
            waiter.0 = waiter.0.max(number);
        }
        for dead in &mut self.obsolete {
            dead.unit_seq = dead.unit_seq.max(number);
        }
        self.streams.drop_failed(chunk, &mut self.durable_prefix);
        debug_assert_eq!(self.chunks.get(chunk).live_bytes, 0, "chunk {chunk} is given up alive");
        self.chunks.packed_count -= 1;
        self.chunks.get_mut(chunk).records = Vec::new();
        self.retire(chunk);
        self.progressed = true;
    }

    /// Something found no free chunk. If cleaning or erasing goes on, one will come; if chunks wait
    /// for units to fill up, those are padded; else there is none to be made.
    pub(super) fn free_space_or_fail(&mut self) {
        if self.queue.outstanding() > 0 {
            return;
        }
        if let Some(dead) = self.obsolete.back() {
            let number = dead.unit_seq;
            if self.streams.pad_below(number, &mut self.stats) {
                self.streams.send(&mut self.queue, &self.addresses);
                return;
            }
        }
        if !self.obsolete_durable.is_empty() || !self.streams.is_idle() || !self.read_ops.is_idle()
        {
            return;
        }
        let error = if self.is_read_only() { KvError::ReadOnly } else { KvError::Full };
        self.abort_all_puts(error);
        self.fail_write_queue(error);
        // What is left waits for a chunk that failed, and that cannot be moved out of.
        if !self.failing_chunks.is_empty()
            || self.compactors.iter().any(|c| c.is_blocked_on_failed_chunk())
        {
            for (_, place) in take(&mut self.durability_waiters) {
                self.complete(place, Err(KvError::NotDurable));
            }
        }
    }
}
