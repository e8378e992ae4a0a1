//! [`RegisterFile`]: the registers of a controller, by which a host initializes, resets and shuts
//! down the drive ([NVMe1.4 §3.1, §7.3, §7.6]).
//!
//! The registers are memory that host and drive share, as are doorbells. The drive reads CC at each
//! poll, and makes its answer visible in CSTS. AQA, ASQ and ACQ are read once, when CC.EN becomes 1.
//! The drive corrects registers that only it may write.
//!
//! Invariants: while CSTS.RDY is 0, the host has no queue and no command in flight, and the drive
//! accesses none of its memory. A host that is not enabled executes nothing, whatever it writes to
//! its rings and doorbells. The drive's arbitration is that of its configuration; CC.AMS is checked,
//! and selects nothing.

mod region;
mod steps;

pub(crate) use steps::{
    end_timers, fail, is_running, next_timer, poll, remove, restart_keep_alive,
};

use mem::Iova;
use nvme::Csts;
use nvme::register::{ACQ, AQA, ASQ, CAP, CSTS, VS, admin_queue_entries};
use nvme::{Cap, CcSettings, Sqe};
use serde::{Deserialize, Serialize};
use time::Nanos;
use transport::{CqProducer, Port, SqConsumer};

use crate::admin::VERSION;
use crate::controller::Controller;
use crate::host_interface::hosts::HostState;
use crate::host_interface::queues::Queues;
use crate::host_interface::registers::region::RegionRegisters;
use crate::{ArbitrationConfig, RegisterConfig};

/// Size of a completion queue entry, in bytes.
const CQE_BYTES: usize = 16;

/// Counters of the registers of all hosts, since power-on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterStats {
    /// Number of times that the controller became ready.
    pub starts: u64,
    /// Number of controller resets: CC.EN became 0 while the controller was ready or had failed.
    pub resets: u64,
    /// Number of shutdowns that completed.
    pub shutdowns: u64,
    /// Number of failures, CSTS.CFS: impossible values at the start, keep alive timers that ended,
    /// and faults.
    pub failures: u64,
    /// Doorbells that were written although their queue does not exist.
    pub unknown_doorbells: u64,
}

/// The admin queues as AQA, ASQ and ACQ describe them when the controller is enabled.
#[derive(Clone, Copy, Debug)]
struct AdminQueueRegisters {
    submission: (Iova, u16),
    completion: (Iova, u16),
}

/// The state of a controller, as its host controls it.
#[derive(Clone, Copy, Debug)]
enum ControllerPhase {
    /// CC.EN is 0.
    Disabled,
    /// The controller becomes ready at this time.
    Starting(Nanos, AdminQueueRegisters),
    Running,
    /// CSTS.CFS is 1, until the host resets the controller.
    Failed,
    /// CC.EN is 0, and commands are in flight.
    Stopping,
}

/// CSTS.SHST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    None,
    /// Buffered data is being written.
    Flushing,
    Complete,
}

/// The registers of one host.
#[derive(Debug)]
pub(crate) struct RegisterFile {
    phase: ControllerPhase,
    shutdown: Shutdown,
    /// CSTS.RDY.
    ready: bool,
    /// The value of CAP.
    capabilities: u64,
    /// The next queue whose doorbells are checked.
    next_doorbell: u16,
    /// Number of queues that are known to have an invalid doorbell value.
    invalid_doorbells: usize,
    /// The time at which the keep alive timer ends.
    keep_alive_ends: Nanos,
    /// The registers of the persistent memory region, if the host has it.
    region: Option<RegionRegisters>,
}

/// Reads a 64-bit register.
fn read64(port: &Port, offset: usize) -> u64 {
    u64::from(port.register(offset)) | u64::from(port.register(offset + 4)) << 32
}

impl RegisterFile {
    /// Returns the registers of a controller that is not enabled, and writes them. Queues have at most
    /// `max_entries` entries.
    pub(crate) fn new(controller: &Controller, port: &Port, max_entries: u16) -> RegisterFile {
        let config = &controller.config.controller;
        let registers = config.registers.unwrap_or_default();
        let capabilities = Cap {
            max_entries: max_entries.into(),
            timeout_500ms: registers.timeout_500ms(),
            weighted_arbitration: matches!(config.arbitration, ArbitrationConfig::Weighted { .. }),
            doorbell_stride: port.doorbell_dstrd(),
            nvm_commands: true,
            page_min: 0,
            page_max: 0,
            persistent_region: port.persistent_region().is_some(),
        };
        let file = RegisterFile {
            phase: ControllerPhase::Disabled,
            shutdown: Shutdown::None,
            ready: false,
            capabilities: capabilities.to_value(),
            next_doorbell: 0,
            invalid_doorbells: 0,
            keep_alive_ends: Nanos::MAX,
            region: RegionRegisters::new(port),
        };
        file.publish(port);
        file
    }

    /// Returns CSTS.
    fn status(&self) -> Csts {
        Csts {
            ready: self.ready,
            fatal: matches!(self.phase, ControllerPhase::Failed),
            is_shutting_down: self.shutdown == Shutdown::Flushing,
            shut_down: self.shutdown == Shutdown::Complete,
        }
    }

    /// Writes the registers that only the controller may write, if they differ. Returns whether any
    /// did.
    fn publish(&self, port: &Port) -> bool {
        let registers = [
            (CAP, self.capabilities as u32),
            (CAP + 4, (self.capabilities >> 32) as u32),
            (VS, VERSION),
            (CSTS, self.status().to_value()),
        ];
        let mut changed = self.region.as_ref().is_some_and(|region| region.publish(port));
        for (offset, value) in registers {
            if port.register(offset) != value {
                port.set_register(offset, value);
                changed = true;
            }
        }
        changed
    }

    /// Reads the admin queues, and checks what the host has set before it enables the controller.
    ///
    /// # Errors
    /// The register whose value is not possible.
    fn admin_queues(
        &self,
        port: &Port,
        wanted: CcSettings,
    ) -> Result<AdminQueueRegisters, &'static str> {
        let weighted = Cap::from_value(self.capabilities).weighted_arbitration;
        let (submissions, completions) = admin_queue_entries(port.register(AQA));
        let (submission, completion) = (read64(port, ASQ), read64(port, ACQ));
        let pages = mem::PAGE_BYTES as u64;
        let is_page = |at: u64| at > 0 && at.is_multiple_of(pages);
        let checks = [
            (wanted.command_set == 0, "CC.CSS"),
            (wanted.page == 0, "CC.MPS"),
            (wanted.arbitration <= u8::from(weighted), "CC.AMS"),
            (1 << wanted.sq_entry_log2 == size_of::<Sqe>(), "CC.IOSQES"),
            (1 << wanted.cq_entry_log2 == CQE_BYTES, "CC.IOCQES"),
            (submissions >= 2 && completions >= 2, "AQA"),
            (is_page(submission), "ASQ"),
            (is_page(completion), "ACQ"),
        ];
        match checks.into_iter().find(|(is_possible, _)| !is_possible) {
            Some((_, register)) => Err(register),
            None => Ok(AdminQueueRegisters {
                submission: (Iova(submission), submissions),
                completion: (Iova(completion), completions),
            }),
        }
    }
}

impl RegisterConfig {
    /// Returns the times that CAP.TO can represent, if `timeout` is none of them.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        (self.timeout == Nanos::ZERO || self.timeout > RegisterConfig::TIMEOUT_MAX)
            .then_some("a timeout above zero, and at most 127.5 s")
    }
}

impl Queues {
    /// Returns the host that owns a submission queue.
    pub(crate) fn owner(&self, index: usize) -> Option<usize> {
        self.submissions.get(index).and_then(Option::as_ref).map(|queue| queue.port)
    }

    /// Records whether a host has registers, after hosts were attached or detached.
    pub(crate) fn update_registers(&mut self) {
        let mut attached = self.ports.iter().filter(|p| p.state == HostState::Attached);
        self.has_registers = attached.any(|p| p.registers.is_some());
    }

    /// Whether a host has submission queues, also queues that are being torn down.
    pub(super) fn has_submissions(&self, port: usize) -> bool {
        self.submissions.iter().flatten().any(|queue| queue.port == port)
    }

    /// Returns the number of queues of a host with an invalid doorbell value.
    fn invalid_doorbells_of(&self, port: usize) -> usize {
        let queues = self.submissions.iter().flatten();
        queues.filter(|queue| queue.port == port && queue.broken).count()
    }

    /// Adds the admin queues of a host.
    pub(crate) fn add_admin_queues(
        &mut self,
        port: usize,
        submission: SqConsumer,
        completion: CqProducer,
    ) {
        let completion = self.add_completion(completion, port, 0);
        self.add_submission(submission, port, completion, nvme::QueuePriority::Urgent);
    }

    /// Clears the doorbell register of a queue that was deleted, so that its last value is not taken
    /// for one that was written later.
    pub(super) fn clear_doorbells_of(&self, port: usize, qid: u16, is_submission: bool) {
        let host = &self.ports[port].port;
        if host.has_registers() {
            host.clear_doorbells(qid, is_submission, !is_submission);
        }
    }

    /// Handles the end of a command of the drive itself, [`shutdown_queue`].
    #[cold]
    pub(super) fn post_internal(&mut self, index: usize) {
        let flushed = self
            .ports
            .len()
            .checked_sub(1)
            .and_then(|last| (0..=last).find(|port| shutdown_queue(*port) as usize == index));
        let Some(host) = flushed.map(|port| &mut self.ports[port]) else { return };
        if let Some(registers) = &mut host.registers
            && registers.shutdown == Shutdown::Flushing
        {
            registers.shutdown = Shutdown::Complete;
            registers.publish(&host.port);
            self.count_register_change();
        }
    }
}

/// Returns the index of the queue to which the Flush of a host's shutdown belongs. No submission
/// queue has it.
fn shutdown_queue(port: usize) -> u32 {
    u32::MAX - port as u32
}
