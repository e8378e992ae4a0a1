//! [`ControlChange`]: the settings of an FTL that may change while it runs, between two polls;
//! [`ControlSettings`]: those in force.
//!
//! None of them decides where data is or how much of it fits, so that recovery does not depend on
//! them. They are not kept across restarts.

use crate::{ActivePusError, Ftl, RateLimiterKind, VictimPolicyKind};

/// A change of a setting of a running FTL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ControlChange {
    /// Parallel units that are written at a time, see [`Ftl::set_active_pus`].
    ActivePus(u32),
    /// The rule for the host's share of the write bandwidth. A controller starts anew; the credits
    /// of the host stay.
    RateLimiter(RateLimiterKind),
    /// The choice of the next victim, among the lines that are closed now. Victims whose relocation
    /// has begun stay victims.
    VictimPolicy(VictimPolicyKind),
}

/// The settings in force that a [`ControlChange`] can change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlSettings {
    /// Parallel units that are written at a time.
    pub active_pus: u32,
    /// Maximum of `active_pus`: the number that the FTL was opened with.
    pub active_pus_max: u32,
    /// The rule for the host's share of the write bandwidth.
    pub rate_limiter: RateLimiterKind,
    /// The choice of the next victim.
    pub victim_policy: VictimPolicyKind,
}

/// Reason why a change is refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ControlError {
    /// More parallel units than configured.
    #[error(transparent)]
    ActivePus(#[from] ActivePusError),
    /// A gain of the rate limiter's controller is out of range.
    #[error(
        "the gains of the rate limiter are {gains:?} (kp, ki, kd), but each must be from 0 to {}",
        RateLimiterKind::GAIN_MAX
    )]
    PidGains {
        /// The gains.
        gains: [f64; 3],
    },
    /// The device has no FTL.
    #[error("the device has no FTL whose settings could change: a pblk, an rrpc, or a drive's own")]
    NoFtl,
}

impl Ftl {
    /// Returns the settings in force.
    pub fn control_settings(&self) -> ControlSettings {
        ControlSettings {
            active_pus: self.active_pus(),
            active_pus_max: self.env.plan.active_pus,
            rate_limiter: self.env.config.rate_limiter,
            victim_policy: self.env.config.victim_policy,
        }
    }

    /// Checks whether a change is possible.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn check_change(&self, change: &ControlChange) -> Result<(), ControlError> {
        match *change {
            ControlChange::ActivePus(requested) => {
                let max = self.env.plan.active_pus;
                if requested > max {
                    return Err(ActivePusError { requested, max }.into());
                }
            }
            ControlChange::RateLimiter(RateLimiterKind::Pid { kp, ki, kd }) => {
                let gains = [kp, ki, kd];
                if !gains.iter().all(|g| (0.0..=RateLimiterKind::GAIN_MAX).contains(g)) {
                    return Err(ControlError::PidGains { gains });
                }
            }
            ControlChange::RateLimiter(RateLimiterKind::Proportional)
            | ControlChange::VictimPolicy(_) => {}
        }
        Ok(())
    }

    /// Changes a setting. Call [`kick`](Ftl::kick) afterwards.
    ///
    /// # Errors
    /// [`ControlError`]; nothing changes.
    pub fn apply_change(&mut self, change: &ControlChange) -> Result<(), ControlError> {
        self.check_change(change)?;
        match *change {
            ControlChange::ActivePus(count) => self.set_active_pus(count)?,
            ControlChange::RateLimiter(kind) => {
                self.gc.set_rate_limiter(kind);
                self.env.config.rate_limiter = kind;
            }
            ControlChange::VictimPolicy(kind) => {
                self.gc.set_victim_policy(kind, self.space.table());
                self.env.config.victim_policy = kind;
            }
        }
        Ok(())
    }
}
