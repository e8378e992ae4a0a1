//! Blocking requests on sectors and buffers; module `vectored` has transfers by memory address.
//!
//! Requests that were submitted before and complete during a blocking call are reaped afterwards.

use std::ffi::c_int;

use block::{Limits, Payload, Request};

use crate::device::buffer::sluice_buffer;
use crate::device::flags;
use crate::error::{CallError, call};
use crate::handle::single_thread::{Guard, HandleInner, sluice_handle};
use crate::request::{SLUICE_ATOMIC, SLUICE_DEALLOCATE, SLUICE_FUA, payload};

impl HandleInner {
    /// Executes one request, and counts it.
    pub(crate) fn run(&mut self, request: Request) -> Result<(), CallError> {
        self.counters.record(&request);
        let done = self.handle.run(request);
        self.counters.errors += u64::from(done.is_err());
        Ok(done.map(drop)?)
    }

    /// Writes sectors, with `SLUICE_FUA` and `SLUICE_ATOMIC` as given.
    fn write(
        &mut self,
        lba: u64,
        sectors: u32,
        data: Payload,
        flags: u32,
    ) -> Result<(), CallError> {
        let fua = flags & SLUICE_FUA != 0;
        if flags & SLUICE_ATOMIC == 0 {
            return self.transfer(true, lba, sectors, data, fua);
        }
        self.run(Request { fua, ..Request::atomic_write(lba, sectors, data, 0) })
    }

    /// Splits a transfer into requests that the device accepts.
    pub(crate) fn transfer(
        &mut self,
        write: bool,
        lba: u64,
        sectors: u32,
        data: Payload,
        fua: bool,
    ) -> Result<(), CallError> {
        let Limits { max_sectors, sector_bytes, .. } = *self.handle.limits();
        let mut done = 0;
        loop {
            let count = (sectors - done).min(max_sectors);
            let data = match data {
                Payload::Contiguous(at) => {
                    Payload::Contiguous(at.offset(u64::from(done) * u64::from(sector_bytes)))
                }
                other => other,
            };
            let at = lba.saturating_add(done.into());
            let request = match write {
                false => Request::read(at, count, data, 0),
                true => Request { fua, ..Request::write(at, count, data, 0) },
            };
            self.run(request)?;
            done += count;
            if done >= sectors {
                return Ok(());
            }
        }
    }
}

/// Reads sectors into a buffer.
///
/// @param handle The handle.
/// @param lba First sector.
/// @param sectors Number of sectors. A transfer of more than the device's `max_sectors` is split
/// into several requests.
/// @param buffer Receives the data.
/// @param buffer_offset Offset of the data in the buffer, in bytes; a multiple of 512.
///
/// # Returns
///
/// 0, or
///
/// * a negative `errno` as in `struct sluice_completion`: the device failed the request.
/// * `-EINVAL`: an argument is `NULL` or invalid, or the data does not fit into the buffer.
/// * `-EXDEV`: the buffer belongs to another device.
/// * `-EBUSY`: another call uses the handle.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_read(
    handle: *mut sluice_handle,
    lba: u64,
    sectors: u32,
    buffer: *mut sluice_buffer,
    buffer_offset: u64,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { Guard::enter(handle) }?;
        let sector_bytes = inside.handle.limits().sector_bytes;
        // SAFETY: as above.
        let data = unsafe { payload(&inside.owner, buffer, buffer_offset, sectors, sector_bytes) }?;
        inside.transfer(false, lba, sectors, data, false)?;
        Ok(0)
    })
}

/// Writes sectors from a buffer.
///
/// The data is durable after the next `sluice_flush()`, or on return with `SLUICE_FUA`. The latter
/// costs less than a flush if the device has `SLUICE_HAS_FUA`.
///
/// @param handle The handle.
/// @param lba First sector.
/// @param sectors Number of sectors. A transfer of more than the device's `max_sectors` is split
/// into several requests.
/// @param buffer The data.
/// @param buffer_offset Offset of the data in the buffer, in bytes; a multiple of 512.
/// @param flags `SLUICE_FUA`, `SLUICE_ATOMIC`, both or 0. An atomic transfer is not split.
///
/// # Returns
///
/// As `sluice_read()`. After a failure some of the sectors may have been written.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_write(
    handle: *mut sluice_handle,
    lba: u64,
    sectors: u32,
    buffer: *const sluice_buffer,
    buffer_offset: u64,
    flags: u32,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { Guard::enter(handle) }?;
        let allowed = "SLUICE_FUA, SLUICE_ATOMIC, both or 0";
        let flags = self::flags(flags, SLUICE_FUA | SLUICE_ATOMIC, allowed)?;
        let sector_bytes = inside.handle.limits().sector_bytes;
        // SAFETY: as above.
        let data = unsafe { payload(&inside.owner, buffer, buffer_offset, sectors, sector_bytes) }?;
        inside.write(lba, sectors, data, flags)?;
        Ok(0)
    })
}

/// Makes all completed writes durable, including those in a block cache.
///
/// @param handle The handle.
///
/// # Returns
///
/// 0, or a negative `errno` as in `struct sluice_completion`, or `-EINVAL` if `handle` is `NULL`,
/// or `-EBUSY` if another call uses the handle.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_flush(handle: *mut sluice_handle) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        unsafe { Guard::enter(handle) }?.run(Request::flush(0))?;
        Ok(0)
    })
}

/// Discards sectors: the device may drop their contents, and they read as zeros afterwards.
///
/// @param handle The handle.
/// @param lba First sector.
/// @param sectors Number of sectors.
///
/// # Returns
///
/// As `sluice_flush()`; `-EOPNOTSUPP` if the device does not have `SLUICE_HAS_DISCARD`.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_discard(
    handle: *mut sluice_handle,
    lba: u64,
    sectors: u32,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        unsafe { Guard::enter(handle) }?.run(Request::discard(lba, sectors, 0))?;
        Ok(0)
    })
}

/// Writes zeros to sectors without transferring data.
///
/// @param handle The handle.
/// @param lba First sector.
/// @param sectors Number of sectors.
/// @param flags `SLUICE_DEALLOCATE` if the device may deallocate the sectors; or 0.
///
/// # Returns
///
/// As `sluice_flush()`; `-EOPNOTSUPP` if the device does not have `SLUICE_HAS_WRITE_ZEROES`.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_write_zeroes(
    handle: *mut sluice_handle,
    lba: u64,
    sectors: u32,
    flags: u32,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { Guard::enter(handle) }?;
        let unmap = self::flags(flags, SLUICE_DEALLOCATE, "SLUICE_DEALLOCATE or 0")? != 0;
        inside.run(Request::write_zeroes(lba, sectors, unmap, 0))?;
        Ok(0)
    })
}
