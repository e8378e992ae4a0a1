//! [`SettingChange`]: a change of a setting of an FTL; [`SettingsEntry`]: the settings in force.

use collections::{PutBytes, Reader, SliceWriter};

use crate::codec::{PutField, ReadField};
use crate::name::ResourceName;

/// A change of one setting of an FTL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SettingChange {
    /// Parallel units that are written at a time; 0 for as many as the FTL was opened with.
    ActivePus(u32),
    /// The rule for the host's share of the write bandwidth.
    RateLimiter(LimiterSetting),
    /// The choice of the next victim of garbage collection.
    VictimPolicy(VictimSetting),
}

/// A rule for the host's share of the write bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LimiterSetting {
    /// In proportion to the free space.
    Proportional,
    /// By a controller with these gains, which are finite.
    Pid {
        /// Proportional gain.
        kp: f64,
        /// Integral gain.
        ki: f64,
        /// Derivative gain.
        kd: f64,
    },
}

/// A choice of the next victim of garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimSetting {
    /// The line with the fewest valid sectors.
    Greedy,
    /// The line with the best ratio of benefit to cost.
    CostBenefit,
    /// The line that was closed longest ago.
    Fifo,
    /// The line with the least cost, from valid sectors and wear.
    CostWear,
}

/// The settings of an FTL in force.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SettingsEntry {
    /// The drive or target.
    pub device: ResourceName,
    /// Number of FTLs: the shards of a target, or 1. Each has these settings.
    pub shards: u32,
    /// Parallel units that each shard writes at a time; the smallest number of any shard.
    pub active_pus: u32,
    /// Maximum of `active_pus`.
    pub active_pus_max: u32,
    /// The rule for the host's share of the write bandwidth.
    pub rate_limiter: LimiterSetting,
    /// The choice of the next victim of garbage collection.
    pub victim_policy: VictimSetting,
}

impl SettingChange {
    /// Bytes in a message.
    pub(crate) const WIRE_BYTES: usize = 8 + LimiterSetting::WIRE_BYTES;

    pub(crate) fn encode(self, w: &mut SliceWriter<'_>) {
        match self {
            SettingChange::ActivePus(count) => {
                w.put_u32(1).put_u32(count).put_zeros(LimiterSetting::WIRE_BYTES);
            }
            SettingChange::RateLimiter(kind) => kind.encode(w.put_u32(2).put_zeros(4)),
            SettingChange::VictimPolicy(kind) => {
                w.put_u32(3).put_u32(kind as u32 + 1).put_zeros(LimiterSetting::WIRE_BYTES);
            }
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Option<SettingChange> {
        let (key, value) = (r.u32()?, r.u32()?);
        let change = match (key, value) {
            (2, 0) => return Some(SettingChange::RateLimiter(LimiterSetting::decode(r)?)),
            (1, count) => SettingChange::ActivePus(count),
            (3, kind) => SettingChange::VictimPolicy(VictimSetting::from_wire(kind)?),
            _ => return None,
        };
        r.zeros::<{ LimiterSetting::WIRE_BYTES }>()?;
        Some(change)
    }
}

impl LimiterSetting {
    const WIRE_BYTES: usize = 8 + 3 * 8;

    fn encode(self, w: &mut SliceWriter<'_>) {
        match self {
            LimiterSetting::Proportional => drop(w.put_u32(1).put_zeros(4 + 3 * 8)),
            LimiterSetting::Pid { kp, ki, kd } => {
                w.put_u32(2).put_zeros(4);
                w.put_u64(kp.to_bits()).put_u64(ki.to_bits()).put_u64(kd.to_bits());
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Option<LimiterSetting> {
        let kind = r.u32()?;
        r.zeros::<4>()?;
        let mut gain = || r.u64().map(f64::from_bits).filter(|gain| gain.is_finite());
        match kind {
            1 => r.zeros::<24>().map(|()| LimiterSetting::Proportional),
            2 => Some(LimiterSetting::Pid { kp: gain()?, ki: gain()?, kd: gain()? }),
            _ => None,
        }
    }
}

impl VictimSetting {
    fn from_wire(kind: u32) -> Option<VictimSetting> {
        match kind {
            1 => Some(VictimSetting::Greedy),
            2 => Some(VictimSetting::CostBenefit),
            3 => Some(VictimSetting::Fifo),
            4 => Some(VictimSetting::CostWear),
            _ => None,
        }
    }
}

impl SettingsEntry {
    /// Bytes in a message.
    pub(crate) const WIRE_BYTES: usize = 32 + 4 * 4 + LimiterSetting::WIRE_BYTES;

    pub(crate) fn encode(&self, w: &mut SliceWriter<'_>) {
        w.put_name(self.device).put_u32(self.shards);
        w.put_u32(self.active_pus).put_u32(self.active_pus_max);
        w.put_u32(self.victim_policy as u32 + 1);
        self.rate_limiter.encode(w);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Option<SettingsEntry> {
        Some(SettingsEntry {
            device: r.name()?,
            shards: r.u32()?,
            active_pus: r.u32()?,
            active_pus_max: r.u32()?,
            victim_policy: VictimSetting::from_wire(r.u32()?)?,
            rate_limiter: LimiterSetting::decode(r)?,
        })
    }
}
