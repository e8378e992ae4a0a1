//! `sluice_fault_inject()`: failures of the emulated drives behind a device.

use std::ffi::{c_char, c_int};

use crate::device::{object_ref, optional_text, sluice_device, text};
use crate::error::call;

/// Makes an emulated NVMe drive behind a device fail, now. The device is a drive of a scenario that
/// this program has opened; `sluice admin fault` reaches drives of `sluice serve`.
///
/// `fault` is the kind of fault, then `key=value` for each of its keys, separated by spaces:
/// `die-failure pu=3`, `slow-die pu=3 factor=10 duration=2s`. The kinds and keys are those of
/// `[[fault]]` in a scenario.
///
/// @param device The device.
/// @param drive Name of the drive, or `NULL` if there is only one behind the device.
/// @param fault The fault.
///
/// # Returns
///
/// 0, or a negative errno after which nothing has changed:
///
/// * `-EINVAL`: an invalid argument; a kind, key or value that a scenario would not accept; a fault
///   that the drive cannot have; no drive of this name, or several and none was named.
/// * `-EOPNOTSUPP`: no drive behind the device is an emulated NVMe drive of this process.
/// * `-ENODEV`: the drive's thread has ended.
///
/// # Threads
///
/// Any thread. The call waits for the drive's thread, which injects the fault between two commands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_fault_inject(
    device: *const sluice_device,
    drive: *const c_char,
    fault: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        // SAFETY: as above.
        let (drive, fault) = unsafe { (optional_text("drive", drive)?, text("fault", fault)?) };
        let fault = scenario::parse_fault(fault)?;
        device.control.inject_fault(drive, fault)?;
        Ok(0)
    })
}
