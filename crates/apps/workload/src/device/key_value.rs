//! [`KeyValueDevice`]: a key-value target as the device of jobs.
//!
//! A get, a put, an update, a delete and a sync are one request to the target. A scan is a get per
//! record, issued together; its records are those that exist in the order of keys when it is issued.
//! A read-modify-write is a get and, when it has completed, an update.
//!
//! Invariants: every accepted operation has at least one request in the target or deferred, and
//! completes when the last of them has; its first error is its status.

use std::collections::VecDeque;

use block::{Completion, QueueFull};
use collections::Slab;
use kv::{Cursor, Key, Kv, KvAnswer, KvCompletion, KvError, KvRequest, ValueBuffer};
use mem::AddressSpace;
use nvme::Status;
use time::{Component, Nanos};

use super::{Addressing, JobDevice, JobLimits, JobOperation, KeyLimits, RecordOp, RecordRequest};
use crate::ycsb::record_key;

/// An operation whose requests have not all completed.
#[derive(Clone, Copy, Debug)]
struct RecordOperation {
    request: RecordRequest,
    /// Number of requests to the target that have not completed.
    requests: u32,
    /// Number of records found.
    found: u64,
    /// First error of a request.
    status: Status,
    /// Whether an update follows.
    update_follows: bool,
}

/// A key-value target as the device of jobs.
#[derive(Debug)]
pub struct KeyValueDevice {
    kv: Kv,
    limits: KeyLimits,
    /// The accepted operations; a place is the tag of the operation's requests.
    operations: Slab<Option<RecordOperation>>,
    /// Requests that the target had no capacity for.
    deferred: VecDeque<KvRequest>,
    completed: VecDeque<Completion>,
    /// Keys of the scan that is being submitted.
    scan_keys: Vec<Key>,
}

impl KeyValueDevice {
    /// Creates the device of an opened target, whose requests were all reaped.
    pub fn new(kv: Kv) -> KeyValueDevice {
        let limits =
            KeyLimits { value_bytes_max: kv.layout().value_bytes(), queue_depth: kv.queue_depth() };
        KeyValueDevice {
            kv,
            limits,
            operations: Slab::new(),
            deferred: VecDeque::new(),
            completed: VecDeque::new(),
            scan_keys: Vec::new(),
        }
    }

    /// Returns the target.
    pub fn kv(&self) -> &Kv {
        &self.kv
    }

    /// Returns mutable access to the target, for its control functions. The caller must not submit
    /// requests.
    pub fn kv_mut(&mut self) -> &mut Kv {
        &mut self.kv
    }

    /// Returns the target. Operations that were not reaped are dropped.
    pub fn into_kv(self) -> Kv {
        self.kv
    }

    /// Accepts an operation that starts with `requests` requests.
    fn accept(&mut self, request: RecordRequest, requests: u32) -> u32 {
        self.operations.insert(Some(RecordOperation {
            request,
            requests,
            found: 0,
            status: Status::SUCCESS,
            update_follows: request.op == RecordOp::ReadModifyWrite,
        }))
    }

    /// Submits a scan: a get of each record from the first on that exists.
    fn submit_scan(&mut self, now: Nanos, request: RecordRequest) {
        let mut cursor = Cursor::starting_at(key(request.record));
        let mut keys = std::mem::take(&mut self.scan_keys);
        while keys.len() < request.count as usize
            && let Some((key, _)) = self.kv.next(&mut cursor)
        {
            keys.push(key);
        }
        if keys.is_empty() {
            let status = Status::KEY_NOT_FOUND;
            self.completed.push_back(Completion { tag: request.tag, status, result: 0 });
        } else {
            let place = self.accept(request, keys.len() as u32);
            for (i, key) in (0..).zip(keys.drain(..)) {
                let at = request.read_into.offset(i * request.read_stride);
                let into = ValueBuffer { at, bytes: request.value_bytes };
                self.submit_or_defer(now, KvRequest::get(key, into, u64::from(place)));
            }
        }
        self.scan_keys = keys;
    }

    fn submit_or_defer(&mut self, now: Nanos, request: KvRequest) {
        if !self.deferred.is_empty() {
            self.deferred.push_back(request);
        } else if let Err(full) = self.kv.submit(now, request) {
            self.deferred.push_back(full.0);
        }
    }

    /// Submits deferred requests in their order. Returns whether the target took any.
    fn submit_deferred(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(request) = self.deferred.pop_front() {
            if let Err(full) = self.kv.submit(now, request) {
                self.deferred.push_front(full.0);
                return moved;
            }
            moved = true;
        }
        moved
    }

    fn on_completion(&mut self, now: Nanos, done: KvCompletion) {
        let place = done.tag as u32;
        let Some(Some(operation)) = self.operations.get_mut(place) else {
            unreachable!("the target completed {done:?}, which is not outstanding");
        };
        let RecordRequest { op, record, value_bytes, write_from, tag, .. } = operation.request;
        operation.requests -= 1;
        match status_of(op, value_bytes, done.result) {
            Ok(found) => operation.found += found,
            Err(error) if operation.status.is_success() => operation.status = error,
            Err(_) => {}
        }
        if operation.requests > 0 {
            return;
        }
        if operation.update_follows && operation.status.is_success() {
            (operation.update_follows, operation.requests) = (false, 1);
            let value = ValueBuffer { at: write_from, bytes: value_bytes };
            return self.submit_or_defer(now, KvRequest::update(key(record), value, done.tag));
        }
        let (status, result) = (operation.status, operation.found);
        self.operations.remove(place);
        self.completed.push_back(Completion { tag, status, result });
    }

    /// Recounts the requests of the accepted operations.
    ///
    /// # Errors
    /// The broken invariant with its values.
    pub fn check_invariants(&self) -> Result<(), String> {
        let open = self.operations.iter().flatten();
        let requests: u64 = open.map(|operation| u64::from(operation.requests)).sum();
        let there = (self.kv.outstanding() + self.deferred.len()) as u64;
        if requests != there {
            return Err(format!("requests of operations are outstanding: {requests}, {there}"));
        }
        Ok(())
    }
}

/// Returns the key of a record.
fn key(record: u64) -> Key {
    let name = record_key(record);
    Key::new(name.as_bytes()).unwrap_or_else(|e| unreachable!("the key of record {record}: {e}"))
}

/// Returns the number of records that a request found, or the status of its error.
fn status_of(
    op: RecordOp,
    value_bytes: u64,
    result: Result<KvAnswer, KvError>,
) -> Result<u64, Status> {
    match result {
        Ok(KvAnswer::Value(bytes)) if bytes != value_bytes => Err(Status::INVALID_VALUE_SIZE),
        Ok(_) => Ok(u64::from(op != RecordOp::Sync)),
        // As a trim of sectors that are not mapped.
        Err(KvError::NotFound) if op == RecordOp::Delete => Ok(0),
        Err(error) => Err(match error {
            KvError::NotFound => Status::KEY_NOT_FOUND,
            KvError::KeyLength(_) => Status::INVALID_KEY_SIZE,
            KvError::ValueTooLarge { .. }
            | KvError::BufferTooSmall { .. }
            | KvError::BatchTooLarge { .. } => Status::INVALID_VALUE_SIZE,
            KvError::Full => Status::CAPACITY_EXCEEDED,
            KvError::ReadOnly => Status::WRITE_PROTECTED,
            KvError::Media { status } => status,
            KvError::ChecksumMismatch => Status::GUARD_CHECK,
            KvError::NotDurable => Status::WRITE_FAULT,
            KvError::NotRegistered | KvError::NoMemory => Status::DATA_TRANSFER_ERROR,
            KvError::Closed | KvError::Timeout => Status::ABORTED,
        }),
    }
}

impl Component for KeyValueDevice {
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = self.kv.poll(now);
        while let Some(done) = self.kv.reap() {
            self.on_completion(now, done);
            moved = true;
        }
        moved | self.submit_deferred(now)
    }

    /// Returns zero while a completion waits to be reaped; otherwise the deadline of the target.
    fn deadline(&self) -> Nanos {
        if self.completed.is_empty() { self.kv.deadline() } else { Nanos::ZERO }
    }
}

impl JobDevice for KeyValueDevice {
    #[inline]
    fn addressing(&self) -> Addressing {
        Addressing::Keys
    }

    fn limits(&self) -> JobLimits {
        JobLimits::Keys(self.limits)
    }

    fn memory(&self) -> &AddressSpace {
        self.kv.memory()
    }

    fn submit(&mut self, now: Nanos, operation: JobOperation) -> Result<(), QueueFull> {
        let JobOperation::Record(request) = operation else {
            unreachable!("{operation:?} on a key-value device");
        };
        let full = self.operations.in_use() + self.completed.len();
        if !self.deferred.is_empty() || full >= self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        if request.op == RecordOp::Scan {
            self.submit_scan(now, request);
            return Ok(());
        }
        let record = || key(request.record);
        let read = ValueBuffer { at: request.read_into, bytes: request.value_bytes };
        let written = ValueBuffer { at: request.write_from, bytes: request.value_bytes };
        let place = self.accept(request, 1);
        let tag = u64::from(place);
        let first = match request.op {
            RecordOp::Get | RecordOp::ReadModifyWrite => KvRequest::get(record(), read, tag),
            RecordOp::Put => KvRequest::put(record(), written, tag),
            RecordOp::Update => KvRequest::update(record(), written, tag),
            RecordOp::Delete => KvRequest::delete(record(), tag),
            RecordOp::Sync | RecordOp::Scan => KvRequest::sync(tag),
        };
        if self.kv.submit(now, first).is_err() {
            self.operations.remove(place);
            return Err(QueueFull);
        }
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.completed.pop_front()
    }
}
