//! [`JobSpec`]: one job as described, checked in itself but not yet against a device.

use std::path::PathBuf;

use clock::Nanos;

use crate::trace::TraceFormat;
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
    pub const NAMES: &'static str = "read, write, trim, randread, randwrite, randtrim, rw, \
        readwrite, randrw, trimwrite, randtrimwrite";

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
pub struct Tolerance {
    /// Failed reads.
    pub read: bool,
    /// Failed writes, trims and flushes.
    pub write: bool,
    /// Blocks that verify wrongly.
    pub verify: bool,
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
    /// Requests outstanding at most; `None` is 1 for a generated job and 1024 for a timed replay.
    pub iodepth: Option<u32>,
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
    pub continue_on_error: Tolerance,
    /// Percentiles to report, ascending.
    pub percentiles: Vec<f64>,
    pub replay: Option<Replay>,
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
            continue_on_error: Tolerance::default(),
            percentiles: DEFAULT_PERCENTILES.to_vec(),
            replay: None,
            options: Vec::new(),
            globals: Vec::new(),
        }
    }

    /// Requests outstanding at most.
    pub fn depth(&self) -> u32 {
        let timed_replay = self.replay.as_ref().is_some_and(|r| !r.no_stall);
        self.iodepth.unwrap_or(if timed_replay { 1024 } else { 1 })
    }

    /// What is wrong with the options taken together, if anything.
    pub(crate) fn conflict(&self) -> Option<String> {
        if self.time_based && self.runtime.is_none() {
            return Some("`time_based` needs a `runtime`".to_owned());
        }
        if self.replay.is_some() && self.verify {
            return Some("`verify` does not go with `read_iolog`: a trace has no data".to_owned());
        }
        if self.replay.is_some() && self.time_based {
            return Some("`time_based` does not go with `read_iolog`: a trace ends".to_owned());
        }
        if !self.access.random && self.distribution != Distribution::Uniform {
            return Some("`random_distribution` needs a random `rw` such as randread".to_owned());
        }
        None
    }
}
