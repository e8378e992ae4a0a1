//! [`QueueRecreate`]: deletes and recreates an [`NvmeQueue`]. Also checks the presence and the status
//! of a controller with registers.

use std::sync::{PoisonError, TryLockError};

use nvme::{AdminCommand, Status};
use time::Nanos;
use transport::{ControllerOwnership, Port};

use super::NvmeQueue;
use crate::controller::admin::AdminCommandId;
use crate::controller::reset::ResetState;
use crate::{DriverError, controller::init};

/// Time without an answer to an admin command, during a reset, after which the drive counts as
/// removed.
const RESET_TIMEOUT: Nanos = Nanos::from_millis(1000);

/// The corresponding time for a controller with registers, which may have many commands to abort first.
const PCI_RESET_TIMEOUT: Nanos = Nanos::from_millis(10_000);
/// Number of controller resets that one queue reset may cause.
const CONTROLLER_RESETS_MAX: u8 = 1;

/// Poll period of a queue that waits for its controller.
const RETRY_PERIOD: Nanos = Nanos::from_micros(10);

/// Period at which a queue of a controller with registers checks its presence and status.
const PRESENCE_CHECK_PERIOD: Nanos = Nanos::from_millis(500);

/// A queue reset in progress: the queue is deleted and recreated.
#[derive(Debug)]
pub(super) struct QueueRecreate {
    /// Admin commands to send, last first.
    remaining: Vec<AdminCommand>,
    /// The id of the last one in `remaining`, if it was sent.
    outstanding: Option<AdminCommandId>,
    /// Number of admin commands that the drive has completed, for this queue and others.
    completed_count: u64,
    /// Time at which the drive counts as removed if it completes no admin command before.
    deadline: Nanos,
    pub(super) next_poll: Nanos,
    /// Number of controller resets that this queue reset has caused.
    controller_resets: u8,
}

/// Returns the time that a drive may leave an admin command unanswered during a reset.
fn admin_timeout(port: &Port) -> Nanos {
    if port.has_registers() { PCI_RESET_TIMEOUT } else { RESET_TIMEOUT }
}

/// Returns whether a reset can continue after this answer to one of its commands.
fn can_continue(command: &AdminCommand, answer: &Result<u64, DriverError>) -> bool {
    match answer {
        Ok(_) => true,
        // A queue that the drive has forgotten needs no deletion. After any other error the drive
        // may still write to the rings.
        Err(DriverError::Command { status, .. }) => {
            matches!(command, AdminCommand::DeleteSq { .. } | AdminCommand::DeleteCq { .. })
                && status.is(Status::INVALID_QID)
        }
        Err(_) => false,
    }
}

impl NvmeQueue {
    pub(super) fn begin_recreate(&mut self, commands: &[AdminCommand], answered: u64, now: Nanos) {
        let left = commands.iter().rev().copied().collect();
        let give_up = now + admin_timeout(&self.port);
        let (asked, look_again, escalated) = (None, now, 0);
        let remaking = QueueRecreate {
            remaining: left,
            outstanding: asked,
            completed_count: answered,
            deadline: give_up,
            next_poll: look_again,
            controller_resets: escalated,
        };
        self.recreate = Some(remaking);
    }

    /// Checks whether a controller with registers is present, still owned by this process, and has
    /// not failed. Returns whether the queue's state has changed.
    #[cold]
    pub(super) fn check_presence(&mut self, now: Nanos) -> bool {
        self.presence_check_at = now + PRESENCE_CHECK_PERIOD;
        let Some(controller) = &self.controller else { return false };
        if init::is_removed(&self.port) {
            // The other queues notice the removal at their next poll.
            self.removed = controller.lock().unwrap_or_else(PoisonError::into_inner).is_removed();
        } else if self.port.ownership() == ControllerOwnership::ReleaseRequested {
            let mut controller = controller.lock().unwrap_or_else(PoisonError::into_inner);
            // The other queues notice the reset when they are polled, and find the controller
            // removed once it has stopped.
            self.removed = controller.reset(now).is_err();
        } else if init::has_failed(&self.port) {
            let mut controller = controller.lock().unwrap_or_else(PoisonError::into_inner);
            // A reset in progress for another queue continues.
            self.removed = controller.reset(now).is_err();
        } else {
            // Repeat doorbells that the controller may have missed in memory: some emulators stop
            // polling shadow doorbells too early.
            if self.pair.outstanding() > 0 {
                self.pair.ring_doorbell_registers();
            }
            return false;
        }
        true
    }

    /// Executes the next step of a reset. Returns whether there was progress.
    pub(super) fn step_recreate(&mut self, now: Nanos) -> bool {
        let (Some(remaking), Some(controller)) = (&mut self.recreate, &self.controller) else {
            return false;
        };
        remaking.next_poll = now + RETRY_PERIOD;
        let mut controller = match controller.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Other queues hold the lock only for one step.
            Err(TryLockError::WouldBlock) => return false,
        };
        match controller.step_reset(now) {
            ResetState::Up => {}
            ResetState::Resetting => return false,
            ResetState::Removed => {
                self.removed = true;
                self.recreate = None;
                return true;
            }
        }
        // A controller that has failed completes no command that deletes a queue.
        if remaking.controller_resets < CONTROLLER_RESETS_MAX
            && init::has_failed(&self.port)
            && controller.reset(now).is_ok()
        {
            remaking.controller_resets += 1;
            return true;
        }
        let patience = admin_timeout(&self.port);
        // A controller that was reset has forgotten the queue, so the queue need not be deleted.
        let lives = self.generation.generation();
        if std::mem::replace(&mut self.seen_generation, lives) != lives {
            let made = controller.create_commands(self.pair.qid(), self.pair.vector());
            remaking.remaining = made.into_iter().flatten().rev().collect();
            remaking.outstanding = None;
            remaking.deadline = now + patience;
        }
        // Queues that are reset at the same time share the admin queue. While the drive completes
        // any command, it is present.
        let answered = controller.admin().completed_count();
        if std::mem::replace(&mut remaking.completed_count, answered) != answered {
            remaking.deadline = now + patience;
        }
        let Some(command) = remaking.remaining.last().copied() else {
            self.recreate = None;
            return true;
        };
        let on = match remaking.outstanding {
            Some(ticket) => match controller.admin().pop_response(ticket) {
                Some(answer) => {
                    remaking.outstanding = None;
                    remaking.remaining.pop();
                    can_continue(&command, &answer)
                }
                None if now < remaking.deadline => return false,
                None => false,
            },
            None if controller.admin().is_busy() => {
                if now < remaking.deadline {
                    return false;
                }
                false
            }
            None => {
                // Clear the rings after the drive has released them, and before it uses them again.
                let reopened = if matches!(command, AdminCommand::CreateCq { .. }) {
                    let rings = controller.clear_rings(self.pair.qid());
                    if let Some(lists) = &mut self.lists {
                        lists.clear();
                    }
                    rings.is_some_and(|rings| self.pair.reopen(&self.port, rings).is_ok())
                } else {
                    true
                };
                remaking.outstanding = controller.admin().submit(command, self.pair.qid()).ok();
                reopened && remaking.outstanding.is_some()
            }
        };
        if !on
            && remaking.controller_resets < CONTROLLER_RESETS_MAX
            && controller.reset(now).is_ok()
        {
            remaking.controller_resets += 1;
            return true;
        }
        if !on || remaking.remaining.is_empty() {
            self.removed = !on;
            self.recreate = None;
        }
        true
    }
}
