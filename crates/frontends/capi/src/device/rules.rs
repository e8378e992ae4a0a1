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

/// Counters of an application of the rules of a drive.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_rule_app {
    /// Its name as the program declares it, with zeros behind it; of a longer name the first 63 bytes.
    pub name: [c_char; 64],
    /// Inputs of its commands.
    pub inputs: u64,
    /// Its commands that no rule matched.
    pub misses: u64,
    /// Operations of its inputs and polls.
    pub ops: u64,
    /// Polls of its background rules for a victim.
    pub polls: u64,
    /// Polls of its background rules by an idle drive.
    pub idle_polls: u64,
    /// Runs of its periodic rules.
    pub periodic: u64,
    /// Victims that its rules chose.
    pub victims: u64,
    /// Lines that were relocated although no space was needed.
    pub relocated: u64,
    /// Victims of the policy of its FTL, because the host waited for space and no rule chose one.
    pub policy_victims: u64,
    /// Sectors of writes that its rules placed in the stream `hot`.
    pub hot_sectors: u64,
}

/// Compiles a rule program for an emulated NVMe drive behind a device, and installs it. The drive has
/// `personality = "rules"` in the scenario that this program has opened, or a target with
/// `kind = "rules"`, which then is meant wherever a drive with rules is.
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
/// Any thread. The call waits for the drive's thread, which installs the program between two commands. The
/// program of a target is replaced between two calls of handles of the device.
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

/// Reads the counters of each application of the rules of an emulated NVMe drive behind a device.
///
/// @param device The device; as for `sluice_rules_install()`.
/// @param drive Name of the drive, or `NULL` if there is only one behind the device.
/// @param apps Receives the first `count` applications, in the order of the program. May be `NULL` if
///   `count` is 0.
/// @param count Number of elements of `apps`.
///
/// # Returns
///
/// The number of applications, which may be larger than `count`, or a negative errno as for
/// `sluice_rules_install()`.
///
/// # Threads
///
/// Any thread. The call waits for the drive's thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_rules_apps(
    device: *const sluice_device,
    drive: *const c_char,
    apps: *mut sluice_rule_app,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        // SAFETY: as above.
        let drive = unsafe { optional_text("drive", drive) }?;
        if apps.is_null() && count > 0 {
            return Err(CallError::Null("apps"));
        }
        let counted = device.control.rules(drive)?.stats.apps;
        for (at, app) in counted.iter().take(count).enumerate() {
            let mut name = [0; 64];
            for (to, from) in name[..63].iter_mut().zip(app.name.bytes()) {
                *to = from as c_char;
            }
            let value = sluice_rule_app {
                name,
                inputs: app.inputs,
                misses: app.misses,
                ops: app.ops,
                polls: app.polls,
                idle_polls: app.idle_polls,
                periodic: app.periodic,
                victims: app.victims,
                relocated: app.relocated,
                policy_victims: app.policy_victims,
                hot_sectors: app.hot_sectors,
            };
            // SAFETY: `at` is less than `count`, which is the capacity that the header demands.
            unsafe { apps.add(at).write(value) };
        }
        Ok(counted.len() as c_int)
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
