//! The waits of doorbells in real time: [`DoorbellRecord`] and its summary [`DoorbellToFetch`].
//!
//! Lateness counts from the poll that fetched a command. The wait until that poll is the time from
//! the host's write of the doorbell to the begin of the poll that reads it: while the drive's thread
//! slept, worked, or was not run. It is divided as lateness is. One wait is recorded for all doorbell
//! writes of a queue that a poll reads at once: the longest, which is that of the oldest.
//!
//! Commands that the drive holds back for a host's rates or limits wait in the ring on purpose. That
//! time is in no figure.

use std::fmt;
use std::sync::Arc;

use time::Nanos;
use transport::{DoorbellReading, DrivePolls};

use crate::DriveStats;
use crate::host_interface::queues::Queues;
use crate::lateness::{GapLog, Lateness, LatenessRecord};

/// The doorbells whose wait is not known, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnmeasuredDoorbells {
    /// The host's stamp was in the future, older than the drive's last read of the doorbell, or
    /// older than the queue.
    pub not_trusted: u64,
    /// The drive held back earlier commands of the queue.
    pub deferred: u64,
    /// The host wrote no stamp.
    pub unstamped: u64,
}

collections::counters!(UnmeasuredDoorbells { not_trusted, deferred, unstamped });

/// The waits of the doorbells that a drive has read.
#[derive(Clone, Debug, Default)]
pub struct DoorbellRecord {
    /// The waits that are known.
    pub waits: LatenessRecord,
    /// The other doorbells.
    pub unmeasured: UnmeasuredDoorbells,
}

/// The reason for which the waits of a drive's doorbells are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellWaitUnknown {
    /// In virtual time the drive is polled at the instant of each doorbell.
    #[default]
    VirtualTime,
    /// No doorbell had a stamp that the drive trusts and could use.
    NoStamps(UnmeasuredDoorbells),
    /// The registers of an AHCI controller have no stamps.
    Ahci,
    /// The device is not emulated.
    RealDevice,
}

/// The time from the host's write of a doorbell to the poll in which the drive read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellToFetch {
    /// It was measured.
    Measured {
        /// The waits.
        waits: Lateness,
        /// The doorbells that are not in `waits`.
        unmeasured: UnmeasuredDoorbells,
    },
    /// It is not known.
    Unknown(DoorbellWaitUnknown),
}

impl Default for DoorbellToFetch {
    fn default() -> DoorbellToFetch {
        DoorbellToFetch::Unknown(DoorbellWaitUnknown::default())
    }
}

impl DoorbellWaitUnknown {
    /// Returns the word for the reason in JSON.
    pub fn key(self) -> &'static str {
        match self {
            DoorbellWaitUnknown::VirtualTime => "virtual-time",
            DoorbellWaitUnknown::NoStamps(_) => "no-stamps",
            DoorbellWaitUnknown::Ahci => "ahci",
            DoorbellWaitUnknown::RealDevice => "real-device",
        }
    }
}

impl fmt::Display for DoorbellWaitUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DoorbellWaitUnknown::VirtualTime => f.write_str("time is virtual"),
            DoorbellWaitUnknown::NoStamps(UnmeasuredDoorbells {
                not_trusted,
                deferred,
                unstamped,
            }) => write!(
                f,
                "of the doorbells {unstamped} had no stamp, {not_trusted} had one that is not \
                 trusted, and {deferred} were deferred"
            ),
            DoorbellWaitUnknown::Ahci => {
                f.write_str("the registers of an AHCI controller have no stamps")
            }
            DoorbellWaitUnknown::RealDevice => f.write_str("the device is not emulated"),
        }
    }
}

impl DoorbellRecord {
    /// Returns the doorbells read since the record `before` of this drive, whose statistics must not
    /// have been reset in between.
    #[must_use]
    pub fn since(&self, before: &DoorbellRecord) -> DoorbellRecord {
        DoorbellRecord {
            waits: self.waits.since(&before.waits),
            unmeasured: self.unmeasured.since(&before.unmeasured),
        }
    }

    /// Returns the record of the doorbells of both.
    #[must_use]
    pub fn plus(&self, other: &DoorbellRecord) -> DoorbellRecord {
        let unmeasured = self.unmeasured.plus(&other.unmeasured);
        DoorbellRecord { waits: self.waits.plus(&other.waits), unmeasured }
    }

    /// Returns the summary.
    pub fn read(&self) -> DoorbellToFetch {
        let (waits, unmeasured) = (self.waits.read(), self.unmeasured);
        match waits.count {
            0 => DoorbellToFetch::Unknown(DoorbellWaitUnknown::NoStamps(unmeasured)),
            _ => DoorbellToFetch::Measured { waits, unmeasured },
        }
    }

    /// Records a doorbell. `poll_ended` returns the time after the poll.
    fn record(
        &mut self,
        reading: DoorbellReading,
        gaps: &GapLog,
        poll_ended: impl FnOnce() -> Nanos,
    ) {
        match reading {
            DoorbellReading::Rung { rung, read } => self.waits.record_completion(rung, read, gaps),
            DoorbellReading::AfterPollBegan { rung } if rung <= poll_ended() => {
                self.waits.record(Nanos::ZERO);
            }
            DoorbellReading::AfterPollBegan { .. } | DoorbellReading::NotTrusted => {
                self.unmeasured.not_trusted += 1;
            }
            DoorbellReading::Deferred => self.unmeasured.deferred += 1,
            DoorbellReading::Unstamped => self.unmeasured.unstamped += 1,
        }
    }
}

/// The measurement of a drive in real time.
#[derive(Debug)]
pub(crate) struct DoorbellMeter {
    pub(crate) polls: Arc<DrivePolls>,
    pub(crate) record: DoorbellRecord,
}

impl Queues {
    /// Measures the waits of the doorbells of present and future I/O queues.
    pub(crate) fn measure_doorbells(&mut self, polls: Arc<DrivePolls>) {
        self.ports.iter().for_each(|host| host.port.request_stamps());
        for queue in self.submissions.iter_mut().flatten().filter(|queue| !queue.admin) {
            queue.ring.read_stamps(&polls);
        }
        let record = DoorbellRecord::default();
        self.doorbells = Some(Box::new(DoorbellMeter { polls, record }));
    }

    /// Records the doorbells that the last poll read. `poll_ended` returns the time after it.
    #[inline]
    pub(crate) fn record_doorbells(&mut self, gaps: &GapLog, poll_ended: impl Fn() -> Nanos) {
        let Some(meter) = &mut self.doorbells else { return };
        if !meter.polls.take_has_reading() {
            return;
        }
        for queue in self.submissions.iter_mut().flatten() {
            if let Some(reading) = queue.ring.take_doorbell_reading() {
                meter.record.record(reading, gaps, &poll_ended);
            }
        }
    }
}

impl DriveStats {
    /// Returns whether a drive in real time was on time: of its completions and of its doorbells at
    /// most one in a hundred was later than `limit`. Doorbells whose waits are not known do not
    /// count.
    pub fn is_on_time(&self, limit: Nanos) -> bool {
        self.late.p99 <= limit && self.doorbell_wait_p99().is_none_or(|wait| wait <= limit)
    }

    /// Returns the 99th percentile of the waits of doorbells, if they are known.
    pub fn doorbell_wait_p99(&self) -> Option<Nanos> {
        match &self.doorbell_to_fetch {
            DoorbellToFetch::Measured { waits, .. } => Some(waits.p99),
            DoorbellToFetch::Unknown(_) => None,
        }
    }
}
