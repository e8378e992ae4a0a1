//! Recovery of a port after a failed command or a lost link ([AHCI1.3 §6.2.2], [AHCI1.3 §10.4.2]).
//!
//! [`poll`](crate::HardwareQueue::poll) advances the state machine. Looking for events advances it
//! too, except through states that wait for time to pass.
//!
//! ```text
//! command failed ─► stop ─► start ─► (queued: read the log) ─► reissue the others
//! link, bus, reset ─► stop ─► COMRESET ─► link up ─► drive ready ─► start
//!                                            └─ not in time ─► removed
//! ```

use ahci::ata::{self, QueuedErrorLog};
use ahci::port::{self, cmd, is, sctl, ssts};
use nvme::Status;
use time::Nanos;

use super::AhciPort;
use crate::hal::QueueState;

/// Poll period of a port that waits.
const POLL_PERIOD: Nanos = Nanos::from_micros(10);
/// Maximum time for a port to stop or to start ([AHCI1.3 §10.3.1]: 500 ms).
const ENGINE_STOP_TIMEOUT: Nanos = Nanos::from_millis(500);
/// Duration of COMRESET ([AHCI1.3 §10.4.2]: at least 1 ms).
const COMRESET_DURATION: Nanos = Nanos::from_millis(1);
/// Maximum time for a link to come up, for a drive to become ready, and for reading a log.
const DEVICE_READY_TIMEOUT: Nanos = Nanos::from_millis(1000);

/// The next step after the port has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterStop {
    /// Start, and read which command failed.
    ReadLog,
    /// Start.
    Restart,
    /// Reset.
    Comreset,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Stopping(AfterStop),
    /// Waits for CR; then reads the log if so.
    Starting {
        read_log: bool,
    },
    ReadingLog,
    /// COMRESET is being sent.
    Comreset,
    LinkUp,
    DeviceReady,
    Removed,
}

/// The recovery state of a port.
#[derive(Debug, Default)]
pub(super) struct PortRecovery {
    phase: Phase,
    /// Time at which the phase times out or ends; unknown until a call passes the time.
    phase_deadline: Option<Nanos>,
    next_poll: Nanos,
    /// Whether the queue's owner requested the reset and has abandoned its commands.
    resetting: bool,
}

impl PortRecovery {
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    pub(super) fn state(&self) -> QueueState {
        match self.phase {
            Phase::Removed => QueueState::Removed,
            _ if self.resetting => QueueState::Resetting,
            _ => QueueState::Ready,
        }
    }

    pub(super) fn deadline(&self) -> Nanos {
        match self.phase {
            Phase::Idle | Phase::Removed => Nanos::MAX,
            _ => self.next_poll,
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.phase_deadline = None;
    }

    /// Returns whether the phase has lasted for `patience`; false until a call passes the time.
    fn has_elapsed(&mut self, patience: Nanos, now: Option<Nanos>) -> bool {
        let Some(now) = now else { return false };
        now >= *self.phase_deadline.get_or_insert(now + patience)
    }
}

impl AhciPort {
    /// Handles `errors`, bits of PxIS that the controller has reported.
    #[cold]
    pub(super) fn fail(&mut self, errors: u32) {
        // Complete these first: stopping clears PxSACT and PxCI.
        self.complete_cleared();
        let link_changed = errors & (is::PRCS | is::PCS) != 0;
        if link_changed && ssts::det(self.registers.read(port::SSTS)) == 0 {
            self.remove();
        } else if link_changed || errors & (is::IFS | is::HBDS | is::HBFS | is::OFS) != 0 {
            self.complete(self.issued, Status::DATA_TRANSFER_ERROR);
            self.stop(AfterStop::Comreset);
        } else if errors & is::TFES != 0 {
            self.stats.recoveries += 1;
            if self.issued_queued() != 0 {
                self.stop(AfterStop::ReadLog);
            } else {
                let [status, error, ..] = self.registers.read(port::TFD).to_le_bytes();
                self.complete(self.issued, status_from_registers(status, error));
                self.stop(AfterStop::Restart);
            }
        } else {
            self.stats.minor_errors += 1;
            self.registers.clear(port::IS, errors);
        }
    }

    /// Starts a reset on behalf of the queue's owner.
    pub(super) fn begin_reset(&mut self, now: Nanos) {
        if self.recovery.phase == Phase::Removed {
            return;
        }
        self.clear_commands();
        self.recovery.resetting = true;
        self.recovery.next_poll = now;
        self.stop(AfterStop::Comreset);
    }

    fn stop(&mut self, then: AfterStop) {
        self.registers.clear(port::CMD, cmd::ST);
        self.registers.wake();
        self.recovery.enter(Phase::Stopping(then));
    }

    fn remove(&mut self) {
        self.clear_commands();
        self.registers.clear(port::CMD, cmd::ST | cmd::FRE);
        self.registers.write(port::IE, 0);
        self.registers.clear_errors();
        self.registers.wake();
        self.recovery.resetting = false;
        self.recovery.enter(Phase::Removed);
    }

    /// Advances the recovery. Returns whether there was progress.
    pub(super) fn step_recovery(&mut self, now: Option<Nanos>) -> bool {
        if let Some(now) = now {
            self.recovery.next_poll = now + POLL_PERIOD;
        }
        let before = self.recovery.phase;
        match before {
            Phase::Idle | Phase::Removed => {}
            Phase::Stopping(then) => {
                if self.registers.read(port::CMD) & cmd::CR == 0 {
                    self.on_stopped(then);
                } else if self.recovery.has_elapsed(ENGINE_STOP_TIMEOUT, now) {
                    self.comreset();
                }
            }
            Phase::Starting { read_log } => {
                if self.registers.read(port::CMD) & cmd::CR != 0 {
                    if read_log {
                        self.registers.issue_read_error_log(&self.memory);
                        self.recovery.enter(Phase::ReadingLog);
                    } else {
                        self.on_started();
                    }
                } else if self.recovery.has_elapsed(ENGINE_STOP_TIMEOUT, now) {
                    self.remove();
                }
            }
            Phase::ReadingLog => {
                let failed = self.registers.read(port::IS) & is::ERRORS & !is::INFS != 0;
                if failed || self.recovery.has_elapsed(DEVICE_READY_TIMEOUT, now) {
                    self.complete(self.issued, Status::DATA_TRANSFER_ERROR);
                    self.stop(AfterStop::Comreset);
                } else if self.registers.read(port::CI) & 1 == 0 {
                    self.read_log();
                }
            }
            Phase::Comreset => {
                if self.recovery.has_elapsed(COMRESET_DURATION, now) {
                    let control = self.registers.read(port::SCTL);
                    self.registers.write(port::SCTL, control - sctl::det(control));
                    self.registers.wake();
                    self.recovery.enter(Phase::LinkUp);
                }
            }
            Phase::LinkUp => {
                if ssts::det(self.registers.read(port::SSTS)) == ssts::DET_UP {
                    self.recovery.enter(Phase::DeviceReady);
                } else if self.recovery.has_elapsed(DEVICE_READY_TIMEOUT, now) {
                    self.remove();
                }
            }
            Phase::DeviceReady => {
                // A port that still runs has not processed the stop: the controller does not
                // respond.
                let runs = self.registers.read(port::CMD) & cmd::CR != 0;
                if !self.registers.is_busy() && !runs {
                    self.start(false);
                } else if self.recovery.has_elapsed(DEVICE_READY_TIMEOUT, now) {
                    self.remove();
                }
            }
        }
        self.recovery.phase != before
    }

    fn on_stopped(&mut self, then: AfterStop) {
        let link_up = ssts::det(self.registers.read(port::SSTS)) == ssts::DET_UP;
        if then == AfterStop::Comreset || !link_up || self.registers.is_busy() {
            self.comreset();
        } else {
            self.start(then == AfterStop::ReadLog);
        }
    }

    fn start(&mut self, read_log: bool) {
        self.registers.clear_errors();
        self.registers.set(port::CMD, cmd::FRE | cmd::ST);
        self.registers.wake();
        self.recovery.enter(Phase::Starting { read_log });
    }

    fn comreset(&mut self) {
        self.stats.resets += 1;
        // The link reset loses commands that were to be reissued.
        self.complete(self.issued, Status::DATA_TRANSFER_ERROR);
        self.registers.clear(port::CMD, cmd::ST);
        let control = self.registers.read(port::SCTL);
        self.registers.write(port::SCTL, control - sctl::det(control) + sctl::DET_COMRESET);
        self.registers.wake();
        self.recovery.enter(Phase::Comreset);
    }

    /// Handles the log of queued errors, which has arrived.
    fn read_log(&mut self) {
        let queued = self.issued_queued();
        let log = QueuedErrorLog::from_bytes(&self.memory.read_page());
        match log.filter(|log| !log.not_queued && queued >> log.tag & 1 != 0) {
            Some(log) => {
                self.complete(1 << log.tag, status_from_registers(log.status, log.error));
                self.on_started();
            }
            // The log names no outstanding command: the drive's report is not consistent, so fail
            // all commands.
            None => {
                self.complete(self.issued, Status::DATA_TRANSFER_ERROR);
                self.stop(AfterStop::Comreset);
            }
        }
    }

    fn on_started(&mut self) {
        self.recovery.resetting = false;
        self.recovery.enter(Phase::Idle);
        self.set_command_header(0);
        if self.issued != 0 {
            let again = u64::from(self.issued.count_ones());
            self.stats.issued += again;
            self.stats.reissued += again;
            self.write_issue_registers(self.issued);
        }
        self.issue_deferred();
    }
}

/// Returns the NVMe status for the status and error registers of a failed command.
fn status_from_registers(status: u8, error: u8) -> Status {
    match error {
        e if e & ata::error::ICRC != 0 => Status::DATA_TRANSFER_ERROR,
        e if e & ata::error::UNC != 0 => Status::UNRECOVERED_READ,
        e if e & ata::error::IDNF != 0 => Status::LBA_OUT_OF_RANGE,
        _ if status & ata::status::DF != 0 => Status::WRITE_FAULT,
        e if e & ata::error::ABRT != 0 => Status::INVALID_FIELD,
        _ => Status::INTERNAL,
    }
}
