//! [`JobTimes`]: start, end and runtimes of a job.

use time::Nanos;

/// Times of a job.
#[derive(Debug)]
pub(super) struct JobTimes {
    started: Nanos,
    /// End of the main phase at the latest.
    end_time: Nanos,
    main_end: Nanos,
    ended_at: Nanos,
    /// Start of the current loop, or of the measurement if that was later.
    loop_started: Nanos,
    /// Time of reading back in all loops.
    read_back_time: Nanos,
}

impl Default for JobTimes {
    fn default() -> JobTimes {
        let zero = Nanos::ZERO;
        JobTimes {
            started: zero,
            end_time: Nanos::MAX,
            main_end: zero,
            ended_at: zero,
            loop_started: zero,
            read_back_time: zero,
        }
    }
}

impl JobTimes {
    /// Sets the start of the job, and returns it.
    pub(super) fn start(&mut self, at: Nanos) -> Nanos {
        self.started = at;
        at
    }

    /// Returns the start of the job.
    #[inline]
    pub(super) fn started(&self) -> Nanos {
        self.started
    }

    /// Sets the start of the measurement, after the ramp time, and the end of the main phase.
    /// Returns the start of the measurement.
    pub(super) fn measure_from(&mut self, ramp_time: Nanos, runtime: Option<Nanos>) -> Nanos {
        let measure_from = self.started + ramp_time;
        self.end_time = runtime.map_or(Nanos::MAX, |r| measure_from + r);
        self.loop_started = measure_from;
        measure_from
    }

    /// Returns the end of the main phase at the latest.
    #[inline]
    pub(super) fn end_time(&self) -> Nanos {
        self.end_time
    }

    /// Sets the start of a loop, or of the measurement in it.
    pub(super) fn restart_loop(&mut self, at: Nanos) {
        self.loop_started = at;
    }

    /// Ends the main phase. Returns the runtime of the loop.
    pub(super) fn end_main(&mut self, at: Nanos) -> Nanos {
        (self.main_end, self.ended_at) = (at, at);
        at.since(self.loop_started)
    }

    /// Ends the reading back of a loop. Returns its time in all loops.
    pub(super) fn end_read_back(&mut self, at: Nanos) -> Nanos {
        self.read_back_time += at.since(self.main_end);
        self.read_back_time
    }

    /// Ends the job.
    pub(super) fn end(&mut self, at: Nanos) {
        self.ended_at = at;
    }

    /// Returns the end of the job, or of its last main phase.
    pub(super) fn ended_at(&self) -> Nanos {
        self.ended_at
    }

    /// Returns the share of the time that has passed.
    pub(super) fn progress(&self, now: Nanos) -> f64 {
        now.since(self.started).0 as f64 / (self.end_time.since(self.started).0 as f64).max(1.0)
    }
}
