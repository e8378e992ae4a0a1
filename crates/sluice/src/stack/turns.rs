//! One host and one drive taking turns in virtual time.
//!
//! The same as polling both until nothing moves and jumping to the next deadline, without the polls
//! that cannot find anything: a host hears of a drive only by completions, so while the drive posts
//! none and the host has no deadline, the drive goes on alone.

use block::Device;
use clock::{Component, Nanos, VirtualRunner};
use drive::Drive;
use workload::Host;

/// Asks, per turn or poll.
type Tell<'t, D> = &'t mut dyn FnMut(&mut VirtualRunner, &mut Host<D>, &mut Drive) -> bool;

/// Runs until the host is done, nothing is left to happen, or `tell` answers `false`, which is asked
/// every thousand or so turns. Returns whether the host is done.
pub fn take_turns<D: Device>(
    runner: &mut VirtualRunner,
    host: &mut Host<D>,
    drive: &mut Drive,
    tell: Tell<'_, D>,
) -> bool {
    take_turns_telling(runner, host, drive, 1024, tell)
}

/// As [`take_turns`], asking `tell` every so many turns. On a drive that takes no time everything happens
/// in one turn: it is asked every so many polls, too.
pub(super) fn take_turns_telling<D: Device>(
    runner: &mut VirtualRunner,
    host: &mut Host<D>,
    drive: &mut Drive,
    every: u32,
    tell: Tell<'_, D>,
) -> bool {
    take_turns_sampled(runner, host, drive, tell, Nanos::MAX, &mut |_, _, _| Nanos::MAX)
}

/// As [`take_turns`], and calls `sample` at the instant `sample_at`, and then at the instants that it
/// returns: when everything before that instant has happened, and nothing at it. Sampling changes
/// nothing of what happens.
pub fn take_turns_sampled<D: Device>(
    runner: &mut VirtualRunner,
    host: &mut Host<D>,
    drive: &mut Drive,
    tell: &mut dyn FnMut(&mut VirtualRunner, &mut Host<D>, &mut Drive) -> bool,
    mut sample_at: Nanos,
    sample: &mut dyn FnMut(Nanos, &Host<D>, &Drive) -> Nanos,
) -> bool {
    let mut turns = 0u32;
    loop {
        // Everything that can happen at this instant.
        let mut polls = 0u32;
        loop {
            host.poll(runner.now());
            let posted = drive.posted();
            drive.poll(runner.now());
            if drive.posted() == posted && host.deadline() > runner.now() {
                break;
            }
            polls += 1;
            if polls == every {
                polls = 0;
                if !tell(runner, host, drive) {
                    return host.done();
                }
            }
        }
        if host.done() {
            return true;
        }
        turns += 1;
        if turns == every {
            turns = 0;
            if !tell(runner, host, drive) {
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
                while wanted >= sample_at {
                    sample_at = sample(sample_at, host, drive);
                }
                runner.jump(wanted);
                break;
            }
            while due >= sample_at {
                sample_at = sample(sample_at, host, drive);
            }
            runner.jump(due);
            drive.poll(runner.now());
            if drive.posted() != posted {
                break;
            }
        }
    }
}
