//! [`DirectHost`]: a device without a block layer, a key-value target or parallel units, as a device
//! of jobs whose calls take processor time.

use block::{Completion, QueueFull, Step};
use kv::KvWork;
use machine::{doorbell, now, work};
use mem::AddressSpace;
use ocssd::ReportedChunk;
use stack::JobTarget;
use time::{Component, Nanos};
use workload::{Addressing, JobDevice, JobLimits, JobOperation, KeyValueDevice, ParallelUnits};

/// A device whose software charges its work.
pub(super) trait DirectDevice: JobDevice {
    /// How much the software has done.
    type Work: Copy + Send;

    /// Returns how much the software has done.
    fn work(&self) -> Self::Work;

    /// Charges what it has done from `before` to `after`.
    fn charge(before: Self::Work, after: Self::Work);

    /// Charges the driver's part of an operation that is a command.
    fn charge_submit() {}

    /// Tells the drive of such an operation.
    fn after_submit() {}

    /// Charges the driver's part of the completion of such an operation.
    fn charge_reap() {}

    /// Returns the device as the path has it.
    fn into_target(self: Box<Self>) -> JobTarget;
}

/// Each vector command takes the driver's part of a request.
impl DirectDevice for ParallelUnits {
    type Work = ();

    fn work(&self) {}

    fn charge((): (), (): ()) {}

    fn charge_submit() {
        work(Step::Command, 1);
    }

    fn after_submit() {
        doorbell();
    }

    fn charge_reap() {
        work(Step::Event, 1);
    }

    fn into_target(self: Box<Self>) -> JobTarget {
        JobTarget::Units(self)
    }
}

/// A key-value target issues commands for several operations, or several for one, when it is polled:
/// all of its work is charged by its counters.
impl DirectDevice for KeyValueDevice {
    type Work = KvWork;

    fn work(&self) -> KvWork {
        self.kv().work()
    }

    fn charge(before: KvWork, after: KvWork) {
        let charge = |step, before, after: u64| {
            work(step, u32::try_from(after - before).unwrap_or(u32::MAX));
        };
        charge(Step::Turn, before.turns, after.turns);
        charge(Step::Event, before.completions, after.completions);
        charge(Step::Find, before.lookups, after.lookups);
        charge(Step::Store, before.records_put, after.records_put);
        charge(Step::Relocate, before.records_relocated, after.records_relocated);
        charge(Step::DriveLine, before.drive_lines, after.drive_lines);
        charge(Step::RecordLine, before.lines, after.lines);
        charge(Step::Command, before.commands, after.commands);
    }

    fn into_target(self: Box<Self>) -> JobTarget {
        JobTarget::Keys(self)
    }
}

/// A device on a modeled machine. What its calls have done takes time before the doorbell.
#[derive(Debug)]
pub(super) struct DirectHost<D: DirectDevice> {
    device: Box<D>,
    /// The work that was charged.
    charged: D::Work,
}

impl<D: DirectDevice> DirectHost<D> {
    /// Returns the device of a path. Its work so far takes no time.
    pub(super) fn new(device: Box<D>) -> DirectHost<D> {
        let charged = device.work();
        DirectHost { device, charged }
    }

    /// Charges the work since the last call.
    fn charge(&mut self) {
        let before = std::mem::replace(&mut self.charged, self.device.work());
        D::charge(before, self.charged);
    }

    pub(super) fn into_target(self) -> JobTarget {
        self.device.into_target()
    }
}

impl<D: DirectDevice> Component for DirectHost<D> {
    fn poll(&mut self, _: Nanos) -> bool {
        let moved = self.device.poll(now());
        if moved {
            self.charge();
            doorbell();
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}

impl<D: DirectDevice> JobDevice for DirectHost<D> {
    fn addressing(&self) -> Addressing {
        self.device.addressing()
    }

    fn limits(&self) -> JobLimits {
        self.device.limits()
    }

    fn chunks(&self) -> &[Option<ReportedChunk>] {
        self.device.chunks()
    }

    fn memory(&self) -> &AddressSpace {
        self.device.memory()
    }

    fn submit(&mut self, _: Nanos, operation: JobOperation) -> Result<(), QueueFull> {
        work(Step::Decide, 1);
        work(Step::KernelStart, 1);
        D::charge_submit();
        let submitted = self.device.submit(now(), operation);
        self.charge();
        D::after_submit();
        submitted
    }

    fn reap(&mut self) -> Option<Completion> {
        let completion = self.device.reap()?;
        D::charge_reap();
        work(Step::KernelFinish, 1);
        work(Step::Complete, 1);
        Some(completion)
    }

    fn time_after(&self, _: Nanos) -> Nanos {
        now()
    }
}
