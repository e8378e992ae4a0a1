//! `sluice_pmr_…`: the persistent memory region of a drive.

use std::ffi::{c_int, c_void};

use driver::PersistentRegion;
use user_io::DirectError;

use crate::device::{object_ref, sluice_device};
use crate::error::{CallError, call};

/// Returns the region of a device.
///
/// # Safety
/// The pointer is as the header demands.
unsafe fn region_of<'a>(device: *const sluice_device) -> Result<&'a PersistentRegion, CallError> {
    // SAFETY: the caller's promise.
    let device = unsafe { object_ref("device", device) }?;
    Ok(device.device.persistent_region()?)
}

/// Returns the size of the persistent memory region of a drive.
///
/// A region is memory of the drive that this program stores to without commands. A store is visible
/// at once, and survives a loss of the drive's power after `sluice_pmr_persist()`. Of stores that
/// were not persisted, each aligned word of 8 bytes survives or not.
///
/// @param device The device: an emulated drive of a scenario with `pmr`, or a target on one.
/// @param bytes Receives the size in bytes.
///
/// # Returns
///
/// 0, or `-EINVAL` if an argument is `NULL`, or `-EOPNOTSUPP` if the device has no region for this
/// program: there is none, several drives behind the device have one, or the program is confined to
/// a partition.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_pmr_size(device: *const sluice_device, bytes: *mut u64) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let region = unsafe { region_of(device) }?;
        if bytes.is_null() {
            return Err(CallError::Null("bytes"));
        }
        // SAFETY: not `NULL`, so valid as the header demands.
        unsafe { bytes.write(region.bytes()) };
        Ok(0)
    })
}

/// Reads from the persistent memory region of a drive, also what is not persistent.
///
/// @param device The device.
/// @param offset Offset in the region, in bytes.
/// @param into Receives the data.
/// @param bytes Number of bytes.
///
/// # Returns
///
/// 0, or a negative errno after which nothing was read:
///
/// * `-EINVAL`: `device` or `into` is `NULL`.
/// * `-EOPNOTSUPP`: as for `sluice_pmr_size()`.
/// * `-ERANGE`: the range is outside of the region.
/// * `-EBUSY`: the region is disabled, or the drive sanitizes it.
/// * `-ECONNRESET`: the drive was removed or powered off.
///
/// # Threads
///
/// Any thread. The application orders accesses to the same bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_pmr_read(
    device: *const sluice_device,
    offset: u64,
    into: *mut c_void,
    bytes: usize,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let region = unsafe { region_of(device) }?;
        if into.is_null() {
            return Err(CallError::Null("into"));
        }
        // SAFETY: not `NULL`, so valid for the length as the header demands.
        let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), bytes) };
        region.read(offset, into).map_err(DirectError::from)?;
        Ok(0)
    })
}

/// Stores to the persistent memory region of a drive. The call takes the time that the drive is
/// configured with, for each cache line of 64 bytes.
///
/// @param device The device.
/// @param offset Offset in the region, in bytes.
/// @param data The data.
/// @param bytes Number of bytes.
///
/// # Returns
///
/// 0, or a negative errno after which nothing was stored: as for `sluice_pmr_read()`.
///
/// # Threads
///
/// Any thread. The application orders accesses to the same bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_pmr_store(
    device: *const sluice_device,
    offset: u64,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let region = unsafe { region_of(device) }?;
        if data.is_null() {
            return Err(CallError::Null("data"));
        }
        // SAFETY: not `NULL`, so valid for the length as the header demands.
        let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) };
        region.store(offset, data).map_err(DirectError::from)?;
        Ok(0)
    })
}

/// Persists the cache lines of a range: what was stored to them survives a loss of the drive's
/// power.
///
/// @param device The device.
/// @param offset Offset in the region, in bytes.
/// @param bytes Number of bytes.
///
/// # Returns
///
/// 0, or a negative errno: as for `sluice_pmr_read()`. After `-ECONNRESET` it is not known what is
/// persistent.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_pmr_persist(
    device: *const sluice_device,
    offset: u64,
    bytes: u64,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let region = unsafe { region_of(device) }?;
        region.persist(offset, bytes).map_err(DirectError::from)?;
        Ok(0)
    })
}
