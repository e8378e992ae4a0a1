//! [`KvRequest`], [`KvCompletion`]: what is asked and answered; [`Requests`]: what is outstanding.

use ring::Iova;

use super::error::KvError;
use super::index::{Current, Part, Piece};
use super::key::Key;

/// Where a value is, or is to go: registered memory, not to be touched until the request completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Its first byte.
    pub at: Iova,
    /// Bytes.
    pub bytes: u64,
}

/// One change of a batch.
#[derive(Clone, Debug)]
pub enum Change {
    /// Puts a value, whether or not the key exists.
    Put {
        /// The key.
        key: Key,
        /// The value.
        value: Room,
    },
    /// Puts a value in place of another: the key must exist.
    Update {
        /// The key.
        key: Key,
        /// The value.
        value: Room,
    },
    /// Deletes a key, which must exist.
    Delete {
        /// The key.
        key: Key,
    },
}

impl Change {
    /// The key.
    pub fn key(&self) -> &Key {
        match self {
            Change::Put { key, .. } | Change::Update { key, .. } | Change::Delete { key } => key,
        }
    }

    pub(crate) fn value(&self) -> Option<Room> {
        match self {
            Change::Put { value, .. } | Change::Update { value, .. } => Some(*value),
            Change::Delete { .. } => None,
        }
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub enum KvOp {
    /// One change. `durable`: it completes when a power cut cannot undo it; else it may complete
    /// when it is in the target's memory, and becomes durable with the next [`KvOp::Sync`] at the
    /// latest.
    Change {
        /// The change.
        change: Change,
        /// Whether it completes durable.
        durable: bool,
    },
    /// All of several changes or, if one of them cannot be or power is cut, none.
    Batch {
        /// The changes, made one after the other.
        changes: Box<[Change]>,
        /// Whether it completes durable.
        durable: bool,
    },
    /// Reads a value.
    Get {
        /// The key.
        key: Key,
        /// Where the value goes.
        into: Room,
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
    pub fn put(key: Key, value: Room, tag: u64) -> KvRequest {
        let change = Change::Put { key, value };
        KvRequest { op: KvOp::Change { change, durable: false }, tag }
    }

    /// Puts a value in place of another.
    pub fn update(key: Key, value: Room, tag: u64) -> KvRequest {
        let change = Change::Update { key, value };
        KvRequest { op: KvOp::Change { change, durable: false }, tag }
    }

    /// Deletes a key.
    pub fn delete(key: Key, tag: u64) -> KvRequest {
        KvRequest { op: KvOp::Change { change: Change::Delete { key }, durable: false }, tag }
    }

    /// Makes several changes, or none.
    pub fn batch(changes: impl Into<Box<[Change]>>, tag: u64) -> KvRequest {
        KvRequest { op: KvOp::Batch { changes: changes.into(), durable: false }, tag }
    }

    /// Reads a value.
    pub fn get(key: Key, into: Room, tag: u64) -> KvRequest {
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
        if let KvOp::Change { durable, .. } | KvOp::Batch { durable, .. } = &mut self.op {
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
pub(crate) struct Writing {
    pub(crate) seq: u64,
    pub(crate) parts: Vec<Part>,
    /// Whole chunks that have not been begun, and that have not ended.
    pub(crate) to_begin: u32,
    pub(crate) to_end: u32,
    pub(crate) pieces: Vec<Piece>,
    /// Records in all.
    pub(crate) count: u32,
    /// Inline bytes, and how many of them are in records.
    pub(crate) inline: u32,
    pub(crate) taken: u32,
    /// What was set aside for its records, in bytes.
    pub(crate) reserved: u64,
}

/// A value that is being read. What it is made of is as it was when that began, and none of its
/// chunks is erased before it ends.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) current: Current,
    pub(crate) key: u8,
    pub(crate) into: Room,
    /// Parts, then pieces: which is to be read next, and how many have not ended.
    pub(crate) next: u32,
    pub(crate) left: u32,
    pub(crate) error: Option<KvError>,
}

/// What an outstanding request is doing.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Queued,
    Writing(Box<Writing>),
    Reading(Reading),
}

#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) tag: u64,
    pub(crate) op: KvOp,
    pub(crate) work: Work,
}

/// A fixed number of requests, each named by its place in the table.
#[derive(Debug)]
pub(crate) struct Requests {
    slots: Box<[Option<Pending>]>,
    free: Vec<u32>,
}

impl Requests {
    pub(crate) fn new(count: u32) -> Requests {
        Requests { slots: (0..count).map(|_| None).collect(), free: (0..count).rev().collect() }
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn put(&mut self, request: KvRequest) -> Result<u32, KvRequest> {
        let Some(place) = self.free.pop() else { return Err(request) };
        let KvRequest { op, tag } = request;
        self.slots[place as usize] = Some(Pending { tag, op, work: Work::Queued });
        Ok(place)
    }

    #[inline]
    pub(crate) fn get(&self, place: u32) -> Option<&Pending> {
        self.slots[place as usize].as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut Pending> {
        self.slots[place as usize].as_mut()
    }

    #[inline]
    pub(crate) fn writing(&mut self, place: u32) -> Option<&mut Writing> {
        match &mut self.get_mut(place)?.work {
            Work::Writing(writing) => Some(writing),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn reading(&mut self, place: u32) -> Option<&mut Reading> {
        match &mut self.get_mut(place)?.work {
            Work::Reading(reading) => Some(reading),
            _ => None,
        }
    }

    /// Takes a request out.
    #[inline]
    pub(crate) fn end(&mut self, place: u32) -> Option<Pending> {
        let pending = self.slots[place as usize].take()?;
        self.free.push(place);
        Some(pending)
    }

    /// Takes any request out.
    pub(crate) fn end_any(&mut self) -> Option<Pending> {
        let place = self.slots.iter().position(Option::is_some)?;
        self.end(place as u32)
    }
}
