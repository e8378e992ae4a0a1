//! Reclaims chunks: what must be durable before an erase, and what happens when no chunks are free.
//!
//! **No durable data is lost.** A chunk becomes obsolete when it contains nothing current: every
//! record was superseded or relocated, by records in units that have been assigned a sequence
//! number. Once all units assigned by then are durable, no power cut can make anything in the chunk
//! current again, and it can be erased; [`DurablePrefix`](crate::targets::kv::buffer::durable_prefix::DurablePrefix)
//! tracks this. A batch is placed in its units completely before it supersedes anything. A value's
//! records and whole chunks are complete before it supersedes the older value.
//!
//! **Progress is always possible.** Only compaction may take the last `reserve_chunks` free chunks.
//! Live data is bounded ([`Kv::admit`](crate::targets::kv::Kv)) such that some packed chunk has fewer live bytes
//! than a compacted chunk holds, so relocating its records frees more than it takes. Chunks whose
//! records were relocated wait for units to fill; if nothing else can make progress, these units
//! are padded.

use std::mem::take;

use crate::targets::kv::chunks::ChunkRole;
use crate::targets::kv::format::key::Key;
use crate::targets::kv::{Kv, KvError};

/// A chunk without current data.
#[derive(Debug)]
pub(crate) struct ObsoleteChunk {
    pub(crate) chunk: u32,
    /// All units with smaller sequence numbers must be durable before the erase.
    pub(crate) unit_seq: u64,
    /// Keys of the value records in it, once per record.
    pub(crate) keys: Vec<Key>,
}

impl Kv {
    /// Marks a chunk without current data as obsolete.
    pub(crate) fn mark_obsolete(&mut self, chunk: u32, keys: Vec<Key>) {
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

    /// Erases the chunks that can be erased.
    pub(crate) fn step_reclaim(&mut self) {
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
            let user = crate::targets::kv::KvCommandTag::Erase { chunk }.to_bits();
            if self.queue.reset(address, user).is_err() {
                return;
            }
            let dead = self.obsolete_durable.swap_remove(i);
            self.erasing.insert(chunk, dead);
        }
    }

    /// Handles the completion of an erase. Even if it failed, the contents of the chunk cannot
    /// become current again.
    pub(crate) fn on_erase_complete(&mut self, chunk: u32, success: bool) {
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
                let bytes =
                    crate::targets::kv::format::record::record_bytes(key.len(), 0, tombstone.bytes);
                self.chunks.sub_live(tombstone.chunk, bytes);
                self.tombstone_bytes -= u64::from(bytes);
                self.tombstones -= 1;
            }
        }
    }

    /// Retires a failed chunk after its evacuation. Requests that wait for its data complete when
    /// the relocated data is durable; its units that were never written are not awaited any more.
    pub(crate) fn retire_failed_chunk(&mut self, chunk: u32) {
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

    /// Handles a lack of free chunks. If compaction or erases are in progress, a chunk becomes
    /// free. If chunks wait for units to fill, those are padded. Otherwise requests fail.
    pub(crate) fn free_space_or_fail(&mut self) {
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
        // The remaining requests wait for a failed chunk that cannot be evacuated.
        if !self.failing_chunks.is_empty()
            || self.compactors.iter().any(|c| c.is_blocked_on_failed_chunk())
        {
            for (_, place) in take(&mut self.durability_waiters) {
                self.complete(place, Err(KvError::NotDurable));
            }
        }
    }
}
