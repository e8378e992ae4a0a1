//! The AHCI controller as a device of a modeled machine, and its queues and interrupt line, whose
//! calls take processor time.

use std::sync::{Arc, Mutex, PoisonError};

use block::Step;
use block::completion::InterruptLine;
use controller::AhciController;
use driver::{
    AhciHost, AhciPort, BindError, CompletionEvent, Features, HardwareQueue, Limits,
    LowLevelDriver, QueueState, Request, Tag, TagError, TagSet,
};
use event::Waker;
use machine::{Device, work};
use mem::AddressSpace;
use time::{Component, Nanos};

/// The controller, which takes no processor time.
#[derive(Debug)]
pub(super) struct HostedController {
    controller: Arc<Mutex<AhciController>>,
    /// Number of polls that made progress.
    progress: u64,
    /// Time from which on it does nothing any more.
    hangs_at: Nanos,
}

impl HostedController {
    pub(super) fn new(controller: AhciController, hangs_at: Nanos) -> HostedController {
        HostedController { controller: Arc::new(Mutex::new(controller)), progress: 0, hangs_at }
    }

    fn with<R>(&self, use_it: impl FnOnce(&mut AhciController) -> R) -> R {
        use_it(&mut self.controller.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Device for HostedController {
    fn poll(&mut self, now: Nanos) -> bool {
        if now >= self.hangs_at {
            return false;
        }
        let moved = self.with(|controller| controller.poll(now));
        self.progress += u64::from(moved);
        moved
    }

    fn deadline(&self) -> Nanos {
        let next = self.with(|controller| controller.deadline());
        if next < self.hangs_at { next } else { Nanos::MAX }
    }

    fn posted(&self) -> u64 {
        self.progress
    }
}

/// The ports of a controller.
#[derive(Debug)]
pub(super) struct HostedPorts(pub(super) AhciHost);

impl LowLevelDriver for HostedPorts {
    type Queue = HostedPort;

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn features(&self) -> Features {
        self.0.features()
    }

    fn queues(&self) -> u16 {
        self.0.queues()
    }

    fn memory(&self) -> &AddressSpace {
        self.0.memory()
    }

    fn take_queue(&mut self, index: u16) -> Option<HostedPort> {
        self.0.take_queue(index).map(HostedPort)
    }
}

/// A drive's hardware queue. Reads of registers are those that the driver counts; a register that is
/// written is not waited for.
#[derive(Debug)]
pub(super) struct HostedPort(AhciPort);

impl HostedPort {
    /// Calls the queue, and takes the time of the registers that it reads.
    fn charged<R>(&mut self, call: impl FnOnce(&mut AhciPort) -> R) -> R {
        let before = self.0.stats().register_reads;
        let result = call(&mut self.0);
        work(Step::ReadRegister, (self.0.stats().register_reads - before) as u32);
        result
    }
}

impl HardwareQueue for HostedPort {
    fn tags(&self) -> &TagSet {
        self.0.tags()
    }

    fn tags_mut(&mut self) -> &mut TagSet {
        self.0.tags_mut()
    }

    fn memory(&self) -> &AddressSpace {
        self.0.memory()
    }

    fn bind_tag_cmd(&mut self, tag: Tag, command: &Request, now: Nanos) -> Result<(), BindError> {
        work(Step::Command, 1);
        self.0.bind_tag_cmd(tag, command, now)
    }

    fn issue_tags(&mut self) -> bool {
        let issued = self.0.issue_tags();
        if issued {
            machine::doorbell();
        }
        issued
    }

    fn check_event(&mut self) -> bool {
        self.charged(AhciPort::check_event)
    }

    fn fetch_event(&mut self) -> Option<CompletionEvent> {
        let event = self.charged(AhciPort::fetch_event);
        work(Step::Event, event.is_some().into());
        event
    }

    fn abort_tag(&mut self, tag: Tag, now: Nanos) -> Result<(), TagError> {
        self.0.abort_tag(tag, now)
    }

    fn reset(&mut self, now: Nanos) {
        self.0.reset(now);
        machine::doorbell();
    }

    fn state(&self) -> QueueState {
        self.0.state()
    }

    fn poll(&mut self, now: Nanos) -> bool {
        self.charged(|port| port.poll(now))
    }

    fn deadline(&self) -> Nanos {
        self.0.deadline()
    }

    fn set_waker(&mut self, waker: Waker) {
        self.0.set_waker(waker);
    }
}

/// The controller's interrupt line.
#[derive(Debug)]
pub(super) struct HostedLine(pub(super) Arc<dyn InterruptLine>);

impl InterruptLine for HostedLine {
    fn connect(&self, waker: Waker) {
        self.0.connect(waker);
    }

    fn pending(&self) -> u64 {
        work(Step::ReadRegister, 1);
        self.0.pending()
    }

    /// The controller's IS is read, and PxIS of each port that has an interrupt.
    fn acknowledge(&self) -> u64 {
        let members = self.0.acknowledge();
        work(Step::ReadRegister, 1 + members.count_ones());
        machine::doorbell();
        members
    }

    fn mask(&self) {
        self.0.mask();
    }

    fn unmask(&self) {
        self.0.unmask();
        machine::doorbell();
    }
}
