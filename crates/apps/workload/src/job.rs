//! [`JobSpec`]: the description of one job. It is consistent in itself, but not yet checked against
//! a device.

use std::path::PathBuf;

use time::Nanos;

use crate::device::Addressing;
use crate::key_spec::KeySpec;
use crate::trace::{TraceAction, TraceFormat};
use crate::unit_spec::UnitSpec;
use crate::units::Size;

/// Direction of a data transfer; index of arrays that have one entry per direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Direction {
    /// Device to host.
    Read = 0,
    /// Host to device.
    Write = 1,
    /// Deallocation.
    Trim = 2,
}

impl Direction {
    /// All directions, in the order of their indices.
    pub const ALL: [Direction; 3] = [Direction::Read, Direction::Write, Direction::Trim];

    /// Returns fio's name of the direction.
    pub fn name(self) -> &'static str {
        ["read", "write", "trim"][self as usize]
    }
}

/// fio's `rw`: the directions of a job, and its order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoPattern {
    /// Whether each direction is used, by [`Direction`].
    pub uses: [bool; 3],
    /// Whether addresses are random rather than sequential.
    pub random: bool,
}

impl IoPattern {
    /// The values of fio's `rw`.
    pub const NAMES: &'static [&'static str] = &[
        "read",
        "write",
        "trim",
        "randread",
        "randwrite",
        "randtrim",
        "rw",
        "readwrite",
        "randrw",
        "trimwrite",
        "randtrimwrite",
    ];

    /// Parses a value of fio's `rw`.
    pub fn parse(text: &str) -> Option<IoPattern> {
        let (read, write, trim) =
            ([true, false, false], [false, true, false], [false, false, true]);
        let (mixed, trimwrite) = ([true, true, false], [false, true, true]);
        let (uses, random) = match text {
            "read" => (read, false),
            "write" => (write, false),
            "trim" => (trim, false),
            "randread" => (read, true),
            "randwrite" => (write, true),
            "randtrim" => (trim, true),
            "rw" | "readwrite" => (mixed, false),
            "randrw" => (mixed, true),
            "trimwrite" => (trimwrite, false),
            "randtrimwrite" => (trimwrite, true),
            _ => return None,
        };
        Some(IoPattern { uses, random })
    }

    /// Returns whether the job uses `direction`.
    pub fn uses(&self, direction: Direction) -> bool {
        self.uses[direction as usize]
    }

    /// Returns whether every block is trimmed and then written.
    pub fn is_trim_write(&self) -> bool {
        self.uses == [false, true, true]
    }
}

/// Block sizes in bytes, each with the percentage of requests of that size. The percentages add up
/// to 100; a fixed size has one entry.
pub type BlockSizes = Vec<(u64, f64)>;

/// fio's `random_distribution`.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// Every block is equally likely.
    Uniform,
    /// Zipf distribution with this theta.
    Zipf(f64),
    /// Pareto distribution with this power `h`.
    Pareto(f64),
    /// Zones per direction, in ascending order of address.
    Zoned([Vec<Zone>; 3]),
}

/// A contiguous part of the job's region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Zone {
    /// Percentage of accesses to this zone.
    pub accesses: f64,
    /// Length of the zone.
    pub length: Size,
}

/// Upper limit of the rate at which a job issues requests in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// No limit.
    Unlimited,
    /// Bytes per second.
    Bytes(u64),
    /// Requests per second, each of the smallest block size.
    Iops(u64),
}

/// The errors after which a job continues (fio's `continue_on_error`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContinueOnError {
    /// Failed reads.
    pub read: bool,
    /// Failed writes, trims and flushes.
    pub write: bool,
    /// Blocks that fail verification.
    pub verify: bool,
}

/// Kinds of requests that a replay skips (fio's `replay_skip`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skip {
    /// Whether reads, writes and trims are skipped, by [`Direction`].
    pub directions: [bool; 3],
    /// Whether flushes are skipped.
    pub sync: bool,
}

impl Skip {
    /// Returns whether requests with this action are skipped.
    pub fn contains(&self, action: TraceAction) -> bool {
        match action {
            TraceAction::Access(direction) => self.directions[direction as usize],
            TraceAction::Flush => self.sync,
        }
    }
}

/// A trace to replay in place of generated accesses.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayOptions {
    /// Path of the trace.
    pub path: PathBuf,
    /// Format of the trace; `None` detects it from the first line.
    pub format: Option<TraceFormat>,
    /// Rate of the replay, in percent of the trace's rate (fio's `replay_time_scale`).
    pub time_scale: f64,
    /// Ignore the times of the trace and issue as fast as `iodepth` allows (fio's
    /// `replay_no_stall`).
    pub no_stall: bool,
    /// Replay only the accesses to this device, if the trace has several devices.
    pub device: Option<u32>,
    /// Redirect the accesses to all files or devices of the trace to this device (fio's
    /// `replay_redirect`).
    pub redirect: bool,
    /// Wrap addresses past the end of the device around; otherwise they are an error.
    pub wrap: bool,
    /// Alignment in bytes, a power of two (fio's `replay_align`). Offsets are rounded down to it,
    /// lengths up to whole sectors. With 0, neither is rounded.
    pub align: u64,
    /// Divisor of the offsets (fio's `replay_scale`).
    pub scale: u64,
    /// Kinds of requests that are skipped.
    pub skip: Skip,
}

impl ReplayOptions {
    /// Returns a replay of the trace at `path` without any adjustment.
    pub fn new(path: PathBuf) -> ReplayOptions {
        ReplayOptions {
            path,
            format: None,
            time_scale: 100.0,
            no_stall: false,
            device: None,
            redirect: false,
            wrap: false,
            align: 0,
            scale: 1,
            skip: Skip::default(),
        }
    }
}

/// Parameters of fio's search for the greatest depth whose latency meets a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyTarget {
    /// Latency that requests should not exceed (`latency_target`).
    pub target: Nanos,
    /// Time for which each depth is tried (`latency_window`).
    pub window: Nanos,
    /// Percentage of the requests of a window that must meet the target (`latency_percentile`).
    pub percentile: f64,
    /// Whether the search continues until the job ends (`latency_run`).
    pub run: bool,
}

/// fio's logs over time, such as `write_lat_log`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSpec {
    /// File name prefix of the latency logs.
    pub lat: Option<String>,
    /// File name prefix of the bandwidth log.
    pub bw: Option<String>,
    /// File name prefix of the IOPS log.
    pub iops: Option<String>,
    /// Length of a window; each window has one line per direction. With 0, each request has a line
    /// (`log_avg_msec`).
    pub window: Nanos,
    /// Whether a window logs its maximum in place of its average (`log_max_value`).
    pub max_value: bool,
    /// Whether lines include the offset of the request (`log_offset`).
    pub offset: bool,
}

impl LogSpec {
    /// Returns whether the job writes any log.
    pub fn is_on(&self) -> bool {
        self.lat.is_some() || self.bw.is_some() || self.iops.is_some()
    }
}

/// The part of the device that a job accesses, and the amount of its I/O.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields have the names and the meanings of fio's options")]
pub struct RangeSpec {
    pub size: Option<Size>,
    pub io_size: Option<Size>,
    pub offset: Size,
    pub offset_increment: Size,
    pub number_ios: Option<u64>,
}

/// The pattern of a job's accesses: directions, block sizes and addresses.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields have the names and the meanings of fio's options")]
pub struct PatternSpec {
    pub access: IoPattern,
    /// Percentage of reads of a mixed job.
    pub read_percent: f64,
    pub block_sizes: [BlockSizes; 3],
    pub distribution: Distribution,
    pub norandommap: bool,
    pub randseed: Option<u64>,
}

/// The start and the end of a job.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields have the names and the meanings of fio's options")]
pub struct ScheduleSpec {
    /// Number of times that the complete job runs, one after the other.
    pub loops: u32,
    pub runtime: Option<Nanos>,
    pub time_based: bool,
    pub ramp_time: Nanos,
    pub startdelay: Nanos,
    pub stonewall: bool,
}

/// The pace at which a job issues requests.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields have the names and the meanings of fio's options")]
pub struct PaceSpec {
    pub rate: [Rate; 3],
    pub rate_poisson: bool,
    pub thinktime: Nanos,
    pub thinktime_blocks: u64,
}

/// The checks of data, flushes and errors of a job.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields have the names and the meanings of fio's options")]
pub struct IntegritySpec {
    /// Whether written blocks carry a CRC-32C and are verified (`verify=crc32c`).
    pub verify: bool,
    pub do_verify: bool,
    /// Number of writes after which the job flushes; 0 for never.
    pub fsync: u64,
    pub end_fsync: bool,
    pub continue_on_error: ContinueOnError,
}

/// The results of a job that are reported.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields have the names and the meanings of fio's options")]
pub struct ReportSpec {
    pub new_group: bool,
    pub group_reporting: bool,
    /// Percentiles to report, in ascending order.
    pub percentiles: Vec<f64>,
    pub logs: LogSpec,
    /// Options of the job's own section as written, for the report.
    pub options: Vec<(String, String)>,
    /// Options that the job has from `[global]`, for the report.
    pub globals: Vec<(String, String)>,
}

/// Description of one job; every option has fio's meaning.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields have the names and the meanings of fio's options")]
pub struct JobSpec {
    pub name: String,
    pub description: Option<String>,
    pub numjobs: u32,
    /// Maximum number of outstanding requests. `None` stands for 1, and for 1024 if a trace with
    /// times is replayed.
    pub iodepth: Option<u32>,
    /// The part of the device, and the amount of I/O.
    pub range: RangeSpec,
    /// Directions, block sizes and addresses.
    pub pattern: PatternSpec,
    /// Start and end.
    pub schedule: ScheduleSpec,
    /// Rate limits and pauses.
    pub pace: PaceSpec,
    /// Verification, flushes and errors.
    pub integrity: IntegritySpec,
    /// The trace to replay in place of generated accesses.
    pub replay: Option<ReplayOptions>,
    /// The records of a job on keys; `None` for a job on blocks.
    pub keys: Option<KeySpec>,
    /// The parallel units of a job on physical addresses; `None` for other jobs.
    pub units: Option<UnitSpec>,
    /// Search for the depth that meets a latency.
    pub latency_target: Option<LatencyTarget>,
    /// Reported results.
    pub report: ReportSpec,
}

/// The percentiles that fio reports by default.
pub const DEFAULT_PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

impl JobSpec {
    /// Returns a job with fio's defaults: sequential 4 KiB reads of the entire device at depth 1.
    pub fn new(name: &str) -> JobSpec {
        JobSpec {
            name: name.to_owned(),
            description: None,
            numjobs: 1,
            iodepth: None,
            range: RangeSpec {
                size: None,
                io_size: None,
                offset: Size::Bytes(0),
                offset_increment: Size::Bytes(0),
                number_ios: None,
            },
            pattern: PatternSpec {
                access: IoPattern { uses: [true, false, false], random: false },
                read_percent: 50.0,
                block_sizes: [const { Vec::new() }; 3].map(|_: BlockSizes| vec![(4096, 100.0)]),
                distribution: Distribution::Uniform,
                norandommap: false,
                randseed: None,
            },
            schedule: ScheduleSpec {
                loops: 1,
                runtime: None,
                time_based: false,
                ramp_time: Nanos::ZERO,
                startdelay: Nanos::ZERO,
                stonewall: false,
            },
            pace: PaceSpec {
                rate: [Rate::Unlimited; 3],
                rate_poisson: false,
                thinktime: Nanos::ZERO,
                thinktime_blocks: 1,
            },
            integrity: IntegritySpec {
                verify: false,
                do_verify: true,
                fsync: 0,
                end_fsync: false,
                continue_on_error: ContinueOnError::default(),
            },
            replay: None,
            keys: None,
            units: None,
            latency_target: None,
            report: ReportSpec {
                new_group: false,
                group_reporting: false,
                percentiles: DEFAULT_PERCENTILES.to_vec(),
                logs: LogSpec::default(),
                options: Vec::new(),
                globals: Vec::new(),
            },
        }
    }

    /// Returns the addressing of the device that the job needs.
    pub fn addressing(&self) -> Addressing {
        match (&self.keys, &self.units) {
            (Some(_), _) => Addressing::Keys,
            (None, Some(_)) => Addressing::Units,
            (None, None) => Addressing::Blocks,
        }
    }

    /// Returns the maximum number of outstanding requests.
    ///
    /// Whether a trace has times is known only when it is open. [`JobResult`](crate::JobResult) has
    /// the depth that the replay used.
    pub fn depth(&self) -> u32 {
        self.iodepth.unwrap_or(1)
    }

    /// Returns a description of a conflict between the options, if there is one.
    pub(crate) fn conflict(&self) -> Option<String> {
        let replay = self.replay.is_some();
        let what = if self.schedule.time_based && self.schedule.runtime.is_none() {
            "`time_based` needs a `runtime`"
        } else if replay && self.integrity.verify {
            "`verify` does not go with `read_iolog`: a trace has no data"
        } else if replay && self.schedule.time_based {
            "`time_based` does not go with `read_iolog`: a trace ends"
        } else if replay && self.latency_target.is_some() {
            "`latency_target` does not go with `read_iolog`: the trace says how deep it is"
        } else if !self.pattern.access.random
            && self.pattern.distribution != Distribution::Uniform
            && !replay
        {
            "`random_distribution` needs a random `rw` such as randread"
        } else if let Some(target) = &self.latency_target
            && target.target == Nanos::ZERO
        {
            "options of a search for a depth without `latency_target=TIME`"
        } else if let Some(target) = &self.latency_target
            && target.window == Nanos::ZERO
        {
            "`latency_target` needs a `latency_window`: how long each depth is tried"
        } else {
            return None;
        };
        Some(what.to_owned())
    }
}
