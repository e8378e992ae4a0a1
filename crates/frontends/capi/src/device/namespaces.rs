//! `sluice_namespace_list()` and others: the namespaces of the emulated drives behind a device.

use std::ffi::{c_char, c_int};

use controller::NamespaceRequest;

use crate::device::{object_ref, optional_text, sluice_device};
use crate::error::{CallError, call};

/// All namespaces of a drive.
pub const SLUICE_NAMESPACE_ALL: u32 = 0xffff_ffff;
/// The whole capacity that no namespace has.
pub const SLUICE_NAMESPACE_REST: u64 = 0xffff_ffff_ffff_ffff;

/// A namespace of a drive.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_namespace {
    /// Size in logical blocks.
    pub blocks: u64,
    /// Number of mapped blocks.
    pub used_blocks: u64,
    /// Capacity in bytes that is allocated to it.
    pub allocated_bytes: u64,
    /// Namespace identifier.
    pub nsid: u32,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// 1 if it is attached, so that hosts can address it; else 0.
    pub attached: u32,
    /// 0.
    pub reserved: u32,
    /// Globally unique identifier.
    pub nguid: [u8; 16],
}

/// Lists the namespaces of an emulated NVMe drive behind a device. The device is a drive of a
/// scenario that this program has opened; `sluice admin namespace` reaches drives of
/// `sluice serve`.
///
/// @param device The device.
/// @param drive Name of the drive, or `NULL` if there is only one behind the device.
/// @param namespaces Receives the first `count` namespaces, in the order of their identifiers. May
/// be `NULL` if `count` is 0.
/// @param count Number of elements of `namespaces`. A drive has at most 32.
///
/// # Returns
///
/// The number of namespaces of the drive, which may be larger than `count`, or a negative errno:
///
/// * `-EINVAL`: an invalid argument; no drive of this name, or several and none was named.
/// * `-EOPNOTSUPP`: no drive behind the device is an emulated NVMe drive of this process.
/// * `-ENODEV`: the drive's thread has ended.
///
/// # Threads
///
/// Any thread. The call waits for the drive's thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_namespace_list(
    device: *const sluice_device,
    drive: *const c_char,
    namespaces: *mut sluice_namespace,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe { object_ref("device", device) }?;
        // SAFETY: as above.
        let drive = unsafe { optional_text("drive", drive) }?;
        if namespaces.is_null() && count > 0 {
            return Err(CallError::Null("namespaces"));
        }
        let listing = device.control.namespaces(drive)?;
        for (at, info) in listing.namespaces.iter().take(count).enumerate() {
            let value = sluice_namespace {
                blocks: info.blocks,
                used_blocks: info.used_blocks,
                allocated_bytes: info.allocated_bytes,
                nsid: info.nsid,
                block_bytes: info.block_bytes,
                attached: info.is_attached.into(),
                reserved: 0,
                nguid: info.nguid,
            };
            // SAFETY: `at` is less than `count`, which is the capacity that the header demands.
            unsafe { namespaces.add(at).write(value) };
        }
        // A drive has at most 32 namespaces.
        Ok(listing.namespaces.len() as c_int)
    })
}

/// Changes the namespaces of a drive. Returns the identifier of a created namespace.
///
/// # Safety
/// The pointers are as the header demands.
unsafe fn change(
    device: *const sluice_device,
    drive: *const c_char,
    request: NamespaceRequest,
) -> Result<u32, CallError> {
    // SAFETY: guaranteed by the caller.
    let device = unsafe { object_ref("device", device) }?;
    // SAFETY: as above.
    let drive = unsafe { optional_text("drive", drive) }?;
    Ok(device.control.change_namespaces(drive, request)?)
}

/// Creates a namespace of an emulated NVMe drive behind a device. It is not attached.
///
/// @param device The device; as for `sluice_namespace_list()`.
/// @param drive Name of the drive, or `NULL` if there is only one behind the device.
/// @param bytes Size in bytes, rounded up to whole blocks, or `SLUICE_NAMESPACE_REST`.
/// @param nsid Receives the identifier of the namespace, the smallest free one.
///
/// # Returns
///
/// 0, or a negative errno:
///
/// * `-EINVAL`: an invalid argument; no bytes; no drive of this name, or several and none was named.
/// * `-ENOSPC`: the unallocated capacity is too small, or the drive has 32 namespaces.
/// * `-EBUSY`: a format, Sanitize or another change of namespaces has not ended.
/// * `-EOPNOTSUPP`: the drive has no FTL of its own on flash, or no drive behind the device is an
///   emulated NVMe drive of this process.
/// * `-ETIMEDOUT`: the drive has not ended the change within 20 s, and goes on.
/// * `-ECANCELED`: the drive lost power during the change.
/// * `-EIO`: the drive has failed, or its Sanitize has.
/// * `-ENODEV`: the drive's thread has ended.
///
/// Nothing has changed after an error other than `-ETIMEDOUT`.
///
/// # Threads
///
/// Any thread. The call waits for the drive's thread, which makes the change between two commands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_namespace_create(
    device: *const sluice_device,
    drive: *const c_char,
    bytes: u64,
    nsid: *mut u32,
) -> c_int {
    call(|| {
        if nsid.is_null() {
            return Err(CallError::Null("nsid"));
        }
        let bytes = (bytes != SLUICE_NAMESPACE_REST).then_some(bytes);
        // SAFETY: pointers are as the header demands.
        let created = unsafe { change(device, drive, NamespaceRequest::Create { bytes }) }?;
        // SAFETY: not NULL, and writable as the header demands.
        unsafe { nsid.write(created) };
        Ok(0)
    })
}

/// Deletes a namespace of an emulated NVMe drive behind a device, with its contents. Requests of the
/// device fail if it has opened this namespace.
///
/// @param device The device; as for `sluice_namespace_list()`.
/// @param drive Name of the drive, or `NULL` if there is only one behind the device.
/// @param nsid Identifier of the namespace, or `SLUICE_NAMESPACE_ALL`.
///
/// # Returns
///
/// 0, or a negative errno as for `sluice_namespace_create()`; `-ENOENT` if the drive has no such
/// namespace.
///
/// # Threads
///
/// Any thread. The call waits for the drive's thread, and for commands in flight of the namespace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_namespace_delete(
    device: *const sluice_device,
    drive: *const c_char,
    nsid: u32,
) -> c_int {
    call(|| {
        let nsid = (nsid != SLUICE_NAMESPACE_ALL).then_some(nsid);
        // SAFETY: pointers are as the header demands.
        unsafe { change(device, drive, NamespaceRequest::Delete { nsid }) }?;
        Ok(0)
    })
}

/// Attaches a namespace of an emulated NVMe drive behind a device, so that hosts can address it.
///
/// @param device The device; as for `sluice_namespace_list()`.
/// @param drive Name of the drive, or `NULL` if there is only one behind the device.
/// @param nsid Identifier of the namespace.
///
/// # Returns
///
/// 0, or a negative errno as for `sluice_namespace_create()`; `-ENOENT` if the drive has no such
/// namespace, `-EALREADY` if it is attached already.
///
/// # Threads
///
/// Any thread. The call waits for the drive's thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_namespace_attach(
    device: *const sluice_device,
    drive: *const c_char,
    nsid: u32,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        unsafe { change(device, drive, NamespaceRequest::Attach { nsid }) }?;
        Ok(0)
    })
}

/// Detaches a namespace of an emulated NVMe drive behind a device. Its contents stay. Requests of the
/// device fail if it has opened this namespace.
///
/// @param device The device; as for `sluice_namespace_list()`.
/// @param drive Name of the drive, or `NULL` if there is only one behind the device.
/// @param nsid Identifier of the namespace.
///
/// # Returns
///
/// 0, or a negative errno as for `sluice_namespace_create()`; `-ENOENT` if the drive has no such
/// namespace, `-EALREADY` if it is not attached.
///
/// # Threads
///
/// Any thread. The call waits for the drive's thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_namespace_detach(
    device: *const sluice_device,
    drive: *const c_char,
    nsid: u32,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        unsafe { change(device, drive, NamespaceRequest::Detach { nsid }) }?;
        Ok(0)
    })
}
