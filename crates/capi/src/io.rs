//! One request after the other.
//!
//! What ends meanwhile of requests that were submitted before is reaped afterwards.

use std::ffi::{c_int, c_void};

use block::{Limits, Payload, Request};
use direct::Buffer;

use crate::buffer::{registered, sluice_buffer};
use crate::device::flags;
use crate::error::{CallError, call};
use crate::inside::{Inner, Inside, sluice_handle};
use crate::request::{SLUICE_FUA, SLUICE_MAY_UNMAP, payload};

/// Bytes of what is copied through at a time.
const BOUNCE_BYTES: usize = 256 << 10;

impl Inner {
    fn run(&mut self, request: Request) -> Result<(), CallError> {
        self.counts.taken(&request);
        let done = self.handle.run(request);
        self.counts.errors += u64::from(done.is_err());
        Ok(done.map(drop)?)
    }

    /// A transfer in pieces that the device takes.
    fn transfer(
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
                Payload::At(at) => {
                    Payload::At(at.offset(u64::from(done) * u64::from(sector_bytes)))
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

    /// Moves bytes between the device and memory anywhere in this process.
    ///
    /// # Safety
    /// `memory` has `bytes` bytes, to be written to unless `write`.
    unsafe fn by_address(
        &mut self,
        write: bool,
        memory: *mut c_void,
        bytes: usize,
        offset: u64,
    ) -> Result<i64, CallError> {
        let Limits { sector_bytes, .. } = *self.handle.limits();
        let sector = u64::from(sector_bytes);
        let refused = |what, value| {
            let allowed = "a multiple of the device's sector size";
            Err(CallError::Value { what, value, allowed })
        };
        if !(bytes as u64).is_multiple_of(sector) || bytes > i64::MAX as usize {
            return refused("bytes", bytes as u64);
        }
        if !offset.is_multiple_of(sector) {
            return refused("offset", offset);
        }
        if bytes == 0 {
            return Ok(0);
        }
        if memory.is_null() {
            return Err(CallError::Null("memory"));
        }
        let aligned = (memory as usize).is_multiple_of(512);
        let found = registered(&self.owner, memory as usize, bytes).filter(|_| aligned);
        let mut done = 0;
        while done < bytes {
            let most = match found {
                Some(_) => (u32::MAX as usize / 65_536) * sector_bytes as usize,
                None => BOUNCE_BYTES.max(sector_bytes as usize),
            };
            let count = (bytes - done).min(most);
            let (lba, sectors) = ((offset + done as u64) / sector, (count as u64 / sector) as u32);
            match found {
                Some(at) => {
                    self.transfer(write, lba, sectors, Payload::At(at.offset(done as u64)), false)?;
                }
                // SAFETY: the piece is inside of the caller's bytes.
                None => unsafe {
                    self.bounced(write, memory.cast::<u8>().add(done), count, lba, sectors)?;
                },
            }
            done += count;
        }
        Ok(bytes as i64)
    }

    /// One piece through the handle's own buffer.
    ///
    /// # Safety
    /// As for [`by_address`](Inner::by_address); `bytes` fit the buffer.
    unsafe fn bounced(
        &mut self,
        write: bool,
        memory: *mut u8,
        bytes: usize,
        lba: u64,
        sectors: u32,
    ) -> Result<(), CallError> {
        let bounce: Buffer = match self.bounce.take() {
            Some(bounce) => bounce,
            None => {
                let sector_bytes = self.handle.limits().sector_bytes as usize;
                self.device.buffer(BOUNCE_BYTES.max(sector_bytes))?
            }
        };
        let (data, at) = (bounce.payload(), bounce.pointer());
        if write {
            // SAFETY: both have that many bytes, and the caller's are no part of this buffer, which
            // nobody is told of.
            unsafe { at.copy_from_nonoverlapping(memory, bytes) };
        }
        let done = self.transfer(write, lba, sectors, data, false);
        if done.is_ok() && !write {
            // SAFETY: as above.
            unsafe { memory.copy_from_nonoverlapping(at, bytes) };
        }
        self.bounce = Some(bounce);
        done
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
        let mut inside = unsafe { Inside::enter(handle) }?;
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
        let mut inside = unsafe { Inside::enter(handle) }?;
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
        unsafe { Inside::enter(handle) }?.run(Request::flush(0))?;
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
        unsafe { Inside::enter(handle) }?.run(Request::discard(lba, sectors, 0))?;
        Ok(0)
    })
}

/// Makes sectors read as zeros.
///
/// @param handle The handle.
/// @param lba The first sector.
/// @param sectors How many.
/// @param flags `SLUICE_MAY_UNMAP`: the device may give the sectors up for it; or 0.
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
        let mut inside = unsafe { Inside::enter(handle) }?;
        let unmap = self::flags(flags, SLUICE_MAY_UNMAP, "SLUICE_MAY_UNMAP or 0")? != 0;
        inside.run(Request::write_zeroes(lba, sectors, unmap, 0))?;
        Ok(0)
    })
}

/// Reads bytes into memory, as `pread(2)` does: what programs that used a file are changed to first.
///
/// Memory inside of one `sluice_buffer` of the device that begins at a multiple of 512 is read into
/// directly, which takes a lock to find out; other memory is copied to.
///
/// @param handle The handle.
/// @param memory Where to.
/// @param bytes How many, a multiple of the device's sector size.
/// @param offset Where they are on the device, in bytes, a multiple of its sector size.
///
/// # Returns
///
/// `bytes`, or a negative `errno` as `sluice_read()`. There are no short reads: past the end it is
/// `-ERANGE`.
///
/// # Threads
///
/// The handle's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_pread(
    handle: *mut sluice_handle,
    memory: *mut c_void,
    bytes: usize,
    offset: u64,
) -> i64 {
    call(|| {
        // SAFETY: the pointers are as the header demands.
        unsafe { Inside::enter(handle)?.by_address(false, memory, bytes, offset) }
    })
}

/// Writes bytes from memory, as `pwrite(2)` does.
///
/// @param handle The handle.
/// @param memory Where from; see `sluice_pread()`.
/// @param bytes How many, a multiple of the device's sector size.
/// @param offset Where to on the device, in bytes, a multiple of its sector size.
///
/// # Returns
///
/// `bytes`, or a negative `errno` as `sluice_write()`. There are no short writes: past the end it is
/// `-ERANGE`.
///
/// # Threads
///
/// The handle's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_pwrite(
    handle: *mut sluice_handle,
    memory: *const c_void,
    bytes: usize,
    offset: u64,
) -> i64 {
    call(|| {
        // SAFETY: the pointers are as the header demands; what is written from is only read.
        unsafe { Inside::enter(handle)?.by_address(true, memory.cast_mut(), bytes, offset) }
    })
}
