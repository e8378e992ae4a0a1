//! [`Puts`]: values that take several records or whole chunks, from the admission to the index.
//!
//! Such a value is *unfinished* until its last record has a location. Its whole chunks are written
//! first ([`large_value`]), then its records are appended, one value after the other.

pub(crate) mod large_value;

use std::collections::{BTreeSet, VecDeque};

use super::check::{KvPart, KvSubject, KvViolation, PartCheck};
use super::request::{KvRequestState, KvRequestTable, PutState};
use large_value::LargeValues;

/// Unfinished values, and the space reserved for them.
#[derive(Debug)]
pub(crate) struct Puts {
    /// Writes of whole chunks.
    writes: LargeValues,
    /// Whether whole chunks have a CRC-32C.
    has_chunk_checksums: bool,
    /// Values with whole chunks to start; values whose whole chunks are written; and the value
    /// whose records are being appended.
    chunk_queue: VecDeque<u32>,
    record_queue: VecDeque<u32>,
    appending: Option<u32>,
    /// Number of unfinished values.
    unfinished: u32,
    /// Bytes of records and number of whole chunks reserved for unfinished values.
    reserved_bytes: u64,
    reserved_chunks: u32,
}

impl Puts {
    /// Creates the part, with a table for writes of whole chunks.
    pub(crate) fn new(writes: LargeValues, has_chunk_checksums: bool) -> Puts {
        Puts {
            writes,
            has_chunk_checksums,
            chunk_queue: VecDeque::new(),
            record_queue: VecDeque::new(),
            appending: None,
            unfinished: 0,
            reserved_bytes: 0,
            reserved_chunks: 0,
        }
    }

    /// Returns the writes of whole chunks.
    pub(crate) fn writes(&self) -> &LargeValues {
        &self.writes
    }

    /// Returns the writes of whole chunks, to advance them.
    pub(crate) fn writes_mut(&mut self) -> &mut LargeValues {
        &mut self.writes
    }

    /// Returns whether whole chunks have a CRC-32C.
    pub(crate) fn has_chunk_checksums(&self) -> bool {
        self.has_chunk_checksums
    }

    /// Returns the number of unfinished values.
    pub(crate) fn unfinished(&self) -> u32 {
        self.unfinished
    }

    /// Returns the bytes of records reserved for unfinished values.
    #[inline]
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Returns the number of whole chunks reserved for unfinished values.
    #[inline]
    pub(crate) fn reserved_chunks(&self) -> u32 {
        self.reserved_chunks
    }

    /// Adds a value, and reserves its space.
    pub(crate) fn begin(&mut self, place: u32, put: &PutState) {
        let chunks = put.chunk_extents.len() as u32;
        self.reserved_bytes += put.reserved_bytes;
        self.reserved_chunks += chunks;
        self.unfinished += 1;
        if chunks > 0 { &mut self.chunk_queue } else { &mut self.record_queue }.push_back(place);
    }

    /// Releases the reserved space of a value that is complete or aborted.
    pub(crate) fn end(&mut self, put: &PutState) {
        self.reserved_bytes -= put.reserved_bytes;
        self.reserved_chunks -= put.chunk_extents.len() as u32;
        self.unfinished -= 1;
    }

    /// Returns the value whose next whole chunk can be started; `None` if all writes are in use.
    pub(crate) fn next_chunk_put(&self) -> Option<u32> {
        let place = self.chunk_queue.front().copied();
        place.filter(|_| self.writes.has_capacity())
    }

    /// Removes the first value with whole chunks to start: all are started.
    pub(crate) fn pop_chunk_put(&mut self) {
        self.chunk_queue.pop_front();
    }

    /// Adds a value whose whole chunks are written.
    pub(crate) fn queue_records(&mut self, place: u32) {
        self.record_queue.push_back(place);
    }

    /// Returns the value whose records are to be appended.
    pub(crate) fn next_record_put(&mut self) -> Option<u32> {
        if self.appending.is_none() {
            self.appending = self.record_queue.pop_front();
        }
        self.appending
    }

    /// Returns the value whose records are being appended.
    pub(crate) fn appending(&self) -> Option<u32> {
        self.appending
    }

    /// Ends the appending of a value's records.
    pub(crate) fn end_appending(&mut self) {
        self.appending = None;
    }

    /// Removes and returns all values without a command in flight, in order of their places.
    pub(crate) fn take_all(&mut self) -> Vec<u32> {
        let mut places = self.writes.take_failed_requests();
        places.extend(self.chunk_queue.drain(..));
        places.extend(self.record_queue.drain(..));
        places.extend(self.appending.take());
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Compares the counts and queues with the requests; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self, requests: &KvRequestTable) -> Result<(), KvViolation> {
        let check = PartCheck(KvPart::Puts);
        self.writes.check_invariants()?;
        let queued = self.chunk_queue.iter().chain(&self.record_queue).chain(&self.appending);
        let placed: BTreeSet<u32> = queued.copied().chain(self.writes.requests()).collect();
        let (mut bytes, mut chunks, mut unfinished) = (0, 0, BTreeSet::new());
        for (place, pending) in requests.iter() {
            let KvRequestState::Put(put) = &pending.state else { continue };
            unfinished.insert(place);
            bytes += put.reserved_bytes;
            chunks += put.chunk_extents.len() as u32;
            let queue = (self.chunk_queue.contains(&place), self.record_queue.contains(&place));
            let is_written = put.chunks_to_complete == 0;
            check.equal(
                "a value with whole chunks to start, or with records to append, is queued",
                KvSubject::Request(place),
                (put.chunks_to_begin > 0, is_written && self.appending != Some(place)),
                queue,
            )?;
        }
        check.equal("unfinished values have a next step", KvSubject::Part, &unfinished, &placed)?;
        check.equal(
            "unfinished values, and their bytes and chunks, are counted",
            KvSubject::Part,
            (unfinished.len() as u32, bytes, chunks),
            (self.unfinished, self.reserved_bytes, self.reserved_chunks),
        )
    }

    /// Reserves a byte for no value.
    #[cfg(test)]
    pub(crate) fn break_reservation(&mut self) {
        self.reserved_bytes += 1;
    }
}
