//! [`Kv`]: keys and values on flash that the host manages (thesis section 6.4.3, "Key-value with Flash
//! Blocks").
//!
//! Owns the queue pair, an index of all keys in memory, and its chunks. A value fills as many whole
//! chunks as it can, which are never moved; the rest of it, and every smaller value, is packed as a
//! record into chunks that many records share, and those are cleaned when they are mostly garbage.
//!
//! Guarantees: every request that was taken completes exactly once; requests for one key take effect
//! in the order in which they were submitted; what is durable survives a power cut at any instant,
//! what is not is there or not, never in part; a batch is there as a whole or not at all; no value is
//! ever returned that is not exactly what was put. Doorbells are rung once per poll. Nothing is
//! allocated per request for keys of at most 30 bytes and values of one record, but for the growth of
//! the index and of the lists of what is in a chunk (`tests/kv_allocations.rs`).
//!
//! | file | noun |
//! |---|---|
//! | [`config`](KvConfig) | what can be chosen; what follows for sizes |
//! | [`key`](Key) | 1 to 255 bytes |
//! | [`request`](KvRequest) | what is asked, what is answered, what is outstanding |
//! | [`error`](KvError) | why something failed |
//! | [`stats`](KvStats) | what was done |
//! | `index` | which version of a key is current; when a tombstone may be forgotten |
//! | `record`, `oob` | the format: what precedes a value, what is beside a sector |
//! | `streams`, `slots` | chunks that take records and their programs; the memory of units that fill |
//! | `order` | which units are durable |
//! | `whole` | whole chunks of values |
//! | `chunks` | what every chunk is used for |
//! | `line` | changes, one after the other |
//! | `put` | a value becomes records |
//! | `fetch`, `get` | sectors into memory; values out of them |
//! | `clean` | cleaning, and moving out of chunks that failed |
//! | `erase` | what must be durable before a chunk is erased |
//! | `open`, `media`, `scan`, `found` | power-on |
//! | `audit` | whether the counts agree with the index |
//! | `now` | one request at a time, waiting for it |

mod blocking;
mod chunks;
mod command_tag;
mod compaction;
mod config;
mod durability_order;
mod error;
mod get;
mod index;
mod invariants;
mod key;
mod large_value;
mod oob;
mod open;
mod power_on_scan;
mod put;
mod read_ops;
mod reclaim;
mod record;
mod recovered_chunk;
mod request;
mod scan;
mod stats;
mod streams;
mod unit_memory;
mod write_order;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use clock::{Component, Nanos, Waker};
use driver::QueuePair;
use ring::{AddressSpace, Iova, SharedRegion};

pub use blocking::{BlockingKv, BlockingMutation};
pub use config::{KvConfig, Layout as KvLayout};
pub use error::{KvError, KvOpenError};
pub use key::{Key, KeyLengthError};
pub use request::{KvAnswer, KvCompletion, KvMutation, KvOp, KvRequest, ValueBuffer};
pub use stats::KvStats;

use chunks::{ChunkRole, KvChunks};
use command_tag::KvCommandTag;
use compaction::Compactor;
use config::Layout;
use durability_order::DurablePrefix;
use index::{Index, KeyVersion};
use large_value::{ChunkWriteOutcome, LargeValues};
use read_ops::ReadOps;
use reclaim::ObsoleteChunk;
use request::{KvRequestState, KvRequestTable, PendingRequest};
use streams::{AppendStreams, ProgramOutcome};
use write_order::BlockedKey;

use crate::vector::{Addresses, VectorQueue};

/// Bytes that pass through the host's cache at a time: copying and summing 1 MB takes 134 us with this
/// many, 222 with four times as many, 197 with a quarter.
const COPY_BLOCK_BYTES: usize = 4 << 10;

/// A key-value store whose flash the host manages. [`Kv::open`] makes one.
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
    /// Requests that wait their turn.
    write_queue: VecDeque<u32>,
    /// Keys that requests in the line are about, and keys of values being written.
    blocked_keys: BTreeMap<Key, BlockedKey>,
    /// Requests that wait for a key whose value is being written.
    parked_count: u32,
    /// Values with whole chunks to begin; those whose whole chunks are written; and the one whose
    /// records are being put.
    large_value_queue: VecDeque<u32>,
    record_queue: VecDeque<u32>,
    appending: Option<u32>,
    /// Values with whole chunks being written or records being put.
    unfinished_puts: u32,
    /// Requests that complete when every unit below a number is durable; sorted by it.
    durability_waiters: VecDeque<(u64, u32)>,
    /// Values with records or chunks to begin reading: of one small record, and others.
    read_queues: [VecDeque<u32>; 2],
    compactors: Vec<Compactor>,
    /// Chunks to be moved out of, because a program failed.
    failing_chunks: VecDeque<u32>,
    /// Chunks to be erased: when what followed is durable; when nobody reads; being erased.
    obsolete: VecDeque<ObsoleteChunk>,
    obsolete_durable: Vec<ObsoleteChunk>,
    erasing: BTreeMap<u32, ObsoleteChunk>,
    /// The last sequence number, and the last stamp of a chunk.
    seq: u64,
    stamp: u64,
    /// Bytes of records set aside for values being written, and whole chunks held or set aside.
    reserved_bytes: u64,
    large_value_chunks: u32,
    /// Bytes of live tombstones, and how many.
    tombstone_bytes: u64,
    tombstones: u64,
    stats: KvStats,
    copy_buffer: Box<[u8]>,
    /// Memory for values that are waited for: registrations last as long as the port.
    blocking_memory: Option<(Arc<SharedRegion>, Iova)>,
    header_buffer: Vec<u8>,
    /// Whether a request was taken since the last poll.
    has_new_requests: bool,
    /// Whether something went on in this poll without the drive.
    progressed: bool,
    /// Whether a record found no free chunk in this poll.
    out_of_chunks: bool,
}

/// A request that was not taken, because as many are outstanding as there may be.
#[derive(Debug)]
pub struct KvQueueFull(pub KvRequest);

/// A place in the order of keys, from which [`Kv::next`] goes on.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    prefix: Vec<u8>,
    after: Option<Key>,
    inclusive: bool,
}

impl Cursor {
    /// Before the first key that begins with `prefix`; an empty one is in front of all keys.
    pub fn prefix(prefix: &[u8]) -> Cursor {
        Cursor { prefix: prefix.to_vec(), after: None, inclusive: false }
    }

    /// Before `key`, on the way to the end of all keys.
    pub fn starting_at(key: Key) -> Cursor {
        Cursor { prefix: Vec::new(), after: Some(key), inclusive: true }
    }
}

impl Kv {
    /// Counters.
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

    /// The sizes that it works with.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Keys that exist.
    pub fn len(&self) -> u64 {
        self.index.key_count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.index.key_count == 0
    }

    /// The next key of a cursor in the order of keys, and the bytes of its value.
    ///
    /// Every call looks at the keys as they are then, with every change that has completed and
    /// perhaps some that have not. So a walk sees each key that exists all the time exactly once and
    /// in order; a key that comes or goes meanwhile is seen if it is there when the cursor passes.
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

    /// The queue pair, for its counters.
    pub fn queue(&self) -> &QueuePair {
        self.queue.queue()
    }

    /// The memory that requests' values must be in.
    pub fn memory(&self) -> &AddressSpace {
        self.queue.port().memory()
    }

    /// Requests outstanding.
    pub fn outstanding(&self) -> usize {
        self.requests.outstanding() + self.completed.len()
    }

    /// Wakes whoever polls this when the drive has completed something.
    pub fn set_waker(&mut self, waker: Waker) {
        if let Some(vector) = self.queue.queue().vector() {
            // Refused only by a port between processes: then the target has to be polled.
            let _ = self.queue.port().set_vector(vector, waker);
        }
    }

    /// Whether nothing is outstanding: no request, no command on the drive, nothing to send.
    pub fn is_idle(&self) -> bool {
        self.outstanding() == 0
            && self.queue.outstanding() == 0
            && self.streams.is_idle()
            && self.read_ops.is_idle()
            && self.large_values.is_idle()
    }

    /// Gives the target up: the queue pair, so that its controller can delete it, and a completion
    /// for every request that was not reaped. What was not synced may be lost.
    pub fn into_queue(mut self) -> (QueuePair, Vec<KvCompletion>) {
        let mut completions: Vec<KvCompletion> = self.completed.drain(..).collect();
        let ended = std::iter::from_fn(|| self.requests.remove_any());
        completions
            .extend(ended.map(|p| KvCompletion { tag: p.tag, result: Err(KvError::Closed) }));
        (self.queue.into_queue(), completions)
    }

    /// Takes a request.
    ///
    /// # Errors
    /// [`KvQueueFull`] with the request, if as many are outstanding as there may be.
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

    /// Takes the next request that has ended.
    #[inline]
    pub fn reap(&mut self) -> Option<KvCompletion> {
        self.completed.pop_front()
    }

    /// What is wrong with a request before anything else is known.
    fn check_request(&self, place: u32) -> Result<(), KvError> {
        let Some(pending) = self.requests.get(place) else { return Ok(()) };
        let registered = |room: &request::ValueBuffer| match self.memory().find(room.at, room.bytes)
        {
            Ok(_) => Ok(()),
            // No bytes are nowhere.
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

    /// Ends a request.
    fn complete(&mut self, place: u32, result: Result<KvAnswer, KvError>) {
        let Some(PendingRequest { tag, .. }) = self.requests.remove(place) else { return };
        self.stats.errors += u64::from(result.is_err());
        self.completed.push_back(KvCompletion { tag, result });
        self.progressed = true;
    }

    /// Ends a change, now or when it is durable.
    fn complete_mutation(&mut self, place: u32, number: u64) {
        let Some(pending) = self.requests.get_mut(place) else { return };
        let durable = match &pending.op {
            KvOp::Mutation { durable, .. } | KvOp::Batch { durable, .. } => *durable,
            _ => true,
        };
        pending.state = KvRequestState::Queued;
        if durable && !self.durable_prefix.is_durable_below(number) {
            // Most come with the largest number so far.
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

    /// Ends the requests whose units are durable, and pads units that others wait for.
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

    /// Something is not current any more: its records are garbage, its whole chunks can be erased.
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
        // A drive that completes faster than this reaps does not keep it here.
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
    /// Takes every command that has ended, does what follows, and rings the doorbell once for all of
    /// it.
    fn poll(&mut self, _now: Nanos) -> bool {
        let taken = std::mem::take(&mut self.has_new_requests);
        let reaped = self.reap_completions();
        let mut moved = taken | reaped;
        // What goes on in one part can let another go on.
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

    /// At once while a request is waiting for a poll, else never: only the drive, or who submits,
    /// can give this work.
    fn deadline(&self) -> Nanos {
        if self.has_new_requests { Nanos::ZERO } else { Nanos::MAX }
    }
}
