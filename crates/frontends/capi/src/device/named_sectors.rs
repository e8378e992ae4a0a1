//! `sluice_named_command()`, `sluice_rule_events()` and `sluice_found_names()`: sectors with names, of a
//! drive whose rules have them.

use std::ffi::{c_char, c_int};

use nvme::{FoundNameEntry, NamedCommand, NamedOp, RuleEvent};

use crate::device::buffer::sluice_buffer;
use crate::device::rule_commands::{run, sluice_rule_reply};
use crate::device::{object_ref, sluice_device, text};
use crate::error::{CallError, call};

/// A sector was moved: its old name, its new name, its tag.
pub const SLUICE_RULE_EVENT_MIGRATED: u32 = RuleEvent::MIGRATED as u32;
/// A sector could not be read when it was to be moved: its name.
pub const SLUICE_RULE_EVENT_LOST: u32 = RuleEvent::LOST as u32;

/// An event that rules of a drive have posted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_rule_event {
    /// `SLUICE_RULE_EVENT_MIGRATED` or `SLUICE_RULE_EVENT_LOST`.
    pub kind: u32,
    /// Its values.
    pub values: [u64; 3],
}

/// A valid sector that the drive found when it was powered on.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_found_name {
    /// The name of the sector.
    pub name: u64,
    /// The host's tag.
    pub tag: u64,
}

/// Executes a command on a sector with a name, and waits for its end. The sectors of the drive must have names:
/// its rule program uses them.
///
/// @param device The device.
/// @param op The operation: `write`, `read` or `free`.
/// @param arg0 First argument, `header.arg0`: the tag of a write, the name of a read or a free.
/// @param arg1 Second argument, `header.arg1`: the tag of a read.
/// @param buffer The data of a write, or the memory for that of a read: one sector at its begin. `NULL` for
///     `free`.
/// @param reply Receives the result; `value` is the name of a sector that was written.
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
/// Any thread. A device has one such command, or command to rules, at a time; others wait for its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_named_command(
    device: *const sluice_device,
    op: *const c_char,
    arg0: u64,
    arg1: u64,
    buffer: *const sluice_buffer,
    reply: *mut sluice_rule_reply,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        // SAFETY: as above.
        let op = match unsafe { text("op", op) }? {
            "write" => NamedOp::Write,
            "read" => NamedOp::Read,
            "free" => NamedOp::Free,
            _ => {
                let (what, allowed) = ("op", "write, read, free");
                return Err(CallError::Value { what, value: 0, allowed });
            }
        };
        if reply.is_null() {
            return Err(CallError::Null("reply"));
        }
        let buffer = match buffer.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { object_ref("buffer", buffer) }?),
        };
        match (op.has_data(), buffer) {
            (true, None) => return Err(CallError::Null("buffer")),
            (false, Some(_)) => {
                let allowed = "NULL for an operation without data";
                return Err(CallError::Value { what: "buffer", value: 1, allowed });
            }
            _ => {}
        }
        let command = NamedCommand { op, arg0, arg1 };
        let buffer = buffer.map(|buffer| &buffer.buffer);
        let done = run(device, |queue| queue.run_named(command, buffer))?;
        // SAFETY: not NULL, and writable as the header demands.
        unsafe { reply.write(done) };
        Ok(0)
    })
}

/// Takes events that the rules of an NVMe drive have posted for the application of the device, the oldest
/// first. They are gone from the drive then.
///
/// @param device The device; as for `sluice_rule_command()`.
/// @param events Receives the events.
/// @param capacity Elements of `events`: at least 126.
/// @param lost Receives the number of events that the host did not take in time, since the drive was powered
///     on. May be `NULL`.
///
/// # Returns
///
/// The number of events, or a negative errno. With 0 there are no more:
///
/// * `-EINVAL`: an invalid argument.
/// * `-EOPNOTSUPP`: the device is not an NVMe drive.
/// * `-EIO`: the drive has no rules. `sluice_last_error()` has the status.
///
/// # Threads
///
/// Any thread. The call waits for the drive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_rule_events(
    device: *const sluice_device,
    events: *mut sluice_rule_event,
    capacity: usize,
    lost: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        if events.is_null() {
            return Err(CallError::Null("events"));
        }
        if capacity < nvme::RuleEventLog::ENTRIES {
            let (value, allowed) = (capacity as u64, "at least 126");
            return Err(CallError::Value { what: "capacity", value, allowed });
        }
        let log = device.device.take_rule_events()?;
        for (at, event) in log.events.iter().enumerate() {
            let values = event.values.map(|value| value.get());
            let event = sluice_rule_event { kind: event.kind.get().into(), values };
            // SAFETY: a page has at most 126 events, and the header demands as many elements.
            unsafe { events.add(at).write(event) };
        }
        if !lost.is_null() {
            // SAFETY: not NULL, and writable as the header demands.
            unsafe { lost.write(log.lost) };
        }
        Ok(log.events.len() as c_int)
    })
}

/// Reads the names and tags of valid sectors that an NVMe drive found when it was powered on, in the order of
/// their locations.
///
/// @param device The device; as for `sluice_rule_command()`.
/// @param first The first one, from 0 on.
/// @param names Receives them.
/// @param capacity Elements of `names`, 1 to 2147483647. Fewer names than that are the last ones, and the drive discards
///     all of them then.
///
/// # Returns
///
/// The number of names, or a negative errno:
///
/// * `-EINVAL`: an invalid argument.
/// * `-EOPNOTSUPP`: the device is not an NVMe drive.
/// * `-EIO`: the drive has no rules, or `first` is past the end. `sluice_last_error()` has the status.
///
/// # Threads
///
/// Any thread. The call waits for the drive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_found_names(
    device: *const sluice_device,
    first: u64,
    names: *mut sluice_found_name,
    capacity: usize,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        if names.is_null() {
            return Err(CallError::Null("names"));
        }
        if !(1..=c_int::MAX as usize).contains(&capacity) {
            let (value, allowed) = (capacity as u64, "1 to 2147483647");
            return Err(CallError::Value { what: "capacity", value, allowed });
        }
        let found = device.device.found_names(first, capacity)?;
        for (at, FoundNameEntry { name, tag }) in found.iter().enumerate() {
            let found = sluice_found_name { name: name.get(), tag: tag.get() };
            // SAFETY: there are at most `capacity`, the number of elements that the header demands.
            unsafe { names.add(at).write(found) };
        }
        Ok(found.len() as c_int)
    })
}
