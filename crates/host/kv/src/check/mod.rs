//! [`Kv::check_invariants`]: asks every part, and compares the parts with each other.

#[cfg(test)]
mod tests;
pub(crate) mod violation;

use std::collections::BTreeMap;

pub(crate) use violation::{KvPart, KvSubject, KvViolation, PartCheck};

use super::Kv;
use super::chunks::{KvChunkRole, RecordSpan};
use super::format::record::record_bytes;
use super::request::{KvOp, KvRequestState};

impl Kv {
    /// Checks the invariants of every part. May be called between any two calls of the target's
    /// methods. Takes time proportional to the size of the flash and the number of keys; for tests.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), KvViolation> {
        self.index.check_invariants()?;
        self.chunks.check_invariants()?;
        self.streams.check_invariants()?;
        self.check_request_invariants()?;
        self.compaction.check_invariants(&self.chunks)?;
        self.reclaim.check_invariants(&self.chunks)?;
        self.check_records()?;
        self.check_chunk_readers()
    }

    /// Checks the invariants of the outstanding requests, as
    /// [`check_invariants`](Kv::check_invariants) does. Takes time proportional to the number of
    /// requests.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_request_invariants(&self) -> Result<(), KvViolation> {
        self.requests.check_invariants()?;
        self.write_order.check_invariants(&self.requests, self.puts.unfinished())?;
        self.puts.check_invariants(&self.requests)?;
        self.reads.check_invariants()?;
        self.durability.check_invariants(self.streams.next_unit_seq())?;
        self.check_requests()
    }

    /// Compares the records and live bytes of the chunks with the index and the unfinished values.
    fn check_records(&self) -> Result<(), KvViolation> {
        let index = PartCheck(KvPart::Index);
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        for (key, entry) in self.index.iter() {
            let current = &entry.current;
            for (i, piece) in current.records().iter().enumerate() {
                let bytes = current.record_bytes(key.len(), i);
                *live.entry(piece.chunk).or_default() += u64::from(bytes);
                let chunk = self.chunks.get(piece.chunk);
                // Records of a failed or compacted chunk may be uncorrectable, and found in the index.
                let is_relocating =
                    matches!(chunk.role(), KvChunkRole::Compacting | KvChunkRole::Failing);
                let record = RecordSpan { offset: piece.offset, bytes };
                index.require(
                    is_relocating || chunk.records().binary_search(&record).is_ok(),
                    "a record is in its chunk",
                    KvSubject::key(key),
                    format_args!("{piece:?}"),
                    chunk,
                )?;
            }
            for part in current.chunk_extents().iter().filter(|p| p.chunk != u32::MAX) {
                index.equal(
                    "a whole chunk has this role",
                    KvSubject::key(key),
                    KvChunkRole::LargeValue,
                    self.chunks.get(part.chunk).role(),
                )?;
            }
        }
        let mut unfinished: BTreeMap<u32, u32> = BTreeMap::new();
        for (_, pending) in self.requests.iter() {
            let (KvOp::Mutation { mutation, .. }, KvRequestState::Put(put)) =
                (&pending.op, &pending.state)
            else {
                continue;
            };
            for (i, piece) in put.records.iter().enumerate() {
                let extents = if i == 0 { put.chunk_extents.len() } else { 0 };
                let bytes = record_bytes(mutation.key().len(), extents, piece.bytes);
                *live.entry(piece.chunk).or_default() += u64::from(bytes);
                *unfinished.entry(piece.chunk).or_default() += 1;
            }
        }
        for (chunk, c) in self.chunks.iter() {
            PartCheck(KvPart::Space).equal(
                "live bytes and records of unfinished values are counted",
                KvSubject::Chunk(chunk),
                (live.remove(&chunk).unwrap_or(0), unfinished.remove(&chunk).unwrap_or(0)),
                (u64::from(c.live_bytes()), c.unfinished_records()),
            )?;
        }
        Ok(())
    }

    /// Compares the readers of the chunks with the values that are being read.
    fn check_chunk_readers(&self) -> Result<(), KvViolation> {
        let mut readers: BTreeMap<u32, u32> = BTreeMap::new();
        for (_, pending) in self.requests.iter() {
            let KvRequestState::Get(get) = &pending.state else { continue };
            for chunk in get.current.chunks() {
                *readers.entry(chunk).or_default() += 1;
            }
        }
        for (chunk, c) in self.chunks.iter().filter(|(_, c)| c.role() != KvChunkRole::Foreign) {
            PartCheck(KvPart::Reads).equal(
                "the values that are read keep their chunks",
                KvSubject::Chunk(chunk),
                readers.get(&chunk).copied().unwrap_or(0),
                c.readers(),
            )?;
        }
        Ok(())
    }

    /// Requires every outstanding request to have one next step.
    fn check_requests(&self) -> Result<(), KvViolation> {
        let mut waiting: BTreeMap<u32, u32> = BTreeMap::new();
        for place in self.write_order.requests().chain(self.durability.requests()) {
            *waiting.entry(place).or_default() += 1;
        }
        for (place, pending) in self.requests.iter() {
            // Puts and reads check their queues.
            let is_active = !matches!(pending.state, KvRequestState::Queued);
            let steps = waiting.remove(&place).unwrap_or(0) + u32::from(is_active);
            PartCheck(KvPart::Requests).equal(
                "a request has one next step",
                KvSubject::Request(place),
                1,
                steps,
            )?;
        }
        let left: Vec<u32> = waiting.into_keys().chain(self.reads.queued_values()).collect();
        let completed: Vec<u32> =
            left.into_iter().filter(|place| self.requests.get(*place).is_none()).collect();
        PartCheck(KvPart::Requests).equal(
            "a request that waits is outstanding",
            KvSubject::Part,
            Vec::new(),
            completed,
        )
    }

    /// Returns the state of the target, for messages of tests.
    pub fn debug_state(&self) -> String {
        let uses = [
            KvChunkRole::Free,
            KvChunkRole::Open,
            KvChunkRole::Closed,
            KvChunkRole::LargeValue,
            KvChunkRole::Failing,
            KvChunkRole::Compacting,
            KvChunkRole::Obsolete,
            KvChunkRole::Retired,
        ];
        let count = |u| self.chunks.iter().filter(|(_, c)| c.role() == u).count();
        let uses: Vec<String> = uses.iter().map(|u| format!("{u:?} {}", count(*u))).collect();
        let least = self.chunks.iter().filter(|(_, c)| c.role() == KvChunkRole::Closed);
        let least = least.map(|(_, c)| c.live_bytes()).min();
        let waiting: Vec<u32> = self.write_order.requests().collect();
        let values: Vec<u32> = self.reads.queued_values().collect();
        format!(
            "{} on the drive; waiting {waiting:?}, {:?}, {:?}, values to read {values:?}, {:?}, \
             obsolete {}, chunks {}, least live {least:?}, {:?}",
            self.device.queue.outstanding(),
            self.puts,
            self.durability,
            self.compaction,
            self.reclaim,
            uses.join(", "),
            self.streams,
        )
    }
}
