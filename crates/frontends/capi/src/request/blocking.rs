//! Blocking requests by sectors; module `vectored` has those by memory address.
//!
//! Requests submitted before that complete meanwhile are reaped afterwards.

use std::ffi::c_int;

use block::{Limits, Payload, Request};

use crate::device::buffer::sluice_buffer;
use crate::device::flags;
use crate::error::{CallError, call};
use crate::handle::single_thread::{Guard, HandleInner, sluice_handle};
use crate::request::{SLUICE_DEALLOCATE, SLUICE_FUA, payload};

impl HandleInner {
    pub(crate) fn run(&mut self, request: Request) -> Result<(), CallError> {
        self.counters.record(&request);
        let done = self.handle.run(request);
        self.counters.errors += u64::from(done.is_err());
        Ok(done.map(drop)?)
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
/// @param lba The first sector.
/// @param sectors How many; more than the device's `max_sectors` are read piece by piece.
/// @param buffer Where to.
/// @param buffer_offset Where in the buffer, a multiple of 512 bytes.
///
/// # Returns
///
/// 0, or a negative `errno`: those of `struct sluice_completion`, and `-EINVAL` or `-EXDEV` for a buffer that
/// is too short or another device's, `-EBUSY` while another call is inside of the handle.
///
/// # Threads
///
/// The handle's.
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
/// They are durable after the next `sluice_flush()`, or with `SLUICE_FUA` when the call returns, which costs
/// less than a flush where the device has `SLUICE_HAS_FUA`.
///
/// @param handle The handle.
/// @param lba The first sector.
/// @param sectors How many; more than the device's `max_sectors` are written piece by piece.
/// @param buffer Where from.
/// @param buffer_offset Where in the buffer, a multiple of 512 bytes.
/// @param flags `SLUICE_FUA` or 0.
///
/// # Returns
///
/// As `sluice_read()`. After a failure some of the sectors may be written.
///
/// # Threads
///
/// The handle's.
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
        let fua = self::flags(flags, SLUICE_FUA, "SLUICE_FUA or 0")? != 0;
        let sector_bytes = inside.handle.limits().sector_bytes;
        // SAFETY: as above.
        let data = unsafe { payload(&inside.owner, buffer, buffer_offset, sectors, sector_bytes) }?;
        inside.transfer(true, lba, sectors, data, fua)?;
        Ok(0)
    })
}

/// Makes everything durable that has completed, a cache's contents included.
///
/// @param handle The handle.
///
/// # Returns
///
/// 0, or a negative `errno`: those of `struct sluice_completion`, and `-EINVAL` for `NULL`, `-EBUSY` while
/// another call is inside of the handle.
///
/// # Threads
///
/// The handle's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_flush(handle: *mut sluice_handle) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        unsafe { Guard::enter(handle) }?.run(Request::flush(0))?;
        Ok(0)
    })
}

/// Gives sectors up: their contents are no longer needed, and they read as zeros afterwards.
///
/// @param handle The handle.
/// @param lba The first sector.
/// @param sectors How many.
///
/// # Returns
///
/// As `sluice_flush()`; `-EOPNOTSUPP` where the device does not have `SLUICE_HAS_DISCARD`.
///
/// # Threads
///
/// The handle's.
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

/// Makes sectors read as zeros.
///
/// @param handle The handle.
/// @param lba The first sector.
/// @param sectors How many.
/// @param flags `SLUICE_DEALLOCATE`: the device may deallocate the sectors; or 0.
///
/// # Returns
///
/// As `sluice_flush()`; `-EOPNOTSUPP` where the device does not have `SLUICE_HAS_WRITE_ZEROES`.
///
/// # Threads
///
/// The handle's.
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
