//! Transfers by memory address, with one fragment or several (`preadv(2)`; SGL of [NVMe1.2 §4.4]).
//!
//! Registered and suitably aligned fragments are passed to the device directly, as many per request
//! as it accepts. Others are copied through the handle's bounce buffer.

use std::ffi::{c_int, c_void};

use block::{Limits, Payload, Segment};
use libc::iovec;
use mem::Iova;
use user_io::Buffer;

use crate::device::buffer::registered_iova;
use crate::error::{CallError, call};
use crate::handle::single_thread::{Guard, HandleInner, sluice_handle};

/// Bytes of the bounce buffer.
const BOUNCE_BYTES: usize = 256 << 10;
/// Maximum number of fragments in a call, as for `preadv(2)` (`IOV_MAX`).
const IOVECS_MAX: c_int = 1024;
/// Maximum number of fragments in a request: a page of segments.
const SEGMENTS_MAX: u16 = 256;

/// Position of a transfer in a caller's memory.
#[derive(Clone, Copy)]
struct IovecCursor<'a> {
    iovecs: &'a [iovec],
    /// Bytes of the first fragment that were transferred.
    offset: usize,
}

impl IovecCursor<'_> {
    /// Returns the rest of the current fragment, skipping empty ones.
    fn current(&mut self) -> Option<(*mut u8, usize)> {
        while let Some((first, rest)) = self.iovecs.split_first() {
            if self.offset < first.iov_len {
                let memory = first.iov_base.cast::<u8>().wrapping_add(self.offset);
                return Some((memory, first.iov_len - self.offset));
            }
            (self.iovecs, self.offset) = (rest, 0);
        }
        None
    }

    /// Advances by at most the rest of the current fragment.
    fn advance(&mut self, bytes: usize) {
        self.offset += bytes;
    }
}

impl HandleInner {
    fn sector(&self) -> usize {
        self.handle.limits().sector_bytes as usize
    }

    /// Transfers data between the device and any memory of this process.
    ///
    /// # Safety
    /// The fragments are valid memory, and writable unless `write`.
    unsafe fn transfer_iovecs(
        &mut self,
        write: bool,
        pieces: &[iovec],
        offset: u64,
    ) -> Result<i64, CallError> {
        let sector = self.sector();
        let mut bytes = 0usize;
        for piece in pieces {
            let sum = bytes.checked_add(piece.iov_len).filter(|sum| *sum <= i64::MAX as usize);
            let (what, allowed) = ("bytes", "below 2^63 in all");
            let value = piece.iov_len as u64;
            bytes = sum.ok_or(CallError::Value { what, value, allowed })?;
        }
        for (what, value) in [("bytes", bytes as u64), ("offset", offset)] {
            if !value.is_multiple_of(sector as u64) {
                let allowed = "a multiple of the device's sector size";
                return Err(CallError::Value { what, value, allowed });
            }
        }
        if pieces.iter().any(|piece| piece.iov_base.is_null() && piece.iov_len > 0) {
            return Err(CallError::Null("memory"));
        }
        let mut cursor = IovecCursor { iovecs: pieces, offset: 0 };
        let mut done = 0;
        while done < bytes {
            let lba = offset.saturating_add(done as u64) / sector as u64;
            done += match self.registered_segment(&mut cursor) {
                Some(_) => self.transfer_direct(write, lba, &mut cursor)?,
                // SAFETY: guaranteed by the caller.
                None => unsafe { self.transfer_bounced(write, lba, &mut cursor) }?,
            };
        }
        Ok(bytes as i64)
    }

    /// Returns the rest of the current fragment for direct access, if possible: registered, aligned
    /// to 512 bytes, and whole sectors.
    fn registered_segment(&self, cursor: &mut IovecCursor<'_>) -> Option<(Iova, usize)> {
        let (memory, bytes) = cursor.current()?;
        let whole = (memory as usize).is_multiple_of(512) && bytes.is_multiple_of(self.sector());
        let at = whole.then(|| registered_iova(&self.owner, memory as usize, bytes))??;
        Some((at, bytes))
    }

    /// Executes one request with at least one directly accessible fragment. Returns its bytes.
    fn transfer_direct(
        &mut self,
        write: bool,
        lba: u64,
        cursor: &mut IovecCursor<'_>,
    ) -> Result<usize, CallError> {
        let Limits { max_sectors, .. } = *self.handle.limits();
        let sector = self.sector();
        let most = sector * (max_sectors as usize).min((u32::MAX as usize) / sector);
        let segments_max = self.device.features().segments.clamp(1, SEGMENTS_MAX);
        let mut data = None;
        let (mut bytes, mut segments) = (0, 0);
        while bytes < most
            && segments < segments_max
            && let Some((at, left)) = self.registered_segment(cursor)
        {
            let count = left.min(most - bytes);
            // `most` fits in 32 bits.
            let segment = Segment { at: Some(at), bytes: count as u32 };
            data = Some(match data {
                None => Payload::Contiguous(at),
                Some(Payload::Contiguous(first)) => {
                    let first = Segment { at: Some(first), bytes: bytes as u32 };
                    self.write_segment(0, first)?;
                    self.write_segment(1, segment)?
                }
                Some(_) => self.write_segment(segments, segment)?,
            });
            cursor.advance(count);
            bytes += count;
            segments += 1;
        }
        if let Some(data) = data {
            self.transfer(write, lba, (bytes / sector) as u32, data, false)?;
        }
        Ok(bytes)
    }

    /// Writes a segment into the handle's table, which is valid until the next such request.
    /// Returns the table up to that segment.
    fn write_segment(&mut self, index: u16, segment: Segment) -> Result<Payload, CallError> {
        if self.table.is_none() {
            self.table = Some(self.device.buffer(usize::from(SEGMENTS_MAX) * Segment::BYTES)?);
        }
        let Some(table) = &self.table else { return Err(CallError::Poisoned) };
        for (word, value) in segment.encode().iter().enumerate() {
            table.write(usize::from(index) * Segment::BYTES + 8 * word, &value.to_le_bytes());
        }
        Ok(Payload::Scattered { table: table.iova(), segments: index + 1 })
    }

    /// Transfers whole sectors through the bounce buffer, until it is full or the next fragment is
    /// directly accessible. Returns the number of bytes.
    ///
    /// # Safety
    /// As for [`transfer_iovecs`](HandleInner::transfer_iovecs).
    unsafe fn transfer_bounced(
        &mut self,
        write: bool,
        lba: u64,
        cursor: &mut IovecCursor<'_>,
    ) -> Result<usize, CallError> {
        let sector = self.sector();
        let most = (BOUNCE_BYTES / sector).max(1) * sector;
        let bounce: Buffer = match self.bounce.take() {
            Some(bounce) => bounce,
            None => self.device.buffer(most)?,
        };
        let start = *cursor;
        let mut bytes = 0;
        while bytes < most
            && let Some((memory, left)) = cursor.current()
        {
            let at_sector = bytes > 0 && bytes.is_multiple_of(sector);
            if at_sector && self.registered_segment(cursor).is_some() {
                break;
            }
            let count = left.min(most - bytes);
            if write {
                // SAFETY: the fragment has these bytes and the buffer `most`; the caller's memory
                // cannot overlap the buffer, which is private.
                unsafe { bounce.pointer().add(bytes).copy_from_nonoverlapping(memory, count) };
            }
            cursor.advance(count);
            bytes += count;
        }
        let sectors = (bytes / sector) as u32;
        let done = self.transfer(write, lba, sectors, bounce.payload(), false);
        if done.is_ok() && !write {
            let (mut back, mut copied) = (start, 0);
            while copied < bytes
                && let Some((memory, left)) = back.current()
            {
                let count = left.min(bytes - copied);
                // SAFETY: as above.
                unsafe { memory.copy_from_nonoverlapping(bounce.pointer().add(copied), count) };
                back.advance(count);
                copied += count;
            }
        }
        self.bounce = Some(bounce);
        done.map(|()| bytes)
    }
}

/// Returns the fragments of a call.
///
/// # Safety
/// `pieces` is `NULL`, or has `count` elements.
unsafe fn iovecs_of<'a>(pieces: *const iovec, count: c_int) -> Result<&'a [iovec], CallError> {
    if !(0..=IOVECS_MAX).contains(&count) {
        // Negative values are shown in two's complement.
        let value = i64::from(count) as u64;
        return Err(CallError::Value { what: "count", value, allowed: "0 to 1024" });
    }
    match (pieces.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(CallError::Null("pieces")),
        // SAFETY: not NULL, and of that length as guaranteed by the caller.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts(pieces, count as usize) }),
    }
}

/// Reads bytes into memory, as `pread(2)` does. Programs written for files need the fewest changes
/// with this call.
///
/// The device reads directly into memory that is inside one `sluice_buffer` of the device and
/// aligned to 512 bytes; the call takes a lock of the process to find the buffer. Otherwise the
/// call copies the data through a buffer of the handle.
///
/// @param handle The handle.
/// @param memory Receives the data.
/// @param bytes Number of bytes, a multiple of the device's sector size.
/// @param offset Offset on the device in bytes, a multiple of its sector size.
///
/// # Returns
///
/// `bytes`, or a negative `errno` as `sluice_read()`, or `-ENOMEM` if memory for the copy cannot be
/// allocated. There are no short reads: a read beyond the end of the device fails with `-ERANGE`.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_pread(
    handle: *mut sluice_handle,
    memory: *mut c_void,
    bytes: usize,
    offset: u64,
) -> i64 {
    call(|| {
        let piece = iovec { iov_base: memory, iov_len: bytes };
        // SAFETY: the pointers are as the header demands.
        unsafe { Guard::enter(handle)?.transfer_iovecs(false, &[piece], offset) }
    })
}

/// Writes bytes from memory, as `pwrite(2)` does.
///
/// @param handle The handle.
/// @param memory The data; see `sluice_pread()` for when it is copied.
/// @param bytes Number of bytes, a multiple of the device's sector size.
/// @param offset Offset on the device in bytes, a multiple of its sector size.
///
/// # Returns
///
/// `bytes`, or a negative `errno` as `sluice_write()`, or `-ENOMEM` if memory for the copy cannot
/// be allocated. There are no short writes: a write beyond the end of the device fails with
/// `-ERANGE`.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_pwrite(
    handle: *mut sluice_handle,
    memory: *const c_void,
    bytes: usize,
    offset: u64,
) -> i64 {
    call(|| {
        let piece = iovec { iov_base: memory.cast_mut(), iov_len: bytes };
        // SAFETY: the pointers are as the header demands; what is written from is only read.
        unsafe { Guard::enter(handle)?.transfer_iovecs(true, &[piece], offset) }
    })
}

/// Reads bytes into several fragments of memory in order, as `preadv(2)` does.
///
/// The device reads directly into a fragment that is inside one `sluice_buffer` of the device,
/// aligned to 512 bytes and a multiple of the sector size. One request transfers as many of these
/// as the device supports: drives, files and the null device up to 256, targets one. The call
/// copies all other fragments through a buffer of the handle. It takes a lock of the process to
/// find the buffers.
///
/// @param handle The handle.
/// @param pieces The fragments: addresses and lengths in bytes. Empty fragments are skipped.
/// @param count Number of fragments, 0 to 1024.
/// @param offset Offset on the device in bytes. It, and the total length of the fragments, must be
/// multiples of the device's sector size.
///
/// # Returns
///
/// The total length in bytes, or a negative `errno` as `sluice_read()`, or `-ENOMEM` if memory for
/// the copy cannot be allocated. There are no short reads: a read beyond the end of the device
/// fails with `-ERANGE`. After a failure some fragments may have been read.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_preadv(
    handle: *mut sluice_handle,
    pieces: *const iovec,
    count: c_int,
    offset: u64,
) -> i64 {
    call(|| {
        // SAFETY: the pointers are as the header demands.
        unsafe { Guard::enter(handle)?.transfer_iovecs(false, iovecs_of(pieces, count)?, offset) }
    })
}

/// Writes bytes from several fragments of memory in order, as `pwritev(2)` does.
///
/// @param handle The handle.
/// @param pieces The fragments; see `sluice_preadv()` for which are copied.
/// @param count Number of fragments, 0 to 1024.
/// @param offset Offset on the device in bytes. It, and the total length of the fragments, must be
/// multiples of the device's sector size.
///
/// # Returns
///
/// The total length in bytes, or a negative `errno` as `sluice_write()`, or `-ENOMEM` if memory for
/// the copy cannot be allocated. There are no short writes: a write beyond the end of the device
/// fails with `-ERANGE`. After a failure some fragments may have been written.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_pwritev(
    handle: *mut sluice_handle,
    pieces: *const iovec,
    count: c_int,
    offset: u64,
) -> i64 {
    call(|| {
        // SAFETY: the pointers are as the header demands; what is written from is only read.
        unsafe { Guard::enter(handle)?.transfer_iovecs(true, iovecs_of(pieces, count)?, offset) }
    })
}
