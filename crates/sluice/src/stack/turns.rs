//! One host and one drive taking turns in virtual time.
//!
//! The same as polling both until nothing moves and jumping to the next deadline, without the polls
//! that cannot find anything: a host hears of a drive only by completions, so while the drive posts
//! none and the host has no deadline, the drive goes on alone.

use block::Device;
use clock::{Component, Nanos, VirtualRunner};
use drive::Drive;
use workload::Host;

/// Asks, every so many turns.
type Tell<'t, D> = &'t mut dyn FnMut(&mut VirtualRunner, &mut Host<D>, &mut Drive) -> bool;
/// Samples at an instant, and says when the next sample is due.
type Sample<'t, D> = &'t mut dyn FnMut(Nanos, &Host<D>, &Drive) -> Nanos;

/// Turns between two questions, unless it is said.
const EVERY: u32 = 1024;

/// What is done beside the turns. None of it changes what happens.
pub struct Watcher<'t, D> {
    /// Asks `tell` every so many turns. On a drive that takes no time everything happens in one turn: it
    /// is asked every so many polls, too.
    every: u32,
    tell: Tell<'t, D>,
    sample_at: Nanos,
    sample: Option<Sample<'t, D>>,
}

impl<'t, D> Watcher<'t, D> {
    /// Asks `tell` every thousand or so turns whether to go on.
    pub fn new(tell: Tell<'t, D>) -> Watcher<'t, D> {
        Watcher { every: EVERY, tell, sample_at: Nanos::MAX, sample: None }
    }

    /// Asks every `turns` turns.
    #[must_use]
    pub fn every(self, turns: u32) -> Watcher<'t, D> {
        Watcher { every: turns, ..self }
    }

    /// Calls `sample` at the instant `first`, and then at the instants that it returns: when everything
    /// before that instant has happened, and nothing at it.
    #[must_use]
    pub fn sampling(self, first: Nanos, sample: Sample<'t, D>) -> Watcher<'t, D> {
        Watcher { sample_at: first, sample: Some(sample), ..self }
    }

    /// Takes every sample that is due before or at `at`.
    fn sample_until(&mut self, at: Nanos, host: &Host<D>, drive: &Drive) {
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
pub fn take_turns<D: Device>(
    runner: &mut VirtualRunner,
    host: &mut Host<D>,
    drive: &mut Drive,
    mut watcher: Watcher<'_, D>,
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
            if polls == watcher.every {
                polls = 0;
                if !(watcher.tell)(runner, host, drive) {
                    return host.done();
                }
            }
        }
        if host.done() {
            return true;
        }
        turns += 1;
        if turns == watcher.every {
            turns = 0;
            if !(watcher.tell)(runner, host, drive) {
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
                runner.jump(wanted);
                break;
            }
            watcher.sample_until(due, host, drive);
            runner.jump(due);
            drive.poll(runner.now());
            if drive.posted() != posted {
                break;
            }
        }
    }
}
