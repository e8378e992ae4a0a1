//! [`Client`]: who carries YCSB's operations out on a key-value target: so many at a time, the next as
//! soon as one ends.
//!
//! A component like any other (rule R2). An operation is timed from its submission to its end, all of
//! its requests included: a scan is as many reads as it has records, begun together; a
//! read-modify-write is a read and, when that has ended, an update.

use std::collections::BTreeMap;
use std::sync::Arc;

use clock::{Component, Nanos, RealClock};
use lightnvm::{Cursor, Key, Kv, KvAnswer, KvError, KvRequest, ValueBuffer};
use ring::{Iova, PAGE_BYTES, SharedRegion};
use workload::Histogram;
use workload::ycsb::{Operation, OperationKind, Ycsb, record_key};

use super::harness::{VirtualHost, setup};
use crate::bench::BenchError;

/// What the client is to do.
#[derive(Debug)]
pub enum Task {
    /// Put so many records: the load phase.
    Load(u64),
    /// Carry so many operations out.
    Run(Box<Ycsb>, u64),
    /// Bring to the media what was put, which counts as an operation.
    Sync,
}

#[derive(Clone, Copy, Debug)]
struct OperationSlot {
    /// None for a sync.
    operation: Option<Operation>,
    started: Nanos,
    /// Requests that have not ended.
    requests_remaining: u32,
    /// An update that follows.
    has_update_pending: bool,
}

/// Who works on the target.
#[derive(Debug)]
pub struct Client {
    kv: Kv,
    task: Task,
    issued: u64,
    completed: u64,
    slots: Vec<Option<OperationSlot>>,
    /// Requests that the target had no room for.
    deferred: Vec<KvRequest>,
    value_bytes: u64,
    buffer_bytes: u64,
    memory: (Arc<SharedRegion>, Iova),
    histograms: BTreeMap<OperationKind, Histogram>,
    started: Option<Nanos>,
    last_completion: Nanos,
    /// Requests that failed, and the first error.
    failed: u64,
    error: Option<KvError>,
    /// In real time: what durations are read from, because one poll does many things.
    clock: Option<RealClock>,
    /// Whether something is to be begun without waiting for the target.
    can_begin: bool,
}

/// What a client has measured.
#[derive(Debug)]
pub struct Measured {
    /// Operations.
    pub operations: u64,
    /// From the first begin to the last end.
    pub time: Nanos,
    /// Durations by kind.
    pub histograms: BTreeMap<OperationKind, Histogram>,
    /// Requests that failed.
    pub failed: u64,
    /// The first error.
    pub error: Option<KvError>,
}

impl Client {
    /// A client with `depth` operations at a time, of values of `value_bytes`.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(kv: Kv, depth: u32, value_bytes: u64) -> Result<Client, BenchError> {
        let buffer_bytes = value_bytes.max(1).next_multiple_of(PAGE_BYTES as u64);
        let bytes = buffer_bytes * u64::from(depth);
        let bytes = usize::try_from(bytes).map_err(|e| setup(format!("buffers: {e}")))?;
        let memory = SharedRegion::anonymous(bytes)?;
        // Not all zeros, and not the same in every buffer.
        for (i, at) in (0..).zip((0..bytes).step_by(8)) {
            memory.write(at, &u64::to_le_bytes(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(i)));
        }
        let at = kv.memory().register(&memory)?;
        Ok(Client {
            task: Task::Load(0),
            issued: 0,
            completed: 0,
            slots: vec![None; depth as usize],
            deferred: Vec::new(),
            value_bytes,
            buffer_bytes,
            memory: (memory, at),
            histograms: BTreeMap::new(),
            started: None,
            last_completion: Nanos::ZERO,
            failed: 0,
            error: None,
            clock: None,
            can_begin: false,
            kv,
        })
    }

    /// Begins a task; the one before must be done.
    pub fn begin(&mut self, task: Task) {
        (self.task, self.issued, self.completed) = (task, 0, 0);
        (self.started, self.failed, self.error) = (None, 0, None);
        self.histograms.clear();
        self.can_begin = true;
    }

    /// Time is real from now on.
    pub fn run_in_real_time(&mut self, clock: RealClock) {
        self.clock = Some(clock);
    }

    fn current_time(&self, now: Nanos) -> Nanos {
        self.clock.map_or(now, |clock| clock.now())
    }

    /// The target.
    pub fn kv(&self) -> &Kv {
        &self.kv
    }

    /// What was measured of the task.
    pub fn take_measured(&mut self) -> Measured {
        Measured {
            operations: self.completed,
            time: self.last_completion.since(self.started.unwrap_or(self.last_completion)),
            histograms: std::mem::take(&mut self.histograms),
            failed: self.failed,
            error: self.error,
        }
    }

    fn total(&self) -> u64 {
        match &self.task {
            Task::Load(records) => *records,
            Task::Run(_, operations) => *operations,
            Task::Sync => 1,
        }
    }

    fn value_buffer(&self, slot: usize) -> ValueBuffer {
        let at = self.memory.1.offset(slot as u64 * self.buffer_bytes);
        ValueBuffer { at, bytes: self.value_bytes }
    }

    fn key(record: u64) -> Option<Key> {
        Key::new(record_key(record).as_bytes()).ok()
    }

    /// Begins operations until as many are under way as may be.
    fn fill(&mut self, now: Nanos) {
        self.can_begin = false;
        while self.deferred.is_empty() && self.issued < self.total() {
            let Some(slot) = self.slots.iter().position(Option::is_none) else { return };
            let operation = match &mut self.task {
                Task::Load(_) => {
                    Some(Operation { kind: OperationKind::Insert, record: self.issued, count: 1 })
                }
                Task::Run(ycsb, _) => Some(ycsb.next_operation()),
                Task::Sync => None,
            };
            self.issued += 1;
            let present = self.current_time(now);
            self.started.get_or_insert(present);
            match operation {
                Some(operation) => self.start(present, slot, operation),
                None => {
                    let state = OperationSlot {
                        operation,
                        started: present,
                        requests_remaining: 1,
                        has_update_pending: false,
                    };
                    self.slots[slot] = Some(state);
                    self.submit(present, KvRequest::sync(slot as u64));
                }
            }
        }
    }

    fn start(&mut self, now: Nanos, slot: usize, operation: Operation) {
        let (room, tag) = (self.value_buffer(slot), slot as u64);
        let Some(key) = Client::key(operation.record) else { return };
        let follows = operation.kind == OperationKind::ReadModifyWrite;
        let mut state = OperationSlot {
            operation: Some(operation),
            started: now,
            requests_remaining: 1,
            has_update_pending: follows,
        };
        let request = match operation.kind {
            OperationKind::Read | OperationKind::ReadModifyWrite => KvRequest::get(key, room, tag),
            OperationKind::Update => KvRequest::update(key, room, tag),
            OperationKind::Insert => KvRequest::put(key, room, tag),
            OperationKind::Scan => {
                let mut cursor = Cursor::starting_at(key);
                state.requests_remaining = 0;
                let mut keys = Vec::with_capacity(operation.count as usize);
                while keys.len() < operation.count as usize
                    && let Some((key, _)) = self.kv.next(&mut cursor)
                {
                    keys.push(key);
                }
                state.requests_remaining = keys.len() as u32;
                self.slots[slot] = Some(state);
                for key in keys {
                    self.submit(now, KvRequest::get(key, room, tag));
                }
                return;
            }
        };
        self.slots[slot] = Some(state);
        self.submit(now, request);
    }

    fn submit(&mut self, now: Nanos, request: KvRequest) {
        if !self.deferred.is_empty() {
            return self.deferred.push(request);
        }
        if let Err(busy) = self.kv.submit(now, request) {
            self.deferred.push(busy.0);
        }
    }

    fn on_completion(&mut self, now: Nanos, tag: u64, result: Result<KvAnswer, KvError>) {
        if let Err(error) = result {
            self.failed += 1;
            self.error = self.error.or(Some(error));
        }
        let (slot, room) = (tag as usize, self.value_buffer(tag as usize));
        let Some(state) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        state.requests_remaining = state.requests_remaining.saturating_sub(1);
        if state.requests_remaining > 0 {
            return;
        }
        let OperationSlot { operation, started: since, has_update_pending: follows, .. } = *state;
        if follows && let Some(key) = operation.and_then(|o| Client::key(o.record)) {
            (state.requests_remaining, state.has_update_pending) = (1, false);
            return self.submit(now, KvRequest::update(key, room, tag));
        }
        self.slots[slot] = None;
        self.completed += 1;
        let now = self.current_time(now);
        self.last_completion = now;
        self.can_begin = true;
        let Some(operation) = operation else { return };
        if let (Task::Run(ycsb, _), OperationKind::Insert) = (&mut self.task, operation.kind) {
            ycsb.on_inserted(operation.record);
        }
        self.histograms.entry(operation.kind).or_default().record(now.since(since));
    }
}

impl Component for Client {
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        loop {
            self.fill(now);
            moved |= self.kv.poll(now);
            while let Some(done) = self.kv.reap() {
                self.on_completion(now, done.tag, done.result);
                moved = true;
            }
            let waiting = std::mem::take(&mut self.deferred);
            let waited = !waiting.is_empty();
            for request in waiting {
                self.submit(now, request);
            }
            if !self.can_begin
                || (waited && !self.deferred.is_empty())
                || self.issued == self.total()
            {
                return moved;
            }
        }
    }

    fn deadline(&self) -> Nanos {
        self.kv.deadline()
    }
}

impl VirtualHost for Client {
    fn is_done(&self) -> bool {
        self.completed == self.total()
    }
}
