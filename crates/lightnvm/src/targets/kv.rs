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

mod audit;
mod chunks;
mod clean;
mod config;
mod erase;
mod error;
mod fetch;
mod flight;
mod found;
mod get;
mod index;
mod key;
mod line;
mod media;
mod now;
mod oob;
mod open;
mod order;
mod put;
mod record;
mod request;
mod scan;
mod slots;
mod stats;
mod streams;
mod whole;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use clock::{Component, Nanos, Waker};
use driver::QueuePair;
use ring::{AddressSpace, Iova, Region};

pub use config::{KvConfig, Layout as KvLayout};
pub use error::{KvError, KvOpenError};
pub use key::{Key, KeyLength};
pub use now::{ChangeNow, KvNow};
pub use request::{Change, KvAnswer, KvCompletion, KvOp, KvRequest, Room};
pub use stats::KvStats;

use chunks::{Chunks, Use};
use clean::Cleaner;
use config::Layout;
use erase::Dead;
use fetch::Fetches;
use flight::Flight;
use index::{Current, Index};
use line::Held;
use order::Order;
use request::{Pending, Requests, Work};
use streams::{After, Streams};
use whole::{JobEnd, Wholes};

use crate::vector::{Addresses, VectorQueue};

/// Bytes that pass through the host's cache at a time: copying and summing 1 MB takes 134 us with this
/// many, 222 with four times as many, 197 with a quarter.
const SCRATCH: usize = 4 << 10;

/// A key-value store whose flash the host manages. [`Kv::open`] makes one.
#[derive(Debug)]
pub struct Kv {
    layout: Layout,
    config: KvConfig,
    queue: VectorQueue,
    addresses: Addresses,
    index: Index,
    chunks: Chunks,
    streams: Streams,
    order: Order,
    wholes: Wholes,
    fetches: Fetches,
    requests: Requests,
    done: VecDeque<KvCompletion>,
    /// Requests that wait their turn.
    line: VecDeque<u32>,
    /// Keys that requests in the line are about, and keys of values being written.
    held: BTreeMap<Key, Held>,
    /// Requests that wait for a key whose value is being written.
    parked: u32,
    /// Values with whole chunks to begin; those whose whole chunks are written; and the one whose
    /// records are being put.
    to_begin: VecDeque<u32>,
    tails: VecDeque<u32>,
    streaming: Option<u32>,
    /// Values with whole chunks being written or records being put.
    unfinished: u32,
    /// Requests that complete when every unit below a number is durable; sorted by it.
    waiters: VecDeque<(u64, u32)>,
    /// Values with records or chunks to begin reading: of one small record, and others.
    readers: [VecDeque<u32>; 2],
    cleaners: Vec<Cleaner>,
    /// Chunks to be moved out of, because a program failed.
    failing: VecDeque<u32>,
    /// Chunks to be erased: when what followed is durable; when nobody reads; being erased.
    dead: VecDeque<Dead>,
    read_dead: Vec<Dead>,
    erasing: BTreeMap<u32, Dead>,
    /// The last sequence number, and the last stamp of a chunk.
    seq: u64,
    stamp: u64,
    /// Bytes of records set aside for values being written, and whole chunks held or set aside.
    reserved: u64,
    wholes_held: u32,
    /// Bytes of live tombstones, and how many.
    tombstone_bytes: u64,
    tombstones: u64,
    stats: KvStats,
    scratch: Box<[u8]>,
    /// Memory for values that are waited for: registrations last as long as the port.
    waited: Option<(Arc<Region>, Iova)>,
    header: Vec<u8>,
    /// Whether a request was taken since the last poll.
    taken: bool,
    /// Whether something went on in this poll without the drive.
    went_on: bool,
    /// Whether a record found no free chunk in this poll.
    short_of_chunks: bool,
}

/// A request that was not taken, because as many are outstanding as there may be.
#[derive(Debug)]
pub struct KvBusy(pub KvRequest);

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
    pub fn at(key: Key) -> Cursor {
        Cursor { prefix: Vec::new(), after: Some(key), inclusive: true }
    }
}

impl Kv {
    /// Counters.
    pub fn stats(&self) -> KvStats {
        KvStats {
            keys: self.index.keys,
            tombstones: self.tombstones,
            live_bytes: self.chunks.live,
            packed_chunk_bytes: u64::from(self.chunks.packed) * u64::from(self.layout.chunk_bytes),
            whole_chunks: self.wholes_held,
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
        self.index.keys
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.index.keys == 0
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
        let (key, entry) = self.index.from(bound).next()?;
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
        self.requests.outstanding() + self.done.len()
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
            && self.fetches.is_idle()
            && self.wholes.is_idle()
    }

    /// Gives the target up: the queue pair, so that its controller can delete it, and a completion
    /// for every request that was not reaped. What was not synced may be lost.
    pub fn into_queue(mut self) -> (QueuePair, Vec<KvCompletion>) {
        let mut completions: Vec<KvCompletion> = self.done.drain(..).collect();
        let ended = std::iter::from_fn(|| self.requests.end_any());
        completions
            .extend(ended.map(|p| KvCompletion { tag: p.tag, result: Err(KvError::Closed) }));
        (self.queue.into_queue(), completions)
    }

    /// Takes a request.
    ///
    /// # Errors
    /// [`KvBusy`] with the request, if as many are outstanding as there may be.
    pub fn submit(&mut self, _now: Nanos, request: KvRequest) -> Result<(), KvBusy> {
        if self.done.len() >= self.config.queue_depth as usize {
            return Err(KvBusy(request));
        }
        let place = self.requests.put(request).map_err(KvBusy)?;
        self.taken = true;
        match self.check(place) {
            Ok(()) => self.enter(place),
            Err(error) => self.finish(place, Err(error)),
        }
        Ok(())
    }

    /// Takes the next request that has ended.
    #[inline]
    pub fn reap(&mut self) -> Option<KvCompletion> {
        self.done.pop_front()
    }

    /// What is wrong with a request before anything else is known.
    fn check(&self, place: u32) -> Result<(), KvError> {
        let Some(pending) = self.requests.get(place) else { return Ok(()) };
        let registered = |room: &request::Room| match self.memory().find(room.at, room.bytes) {
            Ok(_) => Ok(()),
            // No bytes are nowhere.
            Err(_) if room.bytes == 0 => Ok(()),
            Err(_) => Err(KvError::NotRegistered),
        };
        let value = |change: &Change| match change.value() {
            None => Ok(()),
            Some(room) if room.bytes > self.layout.value_bytes() => {
                let most = self.layout.value_bytes();
                Err(KvError::ValueTooLarge { bytes: room.bytes, most })
            }
            Some(room) => registered(&room),
        };
        match &pending.op {
            KvOp::Change { change, .. } => value(change),
            KvOp::Batch { changes, .. } => changes.iter().try_for_each(value),
            KvOp::Get { into, .. } => registered(into),
            KvOp::Exists { .. } | KvOp::Sync => Ok(()),
        }
    }

    /// Ends a request.
    fn finish(&mut self, place: u32, result: Result<KvAnswer, KvError>) {
        let Some(Pending { tag, .. }) = self.requests.end(place) else { return };
        self.stats.errors += u64::from(result.is_err());
        self.done.push_back(KvCompletion { tag, result });
        self.went_on = true;
    }

    /// Ends a change, now or when it is durable.
    fn changed(&mut self, place: u32, number: u64) {
        let Some(pending) = self.requests.get_mut(place) else { return };
        let durable = match &pending.op {
            KvOp::Change { durable, .. } | KvOp::Batch { durable, .. } => *durable,
            _ => true,
        };
        pending.work = Work::Queued;
        if durable && !self.order.durable_below(number) {
            // Most come with the largest number so far.
            let at = self.waiters.iter().rposition(|(n, _)| *n <= number).map_or(0, |i| i + 1);
            self.waiters.insert(at, (number, place));
        } else {
            self.finish(place, Ok(KvAnswer::Done));
        }
    }

    /// Ends the requests whose units are durable, and pads units that others wait for.
    fn serve_waiters(&mut self) {
        while let Some(&(number, place)) = self.waiters.front()
            && self.order.durable_below(number)
        {
            self.waiters.pop_front();
            self.finish(place, Ok(KvAnswer::Done));
        }
        if let Some(&(number, _)) = self.waiters.back() {
            self.streams.pad_below(number, &mut self.stats);
        }
    }

    /// Something is not current any more: its records are garbage, its whole chunks can be erased.
    fn bury(&mut self, key: u8, old: &Current) {
        for (i, piece) in old.pieces().iter().enumerate() {
            let bytes = old.record_bytes(key, i);
            self.chunks.sub_live(piece.chunk, bytes);
            if !old.exists() {
                self.tombstone_bytes -= u64::from(bytes);
                self.tombstones -= 1;
            }
        }
        for part in old.parts() {
            self.wholes_held -= 1;
            if self.chunks.is_ours(part.chunk) && self.chunks.get(part.chunk).usage == Use::Whole {
                self.condemn(part.chunk, Vec::new());
            }
        }
    }

    fn take_completions(&mut self) -> bool {
        let mut reaped = false;
        // A drive that completes faster than this reaps does not keep it here.
        for _ in 0..self.queue.queue().capacity() {
            let Some(ended) = self.queue.reap() else { break };
            reaped = true;
            let (status, failed) = (ended.status, ended.failed);
            match Flight::from_bits(ended.user) {
                Flight::Program { chunk, unit } => {
                    let (order, stats) = (&mut self.order, &mut self.stats);
                    match self.streams.ended((chunk, unit), status, order, stats) {
                        After::Nothing => {}
                        After::Full => self.chunks.get_mut(chunk).usage = Use::Closed,
                        After::Failed => {
                            self.chunks.get_mut(chunk).usage = Use::Failing;
                            self.failing.push_back(chunk);
                        }
                    }
                }
                Flight::Whole { job, .. } => {
                    match self.wholes.command_ended(job, status.is_success()) {
                        None => {}
                        Some((written, JobEnd::Written)) => {
                            self.wholes.end(job);
                            self.whole_written(&written);
                        }
                        Some((failed, JobEnd::Failed)) => {
                            self.stats.program_failures += 1;
                            self.retire(failed.chunk);
                            self.wholes.orphans.push_back(job);
                        }
                    }
                }
                Flight::Read { fetch, sector } => {
                    self.fetches.command_ended(fetch, sector, failed, status);
                }
                Flight::Erase { chunk } => self.erased(chunk, status.is_success()),
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
        let taken = std::mem::take(&mut self.taken);
        let reaped = self.take_completions();
        let mut moved = taken | reaped;
        // What goes on in one part can let another go on.
        loop {
            self.went_on = false;
            self.short_of_chunks = false;
            self.begin_wholes();
            self.advance_tails();
            self.advance_line();
            self.advance_reads();
            self.clean();
            self.erase();
            self.serve_waiters();
            self.fetches.send(&mut self.queue, &self.addresses, &self.chunks, &self.streams);
            self.end_fetches();
            self.wholes.send(&mut self.queue, &self.addresses);
            self.streams.send(&mut self.queue, &self.addresses);
            if !self.went_on {
                break;
            }
            moved = true;
        }
        if self.short_of_chunks {
            self.make_room_or_give_up();
        }
        let rang = self.queue.ring(reaped);
        moved | rang
    }

    /// At once while a request is waiting for a poll, else never: only the drive, or who submits,
    /// can give this work.
    fn deadline(&self) -> Nanos {
        if self.taken { Nanos::ZERO } else { Nanos::MAX }
    }
}
