//! Co-simulation of one host and one drive in virtual time.
//!
//! The result equals that of polling both until neither makes progress, and then advancing to the
//! next deadline. Polls that cannot find anything are skipped: completions are the only input of a
//! host from its drive. While the drive posts none and the host has no deadline, only the drive is
//! polled.

use block::BlockDevice;
use controller::Controller;
use time::{Component, Nanos, VirtualRunner};
use workload::JobRunner;

use super::SimulatedDevice;

/// Progress callback; returns `false` to stop the run.
type ProgressFn<'t, D, C> =
    &'t mut dyn FnMut(&mut VirtualRunner, &mut JobRunner<D>, &mut C) -> bool;
/// Takes a sample at an instant and returns the instant of the next sample.
type SampleFn<'t, D, C> = &'t mut dyn FnMut(Nanos, &mut JobRunner<D>, &C) -> Nanos;

/// Default number of steps between two calls of the progress callback.
const STEPS_PER_CALL: u32 = 1024;

/// Callbacks during a run. They do not influence the simulation.
pub struct RunObserver<'t, D, C = Controller> {
    /// Number of steps between two calls of `progress`. On a drive with zero latency everything
    /// happens in one step; there, polls count as well.
    interval: u32,
    progress: ProgressFn<'t, D, C>,
    sample_at: Nanos,
    sample: Option<SampleFn<'t, D, C>>,
}

impl<'t, D, C> RunObserver<'t, D, C> {
    /// Returns an observer that calls `progress` every `STEPS_PER_CALL` steps to ask whether to
    /// continue.
    pub fn new(progress: ProgressFn<'t, D, C>) -> RunObserver<'t, D, C> {
        RunObserver { interval: STEPS_PER_CALL, progress, sample_at: Nanos::MAX, sample: None }
    }

    /// Sets the number of steps between two calls of the progress callback.
    #[must_use]
    pub fn with_interval(self, turns: u32) -> RunObserver<'t, D, C> {
        RunObserver { interval: turns, ..self }
    }

    /// Calls `sample` at the instant `first`, and then at each instant that it returns.
    ///
    /// At the time of a call, all events before that instant have happened, and none at it.
    #[must_use]
    pub fn with_sampling(self, first: Nanos, sample: SampleFn<'t, D, C>) -> RunObserver<'t, D, C> {
        RunObserver { sample_at: first, sample: Some(sample), ..self }
    }

    /// Takes all samples that are due by `at`.
    fn sample_until(&mut self, at: Nanos, host: &mut JobRunner<D>, drive: &C) {
        while at >= self.sample_at {
            self.sample_at = match &mut self.sample {
                Some(sample) => sample(self.sample_at, host, drive),
                None => return,
            };
        }
    }
}

/// Runs until the host has finished, no event remains, or the observer's `progress` returns
/// `false`. Returns whether the host has finished.
pub fn co_simulate<D: BlockDevice, C: SimulatedDevice>(
    runner: &mut VirtualRunner,
    host: &mut JobRunner<D>,
    drive: &mut C,
    mut watcher: RunObserver<'_, D, C>,
) -> bool {
    let mut turns = 0u32;
    loop {
        // Process all events of this instant. With zero-latency media, the complete run happens
        // here.
        let mut polls = 0u32;
        let mut wanted = loop {
            host.poll(runner.now());
            let posted = drive.posted();
            drive.poll(runner.now());
            if drive.posted() == posted {
                let wanted = host.deadline();
                if wanted > runner.now() {
                    break wanted;
                }
            }
            polls += 1;
            if polls == watcher.interval {
                polls = 0;
                if !(watcher.progress)(runner, host, drive) {
                    return host.is_done();
                }
            }
        };
        if host.is_done() {
            return true;
        }
        turns += 1;
        if turns == watcher.interval {
            turns = 0;
            if !(watcher.progress)(runner, host, drive) {
                return false;
            }
            // The callback may have changed the host.
            wanted = host.deadline();
        }
        let posted = drive.posted();
        loop {
            let due = drive.run_before(wanted.min(watcher.sample_at));
            if drive.posted() != posted {
                runner.advance_to(due);
                break;
            }
            if due.min(wanted) == Nanos::MAX {
                return false;
            }
            watcher.sample_until(due.min(wanted), host, drive);
            if due >= wanted {
                runner.advance_to(wanted);
                break;
            }
        }
    }
}
