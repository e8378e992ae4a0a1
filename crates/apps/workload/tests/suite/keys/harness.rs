//! A key-value target on a small open-channel drive, and a device in front of it that checks that
//! each operation completes once and injects faults.

use std::collections::{BTreeSet, VecDeque};

use block::{Completion, QueueFull};
use controller::Controller;
use kv::{Kv, KvConfig};
use mem::AddressSpace;
use nvme::Status;
use sluice_workload::{
    Addressing, IoCpuCosts, JobDevice, JobLimits, JobOperation, JobRunner, KeyValueDevice,
    RecordOp, RecordRequest, RunError, RunResult,
};
use testkit::managed_drive::{ManagedDrive, config, geometry};
use time::{Component, Nanos, VirtualRunner};

use crate::common::jobs;

/// Fault of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StoreFault {
    #[default]
    None,
    /// Puts and updates of this record after the first are acknowledged and lost. A
    /// read-modify-write reads.
    LoseUpdates(u64),
    /// Gets of a record return the value of another one.
    Misdirect { from: u64, to: u64 },
    /// Every get fails with this status.
    FailGets(Status),
}

/// A device that records the operations on it.
pub(super) struct Recorded<D> {
    pub(super) inner: D,
    fault: StoreFault,
    written: BTreeSet<u64>,
    lost: VecDeque<Completion>,
    outstanding: BTreeSet<u64>,
    pub(super) requests: Vec<RecordRequest>,
    pub(super) outstanding_max: usize,
}

impl<D: JobDevice> Recorded<D> {
    pub(super) fn new(inner: D, fault: StoreFault) -> Recorded<D> {
        Recorded {
            inner,
            fault,
            written: BTreeSet::new(),
            lost: VecDeque::new(),
            outstanding: BTreeSet::new(),
            requests: Vec::new(),
            outstanding_max: 0,
        }
    }
}

impl<D: Component> Component for Recorded<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        self.inner.poll(now)
    }
    fn deadline(&self) -> Nanos {
        if self.lost.is_empty() { self.inner.deadline() } else { Nanos::ZERO }
    }
}

impl<D: JobDevice> JobDevice for Recorded<D> {
    fn addressing(&self) -> Addressing {
        self.inner.addressing()
    }
    fn limits(&self) -> JobLimits {
        self.inner.limits()
    }
    fn memory(&self) -> &AddressSpace {
        self.inner.memory()
    }
    fn submit(&mut self, now: Nanos, operation: JobOperation) -> Result<(), QueueFull> {
        let JobOperation::Record(mut request) = operation else { panic!("{operation:?}") };
        let (tag, record) = (request.tag, request.record);
        let writes =
            matches!(request.op, RecordOp::Put | RecordOp::Update | RecordOp::ReadModifyWrite);
        let again = writes && self.written.contains(&record);
        match (self.fault, request.op) {
            (StoreFault::LoseUpdates(bad), RecordOp::ReadModifyWrite) if bad == record => {
                request.op = RecordOp::Get;
                self.inner.submit(now, JobOperation::Record(request))?;
            }
            (StoreFault::LoseUpdates(bad), _) if again && bad == record => {
                self.lost.push_back(Completion { tag, status: Status::SUCCESS, result: 1 });
            }
            (StoreFault::FailGets(status), RecordOp::Get) => {
                self.lost.push_back(Completion { tag, status, result: 0 });
            }
            (StoreFault::Misdirect { from, to }, RecordOp::Get) if record == from => {
                request.record = to;
                self.inner.submit(now, JobOperation::Record(request))?;
            }
            _ => self.inner.submit(now, operation)?,
        }
        if writes {
            self.written.insert(record);
        }
        assert!(self.outstanding.insert(tag), "tag {tag:#x} is outstanding once");
        self.outstanding_max = self.outstanding_max.max(self.outstanding.len());
        self.requests.push(request);
        Ok(())
    }
    fn reap(&mut self) -> Option<Completion> {
        let completion = self.lost.pop_front().or_else(|| self.inner.reap())?;
        assert!(self.outstanding.remove(&completion.tag), "{completion:?} was outstanding");
        Some(completion)
    }
}

/// Configuration of the target: few outstanding requests, so that scans exceed them.
pub(super) fn small_kv() -> KvConfig {
    KvConfig { queue_depth: 40, ..KvConfig::default() }
}

/// Returns a drive of 8 parallel units with chunks of 32 KiB, and an empty target on it.
pub(super) fn open(kv: KvConfig) -> (ManagedDrive, KeyValueDevice) {
    open_on(geometry(4, 2, 32, 16), kv)
}

pub(super) fn open_on(
    geometry: media::NandGeometry,
    kv: KvConfig,
) -> (ManagedDrive, KeyValueDevice) {
    let drive = ManagedDrive::new(config(geometry, 2, None));
    let queue = drive.queue(64);
    let port = queue.port().clone();
    let queue = queue.into_queue();
    let progress = &mut || drive.progress();
    let kv = Kv::open(&drive.info, &drive.report, &|_| true, queue, port, kv, progress, true);
    let device = KeyValueDevice::new(kv.expect("a target"));
    (drive, device)
}

/// Runs the jobs to their end in virtual time. Returns the results, the device, and the number of
/// keys in the end.
pub(super) fn run_on<D: JobDevice>(
    drive: &mut Controller,
    device: D,
    text: &str,
    seed: u64,
) -> Result<(JobRunner<D>, Nanos), RunError> {
    let costs = IoCpuCosts { submit: Nanos(300), complete: Nanos(200) };
    let mut runner = JobRunner::new(device, jobs(text), costs, seed)?;
    let mut time = VirtualRunner::new();
    while !runner.is_done() {
        let moved = time.step(&mut [&mut runner, drive], Nanos::MAX);
        assert!(moved || runner.is_done(), "the run makes progress at {}", time.now());
    }
    Ok((runner, time.now()))
}

/// Measurements of a run, and the final state of its device.
pub(super) struct Run {
    pub(super) result: RunResult,
    pub(super) requests: Vec<RecordRequest>,
    pub(super) keys: u64,
}

/// Runs the jobs on an empty store with a fault.
pub(super) fn try_run(text: &str, fault: StoreFault, seed: u64) -> Result<Run, RunError> {
    let (drive, device) = open(small_kv());
    let device = Recorded::new(device, fault);
    let mut drive = drive.drive.into_inner();
    let (mut runner, _) = run_on(&mut drive, device, text, seed)?;
    let device = runner.device_mut();
    assert!(device.outstanding.is_empty(), "each operation was reaped: {:?}", device.outstanding);
    device.inner.check_invariants().unwrap();
    assert!(device.outstanding_max <= 40, "{}", device.outstanding_max);
    let requests = std::mem::take(&mut device.requests);
    let keys = device.inner.kv().len();
    Ok(Run { result: runner.finish()?, requests, keys })
}

/// Runs the jobs on an empty store.
pub(super) fn run(text: &str) -> Run {
    try_run(text, StoreFault::None, 1).unwrap()
}
