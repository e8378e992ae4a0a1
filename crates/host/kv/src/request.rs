//! [`KvRequest`] and [`KvCompletion`]: requests and their results; [`KvRequestTable`]: the
//! outstanding requests.

use std::collections::VecDeque;

use collections::Slab;
use mem::Iova;

use super::KvQueueFull;
use super::check::{KvPart, KvSubject, KvViolation, PartCheck};

use super::error::KvError;
use super::format::key::Key;
use super::index::{ChunkExtent, KeyVersion, RecordRef};

/// A value's buffer in registered memory; the client must not access it until the request
/// completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueBuffer {
    /// Address of the first byte.
    pub at: Iova,
    /// Size in bytes.
    pub bytes: u64,
}

/// A mutation.
#[derive(Clone, Debug)]
pub enum KvMutation {
    /// Puts a value, whether or not the key exists.
    Put {
        /// The key.
        key: Key,
        /// The value.
        value: ValueBuffer,
    },
    /// Replaces the value of a key, which must exist.
    Update {
        /// The key.
        key: Key,
        /// The value.
        value: ValueBuffer,
    },
    /// Deletes a key, which must exist.
    Delete {
        /// The key.
        key: Key,
    },
}

impl KvMutation {
    /// Returns the key.
    pub fn key(&self) -> &Key {
        match self {
            KvMutation::Put { key, .. }
            | KvMutation::Update { key, .. }
            | KvMutation::Delete { key } => key,
        }
    }

    pub(crate) fn value(&self) -> Option<ValueBuffer> {
        match self {
            KvMutation::Put { value, .. } | KvMutation::Update { value, .. } => Some(*value),
            KvMutation::Delete { .. } => None,
        }
    }
}

/// The operation of a request.
#[derive(Clone, Debug)]
pub enum KvOp {
    /// A mutation. If `durable`, it completes when a power cut cannot undo it. Otherwise it may
    /// complete when it is in the target's memory, and becomes durable with the next [`KvOp::Sync`]
    /// at the latest.
    Mutation {
        /// The mutation.
        mutation: KvMutation,
        /// Whether the completion implies durability.
        durable: bool,
    },
    /// Several mutations. Either all or none take effect, also after a power cut.
    Batch {
        /// The mutations, applied in order.
        mutations: Box<[KvMutation]>,
        /// Whether the completion implies durability.
        durable: bool,
    },
    /// Reads a value.
    Get {
        /// The key.
        key: Key,
        /// Buffer for the value.
        into: ValueBuffer,
    },
    /// Returns whether a key exists, and the size of its value.
    Exists {
        /// The key.
        key: Key,
    },
    /// Completes when all mutations submitted before are durable.
    Sync,
}

/// A request.
#[derive(Clone, Debug)]
pub struct KvRequest {
    /// Operation.
    pub op: KvOp,
    /// Tag, returned with the completion.
    pub tag: u64,
}

impl KvRequest {
    /// Creates a request that puts a value.
    pub fn put(key: Key, value: ValueBuffer, tag: u64) -> KvRequest {
        let change = KvMutation::Put { key, value };
        KvRequest { op: KvOp::Mutation { mutation: change, durable: false }, tag }
    }

    /// Creates a request that replaces the value of an existing key.
    pub fn update(key: Key, value: ValueBuffer, tag: u64) -> KvRequest {
        let change = KvMutation::Update { key, value };
        KvRequest { op: KvOp::Mutation { mutation: change, durable: false }, tag }
    }

    /// Creates a request that deletes a key.
    pub fn delete(key: Key, tag: u64) -> KvRequest {
        KvRequest {
            op: KvOp::Mutation { mutation: KvMutation::Delete { key }, durable: false },
            tag,
        }
    }

    /// Creates a request that applies all mutations or none.
    pub fn batch(changes: impl Into<Box<[KvMutation]>>, tag: u64) -> KvRequest {
        KvRequest { op: KvOp::Batch { mutations: changes.into(), durable: false }, tag }
    }

    /// Creates a request that reads a value.
    pub fn get(key: Key, into: ValueBuffer, tag: u64) -> KvRequest {
        KvRequest { op: KvOp::Get { key, into }, tag }
    }

    /// Creates a request for the existence of a key.
    pub fn exists(key: Key, tag: u64) -> KvRequest {
        KvRequest { op: KvOp::Exists { key }, tag }
    }

    /// Creates a request that makes all earlier mutations durable.
    pub fn sync(tag: u64) -> KvRequest {
        KvRequest { op: KvOp::Sync, tag }
    }

    /// Makes the request complete only when it is durable.
    #[must_use]
    pub fn durably(mut self) -> KvRequest {
        if let KvOp::Mutation { durable, .. } | KvOp::Batch { durable, .. } = &mut self.op {
            *durable = true;
        }
        self
    }
}

/// The result of a successful request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvAnswer {
    /// Done.
    Done,
    /// Size in bytes of the value that was read.
    Value(u64),
    /// Size in bytes of the key's value; `None` if the key does not exist.
    Exists(Option<u64>),
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCompletion {
    /// Tag of the request.
    pub tag: u64,
    /// Result.
    pub result: Result<KvAnswer, KvError>,
}

/// A value that is being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct PutState {
    pub(crate) seq: u64,
    pub(crate) chunk_extents: Vec<ChunkExtent>,
    /// Whole chunks whose write has not started, and those whose write has not completed.
    pub(crate) chunks_to_begin: u32,
    pub(crate) chunks_to_complete: u32,
    pub(crate) records: Vec<RecordRef>,
    /// Total number of records.
    pub(crate) record_count: u32,
    /// Inline bytes, and the number of them in records.
    pub(crate) inline_bytes: u32,
    pub(crate) inline_appended: u32,
    /// Bytes reserved for its records.
    pub(crate) reserved_bytes: u64,
}

/// A value that is being read. Its version is captured at the start; none of its chunks is erased
/// before the read completes.
#[derive(Clone, Debug)]
pub(crate) struct GetState {
    pub(crate) current: KeyVersion,
    pub(crate) key_bytes: u8,
    pub(crate) into: ValueBuffer,
    /// Index of the next step (whole chunks, then records), and the number of steps that have not
    /// completed.
    pub(crate) next_step: u32,
    pub(crate) remaining_steps: u32,
    pub(crate) error: Option<KvError>,
}

/// The state of an outstanding request.
#[derive(Clone, Debug)]
pub(crate) enum KvRequestState {
    Queued,
    Put(Box<PutState>),
    Get(GetState),
}

#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) tag: u64,
    pub(crate) op: KvOp,
    pub(crate) state: KvRequestState,
}

/// A table of fixed capacity, and the requests that completed; a request is identified by its
/// index, its *place*.
#[derive(Debug)]
pub(crate) struct KvRequestTable {
    slots: Slab<Option<PendingRequest>>,
    completed: VecDeque<KvCompletion>,
    /// Whether a request was accepted since the last poll.
    has_new: bool,
}

impl KvRequestTable {
    pub(crate) fn new(count: u32) -> KvRequestTable {
        KvRequestTable {
            slots: Slab::with_free((0..count).map(|_| None)),
            completed: VecDeque::with_capacity(count as usize),
            has_new: false,
        }
    }

    /// Returns the maximum number of outstanding requests.
    pub(crate) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the number of requests that have not been reaped.
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.in_use() + self.completed.len()
    }

    /// Accepts a request. Returns its place.
    pub(crate) fn insert(&mut self, request: KvRequest) -> Result<u32, KvQueueFull> {
        if self.completed.len() >= self.slots.len() {
            return Err(KvQueueFull(request));
        }
        let Some(place) = self.slots.take() else { return Err(KvQueueFull(request)) };
        let KvRequest { op, tag } = request;
        self.slots[place] = Some(PendingRequest { tag, op, state: KvRequestState::Queued });
        self.has_new = true;
        Ok(place)
    }

    /// Returns whether a request was accepted since the last call of
    /// [`take_new`](KvRequestTable::take_new).
    pub(crate) fn has_new(&self) -> bool {
        self.has_new
    }

    /// Returns whether a request was accepted since the last call.
    pub(crate) fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.has_new)
    }

    #[inline]
    pub(crate) fn get(&self, place: u32) -> Option<&PendingRequest> {
        self.slots[place].as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut PendingRequest> {
        self.slots[place].as_mut()
    }

    #[inline]
    pub(crate) fn put_state(&mut self, place: u32) -> Option<&mut PutState> {
        match &mut self.get_mut(place)?.state {
            KvRequestState::Put(writing) => Some(writing),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_state(&mut self, place: u32) -> Option<&mut GetState> {
        match &mut self.get_mut(place)?.state {
            KvRequestState::Get(reading) => Some(reading),
            _ => None,
        }
    }

    /// Completes a request. Returns whether it was outstanding.
    #[inline]
    pub(crate) fn complete(&mut self, place: u32, result: Result<KvAnswer, KvError>) -> bool {
        let Some(PendingRequest { tag, .. }) = self.slots.remove(place) else {
            return false;
        };
        self.completed.push_back(KvCompletion { tag, result });
        true
    }

    /// Completes all outstanding requests.
    pub(crate) fn complete_all(&mut self, result: Result<KvAnswer, KvError>) {
        for place in 0..self.slots.len() as u32 {
            self.complete(place, result);
        }
    }

    /// Removes and returns the next completion.
    #[inline]
    pub(crate) fn reap(&mut self) -> Option<KvCompletion> {
        self.completed.pop_front()
    }

    /// Iterates over the outstanding requests with their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &PendingRequest)> {
        (0..).zip(&self.slots).filter_map(|(place, slot)| Some((place, slot.as_ref()?)))
    }

    /// Compares the list of free places with the table; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self) -> Result<(), KvViolation> {
        let check = PartCheck(KvPart::Requests);
        let mut free = self.slots.free_indices().to_vec();
        free.sort_unstable();
        let slots = (0..).zip(&self.slots).filter(|(_, slot)| slot.is_none());
        let empty: Vec<u32> = slots.map(|(place, _)| place).collect();
        check.equal("free places are empty", KvSubject::Part, empty, free)?;
        check.require(
            self.completed.len() <= 2 * self.slots.len(),
            "completions are limited",
            KvSubject::Part,
            format_args!("at most {}", 2 * self.slots.len()),
            self.completed.len(),
        )
    }

    /// Drops a request without a completion.
    #[cfg(test)]
    pub(crate) fn break_request(&mut self) {
        let place = self.iter().next().expect("an outstanding request").0;
        self.slots[place] = None;
    }
}
