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
//!   from the growth of the index and of the record lists of chunks (`tests/suite/allocations.rs`).

#![forbid(unsafe_code)]

mod blocking;
mod buffer;
mod check;
mod chunks;
mod compaction;
mod config;
mod device;
mod durability;
mod error;
mod format;
mod index;
mod pipeline;
mod puts;
mod read_ops;
mod reclaim;
mod recovery;
mod request;
mod stats;
mod write_order;

use std::ops::Bound;

use driver::QueuePair;
use event::Waker;
use mem::AddressSpace;
use time::{Component, Nanos};

pub use blocking::{BlockingKv, BlockingMutation};
pub use check::violation::{KvPart, KvSubject, KvViolation};
pub use config::{ChunkBudget, KvConfig, KvLayout, WriteConcurrency};
pub use error::{KvError, KvOpenError};
pub use format::key::{Key, KeyLengthError};
pub use request::{KvAnswer, KvCompletion, KvMutation, KvOp, KvRequest, ValueBuffer};
pub use stats::{KvStats, KvWork};

use buffer::streams::{AppendStreams, ProgramOutcome, ProgrammedUnit};
use chunks::KvChunks;
use compaction::Compaction;
use device::KvDevice;
use durability::DurabilityWaiters;
use format::command_tag::KvCommandTag;
use index::{Index, KeyVersion};
use puts::Puts;
use puts::large_value::ChunkWriteOutcome;
use read_ops::ReadOps;
use reclaim::Reclaim;
use request::{KvRequestState, KvRequestTable};
use write_order::WriteOrder;

/// Size of the blocks in which data passes through the CPU cache. Copying and checksumming 1 MB
/// takes 134 us with this size, 222 us with four times the size, and 197 us with a quarter.
const COPY_BLOCK_BYTES: usize = 4 << 10;

/// A key-value store on flash managed by the host. [`Kv::open`] creates one.
///
/// The fields from `index` on are parts with private state. A transaction over several of them is a
/// method of `pipeline`.
#[derive(Debug)]
pub struct Kv {
    layout: KvLayout,
    device: KvDevice,
    stats: KvStats,
    scratch: Scratch,
    progress: PollProgress,
    index: Index,
    chunks: KvChunks,
    streams: AppendStreams,
    requests: KvRequestTable,
    write_order: WriteOrder,
    durability: DurabilityWaiters,
    puts: Puts,
    reads: ReadOps,
    compaction: Compaction,
    reclaim: Reclaim,
}

/// Memory for copies and headers.
#[derive(Debug)]
struct Scratch {
    /// [`COPY_BLOCK_BYTES`] bytes.
    copy: Box<[u8]>,
    header: Vec<u8>,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { copy: vec![0; COPY_BLOCK_BYTES].into(), header: Vec::new() }
    }
}

/// The results of the steps of a poll.
#[derive(Clone, Copy, Debug, Default)]
struct PollProgress {
    /// Whether a step made progress without the drive.
    moved: bool,
    /// Whether an allocation found no free chunk.
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
            keys: self.index.key_count(),
            tombstones: self.index.tombstones(),
            live_bytes: self.chunks.live_bytes(),
            packed_chunk_bytes: u64::from(self.chunks.packed_count())
                * u64::from(self.layout.chunk_bytes),
            large_value_chunks: self.large_value_chunks(),
            free_chunks: self.chunks.free_count(),
            work: self.work(),
            ..self.stats
        }
    }

    /// Returns how much the target's software has done.
    pub fn work(&self) -> KvWork {
        let outstanding = u64::from(self.device.queue.outstanding());
        KvWork { commands: self.stats.work.completions + outstanding, ..self.stats.work }
    }

    /// Returns the sizes that follow from the flash and the configuration.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Returns the number of keys that exist.
    pub fn len(&self) -> u64 {
        self.index.key_count()
    }

    /// Returns whether no key exists.
    pub fn is_empty(&self) -> bool {
        self.index.key_count() == 0
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
        self.device.queue.queue()
    }

    /// Returns the memory in which the values of requests must be.
    pub fn memory(&self) -> &AddressSpace {
        self.device.queue.port().memory()
    }

    /// Returns the maximum number of outstanding requests.
    pub fn queue_depth(&self) -> u32 {
        self.requests.capacity()
    }

    /// Returns the number of outstanding requests.
    pub fn outstanding(&self) -> usize {
        self.requests.outstanding()
    }

    /// Sets the waker for completions of the drive.
    pub fn set_waker(&mut self, waker: Waker) {
        if let Some(vector) = self.device.queue.queue().vector() {
            // Only a port between processes refuses; such a target has to be polled.
            let _ = self.device.queue.port().set_vector(vector, waker);
        }
    }

    /// Returns whether no request is outstanding, no command is on the drive, and nothing is to be
    /// submitted.
    pub fn is_idle(&self) -> bool {
        self.outstanding() == 0
            && self.device.queue.outstanding() == 0
            && self.streams.is_idle()
            && self.reads.is_idle()
            && self.puts.writes().is_idle()
    }

    /// Closes the target. Returns the queue pair, which the caller deletes through its controller,
    /// and a completion for every request that was not reaped. Data that was not synced may be
    /// lost.
    pub fn into_queue(mut self) -> (QueuePair, Vec<KvCompletion>) {
        self.requests.complete_all(Err(KvError::Closed));
        let completions = std::iter::from_fn(|| self.requests.reap()).collect();
        (self.device.queue.into_queue(), completions)
    }

    /// Submits a request.
    ///
    /// # Errors
    /// [`KvQueueFull`] with the request, if the maximum number is outstanding.
    pub fn submit(&mut self, _now: Nanos, request: KvRequest) -> Result<(), KvQueueFull> {
        let place = self.requests.insert(request)?;
        match self.check_request(place) {
            Ok(()) => self.execute_or_enqueue(place),
            Err(error) => self.complete(place, Err(error)),
        }
        Ok(())
    }

    /// Reaps the next completed request.
    #[inline]
    pub fn reap(&mut self) -> Option<KvCompletion> {
        self.requests.reap()
    }

    /// Checks a request, independent of its key's state.
    fn check_request(&self, place: u32) -> Result<(), KvError> {
        let Some(pending) = self.requests.get(place) else { return Ok(()) };
        let registered = |room: &ValueBuffer| match self.device.is_registered(room) {
            true => Ok(()),
            false => Err(KvError::NotRegistered),
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
        let is_error = result.is_err();
        if self.requests.complete(place, result) {
            self.stats.errors += u64::from(is_error);
            self.progress.moved = true;
        }
    }

    /// Completes a mutation, now or once it is durable.
    fn complete_mutation(&mut self, place: u32, number: u64) {
        let Some(pending) = self.requests.get_mut(place) else { return };
        let durable = match &pending.op {
            KvOp::Mutation { durable, .. } | KvOp::Batch { durable, .. } => *durable,
            _ => true,
        };
        pending.state = KvRequestState::Queued;
        if durable && !self.streams.is_durable_below(number) {
            self.durability.add(place, number);
        } else {
            self.complete(place, Ok(KvAnswer::Done));
        }
    }

    /// Completes the requests whose units are durable, and pads units that other requests wait for.
    fn complete_durable(&mut self) {
        while let Some(place) = self.durability.pop_durable(&self.streams) {
            self.complete(place, Ok(KvAnswer::Done));
        }
        if let Some(number) = self.durability.last_unit_seq() {
            self.streams.pad_below(number, &mut self.stats);
        }
    }

    /// Handles a superseded version: its records become garbage, its whole chunks obsolete.
    fn discard_version(&mut self, key: u8, old: &KeyVersion) {
        for (i, piece) in old.records().iter().enumerate() {
            self.chunks.sub_live(piece.chunk, old.record_bytes(key, i));
        }
        for part in old.chunk_extents() {
            self.discard_extent(part.chunk);
        }
    }

    fn reap_completions(&mut self) -> bool {
        let mut reaped = false;
        // Limits the loop, so that a drive that completes commands faster than the loop reaps them
        // cannot keep the thread here.
        for _ in 0..self.device.queue.queue().capacity() {
            let Some(ended) = self.device.queue.reap() else { break };
            reaped = true;
            self.stats.work.completions += 1;
            let (status, failed) = (ended.status, ended.failed);
            match KvCommandTag::from_bits(ended.user_data) {
                KvCommandTag::Program { chunk, unit } => {
                    let programmed = ProgrammedUnit { chunk, unit };
                    let outcome =
                        self.streams.on_program_complete(programmed, status, &mut self.stats);
                    match outcome {
                        ProgramOutcome::Continue => {}
                        ProgramOutcome::ChunkFull => self.chunks.close(chunk),
                        ProgramOutcome::ChunkFailed => {
                            self.chunks.fail(chunk);
                            self.compaction.add_failing(chunk);
                        }
                    }
                }
                KvCommandTag::LargeValue { job, .. } => {
                    match self.puts.writes_mut().on_command_complete(job, status.is_success()) {
                        None => {}
                        Some((written, ChunkWriteOutcome::Written)) => {
                            self.puts.writes_mut().remove(job);
                            self.on_large_value_chunk_written(&written);
                        }
                        Some((failed, ChunkWriteOutcome::Failed)) => {
                            self.stats.program_failures += 1;
                            self.retire(failed.chunk);
                            self.puts.writes_mut().add_failed(job);
                        }
                    }
                }
                KvCommandTag::Read { fetch, sector } => {
                    self.reads.on_command_complete(fetch, sector, failed, status);
                }
                KvCommandTag::Erase { chunk } => self.on_erase_complete(chunk, status.is_success()),
            }
        }
        reaped
    }
}

impl Component for Kv {
    /// Reaps completed commands, executes the operations that follow, and rings the doorbell once
    /// for all.
    fn poll(&mut self, _now: Nanos) -> bool {
        let taken = self.requests.take_new();
        let reaped = self.reap_completions();
        let mut moved = taken | reaped;
        // Progress of one part can enable progress of another.
        loop {
            self.progress = PollProgress::default();
            self.begin_large_value_chunks();
            self.step_record_queue();
            self.step_write_queue();
            self.step_reads();
            self.step_compaction();
            self.step_reclaim();
            self.complete_durable();
            self.reads.send(&mut self.device, &self.chunks, &self.streams);
            self.complete_reads();
            self.puts.writes_mut().send(&mut self.device);
            self.streams.send(&mut self.device);
            if !self.progress.moved {
                break;
            }
            moved = true;
        }
        if self.progress.out_of_chunks {
            self.free_space_or_fail();
        }
        let rang = self.device.queue.ring(reaped);
        moved |= rang;
        self.stats.work.turns += u64::from(moved);
        moved
    }

    /// Returns zero while a request waits for a poll; otherwise never, because only the drive or a
    /// submitter can cause work.
    fn deadline(&self) -> Nanos {
        if self.requests.has_new() { Nanos::ZERO } else { Nanos::MAX }
    }
}
