//! Changes, one after the other: the line that requests wait in, and which may go past it.
//!
//! Whatever changes something takes effect in the order of submission. A read goes past the line
//! unless a change of its key is in it. Whoever comes with a key whose value is still being written
//! (whole chunks take long) is parked until it is, and then stands at the head of the line: those with
//! other keys go on. Only a batch, which has many keys, holds the line up for one of them.

use super::index::Current;
use super::key::Key;
use super::put::Made;
use super::record::record_bytes;
use super::request::{Change, KvAnswer, KvOp, Work};
use super::streams::{Group, Short};
use super::{Kv, KvError};

/// Why requests for a key wait.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Requests for it that are in the line, or parked.
    queued: u32,
    /// A value of it is being written.
    busy: bool,
    /// Requests that wait for that, in order.
    parked: Vec<u32>,
}

/// What became of the request at the head of the line.
enum Turn {
    /// It has left the line.
    Gone,
    /// It must wait.
    Waits,
    /// It must wait for this key, which others need not.
    Parks(Key),
}

impl From<Short> for Turn {
    fn from(_: Short) -> Turn {
        Turn::Waits
    }
}

impl Kv {
    /// A request comes in: it is carried out at once if it can be.
    pub(super) fn enter(&mut self, place: u32) {
        let Some(pending) = self.requests.get(place) else { return };
        match &pending.op {
            KvOp::Get { key, .. } | KvOp::Exists { key }
                if self.held.is_empty() || !self.held.contains_key(key.as_bytes()) =>
            {
                self.begin_read(place);
                return;
            }
            _ => {}
        }
        let turn = if self.line.is_empty() { self.turn(place) } else { Turn::Waits };
        if matches!(turn, Turn::Gone) {
            return;
        }
        self.hold(place, 1);
        match turn {
            Turn::Parks(key) => self.park(place, &key),
            Turn::Waits | Turn::Gone => self.line.push_back(place),
        }
    }

    /// Lets a request wait for a key.
    fn park(&mut self, place: u32, key: &Key) {
        self.held.entry(key.clone()).or_default().parked.push(place);
        self.parked += 1;
    }

    /// Counts a waiting request's keys among those held, or not any more.
    fn hold(&mut self, place: u32, by: i32) {
        let Some(pending) = self.requests.get(place) else { return };
        let held = &mut self.held;
        let mut hold = |key: &Key| {
            let entry = held.entry(key.clone()).or_default();
            entry.queued = entry.queued.saturating_add_signed(by);
            if entry.queued == 0 && !entry.busy {
                held.remove(key.as_bytes());
            }
        };
        match &pending.op {
            KvOp::Change { change, .. } => hold(change.key()),
            KvOp::Batch { changes, .. } => changes.iter().for_each(|c| hold(c.key())),
            KvOp::Get { key, .. } | KvOp::Exists { key } => hold(key),
            KvOp::Sync => {}
        }
    }

    fn is_busy(&self, key: &Key) -> bool {
        !self.held.is_empty() && self.held.get(key.as_bytes()).is_some_and(|h| h.busy)
    }

    /// A value of the key begins to be written, or is written.
    pub(super) fn set_busy(&mut self, key: &Key, busy: bool) {
        let held = self.held.entry(key.clone()).or_default();
        held.busy = busy;
        if !busy {
            let parked = std::mem::take(&mut held.parked);
            self.parked -= parked.len() as u32;
            // They were there before anyone in the line who is about this key.
            parked.into_iter().rev().for_each(|place| self.line.push_front(place));
        }
        if self.held.get(key.as_bytes()).is_some_and(|h| h.queued == 0 && !h.busy) {
            self.held.remove(key.as_bytes());
        }
    }

    /// Lets the line move up.
    pub(super) fn advance_line(&mut self) {
        while let Some(&place) = self.line.front() {
            // While it waits its keys are held for its own sake: those are let go before its turn,
            // which may end the request.
            self.hold(place, -1);
            let turn = self.turn(place);
            if !matches!(turn, Turn::Gone) {
                self.hold(place, 1);
            }
            match turn {
                Turn::Waits => return,
                Turn::Parks(key) => self.park(place, &key),
                Turn::Gone => {}
            }
            self.line.pop_front();
            self.went_on = true;
        }
    }

    /// Fails the changes at the head of the line: there is no room, and none is to be made. What is not
    /// a change goes on without them.
    pub(super) fn fail_line(&mut self, error: KvError) {
        while let Some(&place) = self.line.front() {
            let op = self.requests.get(place).map(|p| &p.op);
            if !matches!(op, Some(KvOp::Change { .. } | KvOp::Batch { .. })) {
                return;
            }
            self.line.pop_front();
            self.hold(place, -1);
            self.finish(place, Err(error));
        }
    }

    fn turn(&mut self, place: u32) -> Turn {
        let Some(pending) = self.requests.get(place) else { return Turn::Gone };
        let result = match &pending.op {
            KvOp::Get { key, .. } | KvOp::Exists { key } => {
                if self.is_busy(key) {
                    return Turn::Parks(key.clone());
                }
                self.begin_read(place);
                return Turn::Gone;
            }
            KvOp::Sync => {
                if self.unfinished > 0 || self.parked > 0 {
                    return Turn::Waits;
                }
                self.stats.syncs += 1;
                self.changed(place, self.order.next());
                return Turn::Gone;
            }
            KvOp::Change { change, .. } => {
                if self.is_busy(change.key()) {
                    return Turn::Parks(change.key().clone());
                }
                let change = change.clone();
                self.make(place, &change)
            }
            KvOp::Batch { changes, .. } => {
                if changes.iter().any(|c| self.is_busy(c.key())) {
                    return Turn::Waits;
                }
                self.make_batch(place)
            }
        };
        match result {
            Ok(Made::Now(number)) => {
                self.changed(place, number);
                Turn::Gone
            }
            Ok(Made::Begun) => Turn::Gone,
            Ok(Made::Short(short)) => {
                self.short_of_chunks |= short == Short::Chunk;
                Turn::Waits
            }
            Err(error) => {
                self.finish(place, Err(error));
                Turn::Gone
            }
        }
    }

    /// Makes a change, or begins to.
    fn make(&mut self, place: u32, change: &Change) -> Result<Made, KvError> {
        let key = change.key();
        let old = self.index.existing(key.as_bytes()).map(|e| &e.current);
        let old_bytes = old.map(|c| {
            (0..c.pieces().len()).map(|i| u64::from(c.record_bytes(key.len(), i))).sum::<u64>()
        });
        match change {
            Change::Update { .. } | Change::Delete { .. } if old.is_none() => {
                return Err(KvError::NotFound);
            }
            Change::Delete { key } => {
                if self.is_read_only() {
                    return Err(KvError::ReadOnly);
                }
                return Ok(self.delete(key));
            }
            Change::Put { .. } | Change::Update { .. } => {}
        }
        let Some(value) = change.value() else { return Ok(Made::Begun) };
        let (parts, inline) = self.layout.split(value.bytes);
        let bytes = self.layout.packed_bytes(key.len(), parts, inline);
        self.admit(bytes, old_bytes.unwrap_or(0), parts)?;
        if parts == 0 && self.layout.pieces(key.len(), 0, inline) == 1 {
            return Ok(self.put_packed(key, value));
        }
        self.begin_writing(place, key.clone(), (parts, inline, bytes));
        Ok(Made::Begun)
    }

    /// Deletes a key that exists.
    fn delete(&mut self, key: &Key) -> Made {
        let seq = self.seq + 1;
        match self.put_deleted(Group::User, key, seq) {
            Err(short) => Made::Short(short),
            Ok(piece) => {
                self.seq = seq;
                self.stats.deletes += 1;
                self.make_current(key, seq, Current::Deleted(piece));
                Made::Now(self.order.next())
            }
        }
    }

    /// Whether so many chunks have gone bad that the capacity cannot be kept up.
    pub(super) fn is_read_only(&self) -> bool {
        self.chunks.good < self.layout.capacity + self.layout.held
    }

    /// Whether there is room for `bytes` of records in place of `old`, and so many whole chunks.
    ///
    /// Two bounds. Values may fill the capacity. And everything live, tombstones included, must fit
    /// the good chunks that are not held even as densely as cleaning packs it at least: then some
    /// packed chunk always has fewer live bytes than that, and cleaning it makes room. What replaces
    /// whole chunks needs chunks of its own beside them, which are not erased before it is durable.
    pub(super) fn admit(&self, bytes: u64, old: u64, parts: u32) -> Result<(), KvError> {
        if self.is_read_only() {
            return Err(KvError::ReadOnly);
        }
        let fill = u64::from(self.layout.fill_bytes);
        let wholes = u64::from(self.wholes_held) + u64::from(parts);
        let all = self.chunks.live + self.reserved + bytes;
        let values = all.saturating_sub(self.tombstone_bytes).saturating_sub(old);
        let spare = u64::from(self.chunks.good - self.layout.held);
        // An update in place takes no more than there was, so that a full store can be updated.
        let needed = wholes + values.div_ceil(fill);
        let grows = parts > 0 || bytes > old;
        if needed > u64::from(self.layout.capacity) && grows || wholes + all.div_ceil(fill) > spare
        {
            return Err(KvError::Full);
        }
        Ok(())
    }

    /// Makes all changes of a batch, whose records follow each other in one chunk, or none.
    ///
    /// A batch is whole after a power cut if its last byte was programmed: every record of it says
    /// where in the chunk the batch starts and ends. A record of it that is moved later stands for
    /// itself: by then the batch is known to be whole.
    fn make_batch(&mut self, place: u32) -> Result<Made, KvError> {
        // The changes go back where they were, whatever happens.
        let Some(pending) = self.requests.get_mut(place) else { return Ok(Made::Begun) };
        let KvOp::Batch { changes, .. } = &mut pending.op else { return Ok(Made::Begun) };
        let taken = std::mem::take(changes);
        let made = self.make_changes(&taken);
        if let Some(pending) = self.requests.get_mut(place)
            && let KvOp::Batch { changes, .. } = &mut pending.op
        {
            *changes = taken;
        }
        made
    }

    fn make_changes(&mut self, changes: &[Change]) -> Result<Made, KvError> {
        if self.is_read_only() {
            return Err(KvError::ReadOnly);
        }
        let exists = |i: usize, key: &Key| match changes[..i].iter().rfind(|c| c.key() == key) {
            Some(Change::Delete { .. }) => false,
            Some(_) => true,
            None => self.index.existing(key.as_bytes()).is_some(),
        };
        let mut bytes = 0;
        for (i, change) in changes.iter().enumerate() {
            if !matches!(change, Change::Put { .. }) && !exists(i, change.key()) {
                return Err(KvError::NotFound);
            }
            let key = change.key().len();
            bytes += match change.value() {
                None => u64::from(record_bytes(key, 0, 0)),
                Some(value) => self.batch_bytes(key, value.bytes),
            };
        }
        let most = u64::from(self.layout.batch_bytes);
        if bytes > most {
            return Err(KvError::BatchTooLarge { bytes, most });
        }
        if changes.iter().any(|c| c.value().is_some()) {
            self.admit(bytes, 0, 0)?;
        }
        if bytes > 0
            && let Err(short) = self.put_batch(changes, bytes as u32)
        {
            return Ok(Made::Short(short));
        }
        self.stats.batches += 1;
        Ok(Made::Now(self.order.next()))
    }

    /// Answers a question about a key.
    pub(super) fn answer_exists(&mut self, place: u32) {
        let Some(pending) = self.requests.get(place) else { return };
        let KvOp::Exists { key } = &pending.op else { return };
        let entry = self.index.existing(key.as_bytes());
        let bytes = entry.map(|e| e.current.value_bytes(self.layout.chunk_bytes));
        debug_assert!(matches!(pending.work, Work::Queued));
        self.finish(place, Ok(KvAnswer::Exists(bytes)));
    }
}
