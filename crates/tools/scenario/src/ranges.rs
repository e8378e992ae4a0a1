//! Ranges of values that a real drive or host can have, with a wide margin. A value outside is a
//! mistake (a wrong unit, an extra digit), which the results would not show.

use std::ops::RangeInclusive;

use time::Nanos;

use super::section::{Result, Value};
use crate::format::{duration, rate};

const YEAR: Nanos = Nanos::from_secs(365 * 86_400);

/// Operations of the media: the slowest erase of the slowest NAND takes about 30 ms. Hanging drives
/// are emulated by times beyond every host's timeout.
pub(super) const MEDIA_TIME: RangeInclusive<Nanos> = Nanos::ZERO..=Nanos::from_secs(600);
/// Steps of the controller or of the host.
pub(super) const STEP_TIME: RangeInclusive<Nanos> = Nanos::ZERO..=Nanos::from_secs(600);
/// Times without a command after which a drive polls its background rules.
pub(super) const IDLE_POLL: RangeInclusive<Nanos> =
    controller::DriveRulesConfig::IDLE_POLL_MIN..=Nanos::from_secs(600);
/// Timeouts of commands.
pub(super) const TIMEOUT: RangeInclusive<Nanos> = Nanos(1)..=Nanos::from_secs(30 * 86_400);
/// Times from one poll to the next.
pub(super) const POLL_INTERVAL: RangeInclusive<Nanos> = Nanos(1)..=block::notify::POLL_INTERVAL_MAX;
/// Ages of data.
pub(super) const AGE: RangeInclusive<Nanos> = Nanos::ZERO..=Nanos(100 * YEAR.0);
/// Bandwidths of a bus, a link or a medium. 0 is outside: it stands for no limit.
pub(super) const RATE: RangeInclusive<u64> = 1_000..=10_000_000_000_000;

impl Value<'_> {
    fn within<T: PartialOrd + Copy>(
        &self,
        value: T,
        range: &RangeInclusive<T>,
        allowed: impl FnOnce(T, T) -> String,
    ) -> Result<T> {
        if range.contains(&value) {
            return Ok(value);
        }
        Err(self.refuse(allowed(*range.start(), *range.end())))
    }

    /// Reads a duration within a range.
    pub(super) fn duration_in(&self, range: &RangeInclusive<Nanos>) -> Result<Nanos> {
        self.within(self.duration()?, range, |least, most| {
            format!("durations from {} to {}", duration(least.0), duration(most.0))
        })
    }

    /// Reads a bandwidth, or 0 for no limit.
    pub(super) fn rate_or_none(&self) -> Result<u64> {
        self.rate_of(self.bandwidth()?)
    }

    /// Reads a channel's bandwidth, which data sheets give in transfers per second; or 0.
    pub(super) fn channel_rate_or_none(&self) -> Result<u64> {
        self.rate_of(self.channel_bandwidth()?)
    }

    fn rate_of(&self, value: u64) -> Result<u64> {
        if value == 0 {
            return Ok(0);
        }
        self.within(value, &RATE, |least, most| {
            format!("0 for no limit, or {} to {}", rate(least as f64), rate(most as f64))
        })
    }

    /// Reads a whole number within a range.
    pub(super) fn u32_in(&self, range: &RangeInclusive<u32>) -> Result<u32> {
        let allowed = |least, most| format!("whole numbers from {least} to {most}");
        match u32::try_from(self.u64()?) {
            Ok(n) => self.within(n, range, allowed),
            Err(_) => Err(self.refuse(allowed(*range.start(), *range.end()))),
        }
    }
}
