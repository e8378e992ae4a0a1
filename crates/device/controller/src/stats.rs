//! [`DriveStats`]: the counters of a drive (ARCHITECTURE.md, R10).

use ftl::FtlStats;
use hdrhistogram::Histogram;
use media::MediaStats;
use serde::{Deserialize, Serialize};
use time::Nanos;

/// The lateness of completions in real time (ARCHITECTURE.md, R6); zero in virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Number of completions.
    pub count: u64,
    /// Median.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// Largest.
    pub max: Nanos,
}

/// The times of I/O commands, from the fetch of the entry to the post of the completion. A drive
/// records them after
/// [`Controller::record_command_times`](crate::Controller::record_command_times).
#[derive(Clone, Debug)]
pub struct CommandTimes {
    /// Reads, vector reads included.
    pub reads: LatenessRecord,
    /// Writes, vector writes and copies included.
    pub writes: LatenessRecord,
    /// Sum over all commands. Over an interval it is the mean number of commands in flight, times
    /// the length of the interval.
    pub total: Nanos,
}

impl CommandTimes {
    pub(crate) fn new() -> CommandTimes {
        let [reads, writes] = std::array::from_fn(|_| LatenessRecord::new());
        CommandTimes { reads, writes, total: Nanos::ZERO }
    }

    /// Returns the commands completed since the record `before` of this drive.
    #[must_use]
    pub fn since(&self, before: &CommandTimes) -> CommandTimes {
        CommandTimes {
            reads: self.reads.since(&before.reads),
            writes: self.writes.since(&before.writes),
            total: self.total.since(before.total),
        }
    }
}

/// Returns an empty distribution of times in nanoseconds.
fn new_histogram() -> Histogram<u64> {
    // Two significant digits suffice; the bounds are valid constants.
    let histogram = Histogram::new_with_bounds(1, 1_000_000_000_000, 2);
    histogram.unwrap_or_else(|_| unreachable!("constant bounds"))
}

/// Saves a distribution as its recorded values and their counts.
mod saved_histogram {
    use hdrhistogram::Histogram;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        late: &Histogram<u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let counts = late.iter_recorded();
        let counts = counts.map(|value| (value.value_iterated_to(), value.count_at_value()));
        counts.collect::<Vec<(u64, u64)>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Histogram<u64>, D::Error> {
        let mut late = super::new_histogram();
        for (value, count) in Vec::<(u64, u64)>::deserialize(from)? {
            late.record_n(value, count).map_err(D::Error::custom)?;
        }
        Ok(late)
    }
}

/// A distribution of lateness or other times. In virtual time all completions are on time, and
/// recording one is a single addition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LatenessRecord {
    on_time: u64,
    max: Nanos,
    #[serde(with = "saved_histogram")]
    late: Histogram<u64>,
}

impl Default for LatenessRecord {
    /// Returns a distribution of nothing.
    fn default() -> LatenessRecord {
        LatenessRecord::new()
    }
}

impl LatenessRecord {
    pub(crate) fn new() -> LatenessRecord {
        LatenessRecord { on_time: 0, max: Nanos::ZERO, late: new_histogram() }
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

    /// Returns the completions since the record `before` of this drive, whose statistics must not
    /// have been reset in between. The largest lateness is as exact as the quantiles: to 1 %.
    #[must_use]
    pub fn since(&self, before: &LatenessRecord) -> LatenessRecord {
        let mut late = self.late.clone();
        // Both have equal bounds, and counts only grow.
        let subtracted = late.subtract(&before.late);
        debug_assert!(subtracted.is_ok(), "a later record has less: {subtracted:?}");
        let max = Nanos(late.max()).min(self.max);
        LatenessRecord { on_time: self.on_time.saturating_sub(before.on_time), max, late }
    }

    /// Returns the record of the completions of both.
    #[must_use]
    pub fn plus(&self, other: &LatenessRecord) -> LatenessRecord {
        let mut late = self.late.clone();
        // Both have equal bounds.
        let added = late.add(&other.late);
        debug_assert!(added.is_ok(), "records have other bounds: {added:?}");
        let (on_time, max) = (self.on_time + other.on_time, self.max.max(other.max));
        LatenessRecord { on_time, max, late }
    }

    /// Returns the summary of the distribution.
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

/// The busy times of a parallel unit: reads (transfers out included, unless cache read leaves the
/// array free), programs and erases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PuBusy {
    /// Time spent on reads.
    pub read: Nanos,
    /// Time spent on programs.
    pub program: Nanos,
    /// Time spent on erases.
    pub erase: Nanos,
}

/// The effects of vector command hints [LightNVM17 §3.3].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintStats {
    /// Commands with a plane mode hint.
    pub plane_modes: u64,
    /// Reads with a suspend hint.
    pub suspend: u64,
    /// Commands whose suspend hint had no effect: the drive cannot suspend, or the command is not a
    /// read.
    pub suspend_ignored: u64,
    /// Commands with a limited retry hint.
    pub limited_retry: u64,
    /// Reads that failed without the retries that they needed.
    pub retries_forgone: u64,
}

/// The counters of the device L2P.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceL2pStats {
    /// Sectors written that became the latest version of their address.
    pub updates: u64,
    /// Sectors written that were superseded: a newer version or a later trim existed.
    pub stale: u64,
    /// Sectors written with a logical address past the end.
    pub out_of_range: u64,
    /// Addresses unmapped by a chunk reset.
    pub resets: u64,
    /// Addresses trimmed.
    pub trims: u64,
}

/// The counters of chunk notifications [OC20 §3].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationStats {
    /// Notifications logged.
    pub logged: u64,
    /// Notifications overwritten by later ones before any host had read them.
    pub overwritten: u64,
    /// Asynchronous event requests completed because of notifications.
    pub events_sent: u64,
}

/// The reactions of a block drive to media events, since power-on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaScrubStats {
    /// Media events.
    pub media_events: u64,
    /// Media events without a reaction.
    pub ignored: u64,
    /// Line refreshes requested from the FTL.
    pub refreshes: u64,
    /// Sectors read by the scrub.
    pub sectors_read: u64,
    /// Scrub passes started.
    pub passes: u64,
}

/// Counters since power-on, or since [`Controller::reset_stats`](crate::Controller::reset_stats).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DriveStats {
    /// Read commands completed, vector reads included.
    pub reads: u64,
    /// Write commands completed, vector writes and copies included.
    pub writes: u64,
    /// Other I/O commands completed.
    pub others: u64,
    /// Commands completed with an error.
    pub errors: u64,
    /// Bytes read by hosts.
    pub bytes_read: u64,
    /// Bytes written by hosts.
    pub bytes_written: u64,
    /// Invalid doorbell values.
    pub invalid_doorbells: u64,
    /// The FTL; `None` unless the drive manages its own flash.
    pub ftl: Option<FtlStats>,
    /// Free lines of the FTL.
    pub free_lines: Option<f64>,
    /// The NAND medium; `None` for other media.
    pub media: Option<MediaStats>,
    /// Busy times per parallel unit, channel by channel.
    pub pus: Vec<PuBusy>,
    /// Transfer time per channel.
    pub channels: Vec<Nanos>,
    /// Reads that hit the page register.
    pub register_hits: u64,
    /// Suspensions of programs and erases.
    pub suspensions: u64,
    /// Read retries.
    pub read_retries: u64,
    /// Effects of hints.
    pub hints: HintStats,
    /// Chunk notifications of an open-channel drive.
    pub notifications: NotificationStats,
    /// Reactions of a block drive to media events.
    pub scrub: MediaScrubStats,
    /// Bytes of command data in the controller memory buffer, which took no DMA time.
    pub cmb_bytes: u64,
    /// The device L2P; `None` unless the drive keeps one.
    pub device_l2p: Option<DeviceL2pStats>,
    /// Lateness of completions.
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
        let both = record.plus(&before).read();
        assert_eq!((both.count, both.max), (104 + 100, Nanos::from_millis(5)));
    }
}
