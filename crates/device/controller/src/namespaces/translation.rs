//! Admission of commands to namespaces, and the translation of their blocks to those of the drive.
//!
//! A command whose range is in one extent gets the drive's address of its blocks. A command that
//! crosses ends of extents keeps the address in its namespace and has the ranges of the drive's
//! blocks ([`Command::extents`](crate::command::table::Command)); each is a request to the FTL.
//! Ranges in memory of the host, of Dataset Management and Copy, are divided at the ends.
//! Invariant: a command that is admitted addresses blocks of its namespace only.

use nvme::{DsmRange, IoCommand, Sqe, Status, opcode};
use rules::AppId;
use time::Nanos;

use crate::command::stage::Stage;
use crate::controller::{Controller, Personality};
use crate::host_interface::access::AccessCheck;
use crate::namespaces::layout::NAMESPACES_MAX;
use crate::namespaces::table::DriveNamespace;
use crate::personality::logical_blocks::BlockRange;
use crate::personality::spaces::{ONLY_APP, ONLY_SPACE};

/// The broadcast namespace identifier [NVMe1.4 §6.1.2].
pub(crate) const ALL_NAMESPACES: u32 = u32::MAX;

/// Whether an identifier can be that of a namespace.
pub(crate) fn is_valid(nsid: u32) -> bool {
    (1..=NAMESPACES_MAX as u32).contains(&nsid)
}

/// Returns the status of a command for a namespace that its host does not have [NVMe1.4 §6.1.5].
#[cold]
pub(crate) fn missing(controller: &Controller, owner: usize, nsid: u32) -> Status {
    let has_several = matches!(controller.personality, Personality::Block(_))
        && controller.queues.ports[owner].access.is_none();
    // An identifier that is possible, but of no attached namespace, is inactive.
    if has_several && is_valid(nsid) { Status::INVALID_FIELD } else { Status::INVALID_NAMESPACE }
}

/// Checks the namespace of an I/O command during formats and changes of namespaces, and on drives
/// that do not have only their original namespace, or have several applications. Records the application
/// of the command, which is that of its host, and its space.
///
/// # Errors
/// The status with which the command is to complete.
#[cold]
pub(crate) fn admit(
    controller: &mut Controller,
    owner: usize,
    id: u32,
    sqe: &Sqe,
) -> Result<(), Status> {
    let app = admitted_app(controller, owner, sqe)?;
    let space = match &controller.personality {
        Personality::Block(drive) => drive.spaces.space_of(app),
        _ => ONLY_SPACE,
    };
    let command = controller.commands.get_mut(id);
    (command.app, command.space) = (app, space);
    Ok(())
}

/// Checks the namespace of an I/O command. Returns the application of its host.
fn admitted_app(controller: &Controller, owner: usize, sqe: &Sqe) -> Result<AppId, Status> {
    if let Some(status) = controller.commands.refused_with {
        return Err(status);
    }
    let nsid = sqe.nsid.get();
    let is_broadcast = nsid == ALL_NAMESPACES && sqe.opcode == opcode::io::FLUSH;
    let Personality::Block(drive) = &controller.personality else {
        let is_known = nsid == 1 || is_broadcast;
        return if is_known { Ok(ONLY_APP) } else { Err(Status::INVALID_NAMESPACE) };
    };
    if let Some(run) = &drive.maintenance.format {
        run.admit(if is_broadcast { None } else { Some(nsid) })?;
    }
    let rights = controller.queues.ports[owner].access.as_deref();
    let app = match rights.and_then(AccessCheck::app) {
        Some(app) => app,
        None if drive.spaces.are_several() => return Err(Status::RULE_DENIED.do_not_retry()),
        None => ONLY_APP,
    };
    if is_broadcast {
        return Ok(app);
    }
    let is_own = rights.is_none_or(|rights| rights.nsid() == nsid);
    match drive.namespaces.active(nsid) {
        Some(_) if is_own => Ok(app),
        _ => Err(missing(controller, owner, nsid)),
    }
}

/// Time that a refused command takes during a format, a change of namespaces or Sanitize of a
/// controller without a completion latency. A host that repeats refused commands at once would
/// otherwise prevent virtual time from reaching the end of the operation.
const REFUSED_COMMAND_TIME: Nanos = Nanos(1_000);

/// Whether commands that the drive refuses now must take time.
#[cold]
pub(crate) fn delays_refusals(controller: &Controller) -> bool {
    let commands = &controller.commands;
    let is_maintained = commands.is_formatting || commands.refused_with.is_some();
    let is_instant = controller.config.controller.completion_latency == Nanos::ZERO;
    is_maintained && is_instant && !controller.zero_latency
}

/// Completes a command that was fetched at `now`, and which the drive refuses, after a time.
#[cold]
#[inline(never)]
pub(crate) fn refuse(controller: &mut Controller, now: Nanos, id: u32, status: Status) {
    controller.commands.refuse(id, status);
    controller.commands.get_mut(id).due = now + REFUSED_COMMAND_TIME;
    controller.stages.enqueue_delay(Stage::Post, now, REFUSED_COMMAND_TIME, id);
}

/// Adds the parts of a range of blocks of a namespace.
fn divide(
    namespace: &DriveNamespace,
    unit_blocks: u32,
    range: &DsmRange,
    into: &mut Vec<DsmRange>,
) -> Result<(), Status> {
    let blocks = BlockRange { slba: range.slba.get(), nlb: range.nlb.get() };
    if !namespace.contains(blocks) {
        return Err(Status::LBA_OUT_OF_RANGE.do_not_retry());
    }
    if blocks.nlb > 0 {
        let parts = namespace.parts(unit_blocks, blocks);
        into.extend(parts.map(|part| DsmRange::new(part.slba, part.nlb)));
    }
    Ok(())
}

/// Translates the blocks of a command, whose host has been checked, to those of the drive.
///
/// # Errors
/// *LBA out of range* if the command exceeds its namespace.
#[cold]
pub(crate) fn translate(controller: &mut Controller, id: u32) -> Result<(), Status> {
    let Personality::Block(drive) = &controller.personality else { return Ok(()) };
    let (table, command) = (&drive.namespaces, controller.commands.get_mut(id));
    let Some(namespace) = table.active(command.nsid).filter(|_| !table.is_direct()) else {
        return Ok(());
    };
    let unit_blocks = table.unit_blocks();
    let divides = matches!(
        command.io,
        IoCommand::DatasetManagement { deallocate: true, .. } | IoCommand::Copy { .. }
    );
    let mut copied = 0;
    if divides {
        let ranges = std::mem::take(&mut command.ranges);
        copied = ranges.iter().map(|range| range.nlb.get()).sum();
        for range in &ranges {
            divide(namespace, unit_blocks, range, &mut command.ranges)?;
        }
    }
    let (slba, nlb) = match &mut command.io {
        IoCommand::Read { slba, nlb, .. }
        | IoCommand::Write { slba, nlb, .. }
        | IoCommand::WriteZeroes { slba, nlb, .. }
        | IoCommand::Compare { slba, nlb, .. }
        | IoCommand::Verify { slba, nlb, .. }
        | IoCommand::WriteUncorrectable { slba, nlb }
        | IoCommand::LbaStatus { slba, nlb, .. } => (slba, *nlb),
        IoCommand::Copy { slba, .. } => (slba, copied),
        _ => return Ok(()),
    };
    let range = BlockRange { slba: *slba, nlb };
    if !namespace.contains(range) {
        return Err(Status::LBA_OUT_OF_RANGE.do_not_retry());
    }
    let mut parts = namespace.parts(unit_blocks, range);
    match parts.next() {
        Some(first) if first.nlb < nlb => {
            command.extents.push(first);
            command.extents.extend(parts);
        }
        Some(first) => {
            command.first_sector =
                command.first_sector.wrapping_add(first.slba.wrapping_sub(*slba));
            *slba = first.slba;
        }
        None => {}
    }
    Ok(())
}

/// Returns the first logical block in error of a command, as its host numbers it.
#[cold]
pub(crate) fn first_lba_in_error(controller: &Controller, id: u32) -> u64 {
    let command = controller.commands.get(id);
    let lba = controller.commands.first_lba_in_error(id);
    let (Personality::Block(drive), IoCommand::Copy { .. }) = (&controller.personality, command.io)
    else {
        return lba;
    };
    let table = &drive.namespaces;
    let namespace = table.get(command.nsid).filter(|_| !table.is_direct());
    let Some(namespace) = namespace else { return lba };
    // Sources may be in other extents than the target.
    let source = controller.commands.source_in_error(id);
    let block = source.and_then(|lba| namespace.block_of(table.unit_blocks(), lba));
    let owner = controller.queues.owner(command.queue as usize);
    let rights = owner.and_then(|port| controller.queues.ports[port].access.as_deref());
    block.unwrap_or(0).saturating_sub(rights.map_or(0, |rights| rights.first_sector()))
}
