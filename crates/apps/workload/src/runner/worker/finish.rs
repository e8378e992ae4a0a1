//! End of a [`JobThread`]: by a search for a depth, the phases after the last request of the main
//! phase, runtimes, and the check that every request is accounted for.

use time::Nanos;

use super::depth_search::SearchStep;
use super::{JobThread, Phase, RunContext};
use crate::error::RunError;
use crate::results::latency_recorder::Timestamps;
use crate::results::result::{JobCounts, JobResult};
use crate::runner::source::RequestSource;
use crate::trace::TraceAdjustments;

impl JobThread {
    /// Returns whether a search for a depth permits another request at `at`.
    #[inline]
    pub(super) fn can_issue_in_search(&mut self, at: Nanos) -> bool {
        let outstanding = self.slots.outstanding();
        self.search.as_mut().is_none_or(|search| search.can_issue(at, outstanding))
    }

    /// Reports a completed request to the search for a depth.
    pub(super) fn record_search_latency(&mut self, at: Nanos, times: Timestamps) {
        let measured = self.phase == Phase::Running && times.wanted >= self.recorder.measure_from();
        let Some(search) = self.search.as_mut().filter(|_| measured && !self.ending.is_stopping)
        else {
            return;
        };
        match search.complete(at, times.completed.since(times.wanted)) {
            SearchStep::Continue => {}
            SearchStep::Converged => {
                self.recorder.restart(at);
                self.times.restart_loop(at);
            }
            SearchStep::Done => self.ending.stop(),
        }
    }

    /// Returns the progress of the job, from 0 to 1.
    pub(crate) fn progress(&self, now: Nanos) -> f64 {
        match self.phase {
            Phase::Waiting => 0.0,
            Phase::Done => 1.0,
            _ => {
                let loops = f64::from(self.spec.schedule.loops.max(1));
                let done = loops - 1.0 - f64::from(self.ending.loops_remaining);
                self.times.progress(now).max((done + self.source.progress()) / loops).min(1.0)
            }
        }
    }

    /// Ends the main phase when no request is outstanding.
    pub(super) fn finish_main(&mut self, at: Nanos) {
        let runtime = self.times.end_main(at);
        for direction in &mut self.recorder.directions {
            if direction.ios > 0 {
                direction.runtime += runtime;
            }
        }
        let writes = self.recorder.directions[1].ios > 0 || self.spec.pattern.access.uses[1];
        self.phase = match self.spec.integrity.end_fsync && writes && !self.ending.aborted {
            true => Phase::EndFlush,
            false => self.read_back_phase(),
        };
    }

    /// Returns the phase that follows the writes.
    pub(super) fn read_back_phase(&self) -> Phase {
        let writes = self.spec.pattern.access.uses[1];
        match self.spec.integrity.verify
            && self.spec.integrity.do_verify
            && writes
            && !self.ending.aborted
        {
            true => Phase::ReadBack { next: 0 },
            false => Phase::ReadBack { next: u64::MAX },
        }
    }

    /// Sets the runtime of the reads of a write-only job to the time of reading back.
    pub(super) fn finish_read_back(&mut self, at: Nanos) {
        let reads = &mut self.recorder.directions[0];
        if !self.spec.pattern.access.uses[0] && self.spec.replay.is_none() {
            let read_back_time = self.times.end_read_back(at);
            reads.runtime = if reads.ios > 0 { read_back_time } else { Nanos::ZERO };
        }
    }

    /// Starts the next loop with no request outstanding; it repeats the first one.
    pub(super) fn begin_loop(&mut self, at: Nanos, shared: &RunContext) -> Result<(), RunError> {
        self.ending.begin_loop();
        self.source.restart(&self.spec, self.io_range, &shared.limits, &self.rng)?;
        self.source.start(at);
        self.times.restart_loop(at.max(self.recorder.measure_from()));
        self.phase = Phase::Running;
        Ok(())
    }

    /// Returns the number of requests submitted to the device so far.
    #[inline]
    pub(crate) fn issued_count(&self) -> u64 {
        self.recorder.issued
    }

    /// Checks that every request is accounted for.
    pub(crate) fn check_accounting(&self) -> Result<(), RunError> {
        let r = &self.recorder;
        let job = self.spec.name.clone();
        if !self.is_done() {
            return Err(RunError::NotFinished {
                job,
                outstanding: u64::from(self.slots.outstanding()),
            });
        }
        if let Err(broken) = self.slots.check_invariants() {
            panic!("job {job}: {broken}");
        }
        if r.issued != r.completed + r.failed {
            let (issued, completed, failed) = (r.issued, r.completed, r.failed);
            return Err(RunError::Unaccounted { job, issued, completed, failed });
        }
        Ok(())
    }

    /// Completes the logs of the job.
    pub(crate) fn finish_logs(&mut self) -> Result<(), RunError> {
        self.recorder.finish_logs(self.times.ended_at())
    }

    /// Returns the measurements, with times on the clock that started at `epoch`.
    pub(crate) fn into_result(self, epoch: Nanos) -> JobResult {
        let r = self.recorder;
        let trace_fit = match &self.source {
            RequestSource::Replay(replay) => replay.reader.adjustments(),
            _ => TraceAdjustments::default(),
        };
        let (operations, not_found) = match &self.source {
            RequestSource::Keys(keys) => (keys.counts, keys.not_found),
            _ => Default::default(),
        };
        JobResult {
            spec: self.spec,
            group: self.group,
            members: 1,
            directions: r.directions,
            sync: r.sync,
            started: self.times.started().since(epoch),
            ended: self.times.ended_at().since(epoch),
            cpu_busy: self.cpu.busy,
            requests: JobCounts {
                issued: r.issued,
                completed: r.completed,
                failed: r.failed,
                verified: r.verified,
                mismatches: r.mismatches,
                delayed: r.delayed,
                operations,
                not_found,
            },
            failures: r.failures,
            aborted: self.ending.aborted,
            depth_levels: r.depth_levels,
            series: r.series,
            trace_adjustments: trace_fit,
            depth_search: self.search.map(|search| search.result()),
        }
    }
}
