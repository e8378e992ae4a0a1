//! [`DriveStats`]: the counters of a drive (ARCHITECTURE.md, R10).

use ftl::FtlStats;
use media::{HostFlushStats, MediaStats};
use nvme::{IoCommand, ProtectionError};
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::command::table::Command;
use crate::{
    DoorbellToFetch, DriveRuleStats, LatencyMonitorStats, Lateness, LatenessRecord, PmrStats,
    RegisterStats,
};

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
    /// The commands whose completions were not late.
    pub on_time: OnTimeCommands,
}

/// Commands and the sum of their times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandSum {
    /// Number of commands.
    pub count: u64,
    /// Sum of their times, in nanoseconds.
    pub nanos: u64,
}

collections::counters!(CommandSum { count, nanos });

impl CommandSum {
    fn add_command(&mut self, time: Nanos) {
        *self = self.plus(&CommandSum { count: 1, nanos: time.0 });
    }

    /// Returns the mean time in nanoseconds; `None` without commands.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.nanos as f64 / self.count as f64)
    }
}

/// The times of the commands whose completions were at most `late_max` late. Whether a completion is
/// late does not depend on how long its command took, so that their mean is that of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnTimeCommands {
    /// The largest lateness of a completion that is not late.
    pub late_max: Nanos,
    /// Number of commands that were late.
    pub late: u64,
    /// Reads that were not.
    pub reads: CommandSum,
    /// Writes that were not.
    pub writes: CommandSum,
}

impl CommandTimes {
    pub(crate) fn new() -> CommandTimes {
        let [reads, writes] = std::array::from_fn(|_| LatenessRecord::new());
        let [on_time_reads, on_time_writes] = [CommandSum::default(); 2];
        let on_time = OnTimeCommands {
            late_max: Nanos::MAX,
            late: 0,
            reads: on_time_reads,
            writes: on_time_writes,
        };
        CommandTimes { reads, writes, total: Nanos::ZERO, on_time }
    }

    /// Records a command that completes at `now`. It is a call, so that drives that record nothing
    /// have fewer instructions.
    #[cold]
    pub(crate) fn record(&mut self, now: Nanos, command: &Command) {
        let time = now.since(command.fetched);
        self.total += time;
        let is_late = now.since(command.due) > self.on_time.late_max;
        self.on_time.late += u64::from(is_late);
        let (times, sum) = match command.io {
            IoCommand::Read { .. } | IoCommand::VectorRead { .. } => {
                (&mut self.reads, &mut self.on_time.reads)
            }
            IoCommand::Write { .. }
            | IoCommand::VectorWrite { .. }
            | IoCommand::VectorCopy { .. } => (&mut self.writes, &mut self.on_time.writes),
            _ => return,
        };
        times.record(time);
        if !is_late {
            sum.add_command(time);
        }
    }

    /// Returns the commands completed since the record `before` of this drive.
    #[must_use]
    pub fn since(&self, before: &CommandTimes) -> CommandTimes {
        CommandTimes {
            reads: self.reads.since(&before.reads),
            writes: self.writes.since(&before.writes),
            total: self.total.since(before.total),
            on_time: OnTimeCommands {
                late_max: self.on_time.late_max,
                late: self.on_time.late - before.on_time.late,
                reads: self.on_time.reads.since(&before.on_time.reads),
                writes: self.on_time.writes.since(&before.on_time.writes),
            },
        }
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

/// The counters of writes to parts of the units that a drive maps, on a drive whose logical blocks
/// are smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadModifyWriteStats {
    /// Units that a command wrote or zeroed in part, so that the drive reads, modifies and writes them.
    pub units: u64,
    /// Sectors read from the flash for them. A unit in the write buffer, and one without data, needs
    /// no read.
    pub sectors_read: u64,
    /// Changes of units that waited for an earlier change of their unit.
    pub waits: u64,
    /// Units that were not written because they cannot be read.
    pub failures: u64,
}

/// The counters of the commands with which a host checks, marks and copies blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCommandStats {
    /// Compare commands started.
    pub compares: u64,
    /// Compare commands whose data differed.
    pub mismatches: u64,
    /// Verify commands started.
    pub verifies: u64,
    /// Write Uncorrectable commands started.
    pub uncorrectable_writes: u64,
    /// Copy commands whose sources were read.
    pub copies: u64,
    /// Blocks of these copies.
    pub copied_blocks: u64,
}

/// The errors of end-to-end protection information that checks of commands found, by kind. A command
/// with wrong blocks in several sectors counts one for each sector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtectionErrors {
    /// Guards that were not those of the data.
    pub guard: u64,
    /// Application tags that were not the expected ones.
    pub application_tag: u64,
    /// Reference tags that were not those of the blocks.
    pub reference_tag: u64,
}

impl ProtectionErrors {
    /// Returns the number of errors of all kinds.
    pub fn total(&self) -> u64 {
        self.guard + self.application_tag + self.reference_tag
    }

    /// Counts an error.
    pub(crate) fn count(&mut self, error: ProtectionError) {
        match error {
            ProtectionError::Guard => self.guard += 1,
            ProtectionError::ApplicationTag => self.application_tag += 1,
            ProtectionError::ReferenceTag => self.reference_tag += 1,
        }
    }
}

/// Counters since power-on, or since [`Controller::reset_stats`](crate::Controller::reset_stats).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DriveStats {
    /// Read commands completed, vector reads and compares included.
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
    /// Writes to parts of units; `None` unless the drive's logical blocks are smaller than the units
    /// that its FTL maps.
    pub read_modify_write: Option<ReadModifyWriteStats>,
    /// Formats that have ended.
    pub formats: u64,
    /// Sanitize operations that have ended, successful or not.
    pub sanitizes: u64,
    /// Compare, Verify, Write Uncorrectable and Copy of a drive that manages its own flash.
    pub block_commands: BlockCommandStats,
    /// The rules; `None` unless the drive has them.
    pub rules: Option<DriveRuleStats>,
    /// Errors of protection information; `None` unless the drive has it.
    pub protection_errors: Option<ProtectionErrors>,
    /// The NAND medium; `None` for other media.
    pub media: Option<MediaStats>,
    /// Flushes of the image to the host's stable storage; `None` unless flushes reach it.
    pub host_flush: Option<HostFlushStats>,
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
    /// The latency monitor since it was enabled; `None` unless it is.
    pub latency_monitor: Option<LatencyMonitorStats>,
    /// The persistent memory region; `None` unless the drive has one.
    pub pmr: Option<PmrStats>,
    /// The registers since power-on; `None` unless a host initializes the drive by them.
    pub registers: Option<RegisterStats>,
    /// Lateness of completions.
    pub late: Lateness,
    /// Waits of doorbells. They are not saved: doorbells of a saved drive did not wait.
    #[serde(skip)]
    pub doorbell_to_fetch: DoorbellToFetch,
}
