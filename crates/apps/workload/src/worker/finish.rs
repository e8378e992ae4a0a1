//! End of a [`JobThread`]: the phases after the last request of the main phase, runtimes, and the
//! check that every request is accounted for.

use clock::Nanos;

use super::{JobThread, Phase, RunContext};
use crate::error::RunError;
use crate::result::JobResult;
use crate::source::Source;
use crate::trace::TraceAdjustments;

impl JobThread {
    /// Returns the progress of the job, from 0 to 1.
    pub(crate) fn progress(&self, now: Nanos) -> f64 {
        match self.phase {
            Phase::Waiting => 0.0,
            Phase::Done => 1.0,
            _ => {
                let time = now.since(self.started).0 as f64
                    / (self.end_time.since(self.started).0 as f64).max(1.0);
                let loops = f64::from(self.spec.loops.max(1));
                let done = loops - 1.0 - f64::from(self.loops_remaining);
                time.max((done + self.source.progress()) / loops).min(1.0)
            }
        }
    }

    /// Ends the main phase when no request is outstanding.
    pub(super) fn finish_main(&mut self, at: Nanos) {
        (self.main_end, self.ended_at) = (at, at);
        let runtime = at.since(self.loop_started);
        for direction in &mut self.recorder.directions {
            if direction.ios > 0 {
                direction.runtime += runtime;
            }
        }
        let writes = self.recorder.directions[1].ios > 0 || self.spec.access.uses[1];
        self.phase = match self.spec.end_fsync && writes && !self.aborted {
            true => Phase::EndFlush,
            false => self.read_back_phase(),
        };
    }

    /// Returns the phase that follows the writes.
    pub(super) fn read_back_phase(&self) -> Phase {
        let writes = self.spec.access.uses[1];
        match self.spec.verify && self.spec.do_verify && writes && !self.aborted {
            true => Phase::ReadBack { next: 0 },
            false => Phase::ReadBack { next: u64::MAX },
        }
    }

    /// Sets the runtime of the reads of a write-only job to the time of reading back.
    pub(super) fn finish_read_back(&mut self, at: Nanos) {
        let reads = &mut self.recorder.directions[0];
        if !self.spec.access.uses[0] && self.spec.replay.is_none() {
            self.read_back_time += at.since(self.main_end);
            reads.runtime = if reads.ios > 0 { self.read_back_time } else { Nanos::ZERO };
        }
    }

    /// Starts the next loop with no request outstanding; it repeats the first one.
    pub(super) fn begin_loop(&mut self, at: Nanos, shared: &RunContext) -> Result<(), RunError> {
        self.loops_remaining -= 1;
        self.source.restart(&self.spec, self.io_range, &shared.limits, &self.rng)?;
        self.source.start(at);
        self.loop_started = at.max(self.recorder.measure_from());
        (self.phase, self.is_stopping) = (Phase::Running, false);
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
            return Err(RunError::NotFinished { job, outstanding: u64::from(self.outstanding) });
        }
        if r.issued != r.completed + r.failed {
            let (issued, completed, failed) = (r.issued, r.completed, r.failed);
            return Err(RunError::Unaccounted { job, issued, completed, failed });
        }
        Ok(())
    }

    /// Completes the logs of the job.
    pub(crate) fn finish_logs(&mut self) -> Result<(), RunError> {
        self.recorder.finish_logs(self.ended_at)
    }

    /// Returns the measurements, with times on the clock that started at `epoch`.
    pub(crate) fn into_result(self, epoch: Nanos) -> JobResult {
        let r = self.recorder;
        let trace_fit = match &self.source {
            Source::Replay(replay) => replay.reader.adjustments(),
            Source::Generated(_) => TraceAdjustments::default(),
        };
        JobResult {
            spec: self.spec,
            group: self.group,
            members: 1,
            directions: r.directions,
            sync: r.sync,
            started: self.started.since(epoch),
            ended: self.ended_at.since(epoch),
            cpu_busy: self.cpu_busy,
            issued: r.issued,
            completed: r.completed,
            failed: r.failed,
            verified: r.verified,
            mismatches: r.mismatches,
            failures: r.failures,
            aborted: self.aborted,
            depth_levels: r.depth_levels,
            series: r.series,
            trace_adjustments: trace_fit,
            delayed: r.delayed,
            depth_search: self.search.map(|search| search.result()),
        }
    }
}
