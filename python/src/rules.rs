//! Commands to the rules of a drive, and changes of their tables.

use std::collections::BTreeMap;

use sluice::controller::RuleTableEdit;
use sluice::nvme::{MAX_BLOCKS, RuleCommand, RuleCommandKind};
use sluice::user_io::{IoDevice, QueueConfig, RuleQueue};

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
    let mut used = match queue.take() {
        Some(queue) => queue,
        None => device.rule_queue(QueueConfig { depth: QUEUE_DEPTH, interrupts: false })?,
    };
    let done = used.run(command, buffer.as_ref())?;
    *queue = Some(used);
    let mut data = vec![0; done.reply.bytes as usize];
    if let Some(buffer) = &buffer {
        buffer.read(0, &mut data);
    }
    let status = done.status.to_bits() & STATUS_BITS;
    Ok(EndedRuleCommand { status, value: done.reply.value, data })
}
