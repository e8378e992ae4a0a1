//! [`Client`]: executes YCSB's operations on a key-value target, with a fixed number in flight.
//!
//! The client is a component (ARCHITECTURE.md, R2). The latency of an operation is from its
//! submission to the completion of all its requests. A scan is one read per record, issued
//! together. A read-modify-write is a read followed by an update.
//!
//! A job of `workload` measures the same to the nanosecond while the target has capacity (a test
//! compares both). The bench keeps this client for comparable results: a job's latency includes the
//! wait for capacity, which scans at a depth above ten exhaust, and in real time this client reads
//! the clock for each completion.

use std::collections::BTreeMap;
use std::sync::Arc;

use event::RealClock;
use kv::{Cursor, Key, Kv, KvAnswer, KvError, KvRequest, ValueBuffer};
use mem::{Iova, PAGE_BYTES, SharedRegion};
use time::{Component, Nanos};
use workload::Histogram;
use workload::ycsb::{OperationKind, Ycsb, YcsbOperation, record_key};

use super::harness::{VirtualHost, setup};
use crate::BenchError;

/// Task of the client.
#[derive(Debug)]
pub enum Task {
    /// Inserts this many records: the load phase.
    Load(u64),
    /// Executes this many operations.
    Run(Box<Ycsb>, u64),
    /// Makes all records durable; counts as an operation.
    Sync,
}

#[derive(Clone, Copy, Debug)]
struct OperationSlot {
    /// `None` for a sync.
    operation: Option<YcsbOperation>,
    started: Nanos,
    /// Number of requests that have not completed.
    requests_remaining: u32,
    /// Whether an update follows.
    has_update_pending: bool,
}

/// Client of the target.
#[derive(Debug)]
pub struct Client {
    kv: Kv,
    task: Task,
    issued: u64,
    completed: u64,
    slots: Vec<Option<OperationSlot>>,
    /// Requests that the target had no capacity for.
    deferred: Vec<KvRequest>,
    values: ValueMemory,
    recorder: Recorder,
    /// Clock for latencies in real time, because one poll processes many requests.
    clock: Option<RealClock>,
    /// Whether an operation can be issued without waiting for the target.
    can_begin: bool,
}

/// The memory of the values: one buffer per operation in flight.
#[derive(Debug)]
struct ValueMemory {
    /// Keeps the memory registered.
    _region: Arc<SharedRegion>,
    at: Iova,
    /// Bytes per value.
    value_bytes: u64,
    /// Bytes per buffer, in whole pages.
    buffer_bytes: u64,
}

impl ValueMemory {
    /// Allocates and registers buffers with different data that is not zero.
    fn new(kv: &Kv, depth: u32, value_bytes: u64) -> Result<ValueMemory, BenchError> {
        let buffer_bytes = value_bytes.max(1).next_multiple_of(PAGE_BYTES as u64);
        let bytes = buffer_bytes * u64::from(depth);
        let bytes = usize::try_from(bytes).map_err(|e| setup(format!("buffers: {e}")))?;
        let region = SharedRegion::anonymous(bytes)?;
        for (i, at) in (0..).zip((0..bytes).step_by(8)) {
            region.write(at, &u64::to_le_bytes(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(i)));
        }
        let at = kv.memory().register(&region)?;
        Ok(ValueMemory { _region: region, at, value_bytes, buffer_bytes })
    }

    fn buffer(&self, slot: usize) -> ValueBuffer {
        let at = self.at.offset(slot as u64 * self.buffer_bytes);
        ValueBuffer { at, bytes: self.value_bytes }
    }
}

/// The measurements of a task while it runs.
#[derive(Debug, Default)]
struct Recorder {
    histograms: BTreeMap<OperationKind, Histogram>,
    started: Option<Nanos>,
    last_completion: Nanos,
    /// Number of failed requests, and the first error.
    failed: u64,
    error: Option<KvError>,
}

/// Measurements of a client.
#[derive(Debug)]
pub struct Measured {
    /// Number of operations.
    pub operations: u64,
    /// From the first issue to the last completion.
    pub time: Nanos,
    /// Latencies by kind.
    pub histograms: BTreeMap<OperationKind, Histogram>,
    /// Number of failed requests.
    pub failed: u64,
    /// The first error.
    pub error: Option<KvError>,
}

impl Client {
    /// Returns a client with `depth` operations in flight and values of `value_bytes`.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(kv: Kv, depth: u32, value_bytes: u64) -> Result<Client, BenchError> {
        Ok(Client {
            task: Task::Load(0),
            issued: 0,
            completed: 0,
            slots: vec![None; depth as usize],
            deferred: Vec::new(),
            values: ValueMemory::new(&kv, depth, value_bytes)?,
            recorder: Recorder::default(),
            clock: None,
            can_begin: false,
            kv,
        })
    }

    /// Starts a task; the previous one must be done.
    pub fn begin(&mut self, task: Task) {
        (self.task, self.issued, self.completed) = (task, 0, 0);
        let last_completion = self.recorder.last_completion;
        self.recorder = Recorder { last_completion, ..Recorder::default() };
        self.can_begin = true;
    }

    /// Switches to real time.
    pub fn run_in_real_time(&mut self, clock: RealClock) {
        self.clock = Some(clock);
    }

    fn current_time(&self, now: Nanos) -> Nanos {
        self.clock.map_or(now, |clock| clock.now())
    }

    /// Returns the target.
    pub fn kv(&self) -> &Kv {
        &self.kv
    }

    /// Returns the measurements of the task.
    pub fn take_measured(&mut self) -> Measured {
        let measured = &mut self.recorder;
        Measured {
            operations: self.completed,
            time: measured
                .last_completion
                .since(measured.started.unwrap_or(measured.last_completion)),
            histograms: std::mem::take(&mut measured.histograms),
            failed: measured.failed,
            error: measured.error,
        }
    }

    fn total(&self) -> u64 {
        match &self.task {
            Task::Load(records) => *records,
            Task::Run(_, operations) => *operations,
            Task::Sync => 1,
        }
    }

    fn key(record: u64) -> Option<Key> {
        Key::new(record_key(record).as_bytes()).ok()
    }

    /// Issues operations up to the maximum number in flight.
    fn fill(&mut self, now: Nanos) {
        self.can_begin = false;
        while self.deferred.is_empty() && self.issued < self.total() {
            let Some(slot) = self.slots.iter().position(Option::is_none) else { return };
            let operation = match &mut self.task {
                Task::Load(_) => Some(YcsbOperation {
                    kind: OperationKind::Insert,
                    record: self.issued,
                    count: 1,
                }),
                Task::Run(ycsb, _) => Some(ycsb.next_operation()),
                Task::Sync => None,
            };
            self.issued += 1;
            let present = self.current_time(now);
            self.recorder.started.get_or_insert(present);
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

    fn start(&mut self, now: Nanos, slot: usize, operation: YcsbOperation) {
        let (room, tag) = (self.values.buffer(slot), slot as u64);
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
            self.recorder.failed += 1;
            self.recorder.error = self.recorder.error.or(Some(error));
        }
        let (slot, room) = (tag as usize, self.values.buffer(tag as usize));
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
        self.recorder.last_completion = now;
        self.can_begin = true;
        let Some(operation) = operation else { return };
        if let (Task::Run(ycsb, _), OperationKind::Insert) = (&mut self.task, operation.kind) {
            ycsb.on_inserted(operation.record);
        }
        self.recorder.histograms.entry(operation.kind).or_default().record(now.since(since));
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

#[cfg(test)]
mod tests {
    use controller::Controller;
    use kv::KvConfig;
    use rng::Rng;
    use scenario::Scenario;
    use time::VirtualRunner;
    use workload::ycsb::YcsbWorkload;
    use workload::{Direction, IoCpuCosts, JobRunner, KeyValueDevice, parse_jobs};

    use super::*;
    use crate::kv::KvHarness;
    use crate::kv::harness::run_to_end;
    use crate::kv::puts::DRIVE;

    // guarantee: A-17

    const RECORDS: u64 = 3000;
    /// So many that all requests of eight scans fit into the target.
    const DEPTH: u32 = 8;

    impl VirtualHost for JobRunner<KeyValueDevice> {
        fn is_done(&self) -> bool {
            JobRunner::is_done(self)
        }
    }

    /// Opens a target with zero latency until it is loaded.
    fn harness() -> KvHarness {
        let own = Scenario::parse(std::path::Path::new("bench"), DRIVE).unwrap();
        let mut harness = KvHarness::build(&own.drives[0], KvConfig::default()).unwrap();
        harness.drive.set_zero_latency(true);
        harness
    }

    fn run_job(
        device: KeyValueDevice,
        drive: &mut Controller,
        job: &str,
    ) -> JobRunner<KeyValueDevice> {
        let text = format!("[j]\nrecordcount={RECORDS}\niodepth={DEPTH}\nbs=1000\n{job}");
        let jobs = parse_jobs(std::path::Path::new("j.fio"), &text).unwrap().jobs;
        let mut job = JobRunner::new(device, jobs, IoCpuCosts::default(), 7).unwrap();
        assert!(run_to_end(&mut VirtualRunner::new(), &mut job, drive));
        job
    }

    #[test]
    fn the_job_runner_measures_what_this_client_measures() {
        for workload in YcsbWorkload::ALL {
            let KvHarness { mut drive, kv, controller, .. } = harness();
            let mut client = Client::new(kv, DEPTH, 1000).unwrap();
            let mut time = VirtualRunner::new();
            for task in [Task::Load(RECORDS), Task::Sync] {
                client.begin(task);
                assert!(run_to_end(&mut time, &mut client, &mut drive));
            }
            drive.set_zero_latency(false);
            // The generator of the first job of a run.
            let rng = Rng::new(7).fork(0).fork(1);
            let ycsb = Ycsb::new(workload.mix(), RECORDS, rng).unwrap();
            client.begin(Task::Run(Box::new(ycsb), RECORDS));
            assert!(run_to_end(&mut time, &mut client, &mut drive));
            let measured = client.take_measured();
            drop(controller);

            let KvHarness { mut drive, kv, controller, .. } = harness();
            let load = run_job(KeyValueDevice::new(kv), &mut drive, "ycsb=load\nend_fsync=1");
            let (device, loaded) = load.finish_with_device();
            assert_eq!(loaded.unwrap().jobs[0].requests.failed, 0);
            drive.set_zero_latency(false);
            let text = format!("ycsb={workload}\noperationcount={RECORDS}");
            let result = run_job(device, &mut drive, &text).finish().unwrap();
            drop(controller);
            let job = &result.jobs[0];
            assert_eq!(job.ended.since(job.started), measured.time, "{workload}");
            for (kind, histogram) in &measured.histograms {
                let reads = matches!(kind, OperationKind::Read | OperationKind::Scan);
                let direction = if reads { Direction::Read } else { Direction::Write };
                let latencies = &job.direction(direction).lat;
                assert_eq!(latencies.count(), histogram.count(), "{workload} {}", kind.name());
                assert_eq!(latencies.max(), histogram.max(), "{workload} {}", kind.name());
                let means = (latencies.mean(), histogram.mean());
                assert!((means.0 - means.1).abs() < 1e-6, "{workload} {}: {means:?}", kind.name());
            }
        }
    }
}
