//! [`Kv`]: a key-value store on flash managed by the host ([Thesis15 ch. 6 §4.4], "Key-value with
//! Flash Blocks").
//!
//! Owns the queue pair, an index of all keys in memory, and its chunks. A value fills as many whole
//! chunks as it can, which are never relocated. Its remainder, and every smaller value, is *packed*
//! as a record into chunks with many records; compaction relocates the live records of chunks that
//! are mostly garbage.
//!
//! Invariants:
//! - Every accepted request completes exactly once.
//! - Requests for a key take effect in the order of submission.
//! - Durable data survives a power cut at any time. A value that is not durable exists completely
//!   or not at all afterwards, and so does a batch.
//! - A returned value is exactly the value that was put.
//! - Doorbells are rung once per poll.
//! - Requests with keys of at most 30 bytes and values of one record cause no allocation, apart
//!   from the growth of the index and of the record lists of chunks (`tests/kv_allocations.rs`).

mod blocking;
mod buffer;
mod check;
mod chunks;
mod config;
mod error;
mod format;
mod index;
mod pipeline;
mod puts;
mod read_ops;
mod recovery;
mod request;
mod stats;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use clock::{Component, Nanos, Waker};
use driver::QueuePair;
use ring::{AddressSpace, Iova, SharedRegion};

pub use blocking::{BlockingKv, BlockingMutation};
pub use config::{KvConfig, Layout as KvLayout};
pub use error::{KvError, KvOpenError};
pub use format::key::{Key, KeyLengthError};
pub use request::{KvAnswer, KvCompletion, KvMutation, KvOp, KvRequest, ValueBuffer};
pub use stats::KvStats;

use buffer::durable_prefix::DurablePrefix;
use buffer::streams::{AppendStreams, ProgramOutcome};
use chunks::{ChunkRole, KvChunks};
use config::Layout;
use format::command_tag::KvCommandTag;
use index::{Index, KeyVersion};
use pipeline::compact::Compactor;
use pipeline::execute::BlockedKey;
use pipeline::reclaim::ObsoleteChunk;
use puts::large_value::{ChunkWriteOutcome, LargeValues};
use read_ops::ReadOps;
use request::{KvRequestState, KvRequestTable, PendingRequest};

use crate::vector::{Addresses, VectorQueue};

/// Size of the blocks in which data passes through the CPU cache. Copying and checksumming 1 MB
/// takes 134 us with this size, 222 us with four times the size, and 197 us with a quarter.
const COPY_BLOCK_BYTES: usize = 4 << 10;

/// A key-value store on flash managed by the host. [`Kv::open`] creates one.
#[derive(Debug)]
pub struct Kv {
    layout: Layout,
    config: KvConfig,
    queue: VectorQueue,
    addresses: Addresses,
    index: Index,
    chunks: KvChunks,
    streams: AppendStreams,
    durable_prefix: DurablePrefix,
    large_values: LargeValues,
    read_ops: ReadOps,
    requests: KvRequestTable,
    completed: VecDeque<KvCompletion>,
    /// Requests that wait in order.
    write_queue: VecDeque<u32>,
    /// Keys of requests in the write queue, and keys of values being written.
    blocked_keys: BTreeMap<Key, BlockedKey>,
    /// Requests that wait for a key whose value is being written.
    parked_count: u32,
    /// Values with whole chunks to start; values whose whole chunks are written; and the value
    /// whose records are being appended.
    large_value_queue: VecDeque<u32>,
    record_queue: VecDeque<u32>,
    appending: Option<u32>,
    /// Values with whole chunks or records being written.
    unfinished_puts: u32,
    /// Requests that complete when all units below a sequence number are durable, sorted by it.
    durability_waiters: VecDeque<(u64, u32)>,
    /// Values with records or chunks to read: those of one small record, and others.
    read_queues: [VecDeque<u32>; 2],
    compactors: Vec<Compactor>,
    /// Chunks to be evacuated because a program failed.
    failing_chunks: VecDeque<u32>,
    /// Obsolete chunks: those that wait for durability, those that wait for readers, and those
    /// being erased.
    obsolete: VecDeque<ObsoleteChunk>,
    obsolete_durable: Vec<ObsoleteChunk>,
    erasing: BTreeMap<u32, ObsoleteChunk>,
    /// The last sequence number, and the last stamp of a chunk.
    seq: u64,
    stamp: u64,
    /// Bytes of records reserved for values being written, and whole chunks in use or reserved.
    reserved_bytes: u64,
    large_value_chunks: u32,
    /// Bytes and number of live tombstones.
    tombstone_bytes: u64,
    tombstones: u64,
    stats: KvStats,
    copy_buffer: Box<[u8]>,
    /// Memory of blocking requests; registrations last as long as the port.
    blocking_memory: Option<(Arc<SharedRegion>, Iova)>,
    header_buffer: Vec<u8>,
    /// Whether a request was accepted since the last poll.
    has_new_requests: bool,
    /// Whether this poll has made progress without the drive.
    progressed: bool,
    /// Whether an allocation in this poll found no free chunk.
    out_of_chunks: bool,
}

/// A request that was not accepted, because the maximum number is outstanding.
#[derive(Debug)]
pub struct KvQueueFull(pub KvRequest);

/// A position in the key order, for [`Kv::next`].
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    prefix: Vec<u8>,
    after: Option<Key>,
    inclusive: bool,
}

impl Cursor {
    /// Creates a cursor before the first key that begins with `prefix`; an empty prefix covers all
    /// keys.
    pub fn prefix(prefix: &[u8]) -> Cursor {
        Cursor { prefix: prefix.to_vec(), after: None, inclusive: false }
    }

    /// Creates a cursor before `key`, up to the last key.
    pub fn starting_at(key: Key) -> Cursor {
        Cursor { prefix: Vec::new(), after: Some(key), inclusive: true }
    }
}

impl Kv {
    /// Returns the counters.
    pub fn stats(&self) -> KvStats {
        KvStats {
            keys: self.index.key_count,
            tombstones: self.tombstones,
            live_bytes: self.chunks.live_bytes,
            packed_chunk_bytes: u64::from(self.chunks.packed_count)
                * u64::from(self.layout.chunk_bytes),
            large_value_chunks: self.large_value_chunks,
            free_chunks: self.chunks.free_count,
            ..self.stats
        }
    }

    /// Returns the sizes that follow from the flash and the configuration.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Returns the number of keys that exist.
    pub fn len(&self) -> u64 {
        self.index.key_count
    }

    /// Returns whether no key exists.
    pub fn is_empty(&self) -> bool {
        self.index.key_count == 0
    }

    /// Advances a cursor. Returns the next key in order and the size of its value in bytes.
    ///
    /// Every call reads the current keys, with all completed changes and possibly some that have
    /// not completed. An iteration thus returns each key that exists throughout exactly once and in
    /// order. A key created or deleted meanwhile is returned if it exists when the cursor passes
    /// it.
    pub fn next(&self, cursor: &mut Cursor) -> Option<(Key, u64)> {
        let bound = match (&cursor.after, cursor.inclusive) {
            (Some(key), true) => Bound::Included(key.as_bytes()),
            (Some(key), false) => Bound::Excluded(key.as_bytes()),
            (None, _) => Bound::Included(&cursor.prefix[..]),
        };
        let (key, entry) = self.index.range_from(bound).next()?;
        if !key.as_bytes().starts_with(&cursor.prefix) {
            return None;
        }
        (cursor.after, cursor.inclusive) = (Some(key.clone()), false);
        Some((key.clone(), entry.current.value_bytes(self.layout.chunk_bytes)))
    }

    /// Returns the queue pair, for its counters.
    pub fn queue(&self) -> &QueuePair {
        self.queue.queue()
    }

    /// Returns the memory in which the values of requests must be.
    pub fn memory(&self) -> &AddressSpace {
        self.queue.port().memory()
    }

    /// Returns the number of outstanding requests.
    pub fn outstanding(&self) -> usize {
        self.requests.outstanding() + self.completed.len()
    }

    /// Sets the waker for completions of the drive.
    pub fn set_waker(&mut self, waker: Waker) {
        if let Some(vector) = self.queue.queue().vector() {
            // Only a port between processes refuses; such a target has to be polled.
            let _ = self.queue.port().set_vector(vector, waker);
        }
    }

    /// Returns whether no request is outstanding, no command is on the drive, and nothing is to be
    /// submitted.
    pub fn is_idle(&self) -> bool {
        self.outstanding() == 0
            && self.queue.outstanding() == 0
            && self.streams.is_idle()
            && self.read_ops.is_idle()
            && self.large_values.is_idle()
    }

    /// Closes the target. Returns the queue pair, which the caller deletes through its controller,
    /// and a completion for every request that was not reaped. Data that was not synced may be
    /// lost.
    pub fn into_queue(mut self) -> (QueuePair, Vec<KvCompletion>) {
        let mut completions: Vec<KvCompletion> = self.completed.drain(..).collect();
        let ended = std::iter::from_fn(|| self.requests.remove_any());
        completions
            .extend(ended.map(|p| KvCompletion { tag: p.tag, result: Err(KvError::Closed) }));
        (self.queue.into_queue(), completions)
    }

    /// Submits a request.
    ///
    /// # Errors
    /// [`KvQueueFull`] with the request, if the maximum number is outstanding.
    pub fn submit(&mut self, _now: Nanos, request: KvRequest) -> Result<(), KvQueueFull> {
        if self.completed.len() >= self.config.queue_depth as usize {
            return Err(KvQueueFull(request));
        }
        let place = self.requests.insert(request).map_err(KvQueueFull)?;
        self.has_new_requests = true;
        match self.check_request(place) {
            Ok(()) => self.execute_or_enqueue(place),
            Err(error) => self.complete(place, Err(error)),
        }
        Ok(())
    }

    /// Reaps the next completed request.
    #[inline]
    pub fn reap(&mut self) -> Option<KvCompletion> {
        self.completed.pop_front()
    }

    /// Checks a request, independent of its key's state.
    fn check_request(&self, place: u32) -> Result<(), KvError> {
        let Some(pending) = self.requests.get(place) else { return Ok(()) };
        let registered = |room: &request::ValueBuffer| match self.memory().find(room.at, room.bytes)
        {
            Ok(_) => Ok(()),
            // An empty value needs no address.
            Err(_) if room.bytes == 0 => Ok(()),
            Err(_) => Err(KvError::NotRegistered),
        };
        let value = |change: &KvMutation| match change.value() {
            None => Ok(()),
            Some(room) if room.bytes > self.layout.value_bytes() => {
                let most = self.layout.value_bytes();
                Err(KvError::ValueTooLarge { bytes: room.bytes, bytes_max: most })
            }
            Some(room) => registered(&room),
        };
        match &pending.op {
            KvOp::Mutation { mutation: change, .. } => value(change),
            KvOp::Batch { mutations: changes, .. } => changes.iter().try_for_each(value),
            KvOp::Get { into, .. } => registered(into),
            KvOp::Exists { .. } | KvOp::Sync => Ok(()),
        }
    }

    /// Completes a request.
    fn complete(&mut self, place: u32, result: Result<KvAnswer, KvError>) {
        let Some(PendingRequest { tag, .. }) = self.requests.remove(place) else { return };
        self.stats.errors += u64::from(result.is_err());
        self.completed.push_back(KvCompletion { tag, result });
        self.progressed = true;
    }

    /// Completes a mutation, now or once it is durable.
    fn complete_mutation(&mut self, place: u32, number: u64) {
        let Some(pending) = self.requests.get_mut(place) else { return };
        let durable = match &pending.op {
            KvOp::Mutation { durable, .. } | KvOp::Batch { durable, .. } => *durable,
            _ => true,
        };
        pending.state = KvRequestState::Queued;
        if durable && !self.durable_prefix.is_durable_below(number) {
            // Most mutations have the largest sequence number so far.
            let at = self
                .durability_waiters
                .iter()
                .rposition(|(n, _)| *n <= number)
                .map_or(0, |i| i + 1);
            self.durability_waiters.insert(at, (number, place));
        } else {
            self.complete(place, Ok(KvAnswer::Done));
        }
    }

    /// Completes the requests whose units are durable, and pads units that other requests wait for.
    fn complete_durable(&mut self) {
        while let Some(&(number, place)) = self.durability_waiters.front()
            && self.durable_prefix.is_durable_below(number)
        {
            self.durability_waiters.pop_front();
            self.complete(place, Ok(KvAnswer::Done));
        }
        if let Some(&(number, _)) = self.durability_waiters.back() {
            self.streams.pad_below(number, &mut self.stats);
        }
    }

    /// Handles a superseded version: its records become garbage, its whole chunks obsolete.
    fn discard_version(&mut self, key: u8, old: &KeyVersion) {
        for (i, piece) in old.records().iter().enumerate() {
            let bytes = old.record_bytes(key, i);
            self.chunks.sub_live(piece.chunk, bytes);
            if !old.is_present() {
                self.tombstone_bytes -= u64::from(bytes);
                self.tombstones -= 1;
            }
        }
        for part in old.chunk_extents() {
            self.large_value_chunks -= 1;
            if self.chunks.is_owned(part.chunk)
                && self.chunks.get(part.chunk).role == ChunkRole::LargeValue
            {
                self.mark_obsolete(part.chunk, Vec::new());
            }
        }
    }

    fn reap_completions(&mut self) -> bool {
        let mut reaped = false;
        // Limits the loop, so that a drive that completes commands faster than the loop reaps them
        // cannot keep the thread here.
        for _ in 0..self.queue.queue().capacity() {
            let Some(ended) = self.queue.reap() else { break };
            reaped = true;
            let (status, failed) = (ended.status, ended.failed);
            match KvCommandTag::from_bits(ended.user_data) {
                KvCommandTag::Program { chunk, unit } => {
                    let (order, stats) = (&mut self.durable_prefix, &mut self.stats);
                    match self.streams.on_program_complete((chunk, unit), status, order, stats) {
                        ProgramOutcome::Continue => {}
                        ProgramOutcome::ChunkFull => {
                            self.chunks.get_mut(chunk).role = ChunkRole::Closed
                        }
                        ProgramOutcome::ChunkFailed => {
                            self.chunks.get_mut(chunk).role = ChunkRole::Failing;
                            self.failing_chunks.push_back(chunk);
                        }
                    }
                }
                KvCommandTag::LargeValue { job, .. } => {
                    match self.large_values.on_command_complete(job, status.is_success()) {
                        None => {}
                        Some((written, ChunkWriteOutcome::Written)) => {
                            self.large_values.remove(job);
                            self.on_large_value_chunk_written(&written);
                        }
                        Some((failed, ChunkWriteOutcome::Failed)) => {
                            self.stats.program_failures += 1;
                            self.retire(failed.chunk);
                            self.large_values.failed_writes.push_back(job);
                        }
                    }
                }
                KvCommandTag::Read { fetch, sector } => {
                    self.read_ops.on_command_complete(fetch, sector, failed, status);
                }
                KvCommandTag::Erase { chunk } => self.on_erase_complete(chunk, status.is_success()),
            }
        }
        reaped
    }

    fn retire(&mut self, chunk: u32) {
        self.chunks.retire(chunk);
        self.stats.chunks_retired += 1;
    }
}

impl Component for Kv {
    /// Reaps completed commands, executes the operations that follow, and rings the doorbell once
    /// for all.
    fn poll(&mut self, _now: Nanos) -> bool {
        let taken = std::mem::take(&mut self.has_new_requests);
        let reaped = self.reap_completions();
        let mut moved = taken | reaped;
        // Progress of one part can enable progress of another.
        loop {
            self.progressed = false;
            self.out_of_chunks = false;
            self.begin_large_value_chunks();
            self.step_record_queue();
            self.step_write_queue();
            self.step_reads();
            self.step_compaction();
            self.step_reclaim();
            self.complete_durable();
            self.read_ops.send(&mut self.queue, &self.addresses, &self.chunks, &self.streams);
            self.complete_reads();
            self.large_values.send(&mut self.queue, &self.addresses);
            self.streams.send(&mut self.queue, &self.addresses);
            if !self.progressed {
                break;
            }
            moved = true;
        }
        if self.out_of_chunks {
            self.free_space_or_fail();
        }
        let rang = self.queue.ring(reaped);
        moved | rang
    }

    /// Returns zero while a request waits for a poll; otherwise never, because only the drive or a
    /// submitter can cause work.
    fn deadline(&self) -> Nanos {
        if self.has_new_requests { Nanos::ZERO } else { Nanos::MAX }
    }
}
