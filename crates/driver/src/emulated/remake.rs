//! [`Remaking`]: an [`EmulatedQueue`] is deleted and made again; and the look of a real controller's queue
//! whether that is still there.

use std::sync::{PoisonError, TryLockError};

use clock::Nanos;
use nvme::{AdminCommand, Status};
use ring::{Hold, Port};

use super::EmulatedQueue;
use crate::admin::Ticket;
use crate::recovery::Health;
use crate::{DriverError, bring_up};

/// How long a reset may leave an admin command unanswered before the drive counts as removed.
const RESET_PATIENCE: Nanos = Nanos::from_millis(1000);

/// The same for a real controller, which may have much to give up first.
const REAL_PATIENCE: Nanos = Nanos::from_millis(10_000);
/// Resets of a real controller that one reset of a queue may cause.
const CONTROLLER_RESETS: u8 = 1;

/// How often a queue that waits for its controller looks again.
const RETRY: Nanos = Nanos::from_micros(10);

/// How often a queue of a real controller looks whether that is still there.
const LOOK: Nanos = Nanos::from_millis(500);

/// A reset under way: the queue is deleted and made again.
#[derive(Debug)]
pub(super) struct Remaking {
    /// Admin commands to go, last first.
    left: Vec<AdminCommand>,
    /// The last of them, if it was sent.
    asked: Option<Ticket>,
    /// Admin commands that the drive has answered, this queue's and others'.
    answered: u64,
    /// When the drive counts as removed, if it answers none until then.
    give_up: Nanos,
    pub(super) look_again: Nanos,
    /// Resets of the controller that this one has caused.
    escalated: u8,
}

/// How long a reset may leave an admin command unanswered.
fn patience(port: &Port) -> Nanos {
    if port.is_device() { REAL_PATIENCE } else { RESET_PATIENCE }
}

/// Whether a reset can go on after this answer to one of its commands.
fn goes_on(command: &AdminCommand, answer: &Result<u64, DriverError>) -> bool {
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

impl EmulatedQueue {
    pub(super) fn begin_to_remake(&mut self, commands: &[AdminCommand], answered: u64, now: Nanos) {
        let left = commands.iter().rev().copied().collect();
        let give_up = now + patience(&self.port);
        let (asked, look_again, escalated) = (None, now, 0);
        let remaking = Remaking { left, asked, answered, give_up, look_again, escalated };
        self.remaking = Some(remaking);
    }

    /// Looks whether a real controller is still there, and still ours. Returns whether anything moved.
    #[cold]
    pub(super) fn look(&mut self, now: Nanos) -> bool {
        self.look_at = now + LOOK;
        let Some(controller) = &self.controller else { return false };
        if bring_up::is_gone(&self.port) {
            // The others hear of it by their next poll.
            self.removed = controller.lock().unwrap_or_else(PoisonError::into_inner).is_gone();
        } else if self.port.hold() == Hold::CalledBack {
            let mut controller = controller.lock().unwrap_or_else(PoisonError::into_inner);
            // Queues follow when they are polled, and find it dead when it has stopped.
            self.removed = controller.reset(now).is_err();
        } else {
            // What was not heard by way of memory: emulators have looked away too soon before.
            if self.pair.outstanding() > 0 {
                self.pair.ring_again();
            }
            return false;
        }
        true
    }

    /// The next step of a reset. Returns whether anything moved.
    pub(super) fn remake(&mut self, now: Nanos) -> bool {
        let (Some(remaking), Some(controller)) = (&mut self.remaking, &self.controller) else {
            return false;
        };
        remaking.look_again = now + RETRY;
        let mut controller = match controller.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Nobody keeps it for longer than a look.
            Err(TryLockError::WouldBlock) => return false,
        };
        match controller.recover(now) {
            Health::Up => {}
            Health::Recovering => return false,
            Health::Dead => {
                self.removed = true;
                self.remaking = None;
                return true;
            }
        }
        let patience = patience(&self.port);
        // A controller that was reset has forgotten the queue: it need not be deleted.
        let lives = self.lives.count();
        if std::mem::replace(&mut self.seen, lives) != lives {
            let made = controller.making(self.pair.qid(), self.pair.vector());
            remaking.left = made.into_iter().flatten().rev().collect();
            remaking.asked = None;
            remaking.give_up = now + patience;
        }
        // Queues that are reset at one time take turns: while the drive answers any, it is there.
        let answered = controller.admin().answered();
        if std::mem::replace(&mut remaking.answered, answered) != answered {
            remaking.give_up = now + patience;
        }
        let Some(command) = remaking.left.last().copied() else {
            self.remaking = None;
            return true;
        };
        let on = match remaking.asked {
            Some(ticket) => match controller.admin().answer(ticket) {
                Some(answer) => {
                    remaking.asked = None;
                    remaking.left.pop();
                    goes_on(&command, &answer)
                }
                None if now < remaking.give_up => return false,
                None => false,
            },
            None if controller.admin().is_busy() => {
                if now < remaking.give_up {
                    return false;
                }
                false
            }
            None => {
                // The rings are zeroed after the drive has let go of them and before it sees them
                // again.
                let reopened = if matches!(command, AdminCommand::CreateCq { .. }) {
                    let rings = controller.cleared(self.pair.qid());
                    if let Some(lists) = &mut self.lists {
                        lists.forgotten();
                    }
                    rings.is_some_and(|rings| self.pair.reopen(&self.port, rings).is_ok())
                } else {
                    true
                };
                remaking.asked = controller.admin().ask(command, self.pair.qid()).ok();
                reopened && remaking.asked.is_some()
            }
        };
        if !on && remaking.escalated < CONTROLLER_RESETS && controller.reset(now).is_ok() {
            remaking.escalated += 1;
            return true;
        }
        if !on || remaking.left.is_empty() {
            self.removed = !on;
            self.remaking = None;
        }
        true
    }
}
