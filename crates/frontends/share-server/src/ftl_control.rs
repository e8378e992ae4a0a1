//! [`FtlControl`]: settings of the FTL of a drive or target, read and changed on the threads that own
//! it; [`WireSetting`]: the settings on the wire.

use std::fmt;
use std::sync::Arc;

use ftl::{ControlChange, ControlError, ControlSettings, RateLimiterKind, VictimPolicyKind};
use share_proto::{
    Code, LimiterSetting, ProtocolError, ResourceName, SettingChange, SettingsEntry, VictimSetting,
};

use super::owner_call::OwnerStopped;

/// Why a setting of an FTL is neither read nor changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FtlControlError {
    /// The FTL refuses the change, or there is none.
    #[error(transparent)]
    Refused(#[from] ControlError),
    /// A thread that owns a part of the FTL has ended, or does not answer.
    #[error(transparent)]
    Stopped(#[from] OwnerStopped),
}

type ControlFn =
    dyn Fn(Option<ControlChange>) -> Result<Vec<ControlSettings>, FtlControlError> + Send + Sync;

/// Access to the settings of an FTL, or of all shards of a target.
#[derive(Clone)]
pub struct FtlControl(Arc<ControlFn>);

/// A drive or target, and the access to the settings of its FTL.
#[derive(Clone, Debug)]
pub struct NamedFtl {
    /// Name of the drive or target.
    pub name: ResourceName,
    /// Its settings.
    pub control: FtlControl,
}

impl fmt::Debug for FtlControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FtlControl").finish_non_exhaustive()
    }
}

impl FtlControl {
    /// Creates the access from a function that makes a change, if there is one, and returns the
    /// settings in force of each shard. A refused change changes no shard. Control threads call the
    /// function and wait.
    pub fn new(
        control: impl Fn(Option<ControlChange>) -> Result<Vec<ControlSettings>, FtlControlError>
        + Send
        + Sync
        + 'static,
    ) -> FtlControl {
        FtlControl(Arc::new(control))
    }
}

impl NamedFtl {
    /// Returns the settings in force.
    ///
    /// # Errors
    /// [`FtlControlError`], also if there is no FTL.
    pub(super) fn settings(&self) -> Result<SettingsEntry, FtlControlError> {
        self.control_entry(None)
    }

    /// Changes a setting, and returns those in force.
    ///
    /// # Errors
    /// A refusal, after which nothing has changed.
    pub(super) fn change(&self, change: SettingChange) -> Result<SettingsEntry, ProtocolError> {
        let changed = self.control_entry(Some(change.into_setting()));
        changed.map_err(|error| {
            let code = match error {
                FtlControlError::Refused(_) => Code::Setting,
                FtlControlError::Stopped(_) => Code::Drive,
            };
            ProtocolError::new(code, format!("{}: {error}", self.name))
        })
    }

    fn control_entry(
        &self,
        change: Option<ControlChange>,
    ) -> Result<SettingsEntry, FtlControlError> {
        let shards = (self.control.0)(change)?;
        let first = shards.first().ok_or(ControlError::NoFtl)?;
        // Shards differ at most in their numbers of parallel units.
        let least = |of: fn(&ControlSettings) -> u32| shards.iter().map(of).min().unwrap_or(0);
        Ok(SettingsEntry {
            device: self.name,
            shards: shards.len() as u32,
            active_pus: least(|shard| shard.active_pus),
            active_pus_max: least(|shard| shard.active_pus_max),
            rate_limiter: LimiterSetting::from_setting(first.rate_limiter),
            victim_policy: VictimSetting::from_setting(first.victim_policy),
        })
    }
}

/// A setting on the wire that stands for one of an FTL.
pub trait WireSetting: Sized {
    /// The setting of an FTL.
    type Setting;

    /// Returns the form on the wire.
    fn from_setting(setting: Self::Setting) -> Self;

    /// Returns the setting of an FTL.
    fn into_setting(self) -> Self::Setting;
}

impl WireSetting for SettingChange {
    type Setting = ControlChange;

    fn from_setting(change: ControlChange) -> SettingChange {
        match change {
            ControlChange::ActivePus(count) => SettingChange::ActivePus(count),
            ControlChange::RateLimiter(kind) => {
                SettingChange::RateLimiter(LimiterSetting::from_setting(kind))
            }
            ControlChange::VictimPolicy(kind) => {
                SettingChange::VictimPolicy(VictimSetting::from_setting(kind))
            }
        }
    }

    fn into_setting(self) -> ControlChange {
        match self {
            SettingChange::ActivePus(count) => ControlChange::ActivePus(count),
            SettingChange::RateLimiter(kind) => ControlChange::RateLimiter(kind.into_setting()),
            SettingChange::VictimPolicy(kind) => ControlChange::VictimPolicy(kind.into_setting()),
        }
    }
}

impl WireSetting for LimiterSetting {
    type Setting = RateLimiterKind;

    fn from_setting(kind: RateLimiterKind) -> LimiterSetting {
        match kind {
            RateLimiterKind::Proportional => LimiterSetting::Proportional,
            RateLimiterKind::Pid { kp, ki, kd } => LimiterSetting::Pid { kp, ki, kd },
        }
    }

    fn into_setting(self) -> RateLimiterKind {
        match self {
            LimiterSetting::Proportional => RateLimiterKind::Proportional,
            LimiterSetting::Pid { kp, ki, kd } => RateLimiterKind::Pid { kp, ki, kd },
        }
    }
}

impl WireSetting for VictimSetting {
    type Setting = VictimPolicyKind;

    fn from_setting(kind: VictimPolicyKind) -> VictimSetting {
        match kind {
            VictimPolicyKind::Greedy => VictimSetting::Greedy,
            VictimPolicyKind::CostBenefit => VictimSetting::CostBenefit,
            VictimPolicyKind::Fifo => VictimSetting::Fifo,
            VictimPolicyKind::CostWear => VictimSetting::CostWear,
        }
    }

    fn into_setting(self) -> VictimPolicyKind {
        match self {
            VictimSetting::Greedy => VictimPolicyKind::Greedy,
            VictimSetting::CostBenefit => VictimPolicyKind::CostBenefit,
            VictimSetting::Fifo => VictimPolicyKind::Fifo,
            VictimSetting::CostWear => VictimPolicyKind::CostWear,
        }
    }
}
