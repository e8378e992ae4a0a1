//! `sluice_rule_command()` and `sluice_rule_table_edit()`: commands to the rules of a drive, and the
//! tables that they use.

use std::ffi::{c_char, c_int};
use std::sync::PoisonError;

use controller::RuleTableEdit;
use nvme::{MAX_BLOCKS, RuleCommand, RuleCommandKind, RuleTableAction, RuleTableEntry};
use user_io::{DeviceKind, DirectError, QueueConfig, RuleCompletion, RuleQueue};

use crate::device::buffer::sluice_buffer;
use crate::device::{object_ref, sluice_device, text};
use crate::error::{CallError, call};

/// Stores values in an array, or as those of keys of a map.
pub const SLUICE_RULE_TABLE_SET: u32 = 0;
/// Adds keys to a set.
pub const SLUICE_RULE_TABLE_ADD: u32 = 1;
/// Removes keys from a set or a map.
pub const SLUICE_RULE_TABLE_REMOVE: u32 = 2;

/// Entries of the queue for commands to rules: a device has one such command at a time.
const QUEUE_DEPTH: u16 = 2;

/// A command to the rules of a drive.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_rule_request {
    /// First sector, `header.lba`.
    pub lba: u64,
    /// Number of sectors, `header.sectors`, 1 to 65536.
    pub sectors: u64,
    /// First argument, `header.arg0`.
    pub arg0: u64,
    /// Second argument, `header.arg1`.
    pub arg1: u64,
}

/// The result of a command to the rules of a drive.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_rule_reply {
    /// The value of the rule. Of a command with a buffer, values above 4294967295 are 4294967295.
    pub value: u64,
    /// Bytes that the drive wrote to the begin of the buffer.
    pub bytes: u32,
    /// NVMe status without its *do not retry* bit, type in bits 10:8 and code in bits 7:0; 0 for success.
    /// Rules of a drive (`docs/rules.md`) lists the codes of rules.
    pub status: u32,
}

/// Sends a command to the rules of an NVMe drive, and waits for its end. The rules must be those of a
/// drive with `personality = "rules"`, on which the device has all sectors.
///
/// @param device The device.
/// @param op The operation: `scan`, `get`, `ack`, `user0`, `user1`, `user2` or `user3`.
/// @param request The fields of the command.
/// @param buffer Receives what the rules return, or `NULL`. Must be `NULL` for `ack`, `user2` and `user3`.
/// @param reply Receives the result.
///
/// # Returns
///
/// 0 if the drive has completed the command, also with an error: `reply->status` says which. Otherwise a
/// negative errno:
///
/// * `-EINVAL`: an invalid argument.
/// * `-EOPNOTSUPP`: the device is not an NVMe drive.
/// * `-ENOSPC`: the drive has no queue left.
/// * `-EIO`: the drive does not answer.
///
/// # Threads
///
/// Any thread. A device has one such command at a time; others wait for its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_rule_command(
    device: *const sluice_device,
    op: *const c_char,
    request: *const sluice_rule_request,
    buffer: *const sluice_buffer,
    reply: *mut sluice_rule_reply,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        // SAFETY: as above.
        let op = unsafe { text("op", op) }?;
        // SAFETY: as above.
        let request = unsafe { object_ref("request", request) }?;
        if reply.is_null() {
            return Err(CallError::Null("reply"));
        }
        let sluice_rule_request { lba, sectors, arg0, arg1 } = *request;
        let kind = RuleCommandKind::from_name(op).ok_or(CallError::Value {
            what: "op",
            value: 0,
            allowed: "scan, get, ack, user0, user1, user2, user3",
        })?;
        if !(1..=u64::from(MAX_BLOCKS)).contains(&sectors) {
            let allowed = "1 to 65536";
            return Err(CallError::Value { what: "sectors", value: sectors, allowed });
        }
        let buffer = match buffer.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { object_ref("buffer", buffer) }?),
        };
        if buffer.is_some() && !kind.returns_data() {
            let allowed = "NULL for an operation that returns no data";
            return Err(CallError::Value { what: "buffer", value: 1, allowed });
        }
        let command = RuleCommand { arg0, arg1, ..RuleCommand::new(kind, lba, sectors as u32) };
        let done = run(device, |queue| queue.run(command, buffer.map(|buffer| &buffer.buffer)))?;
        // SAFETY: not NULL, and writable as the header demands.
        unsafe { reply.write(done) };
        Ok(0)
    })
}

/// Runs a command on the queue of a device for rules.
pub(super) fn run(
    device: &sluice_device,
    command: impl FnOnce(&mut RuleQueue) -> Result<RuleCompletion, DirectError>,
) -> Result<sluice_rule_reply, CallError> {
    let mut queue = device.rule_queue.lock().unwrap_or_else(PoisonError::into_inner);
    let mut used = match queue.take() {
        Some(queue) => queue,
        None => {
            let config = QueueConfig { depth: QUEUE_DEPTH, interrupts: false };
            device.device.rule_queue(config)?
        }
    };
    // After an error the queue is dropped: its command may be outstanding.
    let RuleCompletion { status, reply, .. } = command(&mut used)?;
    *queue = Some(used);
    let status = u32::from(status.to_bits() & 0x7ff);
    Ok(sluice_rule_reply { value: reply.value, bytes: reply.bytes, status })
}

/// Reads the values of consecutive keys of a table of the rules of an NVMe drive, or of a target with
/// rules that this process has opened: the elements of an array,
/// the values of a map (0 of an absent key), or 1 for each key that a set has.
///
/// @param device The device; as for `sluice_rule_command()`.
/// @param table Number of the table in the program, from 0 on.
/// @param first The first key, or index.
/// @param values Receives the values.
/// @param count Number of keys.
///
/// # Returns
///
/// 0, or a negative errno:
///
/// * `-EINVAL`: an invalid argument; a target has no such table, or an index is past its end.
/// * `-EOPNOTSUPP`: the device is neither an NVMe drive nor a target with rules.
/// * `-EIO`: the drive has no rules, or no such table; an index is past the end of an array.
///   `sluice_last_error()` has the status.
///
/// # Threads
///
/// Any thread. The call waits for the drive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_rule_table_read(
    device: *const sluice_device,
    table: u32,
    first: u64,
    values: *mut u64,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        let number = table_number(table)?;
        let count = u32::try_from(count).map_err(|_| CallError::Value {
            what: "count",
            value: count as u64,
            allowed: "0 to 4294967295",
        })?;
        if values.is_null() && count > 0 {
            return Err(CallError::Null("values"));
        }
        let read = match device.device.kind() {
            DeviceKind::Target => device.control.rule_table_values(None, number, first, count)?,
            _ => device.device.rule_table_values(number, first, count)?,
        };
        for (at, value) in read.into_iter().enumerate() {
            // SAFETY: `at` is less than `count`, the number of elements that the header demands.
            unsafe { values.add(at).write(value) };
        }
        Ok(0)
    })
}

fn table_number(table: u32) -> Result<u8, CallError> {
    u8::try_from(table).map_err(|_| CallError::Value {
        what: "table",
        value: table.into(),
        allowed: "0 to 255",
    })
}

/// Changes entries of a table of the rules of an NVMe drive, or of a target with rules that this process
/// has opened, in order.
///
/// @param device The device; as for `sluice_rule_command()`.
/// @param table Number of the table in the program, from 0 on.
/// @param action `SLUICE_RULE_TABLE_SET`, `SLUICE_RULE_TABLE_ADD` or `SLUICE_RULE_TABLE_REMOVE`.
/// @param keys The keys, or indices.
/// @param values The values, for `SLUICE_RULE_TABLE_SET`; otherwise `NULL`.
/// @param count Number of keys.
///
/// # Returns
///
/// 0, or a negative errno; the entries before the one that failed are stored:
///
/// * `-EINVAL`: an invalid argument; the table of a target does not take an entry.
/// * `-EOPNOTSUPP`: the device is neither an NVMe drive nor a target with rules.
/// * `-EIO`: the table does not take an entry, or the drive has no rules. `sluice_last_error()` has the
///   status.
///
/// # Threads
///
/// Any thread. The call waits for the drive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_rule_table_edit(
    device: *const sluice_device,
    table: u32,
    action: u32,
    keys: *const u64,
    values: *const u64,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        let number = table_number(table)?;
        let action = match action {
            SLUICE_RULE_TABLE_SET => RuleTableAction::Set,
            SLUICE_RULE_TABLE_ADD => RuleTableAction::Add,
            SLUICE_RULE_TABLE_REMOVE => RuleTableAction::Remove,
            other => {
                let allowed = "SLUICE_RULE_TABLE_SET, _ADD, _REMOVE";
                return Err(CallError::Value { what: "action", value: other.into(), allowed });
            }
        };
        if keys.is_null() && count > 0 {
            return Err(CallError::Null("keys"));
        }
        let has_values = action == RuleTableAction::Set;
        if has_values && values.is_null() && count > 0 {
            return Err(CallError::Null("values"));
        }
        let entry = |at: usize| {
            // SAFETY: `at` is less than `count`, the number of elements that the header demands.
            let key = unsafe { keys.add(at).read() };
            let value = match has_values {
                // SAFETY: as above, and not NULL.
                true => unsafe { values.add(at).read() },
                false => 0,
            };
            RuleTableEntry { key: key.into(), value: value.into() }
        };
        let entries: Vec<RuleTableEntry> = (0..count).map(entry).collect();
        match device.device.kind() {
            DeviceKind::Target => {
                let edit = |entry: &RuleTableEntry| RuleTableEdit::new(action, *entry);
                let edits = entries.iter().map(edit).collect();
                device.control.edit_rule_table(None, number, edits)?;
            }
            _ => device.device.edit_rule_table(number, action, &entries)?,
        }
        Ok(0)
    })
}
