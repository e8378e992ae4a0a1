//! [`Recorder`]: what one job measures while it runs.

use clock::Nanos;

use crate::error::HostError;
use crate::histogram::Histogram;
use crate::job::Direction;
use crate::log::{Entry, JobLogs};
use crate::result::{Cause, DEPTH_LEVELS, DirectionResult, Failure, MAX_FAILURES};
use crate::series::Series;

/// Times of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) wanted: Nanos,
    pub(crate) issued: Nanos,
    pub(crate) completed: Nanos,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) directions: [DirectionResult; 3],
    pub(crate) sync: Histogram,
    pub(crate) series: Series,
    pub(crate) depth_levels: [u64; DEPTH_LEVELS],
    pub(crate) issued: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) verified: u64,
    pub(crate) mismatches: u64,
    pub(crate) failures: Vec<Failure>,
    pub(crate) delayed: u64,
    /// fio's logs over time, if the job writes any.
    log: Option<Box<JobLogs>>,
    /// The run's start.
    epoch: Nanos,
    /// Requests wanted earlier belong to the ramp.
    measure_from: Nanos,
    /// The instant that logs count from.
    log_from: Nanos,
}

impl Recorder {
    /// A recorder with room for the directions that the job uses.
    pub(crate) fn new(uses: [bool; 3]) -> Recorder {
        let directions = uses.map(|used| {
            if !used {
                return DirectionResult::default();
            }
            let [slat, clat, lat] = std::array::from_fn(|_| Histogram::new());
            DirectionResult { slat, clat, lat, ..DirectionResult::default() }
        });
        Recorder {
            directions,
            sync: Histogram::default(),
            series: Series::default(),
            depth_levels: [0; DEPTH_LEVELS],
            issued: 0,
            completed: 0,
            failed: 0,
            verified: 0,
            mismatches: 0,
            failures: Vec::with_capacity(MAX_FAILURES),
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

    /// Every measured request goes to these logs as well.
    pub(crate) fn set_logs(&mut self, logs: JobLogs) {
        self.log = Some(Box::new(logs));
    }

    /// Completes the logs of a job that ended at `at`.
    pub(crate) fn finish_logs(&mut self, at: Nanos) -> Result<(), HostError> {
        let at = at.since(self.log_from);
        self.log.as_deref_mut().map_or(Ok(()), |logs| logs.finish(at))
    }

    /// Forgets what was measured before `at`; requests wanted from then on are measured.
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

    /// A request was issued, `outstanding` with it.
    #[inline]
    pub(crate) fn issue(&mut self, outstanding: u32) {
        self.issued += 1;
        let level = outstanding.max(1).ilog2() as usize;
        self.depth_levels[level.min(DEPTH_LEVELS - 1)] += 1;
    }

    /// A request succeeded.
    #[inline]
    pub(crate) fn complete(&mut self, direction: Direction, offset: u64, bytes: u64, times: Times) {
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
            log.record(at, Entry { direction, offset, bytes, times });
        }
    }

    /// A flush succeeded; only `measured` ones are reported.
    pub(crate) fn complete_sync(&mut self, times: Times, measured: bool) {
        self.completed += 1;
        if measured && times.wanted >= self.measure_from {
            self.sync.record(times.completed.since(times.wanted));
        }
    }

    /// Something failed.
    pub(crate) fn fail(&mut self, failure: Failure) {
        match failure.cause {
            Cause::Status(_) => self.failed += 1,
            Cause::Mismatch(_) => self.mismatches += 1,
        }
        if self.failures.len() < MAX_FAILURES {
            self.failures.push(failure);
        }
    }
}
