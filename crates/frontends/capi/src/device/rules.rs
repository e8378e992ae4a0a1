//! `sluice_rules_install()` and others: the rules of the emulated drives behind a device.

use std::ffi::{c_char, c_int};

use crate::device::{object_ref, optional_text, sluice_device, text};
use crate::error::{CallError, call};

/// The commands of an operation that no rule of a drive matched.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_rule_misses {
    /// The operation as the language of rules names it, such as `read` or `write`, with zeros behind it.
    pub op: [c_char; 16],
    /// Commands that missed.
    pub misses: u64,
    /// Commands that are parked.
    pub parked: u64,
    /// Commands that a rule of a later program matched.
    pub released: u64,
    /// Commands that were rejected.
    pub rejected: u64,
    /// Commands that ended after the timeout.
    pub timed_out: u64,
    /// Commands that ended at once, because too many of their queue were parked.
    pub refused: u64,
    /// Commands that ended because of an Abort, the deletion of their queue, or a power cut.
    pub aborted: u64,
    /// First block of the command that missed last.
    pub lba: u64,
}

/// Compiles a rule program for an emulated NVMe drive behind a device, and installs it. The drive has
/// `personality = "rules"` in the scenario that this program has opened.
///
/// @param device The device.
/// @param drive Name of the drive, or `NULL` if there is only one behind the device.
/// @param source The source text of the program.
/// @param parked Receives the number of commands that no rule of it matches. May be `NULL`.
///
/// # Returns
///
/// 0, or a negative errno; nothing has changed then:
///
/// * `-EINVAL`: an invalid argument; no drive of this name, or several and none was named; the program
///   is not accepted. `sluice_last_error()` has its line and column.
/// * `-EOPNOTSUPP`: the drive has no rules, or no drive behind the device is an emulated NVMe drive of
///   this process.
/// * `-ENODEV`: the drive's thread has ended.
///
/// # Threads
///
/// Any thread. The call waits for the drive's thread, which installs the program between two commands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_rules_install(
    device: *const sluice_device,
    drive: *const c_char,
    source: *const c_char,
    parked: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        // SAFETY: as above.
        let drive = unsafe { optional_text("drive", drive) }?;
        // SAFETY: as above.
        let source = unsafe { text("source", source) }?;
        let left = device.control.install_rules(drive, "program", source.as_bytes())?;
        if !parked.is_null() {
            // SAFETY: not NULL, and writable as the header demands.
            unsafe { parked.write(left) };
        }
        Ok(0)
    })
}

/// Lists the commands that no rule of an emulated NVMe drive behind a device matched, by operation.
///
/// @param device The device; as for `sluice_rules_install()`.
/// @param drive Name of the drive, or `NULL` if there is only one behind the device.
/// @param misses Receives the first `count` operations. May be `NULL` if `count` is 0.
/// @param count Number of elements of `misses`. There are at most 11 operations.
///
/// # Returns
///
/// The number of operations with misses, which may be larger than `count`, or a negative errno as for
/// `sluice_rules_install()`.
///
/// # Threads
///
/// Any thread. The call waits for the drive's thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_rules_misses(
    device: *const sluice_device,
    drive: *const c_char,
    misses: *mut sluice_rule_misses,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        // SAFETY: as above.
        let drive = unsafe { optional_text("drive", drive) }?;
        if misses.is_null() && count > 0 {
            return Err(CallError::Null("misses"));
        }
        let missed = device.control.rules(drive)?.stats.missed;
        for (at, record) in missed.iter().take(count).enumerate() {
            let mut op = [0; 16];
            for (to, from) in op.iter_mut().zip(record.op.bytes()) {
                *to = from as c_char;
            }
            let value = sluice_rule_misses {
                op,
                misses: record.misses,
                parked: record.parked,
                released: record.released,
                rejected: record.rejected,
                timed_out: record.timed_out,
                refused: record.refused,
                aborted: record.aborted,
                lba: record.lba,
            };
            // SAFETY: `at` is less than `count`, which is the capacity that the header demands.
            unsafe { misses.add(at).write(value) };
        }
        Ok(missed.len() as c_int)
    })
}

/// Ends commands that no rule of an emulated NVMe drive behind a device matches. Their requests fail.
///
/// @param device The device; as for `sluice_rules_install()`.
/// @param drive Name of the drive, or `NULL` if there is only one behind the device.
/// @param op The operation of the commands, such as `write`, or `NULL` for all of them.
/// @param ended Receives the number of the commands. May be `NULL`.
///
/// # Returns
///
/// 0, or a negative errno as for `sluice_rules_install()`.
///
/// # Threads
///
/// Any thread. The call waits for the drive's thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_rules_reject(
    device: *const sluice_device,
    drive: *const c_char,
    op: *const c_char,
    ended: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        // SAFETY: as above.
        let drive = unsafe { optional_text("drive", drive) }?;
        // SAFETY: as above.
        let op = unsafe { optional_text("op", op) }?;
        let rejected = device.control.reject_misses(drive, op)?;
        if !ended.is_null() {
            // SAFETY: not NULL, and writable as the header demands.
            unsafe { ended.write(rejected) };
        }
        Ok(0)
    })
}
