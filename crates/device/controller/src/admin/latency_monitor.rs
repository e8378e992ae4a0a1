//! [`LatencyMonitor`]: counts commands by latency [OCP2.0 §4.8.9].
//!
//! The latency of a command is the time from its fetch to the post of its completion. Buckets 0 to 3
//! begin at the thresholds A to D; commands below threshold A are in none. Invariant: every counter
//! is the number of commands since the active buckets were cleared, up to its maximum.

use nvme::{
    IoCommand, LATENCY_BUCKETS, LatencyMonitorBuckets, LatencyMonitorFeature, LatencyMonitorLog,
    MonitoredKind, Status,
};
use serde::{Deserialize, Serialize};
use time::Nanos;

const TIMER_UNIT: Nanos = Nanos(5 * 60 * 1_000_000_000);
const THRESHOLD_UNIT: Nanos = Nanos(5_000_000);
const WINDOW_UNIT: Nanos = Nanos(100_000_000);
const MILLISECOND: u64 = 1_000_000;

/// The counters of the latency monitor since it was enabled: the sums of the log page's buckets over
/// all periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyMonitorStats {
    /// Latencies at which buckets 0 to 3 begin.
    pub thresholds: [Nanos; LATENCY_BUCKETS],
    /// Reads in each bucket.
    pub reads: [u64; LATENCY_BUCKETS],
    /// Writes in each bucket.
    pub writes: [u64; LATENCY_BUCKETS],
    /// Deallocations in each bucket.
    pub deallocates: [u64; LATENCY_BUCKETS],
}

/// An enabled latency monitor.
#[derive(Debug)]
pub(crate) struct LatencyMonitor {
    settings: LatencyMonitorFeature,
    active: LatencyMonitorBuckets,
    frozen: LatencyMonitorBuckets,
    /// Start of the active buckets' period.
    since: Nanos,
    /// Time of the last stamp of each kind in each bucket.
    stamped_at: [[Option<Nanos>; 3]; LATENCY_BUCKETS],
    stats: LatencyMonitorStats,
}

/// Checks settings.
///
/// # Errors
/// [`Status::INVALID_FIELD`] for reserved bits, decreasing thresholds, or triggers of the debug log,
/// which the drive does not have.
pub(crate) fn check(settings: &LatencyMonitorFeature) -> Result<(), Status> {
    let is_valid = settings.thresholds.is_sorted_by(|a, b| a < b)
        && settings.modes.get() >> (3 * LATENCY_BUCKETS) == 0
        && settings.debug_triggers.get() == 0
        && settings.discard_debug_log <= 1
        && settings.enable <= 1;
    if is_valid { Ok(()) } else { Err(Status::INVALID_FIELD.do_not_retry()) }
}

/// Returns the settings that enable the monitor with these thresholds, which are multiples of 5 ms.
pub(crate) fn settings_of(thresholds: &[Nanos; LATENCY_BUCKETS]) -> LatencyMonitorFeature {
    LatencyMonitorFeature {
        thresholds: thresholds.map(|t| (t.0 / THRESHOLD_UNIT.0).saturating_sub(1) as u8),
        enable: 1,
        ..LatencyMonitorFeature::DEFAULT
    }
}

/// Returns whether the monitor can have these thresholds.
pub(crate) fn is_possible(thresholds: &[Nanos; LATENCY_BUCKETS]) -> bool {
    thresholds.is_sorted_by(|a, b| a < b)
        && thresholds.iter().all(|t| {
            t.0.is_multiple_of(THRESHOLD_UNIT.0) && (1..=256).contains(&(t.0 / THRESHOLD_UNIT.0))
        })
}

fn kind_of(io: &IoCommand) -> Option<MonitoredKind> {
    match io {
        IoCommand::Read { .. } | IoCommand::VectorRead { .. } => Some(MonitoredKind::Read),
        IoCommand::Write { .. } | IoCommand::VectorWrite { .. } | IoCommand::VectorCopy { .. } => {
            Some(MonitoredKind::Write)
        }
        IoCommand::DatasetManagement { .. } => Some(MonitoredKind::Deallocate),
        _ => None,
    }
}

impl LatencyMonitor {
    pub(crate) fn new(settings: LatencyMonitorFeature, now: Nanos) -> LatencyMonitor {
        let thresholds = settings.thresholds.map(|t| THRESHOLD_UNIT * (u64::from(t) + 1));
        LatencyMonitor {
            settings,
            active: LatencyMonitorBuckets::new(),
            frozen: LatencyMonitorBuckets::new(),
            since: now,
            stamped_at: [[None; 3]; LATENCY_BUCKETS],
            stats: LatencyMonitorStats { thresholds, ..LatencyMonitorStats::default() },
        }
    }

    pub(crate) fn settings(&self) -> &LatencyMonitorFeature {
        &self.settings
    }

    pub(crate) fn stats(&self) -> LatencyMonitorStats {
        self.stats
    }

    /// Records a completed command.
    #[inline]
    pub(crate) fn record(&mut self, now: Nanos, io: &IoCommand, latency: Nanos) {
        if latency >= self.stats.thresholds[0]
            && let Some(kind) = kind_of(io)
        {
            self.record_slow(now, kind, latency);
        }
    }

    #[cold]
    fn record_slow(&mut self, now: Nanos, kind: MonitoredKind, latency: Nanos) {
        self.advance(now);
        let thresholds = &self.stats.thresholds;
        let bucket = thresholds.iter().filter(|threshold| latency >= **threshold).count() - 1;
        self.active.count(bucket, kind);
        let counters = match kind {
            MonitoredKind::Read => &mut self.stats.reads,
            MonitoredKind::Write => &mut self.stats.writes,
            MonitoredKind::Deallocate => &mut self.stats.deallocates,
        };
        counters[bucket] += 1;
        let milliseconds = u16::try_from(latency.0 / MILLISECOND).unwrap_or(u16::MAX);
        let is_wanted = match self.active.stamp(bucket, kind) {
            None => true,
            Some((_, slowest)) => self.settings.is_mode_1(bucket, kind) && milliseconds > slowest,
        };
        let stamped_at = &mut self.stamped_at[bucket][kind as usize];
        let window = WINDOW_UNIT * u64::from(self.settings.window);
        if is_wanted && stamped_at.is_none_or(|at| now.since(at) >= window) {
            *stamped_at = Some(now);
            self.active.set_stamp(bucket, kind, now.0 / MILLISECOND, milliseconds);
        }
    }

    /// Ends the periods of the active buckets that are over.
    fn advance(&mut self, now: Nanos) {
        let period = TIMER_UNIT * u64::from(self.settings.timer_threshold.get());
        if period == Nanos::ZERO || now.since(self.since) < period {
            return;
        }
        let periods = now.since(self.since).0 / period.0;
        let active = std::mem::take(&mut self.active);
        // Nothing has happened in the last of several periods.
        self.frozen = if periods == 1 { active } else { LatencyMonitorBuckets::new() };
        self.since += period * periods;
        self.stamped_at = [[None; 3]; LATENCY_BUCKETS];
    }

    /// Returns the log page.
    pub(crate) fn log(&mut self, now: Nanos) -> LatencyMonitorLog {
        self.advance(now);
        let mut log = page_of(&self.settings);
        let age = now.since(self.since).0 / TIMER_UNIT.0;
        log.timer = u16::try_from(age).unwrap_or(u16::MAX).into();
        (log.active, log.frozen) = (self.active, self.frozen);
        log.status |= LatencyMonitorLog::ENABLED;
        log
    }
}

/// Returns the log page of a monitor that has counted nothing, and is not enabled.
pub(crate) fn page_of(settings: &LatencyMonitorFeature) -> LatencyMonitorLog {
    LatencyMonitorLog {
        timer_threshold: settings.timer_threshold,
        thresholds: settings.thresholds,
        modes: settings.modes,
        window: settings.window,
        ..LatencyMonitorLog::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: IoCommand = IoCommand::Read { slba: 0, nlb: 1, fua: false, limited_retry: false };

    fn monitor(modes: u16, window: u8) -> LatencyMonitor {
        let thresholds = [5, 10, 20, 40].map(Nanos::from_millis);
        let settings =
            LatencyMonitorFeature { modes: modes.into(), window, ..settings_of(&thresholds) };
        assert_eq!(check(&settings), Ok(()));
        let monitor = LatencyMonitor::new(settings, Nanos::ZERO);
        assert_eq!(monitor.stats().thresholds, thresholds);
        monitor
    }

    #[test]
    fn a_bucket_begins_at_its_threshold() {
        let mut m = monitor(0, 0);
        for (latency, reads) in [
            (4_999_999, [0, 0, 0, 0]),
            (5_000_000, [1, 0, 0, 0]),
            (9_999_999, [2, 0, 0, 0]),
            (10_000_000, [2, 1, 0, 0]),
            (20_000_000, [2, 1, 1, 0]),
            (40_000_000, [2, 1, 1, 1]),
            (u64::MAX, [2, 1, 1, 2]),
        ] {
            m.record(Nanos(1), &READ, Nanos(latency));
            assert_eq!(m.stats().reads, reads, "{latency}");
        }
        m.record(Nanos(1), &IoCommand::Flush, Nanos::from_millis(100));
        assert_eq!((m.stats().writes, m.stats().deallocates), ([0; 4], [0; 4]));
    }

    #[test]
    fn a_stamp_is_of_the_first_or_of_the_slowest_command() {
        let second = |n: u64| Nanos(n * 1_000_000_000);
        let run = |modes, window| {
            let mut m = monitor(modes, window);
            for (at, latency) in [(1, 12), (2, 11), (3, 15), (4, 17)] {
                m.record(second(at), &READ, Nanos::from_millis(latency));
            }
            m.log(second(5)).active.stamp(1, MonitoredKind::Read)
        };
        assert_eq!(run(0, 0), Some((1_000, 12)));
        // Bit 3 is that of reads in bucket 1.
        assert_eq!(run(1 << 3, 0), Some((4_000, 17)));
        assert_eq!(run(0x0fff & !(1 << 3), 0), Some((1_000, 12)));
        // Stamps are 1.5 s apart: that of 4 s is too early.
        assert_eq!(run(1 << 3, 15), Some((3_000, 15)));
    }

    #[test]
    fn buckets_that_are_never_static_stay_active() {
        let settings =
            LatencyMonitorFeature { timer_threshold: 0.into(), ..monitor(0, 0).settings };
        let mut m = LatencyMonitor::new(settings, Nanos::ZERO);
        m.record(Nanos(1), &READ, Nanos::from_millis(5));
        let log = m.log(TIMER_UNIT * 100_000);
        assert_eq!((log.active.counter(0, MonitoredKind::Read), log.timer.get()), (1, u16::MAX));
    }
}
