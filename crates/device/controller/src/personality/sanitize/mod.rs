//! Sanitize of a drive that manages its own flash [NVMe1.4 §5.24, §8.15].
//!
//! The command completes at once. The operation waits for the commands in flight and for the
//! operations of the FTL, and then owns the flash ([`run`]): it erases every chunk that has data,
//! that of the FTL's journal and of stale data, too, after the passes of an overwrite. The contents
//! of the write buffer are dropped, and the controller memory buffer is cleared except for queues.
//! Then the drive starts with an FTL that has no data. Invariants: from the first step of the
//! operation until its end, the [`record`] in non-volatile memory says that it is in progress, and no
//! old data is written to the flash. A drive that is powered on with that record does not read its
//! flash, and continues.

mod record;
mod run;

pub(crate) use record::{SanitizeRecord, SanitizeState};
pub(crate) use run::SanitizeReport;

use std::ops::Range;

use mem::Iova;
use nvme::{
    AdminCommand, AsyncEvent, IoCommand, SanitizeAction, SanitizeCommand, SanitizeLog, Status,
    log_page,
};
use time::Nanos;

use crate::admin::async_events::EventClass;
use crate::controller::{Controller, Personality};
use crate::host_interface::hosts::HostState;
use crate::host_interface::pmr;
use crate::media_health::scrub::MediaEventHandler;
use crate::namespaces::management;
use crate::nand_array::{NandOpCompletion, NandOpKind};
use crate::personality::block::BlockDrive;
use crate::personality::format::DriveMaintenance;
use crate::personality::recovery::{erased_ftl, ftl_config};
use crate::personality::rules::durable;
use crate::personality::spaces::SpaceUnits;
use run::{SanitizeEstimates, SanitizePhase, SanitizeRun};

/// Log page of reservation notifications, which a host may ask for during Sanitize, although no drive
/// has it.
const RESERVATION_LOG: u8 = 0x80;

fn block_drive(controller: &Controller) -> Option<&BlockDrive> {
    match &controller.personality {
        Personality::Block(drive) => Some(drive),
        _ => None,
    }
}

fn block_drive_mut(controller: &mut Controller) -> Option<&mut BlockDrive> {
    match &mut controller.personality {
        Personality::Block(drive) => Some(drive),
        _ => None,
    }
}

/// Whether an admin command is executed during Sanitize, and after one that has failed
/// [NVMe1.4 §8.15.1].
fn is_allowed(command: &AdminCommand) -> bool {
    match *command {
        AdminCommand::DeleteSq { .. }
        | AdminCommand::CreateSq { .. }
        | AdminCommand::DeleteCq { .. }
        | AdminCommand::CreateCq { .. }
        | AdminCommand::Identify { .. }
        | AdminCommand::Abort { .. }
        | AdminCommand::SetFeatures { .. }
        | AdminCommand::GetFeatures { .. }
        | AdminCommand::AsyncEventRequest
        | AdminCommand::KeepAlive
        // It has rules of its own.
        | AdminCommand::Sanitize(_) => true,
        AdminCommand::GetLogPage { lid, .. } => matches!(
            lid,
            log_page::ERROR
                | log_page::HEALTH
                | log_page::CHANGED_NAMESPACES
                | RESERVATION_LOG
                | log_page::SANITIZE
        ),
        AdminCommand::GetLbaStatus { .. }
        | AdminCommand::NamespaceManagement { .. }
        | AdminCommand::NamespaceAttachment { .. }
        | AdminCommand::FormatNvm { .. }
        | AdminCommand::DoorbellBufferConfig { .. }
        | AdminCommand::RuleDownload { .. }
        | AdminCommand::RuleInstall
        | AdminCommand::RuleReject { .. }
        | AdminCommand::RuleTableEdit { .. }
        | AdminCommand::RuleTableRead { .. }
        | AdminCommand::Geometry { .. } => false,
    }
}

/// Refuses an admin command that is not allowed during Sanitize, or after one that has failed.
///
/// # Errors
/// [`Status::SANITIZE_IN_PROGRESS`], [`Status::SANITIZE_FAILED`].
#[inline]
pub(crate) fn check_admin(controller: &Controller, command: &AdminCommand) -> Result<(), Status> {
    match controller.commands.refused_with {
        Some(status) if !is_allowed(command) => Err(status),
        _ => Ok(()),
    }
}

/// Sets the status with which new commands are refused.
fn refuse(controller: &mut Controller, status: Option<Status>) {
    controller.commands.refused_with = status;
    management::update_checks(controller);
}

/// Executes a Sanitize command. An operation that it starts ends later.
///
/// # Errors
/// The status of a drive that cannot execute it now, or at all; [`Status::SANITIZE_PROHIBITED_PMR`]
/// while a host has the persistent memory region enabled.
pub(crate) fn request(
    controller: &mut Controller,
    command: SanitizeCommand,
    report: SanitizeReport,
) -> Result<(), Status> {
    let refused_with = controller.commands.refused_with;
    let keeps = command.no_deallocate && command.action != SanitizeAction::ExitFailureMode;
    let may_deallocate = controller.admin.deallocates_after_sanitize();
    let mut hosts = controller.queues.ports.iter().filter(|h| h.state == HostState::Attached);
    let is_region_enabled = hosts.any(|host| pmr::is_enabled(&host.port));
    let Some(drive) = block_drive_mut(controller) else { return Err(Status::INVALID_OPCODE) };
    if let Some(run) = &drive.maintenance.format {
        run.check_idle(None)?;
    }
    let DriveMaintenance { settings, sanitize: state, .. } = &mut drive.maintenance;
    if refused_with == Some(Status::SANITIZE_IN_PROGRESS) {
        return Err(Status::SANITIZE_IN_PROGRESS);
    }
    if is_region_enabled && command.action != SanitizeAction::ExitFailureMode {
        return Err(Status::SANITIZE_PROHIBITED_PMR.do_not_retry());
    }
    // There is no key to delete, and an erased block is not allocated.
    if command.action == SanitizeAction::CryptoErase || keeps && !may_deallocate {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    let is_restricted = state.record.in_failure_mode && !state.record.command().allows_exit;
    let exits = command.action == SanitizeAction::ExitFailureMode;
    if is_restricted && (exits || command.allows_exit) {
        return Err(Status::SANITIZE_FAILED);
    }
    let mut record = state.record;
    record.in_failure_mode = false;
    if !exits {
        (record.status, record.passes) = (SanitizeLog::IN_PROGRESS as u8, 0);
        (record.is_erased, record.dwords) = (false, command.to_dwords());
    }
    if record != state.record {
        record.write(settings).map_err(|error| {
            tracing::error!("Sanitize cannot start without non-volatile memory: {error}");
            Status::INTERNAL
        })?;
        state.record = record;
    }
    if exits {
        refuse(controller, None);
        return Ok(());
    }
    state.run = Some(Box::new(SanitizeRun::new(command, report)));
    refuse(controller, Some(Status::SANITIZE_IN_PROGRESS));
    controller.async_events.withdraw(EventClass::IoCommandSet);
    // The log tells nothing about data that is gone.
    controller.admin.forget_lbas();
    for access in controller.queues.ports.iter_mut().filter_map(|port| port.access.as_mut()) {
        access.admin.forget_lbas();
    }
    start_if_idle(controller);
    Ok(())
}

/// Starts the requested operation if no I/O command is in flight.
#[cold]
pub(crate) fn start_if_idle(controller: &mut Controller) {
    let Controller { commands, personality: Personality::Block(drive), .. } = controller else {
        return;
    };
    let state = &mut drive.maintenance.sanitize;
    if let Some(run) = state.run.as_mut().filter(|run| run.phase == SanitizePhase::Waiting)
        && !commands.has_any(None)
    {
        run.phase = SanitizePhase::Settling;
        state.has_flash = true;
        drive.kick = true;
        clear_device_memory(controller);
    }
}

/// Clears the persistent memory region, and the controller memory buffer except for the queues in it
/// [NVMe1.4 §8.15].
fn clear_device_memory(controller: &Controller) {
    if let Some(pmr) = &controller.memory.pmr {
        pmr.clear();
    }
    let Some(cmb) = &controller.memory.cmb else { return };
    let queues = &controller.queues;
    let mut rings: Vec<Range<usize>> = Vec::new();
    let submissions = queues.submissions.iter().flatten().map(|q| (q.port, q.ring.memory()));
    let completions = queues.completions.iter().flatten().map(|q| (q.port, q.ring.memory()));
    for (port, ring) in submissions.chain(completions) {
        if let Some(buffer) = cmb.range(port)
            && buffer.start.0 <= ring.start.0
            && ring.end.0 <= buffer.end.0
        {
            let offset = |at: Iova| (at.0 - buffer.start.0) as usize;
            rings.push(offset(ring.start)..offset(ring.end));
        }
    }
    rings.sort_unstable_by_key(|ring| ring.start);
    cmb.clear_except(&rings);
}

/// Refuses commands of a drive that was powered on during Sanitize, or after one that has failed.
pub(crate) fn restore(controller: &mut Controller) {
    let Some(drive) = block_drive(controller) else { return };
    let record = &drive.maintenance.sanitize.record;
    if record.is_running() {
        refuse(controller, Some(Status::SANITIZE_IN_PROGRESS));
        clear_device_memory(controller);
    } else if record.in_failure_mode {
        refuse(controller, Some(Status::SANITIZE_FAILED));
    }
}

/// Returns the hosts that get the event of an operation in progress, for the drive after a power cut.
pub(crate) fn report_of(drive: &BlockDrive) -> Option<SanitizeReport> {
    drive.maintenance.sanitize.run.as_ref().map(|run| run.report)
}

/// Sets the hosts that get the event of an operation in progress.
pub(crate) fn set_report(drive: &mut BlockDrive, report: SanitizeReport) {
    if let Some(run) = &mut drive.maintenance.sanitize.run {
        run.report = report;
    }
}

/// Forgets a host that is detached, which gets no event of an operation in progress.
pub(crate) fn forget_host(controller: &mut Controller, host: usize) {
    if let Some(drive) = block_drive_mut(controller)
        && report_of(drive) == Some(SanitizeReport::Host(host))
    {
        set_report(drive, SanitizeReport::None);
    }
}

/// Begins the operation when the operations of the FTL have ended. The FTL is not called meanwhile.
#[cold]
pub(crate) fn step(drive: &mut BlockDrive, now: Nanos) {
    let state = &mut drive.maintenance.sanitize;
    let Some(run) = state.run.as_mut().filter(|run| run.phase == SanitizePhase::Settling) else {
        return;
    };
    if !drive.array.is_idle() {
        return;
    }
    // The write buffer of a drive with too little memory keeps its slots, whose data is dropped.
    if let Err(error) = drive.array.nand.set_slots(drive.spaces.first.slots()) {
        tracing::warn!("no memory for a new write buffer: {error}");
    }
    // No scrub reads the flash.
    let stats = drive.media_event_handler.stats;
    drive.media_event_handler = MediaEventHandler::new(None);
    drive.media_event_handler.stats = stats;
    run.begin(now, &mut drive.array);
    drive.kick |= run.phase == SanitizePhase::Done;
}

/// Processes the end of a flash operation of Sanitize.
#[cold]
pub(crate) fn on_op_complete(drive: &mut BlockDrive, now: Nanos, done: &NandOpCompletion) {
    let state = &mut drive.maintenance.sanitize;
    let Some(run) = &mut state.run else { return };
    // The chunk is of no FTL.
    if done.kind == NandOpKind::Erase && !done.status.is_success() {
        tracing::warn!(status = %done.status, "Sanitize cannot erase a chunk");
    }
    if run.on_complete(now, done, &mut drive.array) {
        let record = SanitizeRecord { passes: run.pass, ..state.record };
        if record != state.record {
            state.record = record;
            if let Err(error) = record.write(&mut drive.maintenance.settings) {
                // After a power cut the pass is repeated.
                tracing::warn!(
                    "the end of a pass of Sanitize is not in non-volatile memory: {error}"
                );
            }
        }
    }
    drive.kick = true;
}

/// Ends an operation that has erased all chunks.
#[cold]
pub(crate) fn complete_finished(controller: &mut Controller) {
    let Some(drive) = block_drive_mut(controller) else { return };
    let is_done = |run: &mut Box<SanitizeRun>| run.phase == SanitizePhase::Done;
    let Some(run) = drive.maintenance.sanitize.run.take_if(is_done) else { return };
    let config = controller.config.clone();
    let Some(drive) = block_drive_mut(controller) else { return };
    let mut has_failed = run.has_failed;
    if let Err(error) = drive.array.nand.discard_erased() {
        tracing::error!("Sanitize cannot discard the data of erased chunks: {error}");
        has_failed = true;
    }
    let mut record = drive.maintenance.sanitize.record;
    record.status = match () {
        () if has_failed => SanitizeLog::FAILED,
        () if run.command.no_deallocate => SanitizeLog::SUCCEEDED_DEALLOCATED,
        () => SanitizeLog::SUCCEEDED,
    } as u8;
    (record.is_erased, record.in_failure_mode) = (!has_failed, has_failed);
    record.succeeded += u64::from(!has_failed);
    if let Err(error) = record.write(&mut drive.maintenance.settings) {
        // After a power cut the operation is repeated.
        tracing::error!("the end of Sanitize is not in non-volatile memory: {error}");
    }
    drive.maintenance.sanitize = SanitizeState { record, run: None, has_flash: false };
    let good_when_new = drive.spaces.first.capacity_plan().usable_chunks;
    let nand = &drive.array.nand;
    let is_named = drive.spaces.first.config().addressing.is_named();
    let ftl = ftl_config(nand, &config, is_named)
        .and_then(|ftl| erased_ftl(nand, SpaceUnits::all(nand), ftl, good_when_new));
    let restarted = ftl.and_then(|ftl| drive.restart(ftl, &config));
    refuse(controller, has_failed.then_some(Status::SANITIZE_FAILED));
    if let Err(error) = restarted {
        // Commands end with the status of a drive that does not recover from a power cut.
        tracing::error!("the drive does not start after Sanitize: {error}");
        controller.make_unavailable();
        refuse(controller, None);
        controller.report_internal_error();
    }
    durable::clear_tables(controller);
    controller.stats.sanitizes += 1;
    let info = match record.status == SanitizeLog::SUCCEEDED_DEALLOCATED as u8 {
        true => AsyncEvent::SANITIZE_DEALLOCATED,
        false => AsyncEvent::SANITIZE_COMPLETED,
    };
    match run.report {
        SanitizeReport::None => {}
        SanitizeReport::Host(host) => {
            controller.async_events.raise(host, EventClass::IoCommandSet, info);
        }
        SanitizeReport::All => controller.async_events.raise_all(EventClass::IoCommandSet, info),
    }
    controller.complete_event_requests();
}

/// Returns the sanitize status log page.
pub(crate) fn log(controller: &Controller) -> Result<SanitizeLog, Status> {
    let drive = block_drive(controller).ok_or(Status::INVALID_LOG_PAGE)?;
    let SanitizeState { record, run, .. } = &drive.maintenance.sanitize;
    let estimates = SanitizeEstimates::of(&drive.array.nand);
    let progress = run.as_ref().map(|run| run.progress(&drive.array.nand));
    let mut log = SanitizeLog::zeroed();
    log.progress = progress.unwrap_or(SanitizeLog::NO_PROGRESS).into();
    log.status = record.sstat().into();
    log.cdw10 = record.dwords.0.into();
    // Without a modification of the media afterwards the times are those of the operations.
    let no_crypto_erase = SanitizeLog::NO_ESTIMATE;
    let [overwrite, block_erase] = [estimates.overwrite, estimates.block_erase];
    (log.overwrite_seconds, log.block_erase_seconds) = (overwrite.into(), block_erase.into());
    log.crypto_erase_seconds = no_crypto_erase.into();
    log.modified_media_seconds = [overwrite, block_erase, no_crypto_erase].map(Into::into);
    Ok(log)
}

/// Records that a command of the host writes blocks.
///
/// # Errors
/// [`Status::INTERNAL`] if the non-volatile memory cannot be written: the command must not be executed.
#[inline]
pub(crate) fn record_command(drive: &mut BlockDrive, io: &IoCommand) -> Result<(), Status> {
    let writes = || {
        matches!(
            io,
            IoCommand::Write { .. }
                | IoCommand::WriteZeroes { .. }
                | IoCommand::WriteUncorrectable { .. }
                | IoCommand::Copy { .. }
        )
    };
    match drive.maintenance.sanitize.record.is_erased && writes() {
        true => record_change(drive),
        false => Ok(()),
    }
}

/// Records that blocks are written without commands, on media that store no data: the record is in
/// memory only.
#[inline]
pub(crate) fn record_direct_writes(drive: &mut BlockDrive) {
    if drive.maintenance.sanitize.record.is_erased && record_change(drive).is_err() {
        tracing::warn!("the drive does not record that it was written");
    }
}

/// Records that blocks are written.
#[cold]
fn record_change(drive: &mut BlockDrive) -> Result<(), Status> {
    let state = &mut drive.maintenance.sanitize;
    let record = SanitizeRecord { is_erased: false, ..state.record };
    if record.status != SanitizeLog::NEVER as u8 {
        record.write(&mut drive.maintenance.settings).map_err(|error| {
            tracing::error!("the first write after Sanitize cannot be recorded: {error}");
            Status::INTERNAL
        })?;
    }
    state.record = record;
    Ok(())
}
