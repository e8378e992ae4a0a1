//! [`KvRequest`], [`KvCompletion`]: what is asked and answered; [`Requests`]: what is outstanding.

use ring::Iova;

use super::error::KvError;
use super::index::{ChunkExtent, KeyVersion, RecordRef};
use super::key::Key;

/// Where a value is, or is to go: registered memory, not to be touched until the request completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueBuffer {
    /// Its first byte.
    pub at: Iova,
    /// Bytes.
    pub bytes: u64,
}

/// One change of a batch.
#[derive(Clone, Debug)]
pub enum KvMutation {
    /// Puts a value, whether or not the key exists.
    Put {
        /// The key.
        key: Key,
        /// The value.
        value: ValueBuffer,
    },
    /// Puts a value in place of another: the key must exist.
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
    /// The key.
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

/// What is asked.
#[derive(Clone, Debug)]
pub enum KvOp {
    /// One change. `durable`: it completes when a power cut cannot undo it; else it may complete
    /// when it is in the target's memory, and becomes durable with the next [`KvOp::Sync`] at the
    /// latest.
    Mutation {
        /// The change.
        mutation: KvMutation,
        /// Whether it completes durable.
        durable: bool,
    },
    /// All of several changes or, if one of them cannot be or power is cut, none.
    Batch {
        /// The changes, made one after the other.
        mutations: Box<[KvMutation]>,
        /// Whether it completes durable.
        durable: bool,
    },
    /// Reads a value.
    Get {
        /// The key.
        key: Key,
        /// Where the value goes.
        into: ValueBuffer,
    },
    /// Asks whether a key exists, and how long its value is.
    Exists {
        /// The key.
        key: Key,
    },
    /// Completes when every change submitted before is durable.
    Sync,
}

/// A request.
#[derive(Clone, Debug)]
pub struct KvRequest {
    /// What is asked.
    pub op: KvOp,
    /// Comes back with the completion.
    pub tag: u64,
}

impl KvRequest {
    /// Puts a value.
    pub fn put(key: Key, value: ValueBuffer, tag: u64) -> KvRequest {
        let change = KvMutation::Put { key, value };
        KvRequest { op: KvOp::Mutation { mutation: change, durable: false }, tag }
    }

    /// Puts a value in place of another.
    pub fn update(key: Key, value: ValueBuffer, tag: u64) -> KvRequest {
        let change = KvMutation::Update { key, value };
        KvRequest { op: KvOp::Mutation { mutation: change, durable: false }, tag }
    }

    /// Deletes a key.
    pub fn delete(key: Key, tag: u64) -> KvRequest {
        KvRequest {
            op: KvOp::Mutation { mutation: KvMutation::Delete { key }, durable: false },
            tag,
        }
    }

    /// Makes several changes, or none.
    pub fn batch(changes: impl Into<Box<[KvMutation]>>, tag: u64) -> KvRequest {
        KvRequest { op: KvOp::Batch { mutations: changes.into(), durable: false }, tag }
    }

    /// Reads a value.
    pub fn get(key: Key, into: ValueBuffer, tag: u64) -> KvRequest {
        KvRequest { op: KvOp::Get { key, into }, tag }
    }

    /// Asks whether a key exists.
    pub fn exists(key: Key, tag: u64) -> KvRequest {
        KvRequest { op: KvOp::Exists { key }, tag }
    }

    /// Makes everything durable.
    pub fn sync(tag: u64) -> KvRequest {
        KvRequest { op: KvOp::Sync, tag }
    }

    /// The same, completing only when it is durable.
    #[must_use]
    pub fn durably(mut self) -> KvRequest {
        if let KvOp::Mutation { durable, .. } | KvOp::Batch { durable, .. } = &mut self.op {
            *durable = true;
        }
        self
    }
}

/// What a request that succeeded has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvAnswer {
    /// It is done.
    Done,
    /// The bytes of the value that was read.
    Value(u64),
    /// The bytes of the key's value; `None` if it does not exist.
    Exists(Option<u64>),
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCompletion {
    /// The request's.
    pub tag: u64,
    /// How it ended.
    pub result: Result<KvAnswer, KvError>,
}

/// A value that is being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct PutState {
    pub(crate) seq: u64,
    pub(crate) chunk_extents: Vec<ChunkExtent>,
    /// Whole chunks that have not been begun, and that have not ended.
    pub(crate) chunks_to_begin: u32,
    pub(crate) chunks_to_complete: u32,
    pub(crate) records: Vec<RecordRef>,
    /// Records in all.
    pub(crate) record_count: u32,
    /// Inline bytes, and how many of them are in records.
    pub(crate) inline_bytes: u32,
    pub(crate) inline_appended: u32,
    /// What was set aside for its records, in bytes.
    pub(crate) reserved_bytes: u64,
}

/// A value that is being read. What it is made of is as it was when that began, and none of its
/// chunks is erased before it ends.
#[derive(Clone, Debug)]
pub(crate) struct GetState {
    pub(crate) current: KeyVersion,
    pub(crate) key_bytes: u8,
    pub(crate) into: ValueBuffer,
    /// Parts, then pieces: which is to be read next, and how many have not ended.
    pub(crate) next_step: u32,
    pub(crate) remaining_steps: u32,
    pub(crate) error: Option<KvError>,
}

/// What an outstanding request is doing.
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

/// A fixed number of requests, each named by its place in the table.
#[derive(Debug)]
pub(crate) struct KvRequestTable {
    slots: Box<[Option<PendingRequest>]>,
    free: Vec<u32>,
}

impl KvRequestTable {
    pub(crate) fn new(count: u32) -> KvRequestTable {
        KvRequestTable {
            slots: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
        }
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, request: KvRequest) -> Result<u32, KvRequest> {
        let Some(place) = self.free.pop() else { return Err(request) };
        let KvRequest { op, tag } = request;
        self.slots[place as usize] =
            Some(PendingRequest { tag, op, state: KvRequestState::Queued });
        Ok(place)
    }

    #[inline]
    pub(crate) fn get(&self, place: u32) -> Option<&PendingRequest> {
        self.slots[place as usize].as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut PendingRequest> {
        self.slots[place as usize].as_mut()
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

    /// Takes a request out.
    #[inline]
    pub(crate) fn remove(&mut self, place: u32) -> Option<PendingRequest> {
        let pending = self.slots[place as usize].take()?;
        self.free.push(place);
        Some(pending)
    }

    /// Takes any request out.
    pub(crate) fn remove_any(&mut self) -> Option<PendingRequest> {
        let place = self.slots.iter().position(Option::is_some)?;
        self.remove(place as u32)
    }
}
