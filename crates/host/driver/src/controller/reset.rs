//! [`ControllerReset`]: resets a controller with registers that does not delete a queue, does not
//! answer, or has failed (controller reset, [NVMe1.4 §7.3.2]).
//!
//! The driver disables and enables the controller by its registers and negotiates its queues again.
//! The controller has forgotten all queues and commands.
//!
//! Guarantees: the [`ControllerGeneration`] changes before the controller is disabled. The owner of
//! a queue sees the change and recreates the queue. A controller that does not recover in the time
//! that it reports counts as removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nvme::AdminCommand;
use nvme::feature::{self, NumberOfQueues};
use time::Nanos;
use transport::ControllerOwnership;

use crate::controller::admin::AdminCommandId;
use crate::controller::init::{self, InitState};
use crate::{ControllerHandle, DriverError};

/// Time that the controller may leave the command of a reset unanswered.
const COMMAND_TIMEOUT: Nanos = Nanos::from_millis(10_000);

/// The number of resets of a controller, or its removal. Queues compare it with the value that they
/// have seen.
#[derive(Clone, Debug, Default)]
pub struct ControllerGeneration(Arc<AtomicU64>);

/// The value for a removed controller.
const REMOVED: u64 = u64::MAX;

impl ControllerGeneration {
    /// Relaxed: a reader that sees a change late checks the controller under its lock.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns whether the controller is known to be removed ([`ControllerHandle::is_removed`]). A
    /// removal is permanent.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.generation() == REMOVED
    }
}

/// A controller reset in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControllerReset {
    step: ResetStep,
    deadline: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum ResetStep {
    Stopping,
    Starting,
    NegotiatingQueues(AdminCommandId),
    /// Sending Doorbell Buffer Config.
    ConfiguringDoorbells(AdminCommandId),
}

/// The state of a controller with respect to resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResetState {
    /// The controller accepts commands.
    Up,
    /// The controller is being reset.
    Resetting,
    /// The controller was removed, or did not recover.
    Removed,
}

/// The resets of a controller.
#[derive(Debug)]
pub(super) struct ResetTracker {
    /// The reset in progress, if any.
    in_progress: Option<ControllerReset>,
    /// Whether the number of queues has been negotiated since the controller was last enabled.
    queues_negotiated: bool,
    generation: ControllerGeneration,
    /// Number of resets.
    count: u64,
}

impl ResetTracker {
    /// Returns the state of an enabled controller whose queues have been negotiated.
    pub(super) fn new() -> ResetTracker {
        ResetTracker {
            in_progress: None,
            queues_negotiated: true,
            generation: ControllerGeneration::default(),
            count: 0,
        }
    }
}

impl ControllerHandle {
    /// Starts a reset of a controller with registers. Commands outstanding on any of its queues are
    /// forgotten, and each queue is recreated when its owner polls it. Has no effect during a
    /// reset.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] for a drive without registers, [`DriverError::Removed`] for a
    /// removed controller.
    pub fn reset(&mut self, now: Nanos) -> Result<(), DriverError> {
        if !self.port().has_registers() {
            return Err(DriverError::Unsupported { what: "registers for a controller reset" });
        }
        if self.reset.generation.is_removed() {
            return Err(DriverError::Removed);
        }
        if self.reset.in_progress.is_none() {
            self.reset.generation.0.fetch_add(1, Ordering::Relaxed);
            self.reset.count += 1;
            tracing::warn!(at = now.0, resets = self.reset.count, "controller reset begins");
            self.admin().set_suspended(true);
            let begun = init::begin_stop(self.port());
            let patience = begun.inspect_err(|_| self.mark_removed())?;
            self.reset.in_progress =
                Some(ControllerReset { step: ResetStep::Stopping, deadline: now + patience });
        }
        Ok(())
    }

    /// Returns whether a controller with registers has been removed: it was unplugged or released, or did not
    /// recover from a reset. A removal is permanent.
    pub fn is_removed(&mut self) -> bool {
        if init::is_removed(self.port()) {
            self.mark_removed();
        }
        self.reset.generation.is_removed()
    }

    /// Marks the controller as removed. Every queue sees it at its next poll.
    fn mark_removed(&mut self) {
        if !self.reset.generation.is_removed() {
            tracing::error!("controller removed");
        }
        self.reset.in_progress = None;
        self.admin().mark_removed();
        self.reset.generation.0.store(REMOVED, Ordering::Relaxed);
    }

    /// Returns the number of resets of the controller.
    pub fn resets(&self) -> u64 {
        self.reset.count
    }

    /// Returns the generation of the controller, for callers that cannot wait for its lock.
    pub fn generation(&self) -> ControllerGeneration {
        self.reset.generation.clone()
    }

    /// Advances a reset and returns the state of the controller.
    pub(crate) fn step_reset(&mut self, now: Nanos) -> ResetState {
        if self.is_removed() {
            return ResetState::Removed;
        }
        let Some(ControllerReset { step, deadline: give_up }) = self.reset.in_progress else {
            return ResetState::Up;
        };
        match self.run_reset_step(step, now) {
            Ok(Some(next)) => self.reset.in_progress = Some(next),
            Ok(None) if now < give_up => {}
            Ok(None) | Err(_) => {
                self.mark_removed();
                return ResetState::Removed;
            }
        }
        if let Some(ControllerReset {
            step: ResetStep::NegotiatingQueues(_) | ResetStep::ConfiguringDoorbells(_),
            ..
        }) = self.reset.in_progress
            && self.reset.queues_negotiated
        {
            self.reset.in_progress = None;
            return ResetState::Up;
        }
        ResetState::Resetting
    }

    /// Executes the next step, if the current one is done.
    fn run_reset_step(
        &mut self,
        step: ResetStep,
        now: Nanos,
    ) -> Result<Option<ControllerReset>, DriverError> {
        match step {
            ResetStep::Stopping => {
                if init::init_state(self.port())? == InitState::Ready {
                    return Ok(None);
                }
                // The controller accesses nothing any more, and is not enabled again.
                if self.port().ownership() != ControllerOwnership::Owned {
                    return Err(DriverError::Removed);
                }
                self.reinit_admin()?;
                let patience = init::begin_start(self.port())?;
                self.reset.queues_negotiated = false;
                Ok(Some(ControllerReset { step: ResetStep::Starting, deadline: now + patience }))
            }
            ResetStep::Starting => match init::init_state(self.port())? {
                InitState::Failed => Err(DriverError::Failed),
                InitState::Stopped => Ok(None),
                InitState::Ready => {
                    self.admin().set_suspended(false);
                    let queues = self.info().io_queues;
                    let value =
                        NumberOfQueues { submission: queues, completion: queues }.to_value();
                    let fid = feature::NUMBER_OF_QUEUES;
                    let command = AdminCommand::SetFeatures { fid, save: false, value };
                    let ticket = self.admin().submit(command, 0)?;
                    Ok(Some(ControllerReset {
                        step: ResetStep::NegotiatingQueues(ticket),
                        deadline: now + COMMAND_TIMEOUT,
                    }))
                }
            },
            ResetStep::NegotiatingQueues(ticket) => {
                let Some(answer) = self.admin().pop_response(ticket) else { return Ok(None) };
                let queues = self.info().io_queues;
                let counts = NumberOfQueues::from_value(answer? as u32);
                let enough = |c: NumberOfQueues| c.submission.min(c.completion) >= queues;
                if !counts.is_some_and(enough) {
                    let what = "that it has fewer queues than before".into();
                    return Err(DriverError::Implausible { what });
                }
                // Renew the subscriptions that existed before the reset.
                self.resubscribe_events()?;
                let give_up = now + COMMAND_TIMEOUT;
                Ok(Some(match self.doorbell_buffer_config() {
                    Some(command) => {
                        let step =
                            ResetStep::ConfiguringDoorbells(self.admin().submit(command, 0)?);
                        ControllerReset { step, deadline: give_up }
                    }
                    None => {
                        self.reset.queues_negotiated = true;
                        ControllerReset { step, deadline: give_up }
                    }
                }))
            }
            ResetStep::ConfiguringDoorbells(ticket) => {
                let Some(answer) = self.admin().pop_response(ticket) else { return Ok(None) };
                answer?;
                self.reset.queues_negotiated = true;
                Ok(Some(ControllerReset { step, deadline: now + COMMAND_TIMEOUT }))
            }
        }
    }
}
