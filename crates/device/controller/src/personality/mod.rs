//! Personalities: the execution of I/O commands, by kind of drive.

pub(crate) mod block;
mod block_commands;
mod block_flash;
pub(crate) mod device_l2p;
pub(crate) mod format;
pub(crate) mod logical_blocks;
pub(crate) mod null;
pub(crate) mod open_channel;
pub(crate) mod pcm;
pub(crate) mod protection;
pub(crate) mod recovery;
pub(crate) mod rules;
pub(crate) mod sanitize;
pub(crate) mod spaces;
mod spare;
pub(crate) mod unit_changes;

use time::Nanos;

use crate::controller::Controller;
use crate::faults::injection;
use crate::personality::rules::{named, sectors};

/// Does what follows the work of an FTL: ends maintenance, waits for engines of rules, and resumes rules
/// whose sectors it has read.
#[cold]
pub(crate) fn follow_ftl(controller: &mut Controller, now: Nanos) {
    if controller.commands.rules.as_ref().is_some_and(|rules| rules.events.are_used()) {
        named::follow_ftl(controller, now);
    }
    if controller.commands.rules.as_ref().is_some_and(|rules| rules.has_steps()) {
        sectors::resume_ready(controller, now);
    }
    if controller.commands.checks_namespaces {
        format::complete_finished(controller);
        sanitize::complete_finished(controller);
    }
    if controller.commands.rules.as_mut().is_some_and(|rules| rules.take_polled()) {
        injection::update_interrupt(controller);
    }
}
