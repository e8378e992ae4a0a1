//! [`Recovery`]: a reset of a real controller that does not let go of a queue, or does not answer
//! (NVMe section 7.3.2, controller reset).
//!
//! The controller is stopped and started by its registers, and agrees on its queues again; it has
//! forgotten all of them, and every command. Guarantee: whoever has a queue learns of it by a
//! number ([`ControllerGeneration`]) that changes before the controller is stopped, and makes the queue again
//! itself; a controller that does not come back in the time that it says it needs is given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clock::Nanos;
use nvme::AdminCommand;
use nvme::feature::{self, NumberOfQueues};
use ring::ControllerOwnership;

use crate::admin::AdminCommandId;
use crate::init::{self, InitState};
use crate::{ControllerHandle, DriverError};

/// How long the controller may leave the one command of a recovery unanswered.
const COMMAND_TIMEOUT: Nanos = Nanos::from_millis(10_000);

/// How often a controller has been reset, or that it is gone: what queues compare with what they knew.
#[derive(Clone, Debug, Default)]
pub struct ControllerGeneration(Arc<AtomicU64>);

/// The controller is gone.
const REMOVED: u64 = u64::MAX;

impl ControllerGeneration {
    /// Relaxed: who sees the change late is late, and asks the controller under its lock.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether the controller is known to be gone ([`ControllerHandle::is_removed`]). Stays so.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.generation() == REMOVED
    }
}

/// A reset under way.
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
    /// On its doorbells in memory.
    ConfiguringDoorbells(AdminCommandId),
}

/// How a controller is, as far as resets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResetState {
    /// It takes commands.
    Up,
    /// It is being reset.
    Resetting,
    /// It is gone, or did not come back.
    Removed,
}

impl ControllerHandle {
    /// Begins to reset a real controller: commands outstanding on any of its queues are forgotten,
    /// and every queue is made again by whoever polls it. Nothing to do while that goes on.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] for an emulated drive, [`DriverError::Removed`] for a controller that
    /// is not there any more.
    pub fn reset(&mut self, now: Nanos) -> Result<(), DriverError> {
        if !self.port().is_real_controller() {
            return Err(DriverError::Unsupported { what: "registers to be reset by" });
        }
        if self.generation.is_removed() {
            return Err(DriverError::Removed);
        }
        if self.reset_in_progress.is_none() {
            self.generation.0.fetch_add(1, Ordering::Relaxed);
            self.resets += 1;
            self.admin().set_suspended(true);
            let begun = init::begin_stop(self.port());
            let patience = begun.inspect_err(|_| self.mark_removed())?;
            self.reset_in_progress =
                Some(ControllerReset { step: ResetStep::Stopping, deadline: now + patience });
        }
        Ok(())
    }

    /// Whether a real controller is not there any more: it was pulled out or taken away, or has not come
    /// back from a reset. Stays so.
    pub fn is_removed(&mut self) -> bool {
        if init::is_removed(self.port()) {
            self.mark_removed();
        }
        self.generation.is_removed()
    }

    /// It is gone: every queue hears of it when it is polled.
    fn mark_removed(&mut self) {
        self.reset_in_progress = None;
        self.admin().mark_removed();
        self.generation.0.store(REMOVED, Ordering::Relaxed);
    }

    /// How often the controller has been reset.
    pub fn resets(&self) -> u64 {
        self.resets
    }

    /// How often it has been reset and whether it is gone, for who cannot wait for it.
    pub fn generation(&self) -> ControllerGeneration {
        self.generation.clone()
    }

    /// Moves a reset on, and says how the controller is.
    pub(crate) fn step_reset(&mut self, now: Nanos) -> ResetState {
        if self.is_removed() {
            return ResetState::Removed;
        }
        let Some(ControllerReset { step, deadline: give_up }) = self.reset_in_progress else {
            return ResetState::Up;
        };
        match self.run_reset_step(step, now) {
            Ok(Some(next)) => self.reset_in_progress = Some(next),
            Ok(None) if now < give_up => {}
            Ok(None) | Err(_) => {
                self.mark_removed();
                return ResetState::Removed;
            }
        }
        if let Some(ControllerReset {
            step: ResetStep::NegotiatingQueues(_) | ResetStep::ConfiguringDoorbells(_),
            ..
        }) = self.reset_in_progress
            && self.queues_negotiated
        {
            self.reset_in_progress = None;
            return ResetState::Up;
        }
        ResetState::Resetting
    }

    /// The next step, if this one is done.
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
                // It touches nothing any more, and is not started again.
                if self.port().ownership() != ControllerOwnership::Owned {
                    return Err(DriverError::Removed);
                }
                self.reinit_admin()?;
                let patience = init::begin_start(self.port())?;
                self.queues_negotiated = false;
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
                // What was asked to be told of is asked again.
                self.resubscribe_events()?;
                let give_up = now + COMMAND_TIMEOUT;
                Ok(Some(match self.doorbell_buffer_config() {
                    Some(command) => {
                        let step =
                            ResetStep::ConfiguringDoorbells(self.admin().submit(command, 0)?);
                        ControllerReset { step, deadline: give_up }
                    }
                    None => {
                        self.queues_negotiated = true;
                        ControllerReset { step, deadline: give_up }
                    }
                }))
            }
            ResetStep::ConfiguringDoorbells(ticket) => {
                let Some(answer) = self.admin().pop_response(ticket) else { return Ok(None) };
                answer?;
                self.queues_negotiated = true;
                Ok(Some(ControllerReset { step, deadline: now + COMMAND_TIMEOUT }))
            }
        }
    }
}
