//! [`QueueRecreate`]: an [`NvmeQueue`] is deleted and made again; and the look of a real controller's queue
//! whether that is still there.

use std::sync::{PoisonError, TryLockError};

use clock::Nanos;
use nvme::{AdminCommand, Status};
use ring::{ControllerOwnership, Port};

use super::NvmeQueue;
use crate::admin::AdminCommandId;
use crate::reset::ResetState;
use crate::{DriverError, init};

/// How long a reset may leave an admin command unanswered before the drive counts as removed.
const RESET_TIMEOUT: Nanos = Nanos::from_millis(1000);

/// The same for a real controller, which may have much to give up first.
const PCI_RESET_TIMEOUT: Nanos = Nanos::from_millis(10_000);
/// Resets of a real controller that one reset of a queue may cause.
const CONTROLLER_RESETS_MAX: u8 = 1;

/// How often a queue that waits for its controller looks again.
const RETRY_PERIOD: Nanos = Nanos::from_micros(10);

/// How often a queue of a real controller looks whether that is still there.
const PRESENCE_CHECK_PERIOD: Nanos = Nanos::from_millis(500);

/// A reset under way: the queue is deleted and made again.
#[derive(Debug)]
pub(super) struct QueueRecreate {
    /// Admin commands to go, last first.
    remaining: Vec<AdminCommand>,
    /// The last of them, if it was sent.
    outstanding: Option<AdminCommandId>,
    /// Admin commands that the drive has answered, this queue's and others'.
    completed_count: u64,
    /// When the drive counts as removed, if it answers none until then.
    deadline: Nanos,
    pub(super) next_poll: Nanos,
    /// Resets of the controller that this one has caused.
    controller_resets: u8,
}

/// How long a reset may leave an admin command unanswered.
fn admin_timeout(port: &Port) -> Nanos {
    if port.is_real_controller() { PCI_RESET_TIMEOUT } else { RESET_TIMEOUT }
}

/// Whether a reset can go on after this answer to one of its commands.
fn can_continue(command: &AdminCommand, answer: &Result<u64, DriverError>) -> bool {
    match answer {
        Ok(_) => true,
        // A queue that the drive has forgotten by itself need not be deleted. With any other answer
        // it may still be writing to the rings.
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

    /// Looks whether a real controller is still there, and still ours. Returns whether anything moved.
    #[cold]
    pub(super) fn check_presence(&mut self, now: Nanos) -> bool {
        self.presence_check_at = now + PRESENCE_CHECK_PERIOD;
        let Some(controller) = &self.controller else { return false };
        if init::is_removed(&self.port) {
            // The others hear of it by their next poll.
            self.removed = controller.lock().unwrap_or_else(PoisonError::into_inner).is_removed();
        } else if self.port.ownership() == ControllerOwnership::ReleaseRequested {
            let mut controller = controller.lock().unwrap_or_else(PoisonError::into_inner);
            // Queues follow when they are polled, and find it dead when it has stopped.
            self.removed = controller.reset(now).is_err();
        } else {
            // What was not heard by way of memory: emulators have looked away too soon before.
            if self.pair.outstanding() > 0 {
                self.pair.ring_doorbell_registers();
            }
            return false;
        }
        true
    }

    /// The next step of a reset. Returns whether anything moved.
    pub(super) fn step_recreate(&mut self, now: Nanos) -> bool {
        let (Some(remaking), Some(controller)) = (&mut self.recreate, &self.controller) else {
            return false;
        };
        remaking.next_poll = now + RETRY_PERIOD;
        let mut controller = match controller.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Nobody keeps it for longer than a look.
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
        let patience = admin_timeout(&self.port);
        // A controller that was reset has forgotten the queue: it need not be deleted.
        let lives = self.generation.generation();
        if std::mem::replace(&mut self.seen_generation, lives) != lives {
            let made = controller.create_commands(self.pair.qid(), self.pair.vector());
            remaking.remaining = made.into_iter().flatten().rev().collect();
            remaking.outstanding = None;
            remaking.deadline = now + patience;
        }
        // Queues that are reset at one time take turns: while the drive answers any, it is there.
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
                // The rings are zeroed after the drive has let go of them and before it sees them
                // again.
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
