//! What a port does when a command fails or the link is lost (AHCI 1.3.1 sections 6.2.2 and 10.4.2).
//!
//! A state machine that [`poll`](crate::HardwareQueue::poll) moves on; looking for events moves it
//! too, except through states that wait for time to pass.
//!
//! ```text
//! command failed ─► stop ─► start ─► (queued: read the log) ─► issue the others again
//! link, bus, reset ─► stop ─► COMRESET ─► link up ─► drive ready ─► start
//!                                            └─ not in time ─► removed
//! ```

use clock::Nanos;
use nvme::Status;
use sata::ata::{self, QueuedErrorLog};
use sata::port::{self, cmd, is, sctl, ssts};

use super::AhciPort;
use crate::hal::QueueState;

/// How often a port that waits looks again.
const LOOK: Nanos = Nanos::from_micros(10);
/// How long a port may take to stop or to start (AHCI 1.3.1 section 10.3.1: 500 ms).
const STOP_PATIENCE: Nanos = Nanos::from_millis(500);
/// How long COMRESET is sent (AHCI 1.3.1 section 10.4.2: at least 1 ms).
const COMRESET: Nanos = Nanos::from_millis(1);
/// How long a link may take to come up, a drive to be ready, and a log to be read.
const DRIVE_PATIENCE: Nanos = Nanos::from_millis(1000);

/// What comes after the port has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Start, and ask which command failed.
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
    Stopping(Then),
    /// Waiting for CR; then the log is read if so.
    Starting {
        read_log: bool,
    },
    ReadingLog,
    /// COMRESET is being sent.
    Comreset,
    LinkUp,
    Settling,
    Removed,
}

/// Where a port is on its way back.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    phase: Phase,
    /// When the phase has lasted too long, or long enough; not known before somebody says the time.
    until: Option<Nanos>,
    look_again: Nanos,
    /// The queue's owner asked for it, and has given up its commands.
    resetting: bool,
}

impl Recovery {
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
            _ => self.look_again,
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.until = None;
    }

    /// Whether the phase has lasted for `patience`; never, before somebody says the time.
    fn is_over(&mut self, patience: Nanos, now: Option<Nanos>) -> bool {
        let Some(now) = now else { return false };
        now >= *self.until.get_or_insert(now + patience)
    }
}

impl AhciPort {
    /// The controller reported `errors`, bits of PxIS.
    #[cold]
    pub(super) fn fail(&mut self, errors: u32) {
        // What had ended before is not lost: stopping clears PxSACT and PxCI.
        self.salvage();
        let link_changed = errors & (is::PRCS | is::PCS) != 0;
        if link_changed && ssts::det(self.wiring.read(port::SSTS)) == 0 {
            self.remove();
        } else if link_changed || errors & (is::IFS | is::HBDS | is::HBFS | is::OFS) != 0 {
            self.end(self.issued, Status::DATA_TRANSFER_ERROR);
            self.stop(Then::Comreset);
        } else if errors & is::TFES != 0 {
            self.stats.recoveries += 1;
            if self.issued_queued() != 0 {
                self.stop(Then::ReadLog);
            } else {
                let [status, error, ..] = self.wiring.read(port::TFD).to_le_bytes();
                self.end(self.issued, status_of(status, error));
                self.stop(Then::Restart);
            }
        } else {
            self.stats.minor_errors += 1;
            self.wiring.clear(port::IS, errors);
        }
    }

    /// The queue's owner wants a reset.
    pub(super) fn begin_reset(&mut self, now: Nanos) {
        if self.recovery.phase == Phase::Removed {
            return;
        }
        self.forget();
        self.recovery.resetting = true;
        self.recovery.look_again = now;
        self.stop(Then::Comreset);
    }

    fn stop(&mut self, then: Then) {
        self.wiring.clear(port::CMD, cmd::ST);
        self.wiring.wake();
        self.recovery.enter(Phase::Stopping(then));
    }

    fn remove(&mut self) {
        self.forget();
        self.wiring.clear(port::CMD, cmd::ST | cmd::FRE);
        self.wiring.write(port::IE, 0);
        self.wiring.forget_errors();
        self.wiring.wake();
        self.recovery.resetting = false;
        self.recovery.enter(Phase::Removed);
    }

    /// Moves the recovery on. Returns whether anything moved.
    pub(super) fn recover(&mut self, now: Option<Nanos>) -> bool {
        if let Some(now) = now {
            self.recovery.look_again = now + LOOK;
        }
        let before = self.recovery.phase;
        match before {
            Phase::Idle | Phase::Removed => {}
            Phase::Stopping(then) => {
                if self.wiring.read(port::CMD) & cmd::CR == 0 {
                    self.stopped(then);
                } else if self.recovery.is_over(STOP_PATIENCE, now) {
                    self.comreset();
                }
            }
            Phase::Starting { read_log } => {
                if self.wiring.read(port::CMD) & cmd::CR != 0 {
                    if read_log {
                        self.wiring.ask_error_log(&self.memory);
                        self.recovery.enter(Phase::ReadingLog);
                    } else {
                        self.started();
                    }
                } else if self.recovery.is_over(STOP_PATIENCE, now) {
                    self.remove();
                }
            }
            Phase::ReadingLog => {
                let failed = self.wiring.read(port::IS) & is::ERRORS & !is::INFS != 0;
                if failed || self.recovery.is_over(DRIVE_PATIENCE, now) {
                    self.end(self.issued, Status::DATA_TRANSFER_ERROR);
                    self.stop(Then::Comreset);
                } else if self.wiring.read(port::CI) & 1 == 0 {
                    self.read_log();
                }
            }
            Phase::Comreset => {
                if self.recovery.is_over(COMRESET, now) {
                    let control = self.wiring.read(port::SCTL);
                    self.wiring.write(port::SCTL, control - sctl::det(control));
                    self.wiring.wake();
                    self.recovery.enter(Phase::LinkUp);
                }
            }
            Phase::LinkUp => {
                if ssts::det(self.wiring.read(port::SSTS)) == ssts::DET_UP {
                    self.recovery.enter(Phase::Settling);
                } else if self.recovery.is_over(DRIVE_PATIENCE, now) {
                    self.remove();
                }
            }
            Phase::Settling => {
                // A port that still runs has not noticed that it was told to stop: nobody is there.
                let runs = self.wiring.read(port::CMD) & cmd::CR != 0;
                if !self.wiring.is_busy() && !runs {
                    self.start(false);
                } else if self.recovery.is_over(DRIVE_PATIENCE, now) {
                    self.remove();
                }
            }
        }
        self.recovery.phase != before
    }

    fn stopped(&mut self, then: Then) {
        let link_up = ssts::det(self.wiring.read(port::SSTS)) == ssts::DET_UP;
        if then == Then::Comreset || !link_up || self.wiring.is_busy() {
            self.comreset();
        } else {
            self.start(then == Then::ReadLog);
        }
    }

    fn start(&mut self, read_log: bool) {
        self.wiring.forget_errors();
        self.wiring.set(port::CMD, cmd::FRE | cmd::ST);
        self.wiring.wake();
        self.recovery.enter(Phase::Starting { read_log });
    }

    fn comreset(&mut self) {
        self.stats.resets += 1;
        // Commands that are to be issued again are lost with the link.
        self.end(self.issued, Status::DATA_TRANSFER_ERROR);
        self.wiring.clear(port::CMD, cmd::ST);
        let control = self.wiring.read(port::SCTL);
        self.wiring.write(port::SCTL, control - sctl::det(control) + sctl::DET_COMRESET);
        self.wiring.wake();
        self.recovery.enter(Phase::Comreset);
    }

    /// The log of queued errors has arrived.
    fn read_log(&mut self) {
        let queued = self.issued_queued();
        let log = QueuedErrorLog::from_bytes(&self.memory.read_page());
        match log.filter(|log| !log.not_queued && queued >> log.tag & 1 != 0) {
            Some(log) => {
                self.end(1 << log.tag, status_of(log.status, log.error));
                self.started();
            }
            // A drive that failed but not over one of its commands cannot be believed.
            None => {
                self.end(self.issued, Status::DATA_TRANSFER_ERROR);
                self.stop(Then::Comreset);
            }
        }
    }

    fn started(&mut self) {
        self.recovery.resetting = false;
        self.recovery.enter(Phase::Idle);
        self.point(0);
        if self.issued != 0 {
            let again = u64::from(self.issued.count_ones());
            self.stats.issued += again;
            self.stats.reissued += again;
            self.give(self.issued);
        }
        self.advance();
    }
}

/// The NVMe status for the status and error registers of a failed command.
fn status_of(status: u8, error: u8) -> Status {
    match error {
        e if e & ata::error::ICRC != 0 => Status::DATA_TRANSFER_ERROR,
        e if e & ata::error::UNC != 0 => Status::UNRECOVERED_READ,
        e if e & ata::error::IDNF != 0 => Status::LBA_OUT_OF_RANGE,
        _ if status & ata::status::DF != 0 => Status::WRITE_FAULT,
        e if e & ata::error::ABRT != 0 => Status::INVALID_FIELD,
        _ => Status::INTERNAL,
    }
}
