//! Vector commands: blocking, or concurrent and reaped in the order of completion; with a status
//! bit per address.

use std::ffi::c_int;
use std::ptr::null;
use std::sync::Arc;

use driver::QueueFull;
use mem::Iova;
use nvme::{MAX_VECTOR_ADDRESSES, Ppa};
use ocssd::vector::{DataSegments, VectorCompletion};
use time::Nanos;

use crate::device::buffer::sluice_buffer;
use crate::device::{object_ref, reserved};
use crate::error::{CallError, call, status_errno};
use crate::handle::options::value_error;
use crate::request::check_capacity;
use crate::vector::{VectorQueueInner, enter, sluice_vector_queue};

/// Read sectors into a buffer.
pub const SLUICE_VECTOR_READ: u32 = 1;
/// Write sectors from a buffer: whole units of `ws_min` sectors, at the write pointers of their
/// chunks.
pub const SLUICE_VECTOR_WRITE: u32 = 2;
/// Erase chunks. Each address selects a different chunk.
pub const SLUICE_VECTOR_ERASE: u32 = 3;
/// Copy sectors inside the drive. Without `oob`, their out-of-band bytes are copied as well.
pub const SLUICE_VECTOR_COPY: u32 = 4;

/// The data needed much error correction. It should be rewritten at another location soon.
pub const SLUICE_VECTOR_HIGH_ECC: u16 = 1;

/// Maximum number of addresses in a command.
pub(crate) const ADDRESSES_MAX: u32 = MAX_VECTOR_ADDRESSES as u32;
/// Alignment of data in a buffer, in bytes; that of out-of-band bytes is 8.
const ALIGNMENT: u64 = 512;
/// Tags from this value on are reserved for the library.
const INTERNAL_TAG_MIN: u64 = 1 << 63;

/// A vector command. Members that do not apply to the operation must be 0 or `NULL`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_vector_request {
    /// `SLUICE_VECTOR_READ`, `SLUICE_VECTOR_WRITE`, `SLUICE_VECTOR_ERASE` or `SLUICE_VECTOR_COPY`.
    pub op: u32,
    /// Number of addresses: 1 to 64; for reads and writes at most the drive's `max_addresses`.
    pub count: u32,
    /// Array of `count` addresses: sectors to read or write, a sector of each chunk to erase, or
    /// the sources of a copy. The library does not access the array after the call.
    pub addresses: *const u64,
    /// Targets of a copy: array of `count` addresses. The library does not access it after the
    /// call.
    pub targets: *const u64,
    /// Buffer of a read or write, with the sectors in the order of the addresses. With `NULL` the
    /// drive discards the data of a read, and writes zeros. The buffer must not be destroyed before
    /// the command completes.
    pub buffer: *const sluice_buffer,
    /// Offset of the data in `buffer`, in bytes; a multiple of 512.
    pub buffer_offset: u64,
    /// Buffer for the out-of-band bytes of a read or write, or of the targets of a copy on drives of
    /// Sluice, `oob_bytes` per sector. With `NULL` the drive transfers none, and writes zeros, or
    /// copies those of the sources. The buffer must not be destroyed before the command completes.
    pub oob: *const sluice_buffer,
    /// Offset of the out-of-band bytes in `oob`, in bytes; a multiple of 8.
    pub oob_offset: u64,
    /// Value that the completion returns; below 2^63.
    pub user_data: u64,
    /// Reserved; must be 0.
    pub flags: u32,
    /// Reserved; must be 0.
    pub reserved: u32,
}

/// Completion of a vector command.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_vector_completion {
    /// `user_data` of the request.
    pub user_data: u64,
    /// Failed addresses: bit `i` stands for the `i`-th address, or for the `i`-th target of a copy.
    /// The sector was not read, or may not have been written or erased. 0 if and only if `error` is
    /// 0.
    pub failed: u64,
    /// 0, or a negative `errno` as in `struct sluice_completion`, and: `-ENODATA` for sectors that
    /// are not written or not readable yet; `-ESPIPE` for a write that is not at a write pointer or
    /// not of whole units; `-ERANGE` for addresses that the drive does not have or the application
    /// may not use; `-EINVAL` also for chunks that cannot be erased in their state.
    pub error: i32,
    /// NVMe status field without the phase tag (NVMe 1.2, section 4.6.1), from which `error`
    /// derives.
    pub status: u16,
    /// `SLUICE_VECTOR_HIGH_ECC`, or 0.
    pub flags: u16,
}

/// A parsed command.
struct Command<'a> {
    op: u32,
    from: &'a [u64],
    to: &'a [u64],
    data: Option<Iova>,
    oob: Option<Iova>,
}

fn op_name(op: u32) -> &'static str {
    match op {
        SLUICE_VECTOR_READ => "read",
        SLUICE_VECTOR_WRITE => "write",
        SLUICE_VECTOR_ERASE => "erase",
        _ => "copy",
    }
}

/// Returns the device address of `bytes` at `offset` of a buffer; `None` for `NULL`.
///
/// # Safety
/// `buffer` is `NULL`, or was returned by this library and not destroyed yet.
unsafe fn memory(
    inside: &VectorQueueInner,
    (name, buffer): (&'static str, *const sluice_buffer),
    (what, offset): (&'static str, u64),
    (bytes, alignment): (u64, u64),
) -> Result<Option<Iova>, CallError> {
    let refused = |allowed| Err(CallError::Value { what, value: offset, allowed });
    if buffer.is_null() {
        return if offset == 0 { Ok(None) } else { refused("0 without a buffer") };
    }
    // SAFETY: guaranteed by the caller.
    let buffer = unsafe { object_ref(name, buffer) }?;
    if !Arc::ptr_eq(&buffer.owner, &inside.owner) {
        return Err(CallError::Foreign(name));
    }
    let len = buffer.buffer.len() as u64;
    if !offset.is_multiple_of(alignment) {
        return refused("a multiple of 512, or of 8 for out-of-band bytes");
    }
    if offset > len || bytes > len - offset {
        return refused("what it is about ends inside of the buffer");
    }
    Ok(Some(buffer.buffer.iova().offset(offset)))
}

impl VectorQueueInner {
    /// Converts a caller's request.
    ///
    /// # Safety
    /// The request's buffers are `NULL`, or were returned by this library and not destroyed yet; its
    /// arrays are `NULL`, or have `count` addresses.
    unsafe fn parse_request<'a>(
        &self,
        from: &sluice_vector_request,
    ) -> Result<Command<'a>, CallError> {
        let &sluice_vector_request { op, count, addresses, targets, .. } = from;
        reserved(from.reserved)?;
        if from.flags != 0 {
            return Err(value_error("flags", from.flags, "0"));
        }
        if from.user_data >= INTERNAL_TAG_MIN {
            return Err(value_error("user_data", from.user_data, "below 2^63"));
        }
        let transfers = matches!(op, SLUICE_VECTOR_READ | SLUICE_VECTOR_WRITE);
        if !transfers && !matches!(op, SLUICE_VECTOR_ERASE | SLUICE_VECTOR_COPY) {
            let allowed = "SLUICE_VECTOR_READ, _WRITE, _ERASE or _COPY";
            return Err(value_error("op", op, allowed));
        }
        let limit = if transfers { self.queue.max_sectors() } else { ADDRESSES_MAX };
        if !(1..=limit).contains(&count) {
            let allowed = "1 to 64 addresses, and reads and writes to the drive's max_addresses";
            return Err(value_error("count", count, allowed));
        }
        if addresses.is_null() {
            return Err(CallError::Null("addresses"));
        }
        // SAFETY: not NULL, and of `count` addresses as guaranteed by the caller.
        let list = unsafe { std::slice::from_raw_parts(addresses, count as usize) };
        let to = match (op, targets.is_null()) {
            (SLUICE_VECTOR_COPY, true) => return Err(CallError::Null("targets")),
            (SLUICE_VECTOR_COPY, false) if !self.can_copy => return Err(CallError::NoCopies),
            // SAFETY: as above.
            (SLUICE_VECTOR_COPY, false) => unsafe {
                std::slice::from_raw_parts(targets, count as usize)
            },
            (_, true) => &[],
            (_, false) => return Err(value_error("targets", 1u32, "NULL for what is no copy")),
        };
        let (buffer, oob) = (from.buffer, from.oob);
        if op == SLUICE_VECTOR_COPY && !oob.is_null() && !self.copies_with_oob {
            return Err(value_error("oob", 1u32, "NULL: this drive copies those of the sources"));
        }
        let has_oob = !oob.is_null() && op != SLUICE_VECTOR_COPY;
        if !transfers && (has_oob || !buffer.is_null()) {
            return Err(value_error("buffer", 1u32, "NULL for what moves no data"));
        }
        let bytes = |each: u32| u64::from(count) * u64::from(each);
        if !oob.is_null() && self.oob_bytes == 0 {
            return Err(value_error("oob", 1u32, "NULL: sectors of this drive have no such bytes"));
        }
        let place = ("buffer_offset", from.buffer_offset);
        // SAFETY: guaranteed by the caller.
        let data = unsafe {
            memory(self, ("buffer", buffer), place, (bytes(self.sector_bytes), ALIGNMENT))
        }?;
        let place = ("oob_offset", from.oob_offset);
        // SAFETY: as above.
        let oob = unsafe { memory(self, ("oob", oob), place, (bytes(self.oob_bytes), 8)) }?;
        Ok(Command { op, from: list, to, data, oob })
    }

    /// Submits a command to the queue; the next poll rings the doorbell.
    fn push(&mut self, command: &Command<'_>, user: u64) -> Result<(), QueueFull> {
        let &Command { op, from, to, data, oob } = command;
        let from = from.iter().map(|address| Ppa(*address));
        let data = data.map_or(DataSegments::BitBucket, DataSegments::Contiguous);
        match op {
            SLUICE_VECTOR_READ => self.queue.read(from, data, oob, user),
            SLUICE_VECTOR_WRITE => self.queue.write(from, data, oob, user),
            SLUICE_VECTOR_ERASE => self.queue.reset(from, user),
            _ => self.queue.copy(from, to.iter().map(|address| Ppa(*address)), oob, user),
        }
    }

    /// Executes one command. Other commands that complete meanwhile are reaped afterwards.
    fn run(&mut self, command: &Command<'_>) -> VectorCompletion {
        let own = INTERNAL_TAG_MIN | self.next_internal_tag;
        self.next_internal_tag = (self.next_internal_tag + 1) % INTERNAL_TAG_MIN;
        // The queue is full of the caller's commands: wait for one to complete.
        while self.push(command, own).is_err() {
            if !self.poll() {
                self.pause(Nanos::MAX);
            }
        }
        loop {
            self.poll();
            if let Some(ended) = self.reap_internal(own) {
                return ended;
            }
            self.pause(Nanos::MAX);
        }
    }

    /// Executes a request, and stores its failed addresses in `failed` unless that is `NULL`.
    ///
    /// # Safety
    /// As for [`parse_request`](VectorQueueInner::parse_request); `failed` is `NULL` or writable.
    unsafe fn call(
        &mut self,
        request: &sluice_vector_request,
        failed: *mut u64,
    ) -> Result<c_int, CallError> {
        // SAFETY: guaranteed by the caller.
        let command = unsafe { self.parse_request(request) }?;
        let ended = self.run(&command);
        if !failed.is_null() {
            // SAFETY: not NULL, and writable as guaranteed by the caller.
            unsafe { failed.write(ended.failed) };
        }
        match ended.status.is_success() {
            true => Ok(0),
            false => Err(CallError::Vector {
                what: op_name(request.op),
                count: request.count,
                failed: ended.failed,
                status: ended.status,
            }),
        }
    }

    /// Reaps completions up to the capacity.
    ///
    /// # Safety
    /// `into` has `room` elements.
    unsafe fn reap_into(&mut self, into: *mut sluice_vector_completion, room: usize) -> usize {
        let mut count = 0;
        while count < room {
            let Some(ended) = self.reap() else { break };
            // SAFETY: within the caller's array.
            unsafe { into.add(count).write(to_completion(&ended)) };
            count += 1;
        }
        count
    }
}

fn to_completion(ended: &VectorCompletion) -> sluice_vector_completion {
    sluice_vector_completion {
        user_data: ended.user_data,
        failed: ended.failed,
        error: -status_errno(ended.status),
        status: ended.status.to_bits(),
        flags: if ended.high_ecc { SLUICE_VECTOR_HIGH_ECC } else { 0 },
    }
}

/// Builds the request of a blocking call.
fn request(op: u32, addresses: *const u64, count: u32) -> sluice_vector_request {
    sluice_vector_request {
        op,
        count,
        addresses,
        targets: null(),
        buffer: null(),
        buffer_offset: 0,
        oob: null(),
        oob_offset: 0,
        user_data: 0,
        flags: 0,
        reserved: 0,
    }
}

/// Reads 1 to 64 sectors of an open-channel drive into a buffer, and waits for the completion.
///
/// @param queue The queue.
/// @param addresses Addresses of the sectors.
/// @param count Number of addresses.
/// @param buffer Receives the sectors in the order of the addresses; with `NULL` the drive discards
/// the data.
/// @param buffer_offset Offset of the data in the buffer, in bytes; a multiple of 512.
/// @param failed Receives the bits of the addresses that were not read; may be `NULL`. Not written
/// if the command was not submitted.
///
/// # Returns
///
/// 0, or
///
/// * a negative `errno` as in `struct sluice_vector_completion`: the drive failed the command.
///   Addresses that are not in `failed` were executed.
/// * `-EINVAL`: an argument is `NULL` or invalid, or the data does not fit into the buffer.
/// * `-EXDEV`: the buffer belongs to another device.
/// * `-EBUSY`: another call uses the queue.
///
/// # Threads
///
/// One thread at a time for each vector queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_read(
    queue: *mut sluice_vector_queue,
    addresses: *const u64,
    count: u32,
    buffer: *mut sluice_buffer,
    buffer_offset: u64,
    failed: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { enter(queue) }?;
        let plain = request(SLUICE_VECTOR_READ, addresses, count);
        let request = sluice_vector_request { buffer, buffer_offset, ..plain };
        // SAFETY: as above.
        unsafe { inside.call(&request, failed) }
    })
}

/// Writes 1 to 64 sectors of an open-channel drive from a buffer, and waits for the completion.
///
/// @param queue The queue.
/// @param addresses Addresses of the sectors: whole units of `ws_min` sectors, at the write
/// pointers of their chunks.
/// @param count Number of addresses.
/// @param buffer The sectors in the order of the addresses; with `NULL` the drive writes zeros.
/// @param buffer_offset Offset of the data in the buffer, in bytes; a multiple of 512.
/// @param failed Receives the bits of the addresses that may not have been written; may be `NULL`.
/// Not written if the command was not submitted.
///
/// # Returns
///
/// As `sluice_vector_read()`.
///
/// # Threads
///
/// One thread at a time for each vector queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_write(
    queue: *mut sluice_vector_queue,
    addresses: *const u64,
    count: u32,
    buffer: *const sluice_buffer,
    buffer_offset: u64,
    failed: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { enter(queue) }?;
        let plain = request(SLUICE_VECTOR_WRITE, addresses, count);
        let request = sluice_vector_request { buffer, buffer_offset, ..plain };
        // SAFETY: as above.
        unsafe { inside.call(&request, failed) }
    })
}

/// Erases 1 to 64 chunks of an open-channel drive, and waits for the completion.
///
/// @param queue The queue.
/// @param addresses An address in each chunk.
/// @param count Number of addresses.
/// @param failed Receives the bits of the addresses whose chunks may not have been erased; may be
/// `NULL`. Not written if the command was not submitted.
///
/// # Returns
///
/// As `sluice_vector_read()`.
///
/// # Threads
///
/// One thread at a time for each vector queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_erase(
    queue: *mut sluice_vector_queue,
    addresses: *const u64,
    count: u32,
    failed: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { enter(queue) }?;
        let request = request(SLUICE_VECTOR_ERASE, addresses, count);
        // SAFETY: as above.
        unsafe { inside.call(&request, failed) }
    })
}

/// Copies 1 to 64 sectors inside an open-channel drive, including their out-of-band bytes, and
/// waits for the completion.
///
/// @param queue The queue.
/// @param addresses Addresses of the source sectors.
/// @param targets Addresses of the target sectors; the rules are those of `sluice_vector_write()`.
/// @param count Number of addresses in each array.
/// @param failed Receives the bits of the targets that may not have been written: all of them if a
/// source could not be read. May be `NULL`. Not written if the command was not submitted.
///
/// # Returns
///
/// As `sluice_vector_read()`; `-EOPNOTSUPP` if the drive does not have `SLUICE_VECTOR_CAN_COPY`.
///
/// # Threads
///
/// One thread at a time for each vector queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_copy(
    queue: *mut sluice_vector_queue,
    addresses: *const u64,
    targets: *const u64,
    count: u32,
    failed: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { enter(queue) }?;
        if targets.is_null() {
            return Err(CallError::Null("targets"));
        }
        let plain = request(SLUICE_VECTOR_COPY, addresses, count);
        let request = sluice_vector_request { targets, ..plain };
        // SAFETY: as above.
        unsafe { inside.call(&request, failed) }
    })
}

/// Executes any vector command, also with out-of-band bytes, and waits for the completion.
///
/// @param queue The queue.
/// @param request The command. The completion returns its `user_data`.
/// @param completion Receives the completion. Not written if the command was not submitted.
///
/// # Returns
///
/// 0 if the command has completed, successfully or not: see `completion->error`. Or
///
/// * `-EINVAL`: an argument is `NULL`, or a member of the request is invalid.
/// * `-EXDEV`: a buffer belongs to another device.
/// * `-EOPNOTSUPP`: a copy, and the drive does not have `SLUICE_VECTOR_CAN_COPY`.
/// * `-EBUSY`: another call uses the queue.
///
/// # Threads
///
/// One thread at a time for each vector queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_run(
    queue: *mut sluice_vector_queue,
    request: *const sluice_vector_request,
    completion: *mut sluice_vector_completion,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (mut inside, request) = unsafe { (enter(queue)?, object_ref("request", request)?) };
        if completion.is_null() {
            return Err(CallError::Null("completion"));
        }
        // SAFETY: as above.
        let command = unsafe { inside.parse_request(request) }?;
        let ended = VectorCompletion { user_data: request.user_data, ..inside.run(&command) };
        // SAFETY: not NULL, and writable as the header demands.
        unsafe { completion.write(to_completion(&ended)) };
        Ok(0)
    })
}

/// Submits vector commands. The call passes all accepted commands to the drive before it returns.
///
/// The call accepts commands in order, and stops at the first one that it cannot accept, for
/// example because the queue is full. Reap completions and submit the remaining commands again. The
/// drive executes the commands of one parallel unit in order, and commands of different parallel
/// units in any order.
///
/// @param queue The queue.
/// @param requests The commands. The library does not access the array after the call.
/// @param count Number of commands.
///
/// # Returns
///
/// The number of accepted commands, at least 1 unless `count` is 0. If the call accepts none,
///
/// * `-EAGAIN`: the queue is full.
/// * `-EINVAL`, `-EXDEV`, `-EOPNOTSUPP`: as `sluice_vector_run()`, for the first command. The drive
///   checks the addresses; that error is in the completion.
/// * `-EBUSY`: another call uses the queue.
///
/// # Threads
///
/// One thread at a time for each vector queue. The call neither allocates memory nor takes a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_submit(
    queue: *mut sluice_vector_queue,
    requests: *const sluice_vector_request,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { enter(queue) }?;
        if count == 0 {
            return Ok(0);
        }
        if requests.is_null() {
            return Err(CallError::Null("requests"));
        }
        let count = count.min(c_int::MAX as usize);
        // SAFETY: not NULL, and the header demands as many requests there.
        let requests = unsafe { std::slice::from_raw_parts(requests, count) };
        let mut taken = 0;
        let mut stopped = Ok(());
        for request in requests {
            // SAFETY: as above.
            let understood = unsafe { inside.parse_request(request) };
            stopped = understood.and_then(|command| match inside.has_capacity() {
                true => inside.push(&command, request.user_data).map_err(|_| CallError::Busy),
                false => Err(CallError::Busy),
            });
            if stopped.is_err() {
                break;
            }
            taken += 1;
        }
        inside.poll();
        match (taken, stopped) {
            (0, Err(error)) => Err(error),
            (taken, _) => Ok(taken),
        }
    })
}

/// Reaps completions of vector commands without waiting.
///
/// @param queue The queue.
/// @param completions Receives the completions.
/// @param room Capacity of `completions`, in elements.
///
/// # Returns
///
/// The number of completions, 0 if none is available; or `-EINVAL` if a pointer is `NULL`, or
/// `-EBUSY` if another call uses the queue.
///
/// # Threads
///
/// One thread at a time for each vector queue. The call neither allocates memory nor takes a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_reap(
    queue: *mut sluice_vector_queue,
    completions: *mut sluice_vector_completion,
    room: usize,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { enter(queue) }?;
        let room = check_capacity(completions, room)?;
        inside.poll();
        // SAFETY: the header demands an array of this capacity.
        Ok(unsafe { inside.reap_into(completions, room) } as c_int)
    })
}

/// Waits for completions of vector commands in the queue's wait mode, and reaps them.
///
/// @param queue The queue.
/// @param completions Receives the completions.
/// @param room Capacity of `completions`, in elements; at least 1.
/// @param min Number of completions to wait for. The call does not wait for more than are
/// outstanding or than `room`. With 0 it does not wait, as `sluice_vector_reap()`.
/// @param timeout_ns Maximum time to wait, in nanoseconds; `SLUICE_TIMEOUT_INFINITE` for no limit.
///
/// # Returns
///
/// The number of completions; less than `min` if the time has passed or no more commands are
/// outstanding. Or `-EINVAL` if a pointer is `NULL` or `room` is 0, or `-EBUSY` if another call
/// uses the queue.
///
/// # Threads
///
/// One thread at a time for each vector queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_wait(
    queue: *mut sluice_vector_queue,
    completions: *mut sluice_vector_completion,
    room: usize,
    min: usize,
    timeout_ns: u64,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { enter(queue) }?;
        let room = check_capacity(completions, room)?;
        if room == 0 {
            return Err(value_error("room", 0u32, "1 or more"));
        }
        let limit = inside.deadline(timeout_ns);
        let mut count = 0;
        loop {
            inside.poll();
            // SAFETY: the rest of the caller's array.
            count += unsafe { inside.reap_into(completions.add(count), room - count) };
            if count >= min.min(room) || inside.outstanding() == 0 || inside.has_passed(limit) {
                return Ok(count as c_int);
            }
            inside.pause(limit);
        }
    })
}
