//! Concurrent requests: submitted, and reaped in the order of completion.

pub(crate) mod blocking;
pub(crate) mod vectored;

use std::ffi::c_int;
use std::sync::Arc;

use block::{Completion, Op, Payload, Request};
use time::Nanos;
use user_io::IoError;

use crate::device::buffer::sluice_buffer;
use crate::device::device_ref::DeviceRef;
use crate::device::object_ref;
use crate::error::{CallError, call, status_errno};
use crate::handle::single_thread::{Guard, HandleInner, sluice_handle};

/// Read sectors into a buffer.
pub const SLUICE_OP_READ: u32 = 1;
/// Write sectors from a buffer.
pub const SLUICE_OP_WRITE: u32 = 2;
/// Make all completed writes durable.
pub const SLUICE_OP_FLUSH: u32 = 3;
/// Discard sectors: the device may drop their contents, and they read as zeros afterwards.
pub const SLUICE_OP_DISCARD: u32 = 4;
/// Write zeros to sectors without transferring data.
pub const SLUICE_OP_WRITE_ZEROES: u32 = 5;

/// Force unit access: the write completes when it is durable.
pub const SLUICE_FUA: u32 = 1;
/// The device may deallocate the sectors of a Write Zeroes.
pub const SLUICE_DEALLOCATE: u32 = 2;

/// Atomic: a power cut does not tear the write, or the Write Zeroes without `SLUICE_DEALLOCATE`. It has
/// at most `atomic_sectors` sectors and crosses no boundary (`struct sluice_device_info`); otherwise it
/// is refused, and nothing is written.
pub const SLUICE_ATOMIC: u32 = 4;

/// Wait without a time limit.
pub const SLUICE_TIMEOUT_INFINITE: u64 = u64::MAX;

/// Alignment of offsets in a buffer. Direct I/O and all drives accept it.
const ALIGNMENT: u64 = 512;
/// Tags from this value on are reserved for the library.
const INTERNAL_TAG_MIN: u64 = 1 << 63;

/// A request. Members that do not apply to the operation must be 0 or `NULL`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_request {
    /// `SLUICE_OP_READ`, `SLUICE_OP_WRITE`, `SLUICE_OP_FLUSH`, `SLUICE_OP_DISCARD` or
    /// `SLUICE_OP_WRITE_ZEROES`.
    pub op: u32,
    /// `SLUICE_FUA` for a write, `SLUICE_DEALLOCATE` for a Write Zeroes, `SLUICE_ATOMIC` for either; or 0.
    pub flags: u32,
    /// First sector.
    pub lba: u64,
    /// Number of sectors, at least 1; at most the device's `max_sectors` for reads and writes. 0
    /// for a flush.
    pub sectors: u32,
    /// Reserved; must be 0.
    pub reserved: u32,
    /// Buffer of a read or write. It must not be destroyed before the request completes.
    pub buffer: *const sluice_buffer,
    /// Offset of the data in the buffer, in bytes; a multiple of 512.
    pub buffer_offset: u64,
    /// Value that the completion returns; below 2^63.
    pub user_data: u64,
}

/// Completion of a request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_completion {
    /// `user_data` of the request.
    pub user_data: u64,
    /// 0, or a negative `errno`: `-EIO` for a media error, `-EILSEQ` for data that does not match its
    /// protection information, `-ERANGE` for sectors beyond the end of the device, `-EINVAL` for an invalid length or field, `-EROFS`, `-ENOSPC`, `-EOPNOTSUPP`,
    /// `-EFAULT` for a failed data transfer, `-EBUSY` if the device is not ready, `-ENODEV` if it
    /// was removed, `-ECONNRESET` if its server has ended, `-ECANCELED`.
    pub error: i32,
    /// NVMe status field without the phase tag (NVMe 1.2, section 4.6.1), from which `error`
    /// derives.
    pub status: u16,
    /// 0.
    pub reserved: u16,
}

/// Returns the C code of an operation.
pub(crate) fn op_code(op: Op) -> u32 {
    match op {
        Op::Read => SLUICE_OP_READ,
        Op::Write => SLUICE_OP_WRITE,
        Op::Flush => SLUICE_OP_FLUSH,
        Op::Discard => SLUICE_OP_DISCARD,
        Op::WriteZeroes => SLUICE_OP_WRITE_ZEROES,
        // This interface has no extent queries.
        Op::Extents => 0,
    }
}

/// Returns the payload of a transfer of `sectors` sectors, at `offset` of a buffer.
///
/// # Safety
/// `buffer` is `NULL`, or was returned by this library and not destroyed yet.
pub(crate) unsafe fn payload(
    owner: &Arc<DeviceRef>,
    buffer: *const sluice_buffer,
    offset: u64,
    sectors: u32,
    sector_bytes: u32,
) -> Result<Payload, CallError> {
    // SAFETY: guaranteed by the caller.
    let buffer = unsafe { object_ref("buffer", buffer) }?;
    if !Arc::ptr_eq(&buffer.owner, owner) {
        return Err(CallError::Foreign("buffer"));
    }
    let bytes = u64::from(sectors) * u64::from(sector_bytes);
    let len = buffer.buffer.len() as u64;
    if !offset.is_multiple_of(ALIGNMENT) {
        let allowed = "a multiple of 512";
        return Err(CallError::Value { what: "buffer_offset", value: offset, allowed });
    }
    if offset > len || bytes > len - offset {
        let allowed = "the data ends inside of the buffer";
        return Err(CallError::Value { what: "buffer_offset", value: offset, allowed });
    }
    Ok(Payload::Contiguous(buffer.buffer.iova().offset(offset)))
}

impl HandleInner {
    /// Converts a caller's request.
    ///
    /// # Safety
    /// The request's buffer is `NULL`, or was returned by this library and not destroyed yet.
    unsafe fn parse_request(&self, from: &sluice_request) -> Result<Request, CallError> {
        let &sluice_request { op, flags, lba, sectors, buffer, buffer_offset, user_data, .. } =
            from;
        let refused = |what, value, allowed| Err(CallError::Value { what, value, allowed });
        if from.reserved != 0 {
            return refused("reserved", from.reserved.into(), "0");
        }
        if user_data >= INTERNAL_TAG_MIN {
            return refused("user_data", user_data, "below 2^63");
        }
        let known = match op {
            SLUICE_OP_WRITE => SLUICE_FUA | SLUICE_ATOMIC,
            SLUICE_OP_WRITE_ZEROES => SLUICE_DEALLOCATE | SLUICE_ATOMIC,
            _ => 0,
        };
        if flags & !known != 0 {
            let allowed =
                "SLUICE_FUA with a write, SLUICE_DEALLOCATE with zeroes, SLUICE_ATOMIC with either";
            return refused("flags", flags.into(), allowed);
        }
        let data = match op {
            SLUICE_OP_READ | SLUICE_OP_WRITE => {
                let sector_bytes = self.handle.limits().sector_bytes;
                // SAFETY: guaranteed by the caller.
                unsafe { payload(&self.owner, buffer, buffer_offset, sectors, sector_bytes) }?
            }
            _ if !buffer.is_null() || buffer_offset != 0 => {
                return refused("buffer", buffer_offset, "NULL and 0 for what moves no data");
            }
            _ => Payload::BitBucket,
        };
        let atomic = flags & SLUICE_ATOMIC != 0;
        let request = match op {
            SLUICE_OP_READ => Request::read(lba, sectors, data, user_data),
            SLUICE_OP_WRITE => {
                let write = Request::write(lba, sectors, data, user_data);
                Request { fua: flags & SLUICE_FUA != 0, atomic, ..write }
            }
            SLUICE_OP_FLUSH if lba != 0 || sectors != 0 => {
                return refused(
                    "sectors",
                    sectors.into(),
                    "a flush is of everything: `lba` and `sectors` are 0",
                );
            }
            SLUICE_OP_FLUSH => Request::flush(user_data),
            SLUICE_OP_DISCARD => Request::discard(lba, sectors, user_data),
            SLUICE_OP_WRITE_ZEROES => {
                let may_unmap = flags & SLUICE_DEALLOCATE != 0;
                Request { atomic, ..Request::write_zeroes(lba, sectors, may_unmap, user_data) }
            }
            _ => {
                return refused(
                    "op",
                    op.into(),
                    "SLUICE_OP_READ, _WRITE, _FLUSH, _DISCARD or _WRITE_ZEROES",
                );
            }
        };
        Ok(request)
    }

    /// Converts a completion for the caller, and counts it.
    #[inline]
    fn record_completion(&mut self, completion: Completion) -> sluice_completion {
        let error = -status_errno(completion.status);
        self.counters.errors += u64::from(error != 0);
        let (user_data, status) = (completion.tag, completion.status.to_bits());
        sluice_completion { user_data, error, status, reserved: 0 }
    }

    /// Reaps completions up to the capacity; polls only if none was ready.
    ///
    /// # Safety
    /// `into` has `room` elements.
    unsafe fn reap_into(&mut self, into: *mut sluice_completion, room: usize) -> usize {
        let mut count = 0;
        while count < room {
            let Some(completion) = self.handle.reap() else { break };
            let ended = self.record_completion(completion);
            // SAFETY: within the caller's array.
            unsafe { into.add(count).write(ended) };
            count += 1;
        }
        count
    }
}

/// Checks an array for completions; returns its capacity, limited to the range of a count.
pub(crate) fn check_capacity<T>(into: *mut T, room: usize) -> Result<usize, CallError> {
    if into.is_null() && room > 0 {
        return Err(CallError::Null("completions"));
    }
    Ok(room.min(c_int::MAX as usize))
}

/// Submits requests. The call passes all accepted requests to the device before it returns.
///
/// The call accepts requests in order, and stops at the first one that it cannot accept, for
/// example because the queue is full. Reap completions and submit the remaining requests again.
/// Requests may complete in any order, and the device may execute overlapping requests in any
/// order. To order two requests, wait for the first before submitting the second.
///
/// @param handle The handle.
/// @param requests The requests. The library does not access the array after the call.
/// @param count Number of requests.
///
/// # Returns
///
/// The number of accepted requests, at least 1 unless `count` is 0. If the call accepts none,
///
/// * `-EAGAIN`: the queue is full.
/// * `-EINVAL`: an argument is `NULL`, or a member of the first request is invalid. The device
///   checks the address; that error is in the completion.
/// * `-EXDEV`: the buffer of the first request belongs to another device.
/// * `-EBUSY`: another call uses the handle.
///
/// # Threads
///
/// One thread at a time for each handle. The call neither allocates memory nor takes a lock, unless
/// a shared queue, scheduler, callback or cache does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_submit(
    handle: *mut sluice_handle,
    requests: *const sluice_request,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { Guard::enter(handle) }?;
        if count == 0 {
            return Ok(0);
        }
        if requests.is_null() {
            return Err(CallError::Null("requests"));
        }
        let count = count.min(c_int::MAX as usize);
        // SAFETY: not NULL, and the header demands as many requests there.
        let requests = unsafe { std::slice::from_raw_parts(requests, count) };
        let inner = &mut *inside;
        let mut taken = 0;
        let mut stopped = Ok(());
        for request in requests {
            // SAFETY: the header demands it of every buffer.
            stopped = match unsafe { inner.parse_request(request) } {
                Err(error) => Err(error),
                Ok(request) => match inner.handle.submit(request) {
                    Ok(()) => {
                        inner.counters.record(&request);
                        taken += 1;
                        continue;
                    }
                    Err(IoError::Busy(_)) => {
                        inner.counters.busy += 1;
                        Err(CallError::Busy)
                    }
                    Err(error) => Err(error.into()),
                },
            };
            break;
        }
        // Ring the doorbell once for all requests. Also poll if none was accepted, because completed
        // requests may have filled the queue.
        inner.handle.poll();
        match (taken, stopped) {
            (0, Err(error)) => Err(error),
            (taken, _) => Ok(taken),
        }
    })
}

/// Reaps completions without waiting.
///
/// @param handle The handle.
/// @param completions Receives the completions.
/// @param room Capacity of `completions`, in elements.
///
/// # Returns
///
/// The number of completions, 0 if none is available; or `-EINVAL` if a pointer is `NULL`, or
/// `-EBUSY` if another call uses the handle.
///
/// # Threads
///
/// One thread at a time for each handle. The call neither allocates memory nor takes a lock, unless
/// a shared queue, scheduler or cache does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_reap(
    handle: *mut sluice_handle,
    completions: *mut sluice_completion,
    room: usize,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { Guard::enter(handle) }?;
        let room = check_capacity(completions, room)?;
        // SAFETY: the header demands an array of this capacity.
        let mut count = unsafe { inside.reap_into(completions, room) };
        if count == 0 && room > 0 {
            inside.handle.poll();
            // SAFETY: as above.
            count = unsafe { inside.reap_into(completions, room) };
        }
        Ok(count as c_int)
    })
}

/// Waits for completions in the handle's wait mode, and reaps them.
///
/// @param handle The handle.
/// @param completions Receives the completions.
/// @param room Capacity of `completions`, in elements; at least 1.
/// @param min Number of completions to wait for. The call does not wait for more than are
/// outstanding or than `room`. With 0 it does not wait, as `sluice_reap()`.
/// @param timeout_ns Maximum time to wait, in nanoseconds; `SLUICE_TIMEOUT_INFINITE` for no limit.
///
/// # Returns
///
/// The number of completions; less than `min` if the time has passed or no more requests are
/// outstanding. Or `-EINVAL` if a pointer is `NULL` or `room` is 0, or `-EBUSY` if another call
/// uses the handle.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_wait(
    handle: *mut sluice_handle,
    completions: *mut sluice_completion,
    room: usize,
    min: usize,
    timeout_ns: u64,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { Guard::enter(handle) }?;
        let room = check_capacity(completions, room)?;
        if room == 0 {
            return Err(CallError::Value { what: "room", value: 0, allowed: "1 or more" });
        }
        let limit = Nanos(inside.clock.now().0.saturating_add(timeout_ns));
        inside.handle.poll();
        // SAFETY: the header demands an array of this capacity.
        let mut count = unsafe { inside.reap_into(completions, room) };
        while count < min.min(room) {
            let Some(completion) = inside.handle.wait_until(limit) else { break };
            let ended = inside.record_completion(completion);
            // SAFETY: within the caller's array: `count` is less than `room`.
            unsafe { completions.add(count).write(ended) };
            count += 1;
            // SAFETY: the rest of the caller's array.
            count += unsafe { inside.reap_into(completions.add(count), room - count) };
        }
        Ok(count as c_int)
    })
}
