//! Installation of a rule program in a drive that runs, and what becomes of the commands that no rule
//! of the previous program matched.
//!
//! A program is installed between two inputs: each input runs with the old program or with the new
//! one. An input whose rules wait for a sector begins again with the new one. A program that is refused
//! changes nothing.

use std::sync::Arc;

use nvme::Status;
use rules::{RuleLimits, VerifiedProgram};
use time::Nanos;
use transport::Port;

use super::commands::{end_parked, release};
use super::config::{DriveRulesError, check_capacities};
use super::durable;
use super::misses::{MissEnd, UNMATCHED};
use super::{DriveRules, named, needs_names, sectors};
use crate::command::table::Command;
use crate::controller::{Controller, Personality};
use crate::faults::injection;
use crate::namespaces::management;
use crate::personality::block::BlockDrive;
use crate::personality::spaces::AppSpace;

fn nand(controller: &Controller) -> Result<&media::NandConfig, DriveRulesError> {
    match &controller.config.media {
        media::MediaConfig::Nand(nand) => Ok(nand),
        _ => Err(DriveRulesError::NoRules),
    }
}

/// Returns what programs of a drive may use.
///
/// # Errors
/// [`DriveRulesError::NoRules`].
pub(crate) fn limits(controller: &Controller) -> Result<RuleLimits, DriveRulesError> {
    let settings = controller.config.rules.as_ref().ok_or(DriveRulesError::NoRules)?;
    let nand = nand(controller)?;
    Ok(settings.limits(nand, controller.config.ftl.active_pus))
}

/// Adds a part of a program.
///
/// # Errors
/// [`DriveRulesError::NoRules`], [`DriveRulesError::Upload`].
pub(crate) fn upload(
    controller: &mut Controller,
    offset: u64,
    part: &[u8],
) -> Result<(), DriveRulesError> {
    rules_of(controller)?.upload.add(offset, part)
}

/// Installs the program that was uploaded, as [`install`] does.
///
/// # Errors
/// [`DriveRulesError`].
pub(crate) fn install_uploaded(
    controller: &mut Controller,
    now: Nanos,
) -> Result<u64, DriveRulesError> {
    let program = rules_of(controller)?.upload.take();
    install(controller, now, program)
}

/// Installs a program in its encoded form. Returns the number of commands that are still parked.
///
/// # Errors
/// [`DriveRulesError`]; nothing has changed.
pub(crate) fn install(
    controller: &mut Controller,
    now: Nanos,
    program: Vec<u8>,
) -> Result<u64, DriveRulesError> {
    let settings = controller.config.rules.as_ref().ok_or(DriveRulesError::NoRules)?;
    let Personality::Block(drive) = &controller.personality else {
        return Err(DriveRulesError::NotReady);
    };
    let settings = super::config::DriveRulesConfig { program, ..settings.clone() };
    let (nand, ftl) = (nand(controller)?, &controller.config.ftl);
    let verified = settings.verified(nand, ftl, &[])?;
    check_apps(&verified, drive)?;
    let is_named = drive.spaces.first.config().addressing.is_named();
    if is_named != needs_names(&verified) {
        return Err(DriveRulesError::OtherAddresses { is_named });
    }
    check_capacities(&verified, &drive.capacities())?;
    let Personality::Block(drive) = &mut controller.personality else {
        return Err(DriveRulesError::NotReady);
    };
    let Some(rules) = &mut controller.commands.rules else { return Err(DriveRulesError::NoRules) };
    let number = durable::next_installation(&drive.spaces.first, &mut drive.maintenance.settings);
    let number = number.map_err(|error| DriveRulesError::NonVolatile(error.to_string()))?;
    rules.replace(now, number, verified, &settings, &controller.config);
    controller.config.rules = Some(settings);
    durable::record_installation(controller);
    management::update_checks(controller);
    release(controller, now);
    sectors::resume_ready(controller, now);
    named::follow_rules(controller, now);
    injection::update_interrupt(controller);
    Ok(rules_of(controller)?.misses.len() as u64)
}

/// Checks that the applications of a program are those of a drive, whose data is on their units.
fn check_apps(verified: &VerifiedProgram, drive: &BlockDrive) -> Result<(), DriveRulesError> {
    let apps = verified.program().apps.iter().map(AppSpace::of_app);
    if apps.eq(drive.spaces.declared()) {
        return Ok(());
    }
    let units = drive.spaces.declared().map(|app| app.to_string()).collect::<Vec<_>>().join(", ");
    Err(DriveRulesError::OtherUnits { has: drive.spaces.count(), units })
}

/// Ends parked commands; those of an operation, as the language names it, if there is one. Returns
/// their number.
///
/// # Errors
/// [`DriveRulesError::NoRules`].
pub(crate) fn reject(
    controller: &mut Controller,
    op: Option<&str>,
) -> Result<u64, DriveRulesError> {
    rules_of(controller)?;
    Ok(end_parked(controller, MissEnd::Rejected, UNMATCHED, |parked, _| {
        op.is_none_or(|op| parked.missed.op.name() == op)
    }))
}

/// Ends a command of a submission queue that is parked, or whose rules wait for a sector. Returns
/// whether there is one.
pub(crate) fn abort(controller: &mut Controller, queue: u32, cid: u16) -> bool {
    let is_it = |queue_of: u32, cid_of: u16| (queue_of, cid_of) == (queue, cid);
    let parked = end_parked(controller, MissEnd::Aborted, Status::ABORTED, |parked, command| {
        is_it(parked.queue, command.cid)
    });
    let is_ended = |command: &Command| is_it(command.queue, command.cid);
    parked + sectors::end_fetching(controller, Status::ABORTED, is_ended) > 0
}

/// Ends the commands of a host that is reset whose rules wait for sectors.
pub(crate) fn abort_host(controller: &mut Controller, port: &Arc<Port>) {
    sectors::end_fetching(controller, Status::ABORTED, |command| Arc::ptr_eq(&command.port, port));
}

/// Ends the commands of a submission queue that is deleted which are parked, or whose rules wait for a
/// sector.
pub(crate) fn abort_queue(controller: &mut Controller, queue: u32) {
    let is_ended = |command: &Command| command.queue == queue;
    sectors::end_fetching(controller, Status::ABORTED_SQ_DELETED, is_ended);
    end_parked(controller, MissEnd::Aborted, Status::ABORTED_SQ_DELETED, |parked, _| {
        parked.queue == queue
    });
}

fn rules_of(controller: &mut Controller) -> Result<&mut DriveRules, DriveRulesError> {
    controller.commands.rules.as_deref_mut().ok_or(DriveRulesError::NoRules)
}
