//! One host and one drive taking turns in virtual time.
//!
//! The same as polling both until nothing moves and jumping to the next deadline, without the polls
//! that cannot find anything: a host hears of a drive only by completions, so while the drive posts
//! none and the host has no deadline, the drive goes on alone.

use block::Device;
use clock::{Component, Nanos, VirtualRunner};
use drive::Drive;
use workload::Host;

/// Polls at one instant between two calls of `tell`: more than there are as long as time passes.
const POLLS_UNTOLD: u32 = 1 << 10;

/// Runs until the host is done, nothing is left to happen, or `tell` answers `false`, which is asked
/// every thousand or so turns, and where no time passes every [`POLLS_UNTOLD`] polls. Returns whether the
/// host is done.
pub fn take_turns<D: Device>(
    runner: &mut VirtualRunner,
    host: &mut Host<D>,
    drive: &mut Drive,
    tell: &mut dyn FnMut(&mut VirtualRunner, &mut Host<D>, &mut Drive) -> bool,
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
        // Everything that can happen at this instant. Media that take no time have all of it here.
        let mut polls = 0u32;
        loop {
            polls += 1;
            if polls == POLLS_UNTOLD {
                polls = 0;
                if !tell(runner, host, drive) {
                    return false;
                }
            }
            host.poll(runner.now());
            let posted = drive.posted();
            drive.poll(runner.now());
            if drive.posted() == posted && host.deadline() > runner.now() {
                break;
            }
        }
        if host.done() {
            return true;
        }
        turns += 1;
        if turns == 1024 {
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
