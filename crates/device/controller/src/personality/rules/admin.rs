//! The admin commands of a drive with rules, and its log pages (`docs/format/rule-program.md`). Hosts that
//! are restricted to a part of the drive have none of them, but for the log pages of their application.

use nvme::{
    AdminCommand, FoundNameEntry, RuleMissEntry, RuleMissLog, RuleTableEntry, Sqe, Status, log_page,
};
use rules::{AppId, InputOp, RuleTableError, TableId};
use time::Nanos;

use super::config::DriveRulesError;
use super::installation;
use super::tables::RuleTableEdit;
use super::upload::RuleUpload;
use crate::admin::async_events::EventClass;
use crate::admin::{log_page_entries, log_page_range};
use crate::command::data_buffer::DataBuffer;
use crate::controller::Controller;
use crate::personality::spaces::ONLY_APP;

/// Information of the event that a command was parked, which no rule matches.
const MISSED: u8 = 0x80;

/// Information of the event that a rule has posted an event.
const POSTED: u8 = 0x81;

/// Checks that a host controls the rules of the drive.
fn check_controls(controller: &Controller, port: usize) -> Result<(), Status> {
    let is_restricted = controller.queues.ports[port].access.is_some();
    match controller.commands.rules.is_some() && !is_restricted {
        true => Ok(()),
        false => Err(Status::INVALID_OPCODE),
    }
}

/// Returns the status of a program that is not taken.
fn status_of(error: &DriveRulesError) -> Status {
    match error {
        DriveRulesError::NoRules => Status::INVALID_OPCODE,
        DriveRulesError::NotReady => Status::NOT_READY,
        DriveRulesError::NonVolatile(_) => Status::INTERNAL,
        DriveRulesError::Upload { .. } => Status::INVALID_FIELD.do_not_retry(),
        DriveRulesError::Table { error, .. } => match error {
            RuleTableError::Unknown | RuleTableError::OtherKind => Status::INVALID_FIELD,
            RuleTableError::OutOfRange => Status::RULE_INDEX,
            RuleTableError::Full => Status::RULE_TABLE_FULL,
        }
        .do_not_retry(),
        _ => Status::RULE_PROGRAM.do_not_retry(),
    }
}

/// Returns the data that a host sends with a command.
fn read_data(
    controller: &Controller,
    port: usize,
    sqe: &Sqe,
    bytes: u64,
) -> Result<Vec<u8>, Status> {
    let memory = controller.queues.ports[port].port.memory();
    let buffer = DataBuffer::from_sqe(sqe, bytes, memory)?;
    if !buffer.has_data() {
        // Bit Bucket descriptors have no data for the drive [NVMe1.4 §4.4].
        return Err(Status::SGL_LENGTH_INVALID);
    }
    let mut data = vec![0; bytes as usize];
    buffer.read(memory, 0, &mut data);
    Ok(data)
}

/// Executes Rule Table Edit or Rule Table Read.
///
/// # Errors
/// The status with which the command is to complete. The entries before the one that the table does not
/// take are stored.
pub(crate) fn access_table(
    controller: &mut Controller,
    port: usize,
    sqe: &Sqe,
    command: &AdminCommand,
) -> Result<u64, Status> {
    check_controls(controller, port)?;
    match *command {
        AdminCommand::RuleTableEdit { table, action, entries } => {
            let bytes = u64::from(entries) * RuleTableEntry::BYTES as u64;
            let data = read_data(controller, port, sqe, bytes)?;
            let edit = |entry: &[u8; RuleTableEntry::BYTES]| {
                RuleTableEdit::new(action, RuleTableEntry::from_bytes(*entry))
            };
            let (entries, _) = data.as_chunks();
            let edits: Vec<RuleTableEdit> = entries.iter().map(edit).collect();
            let changed = controller.edit_rule_table(TableId::new(table), &edits);
            changed.map_err(|error| status_of(&error))?;
        }
        AdminCommand::RuleTableRead { table, first, entries } => {
            let value = |n: u32| {
                let key = first.checked_add(n.into()).ok_or(Status::RULE_INDEX.do_not_retry())?;
                let value = controller.rule_table_value(TableId::new(table), key);
                value.map_err(|error| status_of(&error))
            };
            let values = (0..entries).map(value).collect::<Result<Vec<u64>, Status>>()?;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let memory = controller.queues.ports[port].port.memory();
            let buffer = DataBuffer::from_sqe(sqe, bytes.len() as u64, memory)?;
            buffer.write(memory, 0, &bytes);
        }
        _ => return Err(Status::INVALID_OPCODE),
    }
    Ok(0)
}

/// Executes Rule Program Download.
///
/// # Errors
/// The status with which the command is to complete.
pub(crate) fn download(
    controller: &mut Controller,
    port: usize,
    sqe: &Sqe,
    offset: u32,
    bytes: u64,
) -> Result<u64, Status> {
    check_controls(controller, port)?;
    if bytes > RuleUpload::BYTES_MAX as u64 {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    let part = read_data(controller, port, sqe, bytes)?;
    installation::upload(controller, offset.into(), &part).map_err(|error| status_of(&error))?;
    Ok(0)
}

/// Executes Rule Program Install. Returns the number of commands that are still parked.
///
/// # Errors
/// The status with which the command is to complete.
pub(crate) fn install(controller: &mut Controller, port: usize, now: Nanos) -> Result<u64, Status> {
    check_controls(controller, port)?;
    installation::install_uploaded(controller, now).map_err(|error| {
        tracing::warn!("a host sends a rule program that the drive does not take: {error}");
        status_of(&error)
    })
}

/// Executes Rule Miss Reject. Returns the number of commands that it has ended.
///
/// # Errors
/// The status with which the command is to complete.
pub(crate) fn reject(
    controller: &mut Controller,
    port: usize,
    op: Option<u8>,
) -> Result<u64, Status> {
    check_controls(controller, port)?;
    let named = |code: u8| InputOp::from_code(code.into()).map(InputOp::name);
    let op = match op.map(named) {
        Some(None) => return Err(Status::INVALID_FIELD.do_not_retry()),
        op => op.flatten(),
    };
    installation::reject(controller, op).map_err(|error| status_of(&error))
}

/// Returns the log page of misses.
///
/// # Errors
/// The status with which the command is to complete.
pub(crate) fn log(controller: &Controller, port: usize) -> Result<Vec<u8>, Status> {
    check_controls(controller, port).map_err(|_| Status::INVALID_LOG_PAGE)?;
    let mut log = RuleMissLog([RuleMissEntry::default(); RuleMissLog::ENTRIES]);
    let records = controller.commands.rules.iter().flat_map(|rules| rules.misses.records());
    for record in records {
        let code = InputOp::ALL.iter().find(|(_, name)| *name == record.op);
        let Some((op, _)) = code else { continue };
        log.0[*op as usize] = RuleMissEntry {
            misses: record.misses.into(),
            parked: record.parked.into(),
            released: record.released.into(),
            rejected: record.rejected.into(),
            timed_out: record.timed_out.into(),
            refused: record.refused.into(),
            aborted: record.aborted.into(),
            slba: record.lba.into(),
            nlb: u32::try_from(record.blocks).unwrap_or(u32::MAX).into(),
            ..RuleMissEntry::default()
        };
    }
    Ok(log.to_bytes())
}

/// Returns the application of a host: its own, or the only one of the drive.
fn app_of(controller: &Controller, port: usize) -> Option<AppId> {
    let rules = controller.commands.rules.as_ref()?;
    match &controller.queues.ports[port].access {
        Some(access) => access.app(),
        None => (rules.events.apps.len() == 1).then_some(ONLY_APP),
    }
}

/// Returns a part of the log page of posted events of a host's application, or of that of the names which
/// were found, and whether it is the end of the page.
///
/// # Errors
/// The status with which the command is to complete.
pub(crate) fn event_log(
    controller: &Controller,
    port: usize,
    lid: u8,
    offset: u64,
    bytes: u64,
) -> Result<(Vec<u8>, bool), Status> {
    let rules = controller.commands.rules.as_ref().ok_or(Status::INVALID_LOG_PAGE)?;
    let app = app_of(controller, port).ok_or(Status::INVALID_LOG_PAGE)?;
    let events = &rules.events.apps[app.index()];
    if lid == log_page::RULE_EVENTS {
        let page = events.posted_log().to_bytes();
        let (from, to) = log_page_range(page.len() as u64, offset, bytes)?;
        return Ok((page[from as usize..to as usize].to_vec(), to == page.len() as u64));
    }
    let entries = events.found() as u64 + 1;
    let mut entry = |at: u64| events.found_entry(at as usize).to_bytes();
    let page = log_page_entries(entries, offset, bytes, &mut entry)?;
    let end = entries * FoundNameEntry::BYTES as u64;
    Ok((page, offset.saturating_add(bytes) >= end))
}

/// Removes the events of the log page that a host has read to its end, or the names.
pub(crate) fn remove_read(controller: &mut Controller, port: usize, lid: u8) {
    let Some(app) = app_of(controller, port) else { return };
    let Some(rules) = &mut controller.commands.rules else { return };
    let events = &mut rules.events.apps[app.index()];
    match lid {
        log_page::RULE_EVENTS if events.remove_posted() => report_posted(controller, app),
        log_page::FOUND_NAMES => events.remove_found(),
        _ => {}
    }
}

/// Reports to the hosts of an application that a rule has posted an event.
pub(super) fn report_posted(controller: &mut Controller, app: AppId) {
    for port in 0..controller.queues.ports.len() {
        if app_of(controller, port) == Some(app) {
            controller.async_events.raise(port, EventClass::RuleEvent, POSTED);
        }
    }
    controller.complete_event_requests();
}

/// Reports to the hosts that control the rules that a command was parked.
pub(super) fn report_miss(controller: &mut Controller) {
    for port in 0..controller.queues.ports.len() {
        if controller.queues.ports[port].access.is_none() {
            controller.async_events.raise(port, EventClass::RuleMiss, MISSED);
        }
    }
    controller.complete_event_requests();
}
