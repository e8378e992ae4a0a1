//! [`JobSpec`]: one job as described, checked in itself but not yet against a device.

use std::path::PathBuf;

use clock::Nanos;

use crate::trace::{TraceAction, TraceFormat};
use crate::units::Size;

/// Which way data goes. Arrays per direction are indexed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Direction {
    /// From the device.
    Read = 0,
    /// To the device.
    Write = 1,
    /// Deallocation.
    Trim = 2,
}

impl Direction {
    /// All of them, in the order of their indices.
    pub const ALL: [Direction; 3] = [Direction::Read, Direction::Write, Direction::Trim];

    /// fio's word.
    pub fn name(self) -> &'static str {
        ["read", "write", "trim"][self as usize]
    }
}

/// fio's `rw`: which directions, and in which order over the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Directions used.
    pub uses: [bool; 3],
    /// Random rather than sequential.
    pub random: bool,
}

impl Access {
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

    /// From fio's word.
    pub fn parse(text: &str) -> Option<Access> {
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
        Some(Access { uses, random })
    }

    /// Whether `direction` is used.
    pub fn uses(&self, direction: Direction) -> bool {
        self.uses[direction as usize]
    }

    /// Whether every block is trimmed and then written.
    pub fn is_trim_write(&self) -> bool {
        self.uses == [false, true, true]
    }
}

/// Block sizes in bytes with the percentage of requests that have them; one with 100 for a fixed
/// size. Percentages add up to 100.
pub type BlockSizes = Vec<(u64, f64)>;

/// fio's `random_distribution`.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// Every block is as likely as any other.
    Uniform,
    /// Zipf with this theta.
    Zipf(f64),
    /// Pareto with this power `h`.
    Pareto(f64),
    /// Zones, in order of address, per direction.
    Zoned([Vec<Zone>; 3]),
}

/// A stretch of the region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Zone {
    /// Percentage of accesses that go there.
    pub accesses: f64,
    /// How long it is.
    pub length: Size,
}

/// A cap on what a job issues in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Without limit.
    Unlimited,
    /// Bytes per second.
    Bytes(u64),
    /// Requests per second, of the smallest block size.
    Iops(u64),
}

/// When errors do not end a job (fio's `continue_on_error`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContinueOnError {
    /// Failed reads.
    pub read: bool,
    /// Failed writes, trims and flushes.
    pub write: bool,
    /// Blocks that verify wrongly.
    pub verify: bool,
}

/// Kinds of requests that a replay leaves out (fio's `replay_skip`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skip {
    /// Reads, writes, trims.
    pub directions: [bool; 3],
    /// Flushes.
    pub sync: bool,
}

impl Skip {
    /// Whether requests with this action are left out.
    pub fn contains(&self, action: TraceAction) -> bool {
        match action {
            TraceAction::Access(direction) => self.directions[direction as usize],
            TraceAction::Flush => self.sync,
        }
    }
}

/// A trace to replay instead of generated accesses.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The file.
    pub path: PathBuf,
    /// Its format; `None` to tell it from the first line.
    pub format: Option<TraceFormat>,
    /// Replay at this percentage of the trace's rate (fio's `replay_time_scale`).
    pub time_scale: f64,
    /// Ignore the times: as fast as `iodepth` allows (fio's `replay_no_stall`).
    pub no_stall: bool,
    /// Only the accesses to this device of a trace of several.
    pub device: Option<u32>,
    /// All files or devices of the trace go to this one (fio's `replay_redirect`).
    pub redirect: bool,
    /// Addresses past the end of the device wrap around instead of being an error.
    pub wrap: bool,
    /// Offsets are rounded down to a multiple of this power of two, and lengths up to whole sectors;
    /// 0 for neither (fio's `replay_align`).
    pub align: u64,
    /// Offsets are divided by this (fio's `replay_scale`).
    pub scale: u64,
    /// Kinds of requests that are left out.
    pub skip: Skip,
}

impl Replay {
    /// A replay of the trace at `path`, as it is.
    pub fn new(path: PathBuf) -> Replay {
        Replay {
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

/// fio's search for the greatest depth whose latency meets a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyTarget {
    /// Latency that requests should not exceed (`latency_target`).
    pub target: Nanos,
    /// How long each depth is tried (`latency_window`).
    pub window: Nanos,
    /// Percentage of the requests of a window that must meet the target (`latency_percentile`).
    pub percentile: f64,
    /// Whether the search goes on until the job ends (`latency_run`).
    pub run: bool,
}

/// fio's logs over time: `write_lat_log` and its like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSpec {
    /// Start of the name of the latency logs.
    pub lat: Option<String>,
    /// Start of the name of the bandwidth log.
    pub bw: Option<String>,
    /// Start of the name of the IOPS log.
    pub iops: Option<String>,
    /// One line per window of this length and direction; 0 for one per request (`log_avg_msec`).
    pub window: Nanos,
    /// A window's greatest value instead of its average (`log_max_value`).
    pub max_value: bool,
    /// Whether lines have the request's offset (`log_offset`).
    pub offset: bool,
}

impl LogSpec {
    /// Whether the job writes any log.
    pub fn is_on(&self) -> bool {
        self.lat.is_some() || self.bw.is_some() || self.iops.is_some()
    }
}

/// One job, with fio's meaning of every word.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields have the names and the meanings of fio's options")]
pub struct JobSpec {
    pub name: String,
    pub description: Option<String>,
    pub access: Access,
    /// Percent of a mixed job that reads.
    pub read_percent: f64,
    pub block_sizes: [BlockSizes; 3],
    pub size: Option<Size>,
    pub io_size: Option<Size>,
    pub offset: Size,
    pub offset_increment: Size,
    pub number_ios: Option<u64>,
    /// Requests outstanding at most; `None` is 1, and 1024 for the replay of a trace with times.
    pub iodepth: Option<u32>,
    /// How often the whole job runs, one after the other.
    pub loops: u32,
    pub numjobs: u32,
    pub runtime: Option<Nanos>,
    pub time_based: bool,
    pub ramp_time: Nanos,
    pub startdelay: Nanos,
    pub rate: [Rate; 3],
    pub rate_poisson: bool,
    pub distribution: Distribution,
    pub norandommap: bool,
    pub randseed: Option<u64>,
    /// Whether written blocks carry a CRC-32C and are checked (`verify=crc32c`).
    pub verify: bool,
    pub do_verify: bool,
    /// Flush after this many writes; 0 never.
    pub fsync: u64,
    pub end_fsync: bool,
    pub thinktime: Nanos,
    pub thinktime_blocks: u64,
    pub stonewall: bool,
    pub new_group: bool,
    pub group_reporting: bool,
    pub continue_on_error: ContinueOnError,
    /// Percentiles to report, ascending.
    pub percentiles: Vec<f64>,
    pub replay: Option<Replay>,
    pub latency_target: Option<LatencyTarget>,
    pub logs: LogSpec,
    /// The job's own options as written, for the report.
    pub options: Vec<(String, String)>,
    /// The options it has from `[global]`, for the report.
    pub globals: Vec<(String, String)>,
}

/// The percentiles that fio reports unless told otherwise.
pub const DEFAULT_PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

impl JobSpec {
    /// A job with fio's defaults: sequential reads of 4 KiB over the whole device at depth 1.
    pub fn new(name: &str) -> JobSpec {
        JobSpec {
            name: name.to_owned(),
            description: None,
            access: Access { uses: [true, false, false], random: false },
            read_percent: 50.0,
            block_sizes: [const { Vec::new() }; 3].map(|_: BlockSizes| vec![(4096, 100.0)]),
            size: None,
            io_size: None,
            offset: Size::Bytes(0),
            offset_increment: Size::Bytes(0),
            number_ios: None,
            iodepth: None,
            loops: 1,
            numjobs: 1,
            runtime: None,
            time_based: false,
            ramp_time: Nanos::ZERO,
            startdelay: Nanos::ZERO,
            rate: [Rate::Unlimited; 3],
            rate_poisson: false,
            distribution: Distribution::Uniform,
            norandommap: false,
            randseed: None,
            verify: false,
            do_verify: true,
            fsync: 0,
            end_fsync: false,
            thinktime: Nanos::ZERO,
            thinktime_blocks: 1,
            stonewall: false,
            new_group: false,
            group_reporting: false,
            continue_on_error: ContinueOnError::default(),
            percentiles: DEFAULT_PERCENTILES.to_vec(),
            replay: None,
            latency_target: None,
            logs: LogSpec::default(),
            options: Vec::new(),
            globals: Vec::new(),
        }
    }

    /// Requests outstanding at most. Whether a trace has times is known once it is open: a
    /// [`JobResult`](crate::JobResult) has the depth that the replay had.
    pub fn depth(&self) -> u32 {
        self.iodepth.unwrap_or(1)
    }

    /// What is wrong with the options taken together, if anything.
    pub(crate) fn conflict(&self) -> Option<String> {
        let replay = self.replay.is_some();
        let what = if self.time_based && self.runtime.is_none() {
            "`time_based` needs a `runtime`"
        } else if replay && self.verify {
            "`verify` does not go with `read_iolog`: a trace has no data"
        } else if replay && self.time_based {
            "`time_based` does not go with `read_iolog`: a trace ends"
        } else if replay && self.latency_target.is_some() {
            "`latency_target` does not go with `read_iolog`: the trace says how deep it is"
        } else if !self.access.random && self.distribution != Distribution::Uniform && !replay {
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
