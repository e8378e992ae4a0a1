//! Commands to the rules of a drive and on sectors with names, and changes of tables.

use std::collections::BTreeMap;

use sluice::controller::RuleTableEdit;
use sluice::nvme::{MAX_BLOCKS, NamedCommand, NamedOp, RuleCommand, RuleCommandKind};
use sluice::user_io::{Buffer, IoDevice, QueueConfig, RuleCompletion, RuleQueue};

use crate::errors::CallFailure;

/// Entries of the queue for commands to rules: a drive has one such command at a time.
const QUEUE_DEPTH: u16 = 2;
/// Type and code of a status, without its *do not retry* bit.
const STATUS_BITS: u16 = 0x7ff;

/// Returns the changes of a table in their order.
pub(crate) fn edits(
    values: BTreeMap<u64, u64>,
    add: Vec<u64>,
    remove: Vec<u64>,
) -> Vec<RuleTableEdit> {
    let removed = remove.into_iter().map(|key| RuleTableEdit::Remove { key });
    let added = add.into_iter().map(|key| RuleTableEdit::Add { key });
    let stored = values.into_iter().map(|(key, value)| RuleTableEdit::Set { key, value });
    removed.chain(added).chain(stored).collect()
}

/// Returns a command that returns `nbytes` at most.
///
/// # Errors
/// [`CallFailure::Value`].
pub(crate) fn command(
    op: &str,
    lba: u64,
    sectors: u32,
    nbytes: usize,
) -> Result<RuleCommand, CallFailure> {
    let kind = RuleCommandKind::from_name(op).ok_or_else(|| {
        CallFailure::Value(format!("op = {op}: scan, get, ack, user0, user1, user2 or user3"))
    })?;
    if nbytes > 0 && !kind.returns_data() {
        return Err(CallFailure::Value(format!("nbytes = {nbytes}: {op} returns no data")));
    }
    if !(1..=MAX_BLOCKS).contains(&sectors) {
        return Err(CallFailure::Value(format!("sectors = {sectors}: 1 to {MAX_BLOCKS}")));
    }
    Ok(RuleCommand::new(kind, lba, sectors))
}

/// The kind and the values of an event.
pub(crate) type KindAndValues = (u16, [u64; 3]);

/// The end of a command.
pub(crate) struct EndedRuleCommand {
    /// Type and code of its status.
    pub(crate) status: u16,
    /// The value of the rule.
    pub(crate) value: u64,
    /// The bytes that the rules returned.
    pub(crate) data: Vec<u8>,
}

/// Executes a command on the queue for them, which the first one creates.
///
/// # Errors
/// [`CallFailure`]; the queue is then gone, because its command may be outstanding.
pub(crate) fn run(
    device: &IoDevice,
    queue: &mut Option<RuleQueue>,
    command: RuleCommand,
    nbytes: usize,
) -> Result<EndedRuleCommand, CallFailure> {
    let buffer = (nbytes > 0).then(|| device.buffer(nbytes)).transpose()?;
    let mut used = take(device, queue)?;
    let done = used.run(command, buffer.as_ref())?;
    *queue = Some(used);
    Ok(ended(done, buffer.as_ref(), done.reply.bytes as usize))
}

/// Executes a command on a sector with a name, as [`run`] does. A write has `data`.
///
/// # Errors
/// As [`run`]; [`CallFailure::Value`] for data that is not that of a sector.
pub(crate) fn run_named(
    device: &IoDevice,
    queue: &mut Option<RuleQueue>,
    command: NamedCommand,
    data: &[u8],
) -> Result<EndedRuleCommand, CallFailure> {
    let sector = device.limits().sector_bytes as usize;
    if command.op == NamedOp::Write && data.len() != sector {
        let bytes = data.len();
        return Err(CallFailure::Value(format!("{bytes} bytes: a sector has {sector}")));
    }
    let buffer = command.op.has_data().then(|| device.buffer(sector)).transpose()?;
    if let Some(buffer) = &buffer {
        buffer.write(0, data);
    }
    let mut used = take(device, queue)?;
    let done = used.run_named(command, buffer.as_ref())?;
    *queue = Some(used);
    let is_read = command.op == NamedOp::Read && done.status.is_success();
    Ok(ended(done, buffer.as_ref(), if is_read { sector } else { 0 }))
}

/// Takes the queue for commands, which the first one creates.
fn take(device: &IoDevice, queue: &mut Option<RuleQueue>) -> Result<RuleQueue, CallFailure> {
    match queue.take() {
        Some(queue) => Ok(queue),
        None => Ok(device.rule_queue(QueueConfig { depth: QUEUE_DEPTH, interrupts: false })?),
    }
}

/// Returns the end of a command, with `nbytes` of its buffer.
fn ended(done: RuleCompletion, buffer: Option<&Buffer>, nbytes: usize) -> EndedRuleCommand {
    let mut data = vec![0; nbytes];
    if let Some(buffer) = buffer {
        buffer.read(0, &mut data);
    }
    let status = done.status.to_bits() & STATUS_BITS;
    EndedRuleCommand { status, value: done.reply.value, data }
}
