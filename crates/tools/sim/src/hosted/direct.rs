//! [`HostedUnits`]: parallel units as a device of jobs whose calls take processor time.

use block::{Completion, QueueFull, Step};
use machine::{doorbell, now, work};
use mem::AddressSpace;
use ocssd::ReportedChunk;
use time::{Component, Nanos};
use workload::{Addressing, JobDevice, JobLimits, JobOperation, ParallelUnits};

/// Parallel units on a modeled machine: each vector command takes the driver's part of a request,
/// before the doorbell.
#[derive(Debug)]
pub(super) struct HostedUnits {
    device: Box<ParallelUnits>,
}

impl HostedUnits {
    pub(super) fn new(device: Box<ParallelUnits>) -> HostedUnits {
        HostedUnits { device }
    }

    pub(super) fn into_device(self) -> Box<ParallelUnits> {
        self.device
    }
}

impl Component for HostedUnits {
    fn poll(&mut self, _: Nanos) -> bool {
        let moved = self.device.poll(now());
        if moved {
            doorbell();
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}

impl JobDevice for HostedUnits {
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
        JobDevice::memory(&*self.device)
    }

    fn submit(&mut self, _: Nanos, operation: JobOperation) -> Result<(), QueueFull> {
        work(Step::Decide, 1);
        work(Step::KernelStart, 1);
        work(Step::Command, 1);
        let submitted = self.device.submit(now(), operation);
        doorbell();
        submitted
    }

    fn reap(&mut self) -> Option<Completion> {
        let completion = self.device.reap()?;
        work(Step::Event, 1);
        work(Step::KernelFinish, 1);
        work(Step::Complete, 1);
        Some(completion)
    }

    fn time_after(&self, _: Nanos) -> Nanos {
        now()
    }
}
