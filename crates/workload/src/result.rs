//! [`RunResult`]: what a run measured, as plain numbers. Averages and rates of nothing are zero,
//! never infinite.

use clock::Nanos;
use nvme::Status;

use crate::histogram::Histogram;
use crate::job::{Direction, JobSpec};
use crate::time_series::TimeSeries;
use crate::trace::TraceAdjustments;
use crate::verify::Mismatch;

/// Failures that are described one by one, per job; all are counted.
pub const FAILURES_MAX: usize = 16;

/// Levels of fio's `iodepth_level`: 1, 2, 4, 8, 16, 32, and 64 or more.
pub const DEPTH_LEVELS: usize = 7;

/// What a run measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunResult {
    /// The seed that repeats the run.
    pub seed: u64,
    /// From the first poll until everything had ended.
    pub elapsed: Nanos,
    /// Every job and every clone of it, in the order of the job file.
    pub jobs: Vec<JobResult>,
}

/// One direction of one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectionResult {
    /// Bytes moved.
    pub bytes: u64,
    /// Requests completed.
    pub ios: u64,
    /// How long it was measured.
    pub runtime: Nanos,
    /// From when a request is wanted until the device has it.
    pub slat: Histogram,
    /// From there until the job has seen it complete.
    pub clat: Histogram,
    /// Both together.
    pub lat: Histogram,
}

impl DirectionResult {
    /// Bytes per second.
    pub fn bandwidth(&self) -> f64 {
        per_second(self.bytes, self.runtime)
    }

    /// Whether requests completed and no time passed, so that they have no rate: trims of a drive that
    /// charges nothing for a command, for instance.
    pub fn is_instant(&self) -> bool {
        self.ios > 0 && self.runtime == Nanos::ZERO
    }

    /// Requests per second.
    pub fn iops(&self) -> f64 {
        per_second(self.ios, self.runtime)
    }
}

fn per_second(count: u64, time: Nanos) -> f64 {
    if time == Nanos::ZERO { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCause {
    /// The device said so.
    Status(Status),
    /// What came back is not what was written.
    Mismatch(Mismatch),
}

/// A request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoFailure {
    /// fio's word for what was asked: read, write, trim or sync.
    pub op: &'static str,
    /// First sector; for a mismatch, the sector.
    pub lba: u64,
    /// Sectors.
    pub sectors: u32,
    /// When it was seen.
    pub at: Nanos,
    /// Why.
    pub cause: ErrorCause,
}

impl IoFailure {
    /// The `errno` that fio would have seen.
    pub fn errno(&self) -> i32 {
        match self.cause {
            ErrorCause::Status(s) if s.is(Status::CAPACITY_EXCEEDED) => 28,
            ErrorCause::Status(_) => 5,
            ErrorCause::Mismatch(_) => 84,
        }
    }
}

impl std::fmt::Display for IoFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let IoFailure { op: what, lba, sectors, at, cause } = self;
        write!(f, "{what} of sectors {lba}..+{sectors} at {at}: ")?;
        match cause {
            ErrorCause::Status(status) => write!(f, "{status}"),
            ErrorCause::Mismatch(mismatch) => write!(f, "{mismatch}"),
        }
    }
}

/// The depth that a search for a latency target has found (`latency_target`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthSearchResult {
    /// The greatest depth that met the target; 1 if none did.
    pub depth: u32,
    /// Whether the latency at that depth met the target.
    pub met: bool,
    /// Whether the search came to its end before the job did. If so, the job's results are those of
    /// one window at this depth.
    pub converged: bool,
}

/// What one job, or several reported as one, measured.
#[derive(Clone, Debug, PartialEq)]
pub struct JobResult {
    /// The job as described.
    pub spec: JobSpec,
    /// fio's group.
    pub group: u32,
    /// How many clones or jobs are in this result.
    pub members: u32,
    /// Read, write, trim.
    pub directions: [DirectionResult; 3],
    /// Latencies of flushes.
    pub sync: Histogram,
    /// When it started, on the run's clock.
    pub started: Nanos,
    /// When it ended.
    pub ended: Nanos,
    /// How long the job's virtual CPU was busy submitting and completing.
    pub cpu_busy: Nanos,
    /// Requests given to the device, of all kinds, those of the ramp included.
    pub issued: u64,
    /// Requests that succeeded.
    pub completed: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Sectors read back and found right.
    pub verified: u64,
    /// Sectors read back and found wrong.
    pub mismatches: u64,
    /// Failed requests and mismatches, the first of them.
    pub failures: Vec<IoFailure>,
    /// Whether a failure ended the job early.
    pub aborted: bool,
    /// Requests issued while 1, 2 to 3, 4 to 7 ... were outstanding.
    pub depth_levels: [u64; DEPTH_LEVELS],
    /// Throughput over time.
    pub series: TimeSeries,
    /// How requests of a trace had to be changed to fit the device.
    pub trace_adjustments: TraceAdjustments,
    /// Requests of a timed replay that could not be issued when the trace says.
    pub delayed: u64,
    /// The depth found by a search (`latency_target`); of several jobs reported as one, the first's.
    pub depth_search: Option<DepthSearchResult>,
}

impl JobResult {
    /// The result of one direction.
    pub fn direction(&self, direction: Direction) -> &DirectionResult {
        &self.directions[direction as usize]
    }

    /// The first failure as an `errno`, zero if there is none.
    pub fn errno(&self) -> i32 {
        self.failures.first().map_or(0, IoFailure::errno)
    }

    /// Failed requests and mismatches.
    pub fn errors(&self) -> u64 {
        self.failed + self.mismatches
    }

    /// Adds another job's numbers to this one's: sums, and the longest of the runtimes.
    pub fn merge(&mut self, other: &JobResult) {
        self.members += other.members;
        for (mine, theirs) in self.directions.iter_mut().zip(&other.directions) {
            mine.bytes += theirs.bytes;
            mine.ios += theirs.ios;
            mine.runtime = mine.runtime.max(theirs.runtime);
            mine.slat.merge(&theirs.slat);
            mine.clat.merge(&theirs.clat);
            mine.lat.merge(&theirs.lat);
        }
        self.sync.merge(&other.sync);
        self.started = self.started.min(other.started);
        self.ended = self.ended.max(other.ended);
        self.cpu_busy += other.cpu_busy;
        self.issued += other.issued;
        self.completed += other.completed;
        self.failed += other.failed;
        self.verified += other.verified;
        self.mismatches += other.mismatches;
        let room = FAILURES_MAX.saturating_sub(self.failures.len());
        self.failures.extend(other.failures.iter().take(room));
        self.aborted |= other.aborted;
        for (mine, theirs) in self.depth_levels.iter_mut().zip(&other.depth_levels) {
            *mine += theirs;
        }
        self.series.merge(&other.series);
        self.trace_adjustments.merge(&other.trace_adjustments);
        self.delayed += other.delayed;
    }
}

impl RunResult {
    /// The jobs as they are to be reported: neighbours of one group that ask for
    /// `group_reporting` are one, under the name of the first.
    pub fn reported_jobs(&self) -> Vec<JobResult> {
        let mut out: Vec<JobResult> = Vec::new();
        for job in &self.jobs {
            match out.last_mut() {
                Some(last)
                    if last.group == job.group
                        && last.spec.group_reporting
                        && job.spec.group_reporting =>
                {
                    last.merge(job);
                }
                _ => out.push(job.clone()),
            }
        }
        out
    }

    /// Every described failure, with its job's name.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &IoFailure)> {
        self.jobs.iter().flat_map(|j| j.failures.iter().map(|f| (j.spec.name.as_str(), f)))
    }
}
