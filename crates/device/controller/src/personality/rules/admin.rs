//! The admin commands of a drive with rules, and its log page (`docs/format/rule-program.md`). Hosts that
//! are restricted to a part of the drive have none of them.

use nvme::{RuleMissEntry, RuleMissLog, Sqe, Status};
use rules::InputOp;
use time::Nanos;

use super::config::DriveRulesError;
use super::installation;
use super::upload::RuleUpload;
use crate::admin::async_events::EventClass;
use crate::command::data_buffer::DataBuffer;
use crate::controller::Controller;

/// Information of the event that a command was parked, which no rule matches.
const MISSED: u8 = 0x80;

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
        DriveRulesError::Upload { .. } => Status::INVALID_FIELD.do_not_retry(),
        _ => Status::RULE_PROGRAM.do_not_retry(),
    }
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
    let memory = controller.queues.ports[port].port.memory();
    let buffer = DataBuffer::from_sqe(sqe, bytes, memory)?;
    if !buffer.has_data() {
        // Bit Bucket descriptors have no data for the drive [NVMe1.4 §4.4].
        return Err(Status::SGL_LENGTH_INVALID);
    }
    let mut part = vec![0; bytes as usize];
    buffer.read(memory, 0, &mut part);
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

/// Reports to the hosts that control the rules that a command was parked.
pub(super) fn report_miss(controller: &mut Controller) {
    for port in 0..controller.queues.ports.len() {
        if controller.queues.ports[port].access.is_none() {
            controller.async_events.raise(port, EventClass::RuleMiss, MISSED);
        }
    }
    controller.complete_event_requests();
}
