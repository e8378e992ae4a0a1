//! [`DirectHarness`]: a drive that manages its flash, and applications with devices on it, in
//! virtual time.
//!
//! One loop polls all of them and the drive until none makes progress, and then advances the time.
//! The host takes no time. Equal scenarios, applications and seeds give equal results
//! (ARCHITECTURE.md, R3). A failed request is an error and never a result.

use std::path::Path;
use std::sync::{Arc, Mutex};

use block::{BlockDevice, Payload, Raw, Request};
use driver::{ControllerHandle, NvmeQueue};
use rng::Rng;
use scenario::Scenario;
use stack::{AssembledDrive, HostHandles, Stack, precondition};
use time::{Component, Nanos, VirtualRunner};
use workload::Histogram;

use super::super::{BenchError, MeasuredInterval};
use super::setup;

/// A drive in virtual time.
#[derive(Debug)]
pub(super) struct DirectHarness {
    drive: ::controller::Controller,
    controller: Arc<Mutex<ControllerHandle>>,
    runner: VirtualRunner,
}

/// Load of an application: random requests of one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    /// Whether it writes; otherwise it reads.
    pub(super) writes: bool,
    /// Number of outstanding requests.
    pub(super) depth: u64,
}

/// An application: a closed loop over a device.
pub(super) struct Application {
    device: Box<dyn BlockDevice>,
    job: Job,
    rng: Rng,
    free: Vec<u64>,
    sent: Vec<Nanos>,
    /// Latencies of the requests that completed in the measured interval.
    pub(super) latency: Histogram,
}

impl Application {
    pub(super) fn new(device: impl BlockDevice + 'static, job: Job, seed: u64) -> Application {
        Application {
            device: Box::new(device),
            job,
            rng: Rng::new(seed),
            free: (0..job.depth).collect(),
            sent: vec![Nanos::ZERO; job.depth as usize],
            latency: Histogram::new(),
        }
    }

    fn is_idle(&self) -> bool {
        self.free.len() as u64 == self.job.depth
    }

    /// Submits requests until the end of the interval, polls and reaps.
    fn step(&mut self, now: Nanos, measured: (Nanos, Nanos)) -> Result<bool, BenchError> {
        let mut moved = false;
        let sectors = self.device.limits().sectors;
        while now < measured.1
            && let Some(slot) = self.free.pop()
        {
            let lba = self.rng.below(sectors);
            let request = match self.job.writes {
                true => Request::write(lba, 1, Payload::BitBucket, slot),
                false => Request::read(lba, 1, Payload::BitBucket, slot),
            };
            if self.device.submit(now, request).is_err() {
                self.free.push(slot);
                break;
            }
            self.sent[slot as usize] = now;
            moved = true;
        }
        moved |= self.device.poll(now);
        while let Some(done) = self.device.reap() {
            if !done.status.is_success() {
                return Err(BenchError::Status(done.status));
            }
            if now >= measured.0 && now < measured.1 {
                self.latency.record(now.since(self.sent[done.tag as usize]));
            }
            self.free.push(done.tag);
            moved = true;
        }
        Ok(moved)
    }
}

impl DirectHarness {
    /// Powers on the drive of a scenario's text and preconditions it.
    ///
    /// # Errors
    /// If the scenario is invalid, its drive does not manage its flash, or it cannot be built.
    pub(super) fn new(text: &str) -> Result<DirectHarness, BenchError> {
        let scenario = Scenario::parse(Path::new("bench"), text).map_err(setup)?;
        let stack = Stack::build(&scenario.drives[0], None).map_err(setup)?;
        let mut runner = VirtualRunner::new();
        let stack = precondition(stack, &scenario.precondition, &mut runner, 1, &mut |_| {});
        let hands = stack.and_then(|stack| stack.into_assembled(runner.now())).map_err(setup)?;
        let AssembledDrive { drive, host: HostHandles::Controller(controller), .. } = hands else {
            return Err(setup("the drive does not manage its flash"));
        };
        Ok(DirectHarness { drive, controller: Arc::new(Mutex::new(*controller)), runner })
    }

    /// Returns a hardware queue for `depth` outstanding requests.
    ///
    /// # Errors
    /// If the drive grants no queue.
    pub(super) fn queue(&mut self, depth: u16) -> Result<Raw<NvmeQueue>, BenchError> {
        let now = self.runner.now();
        self.drive.set_zero_latency(true);
        let mut progress = || {
            self.drive.poll(now);
        };
        let queue = NvmeQueue::open(&self.controller, depth + 1, None, &mut progress);
        self.drive.set_zero_latency(false);
        let queue = queue?;
        let limits = queue.limits();
        Ok(Raw::new(queue, limits))
    }

    /// Runs applications, measures them in `interval`, and then waits for outstanding requests.
    ///
    /// # Errors
    /// If a request fails or nothing can make progress.
    pub(super) fn measure(
        &mut self,
        applications: &mut [Application],
        interval: MeasuredInterval,
    ) -> Result<(), BenchError> {
        let begin = self.runner.now() + interval.ramp;
        let measured = (begin, begin + interval.time);
        loop {
            let now = self.runner.now();
            loop {
                let mut moved = false;
                for application in &mut *applications {
                    moved |= application.step(now, measured)?;
                }
                if !(self.drive.poll(now) | moved) {
                    break;
                }
            }
            if now >= measured.1 && applications.iter().all(Application::is_idle) {
                return Ok(());
            }
            let theirs = applications.iter().map(|a| a.device.deadline()).min();
            let next = self.drive.deadline().min(theirs.unwrap_or(Nanos::MAX));
            if next == Nanos::MAX {
                return Err(BenchError::Thread("virtual time"));
            }
            // A deadline in the past is due as soon as time advances.
            self.runner.advance_to(next.max(now + Nanos(1)));
        }
    }
}
