//! [`WriteOrder`]: the write queue, and the keys that requests wait for.

use std::collections::{BTreeMap, VecDeque};

use super::check::{KvPart, KvSubject, KvViolation, PartCheck};
use super::format::key::Key;
use super::request::{KvOp, KvRequestTable};

/// Why requests for a key wait.
#[derive(Debug, Default)]
struct BlockedKey {
    /// Number of requests for the key that are queued or parked.
    queued: u32,
    /// Whether a value of the key is being written.
    busy: bool,
    /// Requests that wait for that value, in order.
    parked: Vec<u32>,
}

/// Requests that wait for earlier ones.
#[derive(Debug, Default)]
pub(crate) struct WriteOrder {
    /// Requests that wait in order.
    queue: VecDeque<u32>,
    /// Keys of requests in the queue, and keys of values being written.
    blocked_keys: BTreeMap<Key, BlockedKey>,
    /// Requests that wait for a key whose value is being written.
    parked_count: u32,
}

impl WriteOrder {
    /// Returns whether no request is queued.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether a request waits for a key whose value is being written.
    pub(crate) fn has_parked(&self) -> bool {
        self.parked_count > 0
    }

    /// Returns the request at the head of the queue.
    #[inline]
    pub(crate) fn front(&self) -> Option<u32> {
        self.queue.front().copied()
    }

    /// Removes the request at the head of the queue.
    pub(crate) fn pop_front(&mut self) {
        self.queue.pop_front();
    }

    /// Adds a request at the end of the queue.
    pub(crate) fn push_back(&mut self, place: u32) {
        self.queue.push_back(place);
    }

    /// Parks a request until its key is free.
    pub(crate) fn park(&mut self, place: u32, key: &Key) {
        self.blocked_keys.entry(key.clone()).or_default().parked.push(place);
        self.parked_count += 1;
    }

    /// Counts the keys of a request that waits.
    pub(crate) fn block_keys(&mut self, op: &KvOp) {
        for_each_key(op, |key| self.blocked_keys.entry(key.clone()).or_default().queued += 1);
    }

    /// Ends the count of the keys of a request.
    pub(crate) fn unblock_keys(&mut self, op: &KvOp) {
        for_each_key(op, |key| {
            let Some(blocked) = self.blocked_keys.get_mut(key.as_bytes()) else {
                panic!("{key:?} is not blocked")
            };
            blocked.queued -= 1;
            if blocked.queued == 0 && !blocked.busy {
                self.blocked_keys.remove(key.as_bytes());
            }
        });
    }

    /// Returns whether a request for the key waits, or a value of it is being written.
    #[inline]
    pub(crate) fn is_blocked(&self, key: &Key) -> bool {
        !self.blocked_keys.is_empty() && self.blocked_keys.contains_key(key.as_bytes())
    }

    /// Returns whether a value of the key is being written.
    #[inline]
    pub(crate) fn is_busy(&self, key: &Key) -> bool {
        !self.blocked_keys.is_empty()
            && self.blocked_keys.get(key.as_bytes()).is_some_and(|b| b.busy)
    }

    /// Marks a key while a value of it is being written.
    pub(crate) fn begin_busy(&mut self, key: &Key) {
        self.blocked_keys.entry(key.clone()).or_default().busy = true;
    }

    /// Ends the mark. The requests that waited for it are put at the head of the queue.
    pub(crate) fn end_busy(&mut self, key: &Key) {
        let Some(blocked) = self.blocked_keys.get_mut(key.as_bytes()) else {
            panic!("{key:?} is not busy")
        };
        blocked.busy = false;
        let parked = std::mem::take(&mut blocked.parked);
        if blocked.queued == 0 {
            self.blocked_keys.remove(key.as_bytes());
        }
        self.parked_count -= parked.len() as u32;
        // They are older than all queued requests for this key.
        parked.into_iter().rev().for_each(|place| self.queue.push_front(place));
    }

    /// Returns the requests that wait.
    pub(crate) fn requests(&self) -> impl Iterator<Item = u32> {
        let parked = self.blocked_keys.values().flat_map(|blocked| &blocked.parked);
        self.queue.iter().chain(parked).copied()
    }

    /// Returns the number of keys whose values are being written.
    fn busy_count(&self) -> u32 {
        self.blocked_keys.values().filter(|b| b.busy).count() as u32
    }

    /// Recounts the blocked keys; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(
        &self,
        requests: &KvRequestTable,
        unfinished_puts: u32,
    ) -> Result<(), KvViolation> {
        let check = PartCheck(KvPart::WriteOrder);
        let mut queued: BTreeMap<&Key, u32> = BTreeMap::new();
        for place in self.requests() {
            let pending = requests.get(place);
            let subject = KvSubject::Request(place);
            check.equal("a request that waits is outstanding", subject, true, pending.is_some())?;
            if let Some(pending) = pending {
                for_each_key(&pending.op, |key| *queued.entry(key).or_default() += 1);
            }
        }
        for (key, blocked) in &self.blocked_keys {
            check.equal(
                "requests that block a key",
                KvSubject::key(key),
                queued.get(key).copied().unwrap_or(0),
                blocked.queued,
            )?;
            check.require(
                blocked.busy || blocked.parked.is_empty() && blocked.queued > 0,
                "a key is blocked by a request or by a value being written",
                KvSubject::key(key),
                "busy, or queued requests",
                blocked,
            )?;
        }
        let counts = (
            queued.keys().all(|key| self.blocked_keys.contains_key(key.as_bytes())),
            self.blocked_keys.values().map(|b| b.parked.len() as u32).sum::<u32>(),
            self.busy_count(),
        );
        check.equal(
            "every key is counted, parked requests, and busy keys",
            KvSubject::Part,
            counts,
            (true, self.parked_count, unfinished_puts),
        )
    }

    /// Miscounts the parked requests.
    #[cfg(test)]
    pub(crate) fn break_parked_count(&mut self) {
        self.parked_count += 1;
    }
}

/// Calls `each` with every key of an operation.
fn for_each_key<'a>(op: &'a KvOp, mut each: impl FnMut(&'a Key)) {
    match op {
        KvOp::Mutation { mutation, .. } => each(mutation.key()),
        KvOp::Batch { mutations, .. } => mutations.iter().for_each(|m| each(m.key())),
        KvOp::Get { key, .. } | KvOp::Exists { key } => each(key),
        KvOp::Sync => {}
    }
}
