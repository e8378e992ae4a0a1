//! [`HostedQueue`]: a core's queue of a path, as a device of jobs whose calls take processor time.

use std::sync::Arc;

use block::{BlockDevice, Completion, Group, Op, QueueFull, Request, Step};
use machine::{doorbell, now, work};
use mem::AddressSpace;
use stack::{CoreQueues, target_layers};
use time::{Component, Nanos};
use workload::{Addressing, JobDevice, JobLimits, JobOperation, job_index_of_tag};

use super::context::TakenEvents;
use super::port::ThreadPort;
use super::program::{Program, ProgramQueue};

/// A queue on a modeled machine.
///
/// The block layer charges its own steps. For the layers that do not, this charges what their
/// statistics show: a driver's part of each request, and a target's look-ups, admitted sectors and
/// moved sectors. It does so before the doorbell.
#[derive(Debug)]
pub(super) struct HostedQueue {
    device: CoreQueues,
    /// Number of sectors that the target's collection has moved; `None` without a target.
    moved_sectors: Option<u64>,
    port: Arc<ThreadPort>,
    /// Completions that an interrupt context has taken from the hardware queue.
    taken: Option<Arc<TakenEvents>>,
    /// Group of each job of the path; empty if those of the queue have the same.
    groups: Vec<Group>,
    /// The program of the queue's process; `None` if it has jobs.
    program: Option<Box<Program>>,
}

impl HostedQueue {
    pub(super) fn new(mut device: CoreQueues, port: Arc<ThreadPort>) -> HostedQueue {
        let ftl = target_layers::ftl_snapshot(&mut device);
        let moved_sectors = ftl.map(|(stats, free_lines)| {
            port.publish_ftl(stats, free_lines);
            stats.gc_relocations
        });
        HostedQueue { device, moved_sectors, port, taken: None, groups: Vec::new(), program: None }
    }

    /// Returns the queue with the program that issues its I/Os.
    pub(super) fn with_program(self, program: Program) -> HostedQueue {
        HostedQueue { program: Some(Box::new(program)), ..self }
    }

    /// Returns the queue with an interrupt context that takes completions for it.
    pub(super) fn with_taken(self, taken: Option<Arc<TakenEvents>>) -> HostedQueue {
        HostedQueue { taken, ..self }
    }

    /// Sets the group of each job of the path. Those of the queue may have one.
    pub(super) fn set_groups(&mut self, groups: &[Group], mut jobs: impl Iterator<Item = usize>) {
        let group_of = |job: usize| groups.get(job).copied().unwrap_or_default();
        let Some(first) = jobs.next().map(group_of) else { return };
        self.device.block_layer_queues().for_each(|queue| queue.set_group(first));
        if jobs.any(|job| group_of(job) != first) {
            self.groups = groups.to_vec();
        }
    }

    pub(super) fn into_device(self) -> CoreQueues {
        self.device
    }

    /// Charges the work of a target for a request.
    fn charge_target(&self, request: &Request) {
        if self.moved_sectors.is_none() {
            return;
        }
        match request.op {
            Op::Read => work(Step::Lookup, request.sectors),
            Op::Write => work(Step::Admit, request.sectors),
            _ => {}
        }
    }

    /// Charges what the target has moved since the last call.
    fn charge_moves(&mut self) {
        let Some(before) = self.moved_sectors else { return };
        let Some((stats, free_lines)) = target_layers::ftl_snapshot(&mut self.device) else {
            return;
        };
        self.port.publish_ftl(stats, free_lines);
        let moved = stats.gc_relocations.saturating_sub(before);
        self.moved_sectors = Some(stats.gc_relocations);
        work(Step::Move, u32::try_from(moved).unwrap_or(u32::MAX));
    }

    /// Submits an I/O.
    fn issue(&mut self, request: Request) -> Result<(), QueueFull> {
        work(Step::Decide, 1);
        work(Step::KernelStart, 1);
        self.charge_target(&request);
        work(Step::Command, 1);
        if let Some(group) = self.groups.get(job_index_of_tag(request.tag)) {
            self.device.block_layer_queues().for_each(|queue| queue.set_group(*group));
        }
        self.port.begin_call(now());
        let submitted = BlockDevice::submit(&mut self.device, now(), request);
        doorbell();
        submitted
    }

    /// Submits an I/O of the program, and lets the program go on. A flush is a part of the write before
    /// it.
    fn issue_of(&mut self, mut program: Box<Program>, request: Request) -> Result<(), QueueFull> {
        let is_flush = request.op == Op::Flush;
        if !is_flush {
            program.before_submit();
        }
        let submitted = self.issue(request);
        match submitted {
            Ok(()) if is_flush => program.flushes(),
            Ok(()) => program.after_submit(self),
            Err(_) => {}
        }
        self.program = Some(program);
        submitted
    }

    /// Returns a completion of the device.
    fn fetch(&mut self) -> Option<Completion> {
        let completion = BlockDevice::reap(&mut self.device)?;
        if !self.taken.as_ref().is_some_and(|taken| taken.remove()) {
            work(Step::Event, 1);
        }
        work(Step::KernelFinish, 1);
        work(Step::Complete, 1);
        Some(completion)
    }
}

impl ProgramQueue for HostedQueue {
    fn poll_queue(&mut self) -> bool {
        self.poll(now())
    }

    fn reap_queue(&mut self) -> Option<Completion> {
        self.fetch()
    }

    fn queue_deadline(&self) -> Nanos {
        self.deadline()
    }
}

impl Component for HostedQueue {
    fn poll(&mut self, _: Nanos) -> bool {
        self.port.begin_call(now());
        let moved = self.device.poll(now());
        if moved {
            self.charge_moves();
            doorbell();
        }
        self.port.end_calls(&mut self.device);
        self.port.apply_changes(&mut self.device, now()) || moved
    }

    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}

impl JobDevice for HostedQueue {
    fn addressing(&self) -> Addressing {
        Addressing::Blocks
    }

    fn limits(&self) -> JobLimits {
        JobLimits::Blocks(*BlockDevice::limits(&self.device))
    }

    fn memory(&self) -> &AddressSpace {
        BlockDevice::memory(&self.device)
    }

    fn submit(&mut self, _: Nanos, operation: JobOperation) -> Result<(), QueueFull> {
        let JobOperation::Block(request) = operation else {
            unreachable!("{operation:?} on a block device")
        };
        match self.program.take() {
            None => self.issue(request),
            Some(program) => self.issue_of(program, request),
        }
    }

    fn reap(&mut self) -> Option<Completion> {
        if let Some(completion) = self.program.as_mut().and_then(|program| program.arrived()) {
            return Some(completion);
        }
        let completion = self.fetch()?;
        self.program.iter_mut().for_each(|program| program.reaped());
        Some(completion)
    }

    fn time_after(&self, _: Nanos) -> Nanos {
        now()
    }
}
