//! The order of mutations: the write queue, and which requests may bypass it.
//!
//! Mutations take effect in the order of submission. A read bypasses the queue unless it contains a
//! mutation of the read's key. A request for a key whose value is still being written, which takes
//! long for whole chunks, is parked until the value is complete, and then put at the head of the
//! queue; requests for other keys proceed. Only a batch, which has many keys, blocks the queue for
//! one of them.

use crate::buffer::streams::{AllocError, AppendClass};
use crate::format::key::Key;
use crate::format::record::record_bytes;
use crate::index::KeyVersion;
use crate::pipeline::put::{LargePutSize, PutProgress};
use crate::request::{KvAnswer, KvMutation, KvOp, KvRequestState};
use crate::{Kv, KvError};

/// The result for the request at the head of the queue.
enum OrderDecision {
    /// It leaves the queue.
    Dequeue,
    /// It must wait.
    Wait,
    /// It must wait for this key; other requests need not.
    Park(Key),
}

impl From<AllocError> for OrderDecision {
    fn from(_: AllocError) -> OrderDecision {
        OrderDecision::Wait
    }
}

impl Kv {
    /// Executes a new request at once if possible; otherwise queues it.
    pub(crate) fn execute_or_enqueue(&mut self, place: u32) {
        let Some(pending) = self.requests.get(place) else { return };
        match &pending.op {
            KvOp::Get { key, .. } | KvOp::Exists { key } if !self.write_order.is_blocked(key) => {
                self.begin_read(place);
                return;
            }
            _ => {}
        }
        let turn =
            if self.write_order.is_empty() { self.try_execute(place) } else { OrderDecision::Wait };
        if matches!(turn, OrderDecision::Dequeue) {
            return;
        }
        self.block_keys(place);
        match turn {
            OrderDecision::Park(key) => self.write_order.park(place, &key),
            OrderDecision::Wait | OrderDecision::Dequeue => self.write_order.push_back(place),
        }
    }

    /// Counts the keys of a request that waits.
    fn block_keys(&mut self, place: u32) {
        if let Some(pending) = self.requests.get(place) {
            self.write_order.block_keys(&pending.op);
        }
    }

    /// Ends the count of the keys of a request.
    fn unblock_keys(&mut self, place: u32) {
        if let Some(pending) = self.requests.get(place) {
            self.write_order.unblock_keys(&pending.op);
        }
    }

    /// Executes queued requests in order.
    pub(crate) fn step_write_queue(&mut self) {
        while let Some(place) = self.write_order.front() {
            // A waiting request counts its own keys as blocked. The counts are removed before it is
            // executed, because it may complete.
            self.unblock_keys(place);
            let turn = self.try_execute(place);
            if !matches!(turn, OrderDecision::Dequeue) {
                self.block_keys(place);
            }
            match turn {
                OrderDecision::Wait => return,
                OrderDecision::Park(key) => self.write_order.park(place, &key),
                OrderDecision::Dequeue => {}
            }
            self.write_order.pop_front();
            self.progress.moved = true;
        }
    }

    /// Fails the mutations at the head of the queue, because no space can be freed. Other requests
    /// proceed.
    pub(crate) fn fail_write_queue(&mut self, error: KvError) {
        while let Some(place) = self.write_order.front() {
            let op = self.requests.get(place).map(|p| &p.op);
            if !matches!(op, Some(KvOp::Mutation { .. } | KvOp::Batch { .. })) {
                return;
            }
            self.write_order.pop_front();
            self.unblock_keys(place);
            self.complete(place, Err(error));
        }
    }

    fn try_execute(&mut self, place: u32) -> OrderDecision {
        let Some(pending) = self.requests.get(place) else { return OrderDecision::Dequeue };
        let result = match &pending.op {
            KvOp::Get { key, .. } | KvOp::Exists { key } => {
                if self.write_order.is_busy(key) {
                    return OrderDecision::Park(key.clone());
                }
                self.begin_read(place);
                return OrderDecision::Dequeue;
            }
            KvOp::Sync => {
                if self.puts.unfinished() > 0 || self.write_order.has_parked() {
                    return OrderDecision::Wait;
                }
                self.stats.syncs += 1;
                self.complete_mutation(place, self.streams.next_unit_seq());
                return OrderDecision::Dequeue;
            }
            KvOp::Mutation { mutation: change, .. } => {
                if self.write_order.is_busy(change.key()) {
                    return OrderDecision::Park(change.key().clone());
                }
                let change = change.clone();
                self.apply_mutation(place, &change)
            }
            KvOp::Batch { mutations: changes, .. } => {
                if changes.iter().any(|c| self.write_order.is_busy(c.key())) {
                    return OrderDecision::Wait;
                }
                self.apply_batch(place)
            }
        };
        match result {
            Ok(PutProgress::Done(number)) => {
                self.complete_mutation(place, number);
                OrderDecision::Dequeue
            }
            Ok(PutProgress::InProgress) => OrderDecision::Dequeue,
            Ok(PutProgress::Blocked(short)) => {
                self.progress.out_of_chunks |= short == AllocError::NoChunk;
                OrderDecision::Wait
            }
            Err(error) => {
                self.complete(place, Err(error));
                OrderDecision::Dequeue
            }
        }
    }

    /// Applies a mutation, or starts to.
    fn apply_mutation(&mut self, place: u32, change: &KvMutation) -> Result<PutProgress, KvError> {
        let key = change.key();
        let old = self.index.get_present(key.as_bytes()).map(|e| &e.current);
        let old_bytes = old.map(|c| {
            (0..c.records().len()).map(|i| u64::from(c.record_bytes(key.len(), i))).sum::<u64>()
        });
        match change {
            KvMutation::Update { .. } | KvMutation::Delete { .. } if old.is_none() => {
                return Err(KvError::NotFound);
            }
            KvMutation::Delete { key } => {
                if self.is_read_only() {
                    return Err(KvError::ReadOnly);
                }
                return Ok(self.delete(key));
            }
            KvMutation::Put { .. } | KvMutation::Update { .. } => {}
        }
        let Some(value) = change.value() else { return Ok(PutProgress::InProgress) };
        let (parts, inline) = self.layout.split(value.bytes);
        let bytes = self.layout.packed_bytes(key.len(), parts, inline);
        self.admit(bytes, old_bytes.unwrap_or(0), parts)?;
        if parts == 0 && self.layout.record_count(key.len(), 0, inline) == 1 {
            return Ok(self.put_packed(key, value));
        }
        let size = LargePutSize { chunks: parts, inline_bytes: inline, record_bytes: bytes };
        self.begin_large_put(place, key.clone(), size);
        Ok(PutProgress::InProgress)
    }

    /// Deletes a key that exists.
    fn delete(&mut self, key: &Key) -> PutProgress {
        let seq = self.index.last_seq() + 1;
        match self.put_tombstone(AppendClass::Host, key, seq) {
            Err(short) => PutProgress::Blocked(short),
            Ok(piece) => {
                self.index.assign_seq();
                self.stats.deletes += 1;
                self.set_current(key, seq, KeyVersion::Tombstone(piece));
                PutProgress::Done(self.streams.next_unit_seq())
            }
        }
    }

    /// Returns whether too many chunks are bad for the capacity to be maintained.
    pub(crate) fn is_read_only(&self) -> bool {
        self.chunks.good_count() < self.layout.budget.capacity + self.layout.budget.overhead_chunks
    }

    /// Returns the number of whole chunks of values, current or being written.
    pub(crate) fn large_value_chunks(&self) -> u32 {
        self.index.chunk_extents() + self.puts.reserved_chunks()
    }

    /// Checks the capacity for `bytes` of records that replace `old` bytes, and for `parts` whole
    /// chunks.
    ///
    /// There are two bounds. Values may fill the capacity. All live data, tombstones included, must
    /// fit the good chunks without overhead at the minimum density of compaction: then some packed
    /// chunk always has fewer live bytes, and compacting it frees space. A mutation that replaces
    /// whole chunks needs additional chunks, because the old ones are erased only once it is
    /// durable.
    pub(crate) fn admit(&self, bytes: u64, old: u64, parts: u32) -> Result<(), KvError> {
        if self.is_read_only() {
            return Err(KvError::ReadOnly);
        }
        let fill = u64::from(self.layout.compacted_bytes_min);
        let wholes = u64::from(self.large_value_chunks()) + u64::from(parts);
        let all = self.chunks.live_bytes() + self.puts.reserved_bytes() + bytes;
        let values = all.saturating_sub(self.index.tombstone_bytes()).saturating_sub(old);
        let spare = u64::from(self.chunks.good_count() - self.layout.budget.overhead_chunks);
        // An update in place takes no more space than before, so that a full store can be updated.
        let needed = wholes + values.div_ceil(fill);
        let grows = parts > 0 || bytes > old;
        if needed > u64::from(self.layout.budget.capacity) && grows
            || wholes + all.div_ceil(fill) > spare
        {
            return Err(KvError::Full);
        }
        Ok(())
    }

    /// Applies all mutations of a batch, whose records are consecutive in one chunk, or none.
    ///
    /// After a power cut a batch is complete if its last byte was programmed: each of its records
    /// contains the offset and end of the batch in the chunk. A record that is relocated later is
    /// no longer part of a batch, because the batch is then known to be complete.
    fn apply_batch(&mut self, place: u32) -> Result<PutProgress, KvError> {
        // The mutations are moved back to the request in any case.
        let Some(pending) = self.requests.get_mut(place) else {
            return Ok(PutProgress::InProgress);
        };
        let KvOp::Batch { mutations: changes, .. } = &mut pending.op else {
            return Ok(PutProgress::InProgress);
        };
        let taken = std::mem::take(changes);
        let made = self.apply_batch_mutations(&taken);
        if let Some(pending) = self.requests.get_mut(place)
            && let KvOp::Batch { mutations: changes, .. } = &mut pending.op
        {
            *changes = taken;
        }
        made
    }

    fn apply_batch_mutations(&mut self, changes: &[KvMutation]) -> Result<PutProgress, KvError> {
        if self.is_read_only() {
            return Err(KvError::ReadOnly);
        }
        let exists = |i: usize, key: &Key| match changes[..i].iter().rfind(|c| c.key() == key) {
            Some(KvMutation::Delete { .. }) => false,
            Some(_) => true,
            None => self.index.get_present(key.as_bytes()).is_some(),
        };
        let mut bytes = 0;
        for (i, change) in changes.iter().enumerate() {
            if !matches!(change, KvMutation::Put { .. }) && !exists(i, change.key()) {
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
            return Err(KvError::BatchTooLarge { bytes, bytes_max: most });
        }
        if changes.iter().any(|c| c.value().is_some()) {
            self.admit(bytes, 0, 0)?;
        }
        if bytes > 0
            && let Err(short) = self.put_batch(changes, bytes as u32)
        {
            return Ok(PutProgress::Blocked(short));
        }
        self.stats.batches += 1;
        Ok(PutProgress::Done(self.streams.next_unit_seq()))
    }

    /// Completes a request for the existence of a key.
    pub(crate) fn complete_exists(&mut self, place: u32) {
        let Some(pending) = self.requests.get(place) else { return };
        let KvOp::Exists { key } = &pending.op else { return };
        let entry = self.index.get_present(key.as_bytes());
        let bytes = entry.map(|e| e.current.value_bytes(self.layout.chunk_bytes));
        debug_assert!(matches!(pending.state, KvRequestState::Queued));
        self.complete(place, Ok(KvAnswer::Exists(bytes)));
    }
}
