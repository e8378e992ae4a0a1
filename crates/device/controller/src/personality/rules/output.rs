//! Commands for rules: their buffer in memory of the host, and their result.
//!
//! Invariant: the bytes that a command returns are the first ones of its buffer, and no more than it
//! has. [`Command::dma_bytes`] counts them while the rules run.

use nvme::{IoCommand, NamedOp, RuleCommand, RuleCommandKind, RuleReply, Sqe, Status};
use rules::InputOp;

use crate::command::data_buffer::DataBuffer;
use crate::command::table::Command;
use crate::controller::Controller;

/// Returns the operation of an input.
pub(super) fn input_op(kind: RuleCommandKind) -> InputOp {
    match kind {
        RuleCommandKind::Scan => InputOp::Scan,
        RuleCommandKind::Get => InputOp::Get,
        RuleCommandKind::Ack => InputOp::Ack,
        RuleCommandKind::User0 => InputOp::User0,
        RuleCommandKind::User1 => InputOp::User1,
        RuleCommandKind::User2 => InputOp::User2,
        RuleCommandKind::User3 => InputOp::User3,
    }
}

/// Parses the data pointer of a command for rules.
///
/// # Errors
/// The status with which the command is to complete: [`Status::INVALID_OPCODE`] on a drive without rules.
#[cold]
pub(crate) fn parse_buffer(
    controller: &mut Controller,
    id: u32,
    sqe: &Sqe,
    rule: RuleCommand,
) -> Result<(), Status> {
    let Some((_, command)) = controller.commands.rules_and_command(id) else {
        return Err(Status::INVALID_OPCODE);
    };
    if rule.buffer_bytes > 0 {
        let memory = command.port.memory();
        command.data_buffer = DataBuffer::from_sqe(sqe, rule.buffer_bytes.into(), memory)?;
    }
    Ok(())
}

/// Returns the status of an entry that cannot be parsed: on a drive without rules, no command for them
/// is known.
#[cold]
pub(crate) fn status_without_rules(controller: &Controller, sqe: &Sqe, status: Status) -> Status {
    let is_of_rules = RuleCommandKind::from_opcode(sqe.opcode).is_some()
        || NamedOp::from_opcode(sqe.opcode).is_some();
    match controller.commands.rules.is_none() && is_of_rules {
        true => Status::INVALID_OPCODE,
        false => status,
    }
}

/// Returns bytes of a sector to the host, at an offset in its buffer.
pub(super) fn emit(command: &mut Command, offset: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        command.data_buffer.write(command.port.memory(), offset, bytes);
        command.dma_bytes = offset + bytes.len() as u64;
    }
}

/// Sets the result of a command that rules have completed with a value.
pub(super) fn set_reply(command: &mut Command, rule: &RuleCommand, value: u64) {
    let bytes = command.dma_bytes;
    command.bytes = bytes;
    command.result = RuleReply { value, bytes: bytes as u32 }.to_result(rule.buffer_bytes > 0);
}

/// Makes a command for rules a read of the blocks from `slba` on, into its buffer.
///
/// # Errors
/// [`Status::RULE_OUTPUT_FULL`] if the buffer is too small.
pub(super) fn read_instead(
    command: &mut Command,
    rule: &RuleCommand,
    slba: u64,
    block_bytes: u64,
) -> Result<(), Status> {
    let bytes = u64::from(rule.nlb) * block_bytes;
    command.dma_bytes = 0;
    if bytes > rule.buffer_bytes.into() {
        set_reply(command, rule, 0);
        return Err(Status::RULE_OUTPUT_FULL.do_not_retry());
    }
    command.dma_bytes = bytes;
    set_reply(command, rule, 0);
    let (fua, limited_retry) = (false, false);
    command.io = IoCommand::Read { slba, nlb: rule.nlb, fua, limited_retry };
    Ok(())
}

/// Leaves the bytes that are in the controller memory buffer out of those that cross between host and
/// drive, once a command for rules has all of its data, or becomes a read.
#[cold]
pub(super) fn leave_out_cmb(controller: &mut Controller, id: u32) {
    let command = controller.commands.get(id);
    let Some(owner) = controller.queues.owner(command.queue as usize) else { return };
    let range = controller.memory.cmb.as_ref().and_then(|cmb| cmb.range(owner));
    let Some(range) = range else { return };
    let inside = command.data_buffer.bytes_within(command.dma_bytes, &range);
    controller.commands.get_mut(id).dma_bytes -= inside;
    controller.stats.cmb_bytes += inside;
}
