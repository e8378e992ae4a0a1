//! [`RunResult`]: the measurements of a run as plain numbers. Averages and rates without any
//! request are zero, never infinite.

use nvme::Status;
use time::Nanos;

use crate::device::Addressing;
use crate::job::{Direction, JobSpec};
use crate::results::time_series::TimeSeries;
use crate::runner::verify::Mismatch;
use crate::trace::TraceAdjustments;
use collections::Histogram;

/// Maximum number of failures per job that are described individually; all failures are counted.
pub const FAILURES_MAX: usize = 16;

/// Number of levels of fio's `iodepth_level`: 1, 2, 4, 8, 16, 32, and 64 or more.
pub const DEPTH_LEVELS: usize = 7;

/// Measurements of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunResult {
    /// Seed that repeats the run.
    pub seed: u64,
    /// Time from the first poll until all jobs had ended.
    pub elapsed: Nanos,
    /// Results of every job and clone, in the order of the job file.
    pub jobs: Vec<JobResult>,
}

/// Measurements of one direction of one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectionResult {
    /// Bytes transferred.
    pub bytes: u64,
    /// Number of completed requests.
    pub ios: u64,
    /// Measured time.
    pub runtime: Nanos,
    /// Submission latency: from the time a request is due until the device has it.
    pub slat: Histogram,
    /// Completion latency: from submission until the job has processed the completion.
    pub clat: Histogram,
    /// Total latency: the sum of submission and completion latency.
    pub lat: Histogram,
}

impl DirectionResult {
    /// Returns the bandwidth in bytes per second.
    pub fn bandwidth(&self) -> f64 {
        per_second(self.bytes, self.runtime)
    }

    /// Returns whether requests completed but no time passed, so that no rate can be given. An
    /// example is trims of a drive that needs no time for a command.
    pub fn is_instant(&self) -> bool {
        self.ios > 0 && self.runtime == Nanos::ZERO
    }

    /// Returns the requests per second.
    pub fn iops(&self) -> f64 {
        per_second(self.ios, self.runtime)
    }
}

fn per_second(count: u64, time: Nanos) -> f64 {
    if time == Nanos::ZERO { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCause {
    /// The device completed the request with this status.
    Status(Status),
    /// The data read differs from the data written.
    Mismatch(Mismatch),
}

/// A failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoFailure {
    /// fio's name of the operation: read, write, trim or sync.
    pub op: &'static str,
    /// Addressing of the job: whether the following fields are sectors or records.
    pub addressing: Addressing,
    /// First sector or record; for a mismatch, that with the wrong data.
    pub lba: u64,
    /// Number of sectors or records.
    pub sectors: u32,
    /// Time at which the job noticed the failure.
    pub at: Nanos,
    /// Reason of the failure.
    pub cause: ErrorCause,
}

impl IoFailure {
    /// Returns the `errno` that fio would have seen.
    pub fn errno(&self) -> i32 {
        match self.cause {
            ErrorCause::Status(s) if s.is(Status::CAPACITY_EXCEEDED) => 28,
            ErrorCause::Status(s) if s.is(Status::WRITE_PROTECTED) => 30,
            ErrorCause::Status(_) => 5,
            ErrorCause::Mismatch(_) => 84,
        }
    }
}

impl std::fmt::Display for IoFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let IoFailure { op: what, addressing, lba, sectors, at, cause } = self;
        write!(f, "{what} of {} {lba}..+{sectors} at {at}: ", addressing.units())?;
        match cause {
            ErrorCause::Status(status) => write!(f, "{status}"),
            ErrorCause::Mismatch(mismatch) => write!(f, "{mismatch}"),
        }
    }
}

/// Result of a search for the depth that meets a latency target (`latency_target`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthSearchResult {
    /// The greatest depth that met the target; 1 if none did.
    pub depth: u32,
    /// Whether the latency at that depth met the target.
    pub met: bool,
    /// Whether the search finished before the job ended. If so, the results of the job cover one
    /// window at this depth.
    pub converged: bool,
}

/// Counts of a job's requests, and of the sectors that it verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Number of requests of all kinds submitted to the device, including those of the ramp.
    pub issued: u64,
    /// Number of requests that succeeded.
    pub completed: u64,
    /// Number of requests that failed.
    pub failed: u64,
    /// Number of sectors that were read back and verified.
    pub verified: u64,
    /// Number of sectors that were read back with wrong data.
    pub mismatches: u64,
    /// Number of requests of a timed replay that were issued later than the trace says.
    pub delayed: u64,
    /// Number of operations of a YCSB job that succeeded, by
    /// [`OperationKind`](crate::ycsb::OperationKind).
    pub operations: [u64; 5],
    /// Number of operations on records that did not find their key: failed gets, scans and updates,
    /// and deletes, which succeed nevertheless.
    pub not_found: u64,
}

impl JobCounts {
    /// Adds the counts of another job.
    fn add(&mut self, other: &JobCounts) {
        self.issued += other.issued;
        self.completed += other.completed;
        self.failed += other.failed;
        self.verified += other.verified;
        self.mismatches += other.mismatches;
        self.delayed += other.delayed;
        self.not_found += other.not_found;
        for (mine, theirs) in self.operations.iter_mut().zip(other.operations) {
            *mine += theirs;
        }
    }
}

/// Measurements of one job, or of several jobs that are reported as one.
#[derive(Clone, Debug, PartialEq)]
pub struct JobResult {
    /// Description of the job.
    pub spec: JobSpec,
    /// fio's group of the job.
    pub group: u32,
    /// Number of clones or jobs in this result.
    pub members: u32,
    /// Measurements per [`Direction`].
    pub directions: [DirectionResult; 3],
    /// Latencies of flushes.
    pub sync: Histogram,
    /// Start of the job, on the clock of the run.
    pub started: Nanos,
    /// End of the job, on the clock of the run.
    pub ended: Nanos,
    /// Time for which the virtual CPU of the job was busy with submissions and completions.
    pub cpu_busy: Nanos,
    /// Counts of requests and of verified sectors.
    pub requests: JobCounts,
    /// The first failed requests and mismatches, at most [`FAILURES_MAX`].
    pub failures: Vec<IoFailure>,
    /// Whether a failure ended the job early.
    pub aborted: bool,
    /// Number of requests issued while 1, 2 to 3, 4 to 7 ... were outstanding.
    pub depth_levels: [u64; DEPTH_LEVELS],
    /// Throughput over time.
    pub series: TimeSeries,
    /// Adjustments of the requests of a trace to the device.
    pub trace_adjustments: TraceAdjustments,
    /// Result of the search for a depth (`latency_target`). For several jobs that are reported as
    /// one, it is that of the first.
    pub depth_search: Option<DepthSearchResult>,
}

impl JobResult {
    /// Returns the measurements of one direction.
    pub fn direction(&self, direction: Direction) -> &DirectionResult {
        &self.directions[direction as usize]
    }

    /// Returns the first failure as an `errno`, or zero if there is none.
    pub fn errno(&self) -> i32 {
        self.failures.first().map_or(0, IoFailure::errno)
    }

    /// Returns the number of failed requests and mismatches.
    pub fn errors(&self) -> u64 {
        self.requests.failed + self.requests.mismatches
    }

    /// Adds the measurements of another job: sums, and the maximum of the runtimes.
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
        self.requests.add(&other.requests);
        let room = FAILURES_MAX.saturating_sub(self.failures.len());
        self.failures.extend(other.failures.iter().take(room));
        self.aborted |= other.aborted;
        for (mine, theirs) in self.depth_levels.iter_mut().zip(&other.depth_levels) {
            *mine += theirs;
        }
        self.series.merge(&other.series);
        self.trace_adjustments.merge(&other.trace_adjustments);
    }
}

impl RunResult {
    /// Returns the jobs as they are to be reported. Adjacent jobs of one group with
    /// `group_reporting` are merged under the name of the first.
    pub fn reported_jobs(&self) -> Vec<JobResult> {
        let mut out: Vec<JobResult> = Vec::new();
        for job in &self.jobs {
            match out.last_mut() {
                Some(last)
                    if last.group == job.group
                        && last.spec.report.group_reporting
                        && job.spec.report.group_reporting =>
                {
                    last.merge(job);
                }
                _ => out.push(job.clone()),
            }
        }
        out
    }

    /// Returns every described failure, with the name of its job.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &IoFailure)> {
        self.jobs.iter().flat_map(|j| j.failures.iter().map(|f| (j.spec.name.as_str(), f)))
    }
}
