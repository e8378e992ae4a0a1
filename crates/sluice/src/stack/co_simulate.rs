//! One host and one drive taking turns in virtual time.
//!
//! The same as polling both until nothing moves and jumping to the next deadline, without the polls
//! that cannot find anything: a host hears of a drive only by completions, so while the drive posts
//! none and the host has no deadline, the drive goes on alone.

use block::BlockDevice;
use clock::{Component, Nanos, VirtualRunner};
use drive::Controller;
use workload::JobRunner;

/// Asks, every so many turns.
type ProgressFn<'t, D> =
    &'t mut dyn FnMut(&mut VirtualRunner, &mut JobRunner<D>, &mut Controller) -> bool;
/// Samples at an instant, and says when the next sample is due.
type SampleFn<'t, D> = &'t mut dyn FnMut(Nanos, &JobRunner<D>, &Controller) -> Nanos;

/// Turns between two questions, unless it is said.
const STEPS_PER_CALL: u32 = 1024;

/// What is done beside the turns. None of it changes what happens.
pub struct RunObserver<'t, D> {
    /// Asks `tell` every so many turns. On a drive that takes no time everything happens in one turn: it
    /// is asked every so many polls, too.
    interval: u32,
    progress: ProgressFn<'t, D>,
    sample_at: Nanos,
    sample: Option<SampleFn<'t, D>>,
}

impl<'t, D> RunObserver<'t, D> {
    /// Asks `tell` every thousand or so turns whether to go on.
    pub fn new(progress: ProgressFn<'t, D>) -> RunObserver<'t, D> {
        RunObserver { interval: STEPS_PER_CALL, progress, sample_at: Nanos::MAX, sample: None }
    }

    /// Asks every `turns` turns.
    #[must_use]
    pub fn with_interval(self, turns: u32) -> RunObserver<'t, D> {
        RunObserver { interval: turns, ..self }
    }

    /// Calls `sample` at the instant `first`, and then at the instants that it returns: when everything
    /// before that instant has happened, and nothing at it.
    #[must_use]
    pub fn with_sampling(self, first: Nanos, sample: SampleFn<'t, D>) -> RunObserver<'t, D> {
        RunObserver { sample_at: first, sample: Some(sample), ..self }
    }

    /// Takes every sample that is due before or at `at`.
    fn sample_until(&mut self, at: Nanos, host: &JobRunner<D>, drive: &Controller) {
        while at >= self.sample_at {
            self.sample_at = match &mut self.sample {
                Some(sample) => sample(self.sample_at, host, drive),
                None => return,
            };
        }
    }
}

/// Runs until the host is done, nothing is left to happen, or the watcher's `tell` answers `false`. Returns
/// whether the host is done.
pub fn co_simulate<D: BlockDevice>(
    runner: &mut VirtualRunner,
    host: &mut JobRunner<D>,
    drive: &mut Controller,
    mut watcher: RunObserver<'_, D>,
) -> bool {
    let mut turns = 0u32;
    loop {
        // Everything that can happen at this instant. Media that take no time have all of it here.
        let mut polls = 0u32;
        loop {
            host.poll(runner.now());
            let posted = drive.posted();
            drive.poll(runner.now());
            if drive.posted() == posted && host.deadline() > runner.now() {
                break;
            }
            polls += 1;
            if polls == watcher.interval {
                polls = 0;
                if !(watcher.progress)(runner, host, drive) {
                    return host.is_done();
                }
            }
        }
        if host.is_done() {
            return true;
        }
        turns += 1;
        if turns == watcher.interval {
            turns = 0;
            if !(watcher.progress)(runner, host, drive) {
                return false;
            }
        }
        let wanted = host.deadline();
        let posted = drive.posted();
        loop {
            let due = drive.deadline();
            if due >= wanted {
                if wanted == Nanos::MAX {
                    return false;
                }
                watcher.sample_until(wanted, host, drive);
                runner.advance_to(wanted);
                break;
            }
            watcher.sample_until(due, host, drive);
            runner.advance_to(due);
            drive.poll(runner.now());
            if drive.posted() != posted {
                break;
            }
        }
    }
}
