//! [`DriveStats`]: what a drive has done (rule R10).

use clock::Nanos;
use ftl::FtlStats;
use hdrhistogram::Histogram;
use media::MediaStats;

/// How late completions were in real time (rule R6). Zeros in virtual time, where none is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Completions.
    pub count: u64,
    /// Median.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// Largest.
    pub max: Nanos,
}

/// How long I/O commands took, from the fetch of their entry to the posting of their completion. Drives
/// record it when asked to ([`Controller::record_command_times`](crate::Controller::record_command_times)).
#[derive(Clone, Debug)]
pub struct CommandTimes {
    /// Reads, vector reads included.
    pub reads: LatenessRecord,
    /// Writes, vector writes and copies included.
    pub writes: LatenessRecord,
    /// The sum over all commands: over an interval it is the mean number of commands under way times the
    /// interval's length.
    pub total: Nanos,
}

impl CommandTimes {
    pub(crate) fn new() -> CommandTimes {
        let [reads, writes] = std::array::from_fn(|_| LatenessRecord::new());
        CommandTimes { reads, writes, total: Nanos::ZERO }
    }

    /// The commands that ended since the record `before` of the same drive.
    #[must_use]
    pub fn since(&self, before: &CommandTimes) -> CommandTimes {
        CommandTimes {
            reads: self.reads.since(&before.reads),
            writes: self.writes.since(&before.writes),
            total: self.total.since(before.total),
        }
    }
}

/// A distribution of lateness, or of other times. In virtual time nothing is ever late: recording that is one addition.
#[derive(Clone, Debug)]
pub struct LatenessRecord {
    on_time: u64,
    max: Nanos,
    late: Histogram<u64>,
}

impl LatenessRecord {
    pub(crate) fn new() -> LatenessRecord {
        // Two digits are plenty; the bounds are valid constants.
        let late = Histogram::new_with_bounds(1, 1_000_000_000_000, 2);
        let late = late.unwrap_or_else(|_| unreachable!("constant bounds"));
        LatenessRecord { on_time: 0, max: Nanos::ZERO, late }
    }

    #[inline]
    pub(crate) fn record(&mut self, late: Nanos) {
        if late == Nanos::ZERO {
            self.on_time += 1;
        } else {
            self.max = self.max.max(late);
            self.late.saturating_record(late.0);
        }
    }

    fn quantile(&self, q: f64) -> Nanos {
        let (on_time, late) = (self.on_time as f64, self.late.len() as f64);
        let rank = q * (on_time + late) - on_time;
        if rank <= 0.0 {
            return Nanos::ZERO;
        }
        Nanos(self.late.value_at_quantile(rank / late)).min(self.max)
    }

    /// The completions since the record `before` of the same drive, whose statistics were not reset in
    /// between. Their largest lateness is known as exactly as quantiles are: to one part in a hundred.
    #[must_use]
    pub fn since(&self, before: &LatenessRecord) -> LatenessRecord {
        let mut late = self.late.clone();
        // Both have the same bounds, and counts only grow.
        let subtracted = late.subtract(&before.late);
        debug_assert!(subtracted.is_ok(), "a later record has less: {subtracted:?}");
        let max = Nanos(late.max()).min(self.max);
        LatenessRecord { on_time: self.on_time.saturating_sub(before.on_time), max, late }
    }

    /// How late completions were, in sum.
    pub fn read(&self) -> Lateness {
        Lateness {
            count: self.on_time + self.late.len(),
            p50: self.quantile(0.5),
            p99: self.quantile(0.99),
            max: self.max,
        }
    }

    pub(crate) fn reset(&mut self) {
        (self.on_time, self.max) = (0, Nanos::ZERO);
        self.late.reset();
    }
}

/// Time that a parallel unit spent reading (transfers out included, unless cache read leaves the
/// array free), programming and erasing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PuBusy {
    /// Reading.
    pub read: Nanos,
    /// Programming.
    pub program: Nanos,
    /// Erasing.
    pub erase: Nanos,
}

/// What became of commands' hints (LightNVM paper section 3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintStats {
    /// Commands that said how many planes to use at once.
    pub plane_modes: u64,
    /// Reads that asked for suspension.
    pub suspend: u64,
    /// Commands whose suspend hint did nothing: reads of a drive that cannot suspend, and commands
    /// that read nothing.
    pub suspend_ignored: u64,
    /// Commands that asked to fail fast.
    pub limited_retry: u64,
    /// Reads that did: what they would have been repeated for is not read.
    pub retries_forgone: u64,
}

/// What happened to the drive's own map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceL2pStats {
    /// Sectors written that became their address's newest copy.
    pub updates: u64,
    /// Sectors written that did not: there was a newer one, or it was trimmed since.
    pub stale: u64,
    /// Sectors written with a logical address past the end.
    pub out_of_range: u64,
    /// Addresses that lost their copy to the reset of its chunk.
    pub resets: u64,
    /// Addresses trimmed.
    pub trims: u64,
}

/// Chunk notifications (OC section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotificationStats {
    /// Notifications logged.
    pub logged: u64,
    /// Those that later ones took the place of before any host had read them.
    pub overwritten: u64,
    /// Asynchronous event requests completed because of them.
    pub events_sent: u64,
}

/// What a drive that manages its flash has done about what its media noticed, since power-on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaScrubStats {
    /// What was noticed.
    pub media_events: u64,
    /// Of that, such that nothing was done about.
    pub ignored: u64,
    /// Lines that the layer was asked to move.
    pub refreshes: u64,
    /// Sectors that the patrol has read.
    pub sectors_read: u64,
    /// Rounds that it has begun.
    pub passes: u64,
}

/// Counters since power-on, or since [`Drive::reset_stats`](crate::Drive::reset_stats).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriveStats {
    /// Read commands completed, vector reads included.
    pub reads: u64,
    /// Write commands completed, vector writes and copies included.
    pub writes: u64,
    /// Other I/O commands completed.
    pub others: u64,
    /// Commands that ended with an error.
    pub errors: u64,
    /// Bytes read by hosts.
    pub bytes_read: u64,
    /// Bytes written by hosts.
    pub bytes_written: u64,
    /// Doorbells out of range.
    pub invalid_doorbells: u64,
    /// The drive's translation layer; `None` unless it manages its own flash.
    pub ftl: Option<FtlStats>,
    /// Free lines of the translation layer.
    pub free_lines: Option<f64>,
    /// The NAND medium; `None` for others.
    pub media: Option<MediaStats>,
    /// Per parallel unit, channel by channel.
    pub pus: Vec<PuBusy>,
    /// Per channel, time spent transferring.
    pub channels: Vec<Nanos>,
    /// Reads that found their page in the page register.
    pub register_hits: u64,
    /// Programs and erases that were suspended for a read.
    pub suspensions: u64,
    /// Repetitions of array reads because of bit errors.
    pub read_retries: u64,
    /// What became of hints.
    pub hints: HintStats,
    /// Notifications of an open-channel drive.
    pub notifications: NotificationStats,
    /// What a drive that manages its flash has done about its media.
    pub scrub: MediaScrubStats,
    /// Bytes of commands' data that were in the controller memory buffer and took no DMA.
    pub cmb_bytes: u64,
    /// The drive's own map; `None` unless it keeps one.
    pub device_l2p: Option<DeviceL2pStats>,
    /// How late completions were.
    pub late: Lateness,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_of_lateness_has_only_its_own_completions() {
        let mut record = LatenessRecord::new();
        for _ in 0..99 {
            record.record(Nanos::ZERO);
        }
        record.record(Nanos::from_millis(5));
        let before = record.clone();
        assert_eq!(record.read().max, Nanos::from_millis(5));
        assert_eq!(record.since(&before).read(), Lateness::default());
        for _ in 0..3 {
            record.record(Nanos(1_000));
        }
        record.record(Nanos::ZERO);
        let last = record.since(&before).read();
        assert_eq!(last.count, 4);
        assert!((990..=1_010).contains(&last.max.0) && last.p99 <= last.max, "{last:?}");
        assert_eq!(record.read().max, Nanos::from_millis(5), "the whole is as it was");
    }
}
