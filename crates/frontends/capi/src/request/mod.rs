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

/// Sectors to memory.
pub const SLUICE_OP_READ: u32 = 1;
/// Memory to sectors.
pub const SLUICE_OP_WRITE: u32 = 2;
/// Everything that has completed becomes durable.
pub const SLUICE_OP_FLUSH: u32 = 3;
/// The sectors' contents are no longer needed; they read as zeros afterwards.
pub const SLUICE_OP_DISCARD: u32 = 4;
/// The sectors read as zeros afterwards.
pub const SLUICE_OP_WRITE_ZEROES: u32 = 5;

/// A write completes when it is durable.
pub const SLUICE_FUA: u32 = 1;
/// The device may deallocate the sectors that read as zeros.
pub const SLUICE_DEALLOCATE: u32 = 2;

/// A timeout without limit.
pub const SLUICE_TIMEOUT_INFINITE: u64 = u64::MAX;

/// Alignment of offsets in a buffer, which direct I/O and every drive accept.
const ALIGNMENT: u64 = 512;
/// Tags from this value on are reserved for the library.
const INTERNAL_TAG_MIN: u64 = 1 << 63;

/// A request. Zero what does not apply to its operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_request {
    /// `SLUICE_OP_READ`, `SLUICE_OP_WRITE`, `SLUICE_OP_FLUSH`, `SLUICE_OP_DISCARD` or
    /// `SLUICE_OP_WRITE_ZEROES`.
    pub op: u32,
    /// `SLUICE_FUA` with a write, `SLUICE_DEALLOCATE` with zeroes.
    pub flags: u32,
    /// The first sector.
    pub lba: u64,
    /// Sectors: 1 or more, reads and writes up to the device's `max_sectors`; 0 for a flush.
    pub sectors: u32,
    /// 0.
    pub reserved: u32,
    /// Where the data of a read or write is. It must stay until the request has ended.
    pub buffer: *const sluice_buffer,
    /// Where in the buffer it begins, a multiple of 512 bytes.
    pub buffer_offset: u64,
    /// Returned with the completion; below 2^63.
    pub user_data: u64,
}

/// How a request ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_completion {
    /// The request's.
    pub user_data: u64,
    /// 0, or a negative `errno`: `-EIO` for what the medium has lost or did not take, `-ERANGE` past the
    /// end, `-EINVAL` for a length that the device does not take, `-EROFS`, `-ENOSPC`, `-EOPNOTSUPP`,
    /// `-EFAULT`, `-EBUSY` for a device that is not ready, `-ENODEV` for one that is gone, `-ECANCELED`.
    pub error: i32,
    /// The NVMe status field that stands behind it, without its phase tag (NVMe 1.2, section 4.6.1).
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
    /// Its buffer is `NULL`, or was returned by this library and not destroyed yet.
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
            SLUICE_OP_WRITE => SLUICE_FUA,
            SLUICE_OP_WRITE_ZEROES => SLUICE_DEALLOCATE,
            _ => 0,
        };
        if flags & !known != 0 {
            let allowed = "SLUICE_FUA with a write, SLUICE_DEALLOCATE with zeroes";
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
        let request = match op {
            SLUICE_OP_READ => Request::read(lba, sectors, data, user_data),
            SLUICE_OP_WRITE => {
                let write = Request::write(lba, sectors, data, user_data);
                Request { fua: flags & SLUICE_FUA != 0, ..write }
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
                Request::write_zeroes(lba, sectors, flags & SLUICE_DEALLOCATE != 0, user_data)
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

/// Submits requests: they are with the device when the call returns.
///
/// It takes as many as there is room for, in order, and stops at the first that it cannot take: submit the
/// rest again after reaping. Requests may end in any order, and those that overlap may be carried out in
/// any; who needs an order waits in between.
///
/// @param handle The handle.
/// @param requests The requests; not looked at after the call.
/// @param count How many.
///
/// # Returns
///
/// How many were taken, at least 1 unless `count` is 0; or, if not even the first was,
///
/// * `-EAGAIN`: the queue is full.
/// * `-EINVAL`: the first request says something that cannot be. What only the device can judge, such as an
///   address past its end, is in the completion.
/// * `-EXDEV`: its buffer is of another device.
/// * `-EBUSY`: another call is inside of the handle.
///
/// # Threads
///
/// The handle's. It neither allocates nor locks, unless a policy or a shared queue does.
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
        // Ring the doorbell once for all. Also if nothing was accepted, because completed requests
        // may have filled the queue.
        inner.handle.poll();
        match (taken, stopped) {
            (0, Err(error)) => Err(error),
            (taken, _) => Ok(taken),
        }
    })
}

/// Takes completions, without waiting.
///
/// @param handle The handle.
/// @param completions Where they go.
/// @param room How many there is room for.
///
/// # Returns
///
/// How many there were, 0 if nothing has ended; or `-EINVAL`, or `-EBUSY` while another call is inside of
/// the handle.
///
/// # Threads
///
/// The handle's. It neither allocates nor locks, unless a policy or a shared queue does.
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

/// Waits for completions, as the handle was told to wait.
///
/// @param handle The handle.
/// @param completions Where they go.
/// @param room How many there is room for, at least 1.
/// @param min How many to wait for; no more than are outstanding, or than there is room for, are waited for
/// in any case. With 0 it is `sluice_reap()`.
/// @param timeout_ns How long at most; `SLUICE_TIMEOUT_INFINITE` for no limit.
///
/// # Returns
///
/// How many there were, fewer than `min` if the time has passed, or if no more are outstanding; or
/// `-EINVAL`, or `-EBUSY` while another call is inside of the handle.
///
/// # Threads
///
/// The handle's.
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
