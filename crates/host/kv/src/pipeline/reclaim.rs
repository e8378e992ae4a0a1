//! Reclaims chunks: what must be durable before an erase, and what happens when no chunks are free.
//!
//! **No durable data is lost.** A chunk becomes obsolete when it contains nothing current: every
//! record was superseded or relocated, by records in units that have been assigned a sequence
//! number. Once all units assigned by then are durable, no power cut can make anything in the chunk
//! current again, and it can be erased; [`DurablePrefix`](crate::buffer::durable_prefix::DurablePrefix)
//! tracks this. A batch is placed in its units completely before it supersedes anything. A value's
//! records and whole chunks are complete before it supersedes the older value.
//!
//! **Progress is always possible.** Only compaction may take the last `reserve_chunks` free chunks.
//! Live data is bounded ([`Kv::admit`](crate::Kv)) such that some packed chunk has fewer live bytes
//! than a compacted chunk holds, so relocating its records frees more than it takes. Chunks whose
//! records were relocated wait for units to fill; if nothing else can make progress, these units
//! are padded.

use crate::chunks::KvChunkRole;
use crate::format::key::Key;
use crate::format::record::record_bytes;
use crate::{Kv, KvError};

impl Kv {
    /// Marks a chunk without current data as obsolete. `keys` are those of the value records in it,
    /// once per record.
    pub(crate) fn mark_obsolete(&mut self, chunk: u32, keys: Vec<Key>) {
        self.chunks.mark_obsolete(chunk);
        self.reclaim.add(chunk, self.streams.next_unit_seq(), keys);
        self.progress.moved = true;
    }

    /// Marks a whole chunk of a superseded or aborted value as obsolete, if it has not been retired.
    pub(crate) fn discard_extent(&mut self, chunk: u32) {
        if self.chunks.is_owned(chunk) && self.chunks.get(chunk).role() == KvChunkRole::LargeValue {
            self.mark_obsolete(chunk, Vec::new());
        }
    }

    /// Erases the chunks that can be erased.
    pub(crate) fn step_reclaim(&mut self) {
        self.progress.moved |= self.reclaim.advance_durable(&self.streams);
        self.reclaim.submit_erases(&self.chunks, &mut self.device);
    }

    /// Handles the completion of an erase. Even if it failed, the contents of the chunk cannot
    /// become current again.
    pub(crate) fn on_erase_complete(&mut self, chunk: u32, success: bool) {
        let keys = self.reclaim.on_erase_complete(chunk);
        if success {
            self.stats.chunks_erased += 1;
            self.chunks.release(chunk);
        } else {
            self.stats.erase_failures += 1;
            self.retire(chunk);
        }
        for key in keys {
            if let Some(tombstone) = self.index.release_older(key.as_bytes()) {
                let bytes = record_bytes(key.len(), 0, tombstone.bytes);
                self.chunks.sub_live(tombstone.chunk, bytes);
            }
        }
    }

    /// Retires a failed chunk after its evacuation. Requests that wait for its data complete when
    /// the relocated data is durable; its units that were never written are not awaited any more.
    pub(crate) fn retire_failed_chunk(&mut self, chunk: u32) {
        let unit_seq = self.streams.next_unit_seq();
        self.durability.wait_at_least_for(unit_seq);
        self.reclaim.wait_at_least_for(unit_seq);
        self.streams.drop_failed(chunk);
        self.retire(chunk);
        self.progress.moved = true;
    }

    /// Retires a chunk.
    pub(crate) fn retire(&mut self, chunk: u32) {
        self.chunks.retire(chunk);
        self.stats.chunks_retired += 1;
    }

    /// Handles a lack of free chunks. If compaction or erases are in progress, a chunk becomes
    /// free. If chunks wait for units to fill, those are padded. Otherwise requests fail.
    pub(crate) fn free_space_or_fail(&mut self) {
        if self.device.queue.outstanding() > 0 {
            return;
        }
        if let Some(unit_seq) = self.reclaim.last_unit_seq()
            && self.streams.pad_below(unit_seq, &mut self.stats)
        {
            self.streams.send(&mut self.device);
            return;
        }
        if self.reclaim.is_awaiting_erase() || !self.streams.is_idle() || !self.reads.is_idle() {
            return;
        }
        let error = if self.is_read_only() { KvError::ReadOnly } else { KvError::Full };
        self.abort_all_puts(error);
        self.fail_write_queue(error);
        // The remaining requests wait for a failed chunk that cannot be evacuated.
        if self.compaction.is_blocked_on_failed_chunk() {
            while let Some(place) = self.durability.pop() {
                self.complete(place, Err(KvError::NotDurable));
            }
        }
    }
}
