//! [`Recovery`]: a reset of a real controller that does not let go of a queue, or does not answer
//! (NVMe section 7.3.2, controller reset).
//!
//! The controller is stopped and started by its registers, and agrees on its queues again; it has
//! forgotten all of them, and every command. Guarantee: whoever has a queue learns of it by a
//! number ([`Lives`]) that changes before the controller is stopped, and makes the queue again
//! itself; a controller that does not come back in the time that it says it needs is given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clock::Nanos;
use nvme::AdminCommand;
use nvme::feature::{self, QueueCounts};
use ring::Hold;

use crate::admin::Ticket;
use crate::bring_up::{self, Progress};
use crate::{Controller, DriverError};

/// How long the controller may leave the one command of a recovery unanswered.
const ANSWER: Nanos = Nanos::from_millis(10_000);

/// How often a controller has been reset, or that it is gone: what queues compare with what they knew.
#[derive(Clone, Debug, Default)]
pub struct Lives(Arc<AtomicU64>);

/// The controller is gone.
const OVER: u64 = u64::MAX;

impl Lives {
    /// Relaxed: who sees the change late is late, and asks the controller under its lock.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether the controller is known to be gone ([`Controller::is_gone`]). Stays so.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.count() == OVER
    }
}

/// A reset under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    step: Step,
    give_up: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Stopping,
    Starting,
    Agreeing(Ticket),
    /// On its doorbells in memory.
    Shadowing(Ticket),
}

/// How a controller is, as far as resets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It takes commands.
    Up,
    /// It is being reset.
    Recovering,
    /// It is gone, or did not come back.
    Dead,
}

impl Controller {
    /// Begins to reset a real controller: commands outstanding on any of its queues are forgotten,
    /// and every queue is made again by whoever polls it. Nothing to do while that goes on.
    ///
    /// # Errors
    /// [`DriverError::Lacks`] for an emulated drive, [`DriverError::Gone`] for a controller that
    /// is not there any more.
    pub fn reset(&mut self, now: Nanos) -> Result<(), DriverError> {
        if !self.port().is_device() {
            return Err(DriverError::Lacks { what: "registers to be reset by" });
        }
        if self.lives.is_over() {
            return Err(DriverError::Gone);
        }
        if self.recovery.is_none() {
            self.lives.0.fetch_add(1, Ordering::Relaxed);
            self.resets += 1;
            self.admin().hold(true);
            let begun = bring_up::begin_to_stop(self.port());
            let patience = begun.inspect_err(|_| self.give_up())?;
            self.recovery = Some(Recovery { step: Step::Stopping, give_up: now + patience });
        }
        Ok(())
    }

    /// Whether a real controller is not there any more: it was pulled out or taken away, or has not come
    /// back from a reset. Stays so.
    pub fn is_gone(&mut self) -> bool {
        if bring_up::is_gone(self.port()) {
            self.give_up();
        }
        self.lives.is_over()
    }

    /// It is gone: every queue hears of it when it is polled.
    fn give_up(&mut self) {
        self.recovery = None;
        self.admin().end();
        self.lives.0.store(OVER, Ordering::Relaxed);
    }

    /// How often the controller has been reset.
    pub fn resets(&self) -> u64 {
        self.resets
    }

    /// How often it has been reset and whether it is gone, for who cannot wait for it.
    pub fn lives(&self) -> Lives {
        self.lives.clone()
    }

    /// Moves a reset on, and says how the controller is.
    pub(crate) fn recover(&mut self, now: Nanos) -> Health {
        if self.is_gone() {
            return Health::Dead;
        }
        let Some(Recovery { step, give_up }) = self.recovery else { return Health::Up };
        match self.recover_step(step, now) {
            Ok(Some(next)) => self.recovery = Some(next),
            Ok(None) if now < give_up => {}
            Ok(None) | Err(_) => {
                self.give_up();
                return Health::Dead;
            }
        }
        if let Some(Recovery { step: Step::Agreeing(_) | Step::Shadowing(_), .. }) = self.recovery
            && self.agreed
        {
            self.recovery = None;
            return Health::Up;
        }
        Health::Recovering
    }

    /// The next step, if this one is done.
    fn recover_step(&mut self, step: Step, now: Nanos) -> Result<Option<Recovery>, DriverError> {
        match step {
            Step::Stopping => {
                if bring_up::progress(self.port())? == Progress::Ready {
                    return Ok(None);
                }
                // It touches nothing any more, and is not started again.
                if self.port().hold() != Hold::Ours {
                    return Err(DriverError::Gone);
                }
                self.renew_admin()?;
                let patience = bring_up::begin_to_start(self.port())?;
                self.agreed = false;
                Ok(Some(Recovery { step: Step::Starting, give_up: now + patience }))
            }
            Step::Starting => match bring_up::progress(self.port())? {
                Progress::Failed => Err(DriverError::Failed),
                Progress::Stopped => Ok(None),
                Progress::Ready => {
                    self.admin().hold(false);
                    let queues = self.info().io_queues;
                    let value = QueueCounts { submission: queues, completion: queues }.to_value();
                    let fid = feature::NUMBER_OF_QUEUES;
                    let command = AdminCommand::SetFeatures { fid, save: false, value };
                    let ticket = self.admin().ask(command, 0)?;
                    Ok(Some(Recovery { step: Step::Agreeing(ticket), give_up: now + ANSWER }))
                }
            },
            Step::Agreeing(ticket) => {
                let Some(answer) = self.admin().answer(ticket) else { return Ok(None) };
                let queues = self.info().io_queues;
                let counts = QueueCounts::from_value(answer? as u32);
                let enough = |c: QueueCounts| c.submission.min(c.completion) >= queues;
                if !counts.is_some_and(enough) {
                    let what = "that it has fewer queues than before".into();
                    return Err(DriverError::Implausible { what });
                }
                // What was asked to be told of is asked again.
                self.listen_again()?;
                let give_up = now + ANSWER;
                Ok(Some(match self.shadowing() {
                    Some(command) => {
                        let step = Step::Shadowing(self.admin().ask(command, 0)?);
                        Recovery { step, give_up }
                    }
                    None => {
                        self.agreed = true;
                        Recovery { step, give_up }
                    }
                }))
            }
            Step::Shadowing(ticket) => {
                let Some(answer) = self.admin().answer(ticket) else { return Ok(None) };
                answer?;
                self.agreed = true;
                Ok(Some(Recovery { step, give_up: now + ANSWER }))
            }
        }
    }
}
