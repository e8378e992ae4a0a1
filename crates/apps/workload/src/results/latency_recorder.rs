//! [`LatencyRecorder`]: the measurements of one job while it runs.

use time::Nanos;

use crate::error::RunError;
use crate::job::Direction;
use crate::results::job_log::{JobLogs, LogEntry};
use crate::results::result::{DEPTH_LEVELS, DirectionResult, ErrorCause, FAILURES_MAX, IoFailure};
use crate::results::time_series::TimeSeries;
use collections::Histogram;

/// Timestamps of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamps {
    pub(crate) wanted: Nanos,
    pub(crate) issued: Nanos,
    pub(crate) completed: Nanos,
}

#[derive(Debug)]
pub(crate) struct LatencyRecorder {
    pub(crate) directions: [DirectionResult; 3],
    pub(crate) sync: Histogram,
    pub(crate) series: TimeSeries,
    pub(crate) depth_levels: [u64; DEPTH_LEVELS],
    pub(crate) issued: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) verified: u64,
    pub(crate) mismatches: u64,
    pub(crate) failures: Vec<IoFailure>,
    pub(crate) delayed: u64,
    /// fio's logs over time, if the job writes any.
    log: Option<Box<JobLogs>>,
    /// Start of the run.
    epoch: Nanos,
    /// Requests that were due earlier belong to the ramp and are not measured.
    measure_from: Nanos,
    /// Start of the logs' clock.
    log_from: Nanos,
}

impl LatencyRecorder {
    /// Returns a recorder with histograms for the directions that the job uses.
    pub(crate) fn new(uses: [bool; 3]) -> LatencyRecorder {
        let directions = uses.map(|used| {
            if !used {
                return DirectionResult::default();
            }
            let [slat, clat, lat] = std::array::from_fn(|_| Histogram::new());
            DirectionResult { slat, clat, lat, ..DirectionResult::default() }
        });
        LatencyRecorder {
            directions,
            sync: Histogram::default(),
            series: TimeSeries::default(),
            depth_levels: [0; DEPTH_LEVELS],
            issued: 0,
            completed: 0,
            failed: 0,
            verified: 0,
            mismatches: 0,
            failures: Vec::with_capacity(FAILURES_MAX),
            delayed: 0,
            log: None,
            epoch: Nanos::ZERO,
            measure_from: Nanos::MAX,
            log_from: Nanos::MAX,
        }
    }

    pub(crate) fn start(&mut self, epoch: Nanos, measure_from: Nanos) {
        self.epoch = epoch;
        (self.measure_from, self.log_from) = (measure_from, measure_from);
    }

    pub(crate) fn measure_from(&self) -> Nanos {
        self.measure_from
    }

    /// Also logs every measured request to `logs`.
    pub(crate) fn set_logs(&mut self, logs: JobLogs) {
        self.log = Some(Box::new(logs));
    }

    /// Completes the logs of a job that ended at `at`.
    pub(crate) fn finish_logs(&mut self, at: Nanos) -> Result<(), RunError> {
        let at = at.since(self.log_from);
        self.log.as_deref_mut().map_or(Ok(()), |logs| logs.finish(at))
    }

    /// Discards the measurements before `at`. Requests that are due from then on are measured.
    pub(crate) fn restart(&mut self, at: Nanos) {
        for direction in &mut self.directions {
            (direction.bytes, direction.ios) = (0, 0);
            direction.slat.clear();
            direction.clat.clear();
            direction.lat.clear();
        }
        self.sync.clear();
        self.measure_from = at;
    }

    /// Records that a request was issued; `outstanding` includes it.
    #[inline]
    pub(crate) fn issue(&mut self, outstanding: u32) {
        self.issued += 1;
        let level = outstanding.max(1).ilog2() as usize;
        self.depth_levels[level.min(DEPTH_LEVELS - 1)] += 1;
    }

    /// Records a request that succeeded.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        direction: Direction,
        offset: u64,
        bytes: u64,
        times: Timestamps,
    ) {
        self.completed += 1;
        if times.wanted < self.measure_from {
            return;
        }
        let result = &mut self.directions[direction as usize];
        result.bytes += bytes;
        result.ios += 1;
        result.slat.record(times.issued.since(times.wanted));
        result.clat.record(times.completed.since(times.issued));
        result.lat.record(times.completed.since(times.wanted));
        let since = |at: Nanos| at.since(self.epoch);
        let latency = times.completed.since(times.wanted);
        let (completed, issued) = (since(times.completed), since(times.issued));
        self.series.record(completed, direction, bytes, issued, latency);
        if let Some(log) = &mut self.log {
            let at = times.completed.since(self.log_from);
            log.record(at, LogEntry { direction, offset, bytes, times });
        }
    }

    /// Records a flush that succeeded. Only `measured` flushes are reported.
    pub(crate) fn complete_sync(&mut self, times: Timestamps, measured: bool) {
        self.completed += 1;
        if measured && times.wanted >= self.measure_from {
            self.sync.record(times.completed.since(times.wanted));
        }
    }

    /// Records a failure.
    pub(crate) fn fail(&mut self, failure: IoFailure) {
        match failure.cause {
            ErrorCause::Status(_) => self.failed += 1,
            ErrorCause::Mismatch(_) => self.mismatches += 1,
        }
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(failure);
        }
    }
}
