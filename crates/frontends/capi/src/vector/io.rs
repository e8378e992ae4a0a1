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

/// Sectors to memory.
pub const SLUICE_VECTOR_READ: u32 = 1;
/// Memory to sectors: whole units of `ws_min`, at the write pointers of their chunks.
pub const SLUICE_VECTOR_WRITE: u32 = 2;
/// Erases the chunks that the addresses are in, each in one of its own.
pub const SLUICE_VECTOR_ERASE: u32 = 3;
/// Sectors to other sectors inside of the drive, out-of-band bytes included.
pub const SLUICE_VECTOR_COPY: u32 = 4;

/// The data needed much error correction, and should be rewritten elsewhere soon.
pub const SLUICE_VECTOR_HIGH_ECC: u16 = 1;

/// Maximum number of addresses in a command.
pub(crate) const ADDRESSES_MAX: u32 = MAX_VECTOR_ADDRESSES as u32;
/// Alignment of data in a buffer; that of out-of-band bytes is 8.
const ALIGNMENT: u64 = 512;
/// Tags from this value on are reserved for the library.
const INTERNAL_TAG_MIN: u64 = 1 << 63;

/// A vector command. Zero what does not apply to its operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_vector_request {
    /// `SLUICE_VECTOR_READ`, `SLUICE_VECTOR_WRITE`, `SLUICE_VECTOR_ERASE` or `SLUICE_VECTOR_COPY`.
    pub op: u32,
    /// Addresses: 1 to 64, or to the drive's `max_addresses` if data moves and that is less.
    pub count: u32,
    /// Addresses to read or write; for a copy, its sources. Not used after the call returns.
    pub addresses: *const u64,
    /// As many addresses, which a copy writes.
    pub targets: *const u64,
    /// Where the data of a read or write is, sector after sector; `NULL` drops what is read, and writes
    /// zeros. It must stay until the command has ended.
    pub buffer: *const sluice_buffer,
    /// Where in the buffer it begins, a multiple of 512 bytes.
    pub buffer_offset: u64,
    /// Where the out-of-band bytes of a read or write are, `oob_bytes` for each sector; `NULL` for none:
    /// a write writes zeros there. It must stay until the command has ended.
    pub oob: *const sluice_buffer,
    /// Where in that buffer they begin, a multiple of 8 bytes.
    pub oob_offset: u64,
    /// Returned with the completion; below 2^63.
    pub user_data: u64,
    /// 0.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// How a vector command ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_vector_completion {
    /// The request's.
    pub user_data: u64,
    /// Bit `i` stands for the `i`-th address (of a copy, the `i`-th target), which failed: it was not
    /// read, or may not have been written or erased. 0 exactly if `error` is 0.
    pub failed: u64,
    /// 0, or a negative `errno`: those of `struct sluice_completion`, and `-ENODATA` for sectors that are
    /// not written, or not readable yet, `-ESPIPE` for a write that is not at a write pointer or not of
    /// whole units, `-ERANGE` for addresses that the drive does not have or that may not be used here,
    /// `-EINVAL` also for chunks that cannot be erased in the state that they are in.
    pub error: i32,
    /// The NVMe status field that stands behind it, without its phase tag.
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
    /// Its buffers are `NULL`, or were returned by this library and not destroyed yet; its lists
    /// are `NULL`, or have as many addresses as it says.
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
        let has_memory = !buffer.is_null() || !oob.is_null();
        if !transfers && has_memory {
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
            _ => self.queue.copy(from, to.iter().map(|address| Ppa(*address)), user),
        }
    }

    /// Executes one command; others that complete meanwhile are reaped afterwards.
    fn run(&mut self, command: &Command<'_>) -> VectorCompletion {
        let own = INTERNAL_TAG_MIN | self.next_internal_tag;
        self.next_internal_tag = (self.next_internal_tag + 1) % INTERNAL_TAG_MIN;
        // The queue is full of the caller's commands: wait for one.
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

/// Reads 1 to 64 sectors of an open-channel drive into a buffer, and waits for it.
///
/// @param queue The queue.
/// @param addresses The sectors' addresses.
/// @param count How many.
/// @param buffer Where to, sector after sector; `NULL` drops what is read.
/// @param buffer_offset Where in the buffer, a multiple of 512 bytes.
/// @param failed Where the bits of the addresses go that were not read; may be `NULL`. Not written when the
/// command was not sent.
///
/// # Returns
///
/// 0, or a negative `errno`: those of `struct sluice_vector_completion`, with what `failed` does not name
/// read all the same; and `-EINVAL` or `-EXDEV` for an argument that cannot be, `-EBUSY` while another call is
/// inside of the queue.
///
/// # Threads
///
/// The queue's.
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

/// Writes 1 to 64 sectors of an open-channel drive from a buffer, and waits for it.
///
/// @param queue The queue.
/// @param addresses The sectors' addresses: whole units of `ws_min`, at the write pointers of their chunks.
/// @param count How many.
/// @param buffer Where from, sector after sector; `NULL` writes zeros.
/// @param buffer_offset Where in the buffer, a multiple of 512 bytes.
/// @param failed Where the bits of the addresses go that may not be written; may be `NULL`. Not written when
/// the command was not sent.
///
/// # Returns
///
/// As `sluice_vector_read()`.
///
/// # Threads
///
/// The queue's.
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

/// Erases 1 to 64 chunks of an open-channel drive, and waits for it.
///
/// @param queue The queue.
/// @param addresses An address in each chunk.
/// @param count How many.
/// @param failed Where the bits of the addresses go whose chunks may not be erased; may be `NULL`. Not
/// written when the command was not sent.
///
/// # Returns
///
/// As `sluice_vector_read()`.
///
/// # Threads
///
/// The queue's.
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

/// Copies 1 to 64 sectors inside of an open-channel drive, out-of-band bytes included, and waits for it.
///
/// @param queue The queue.
/// @param addresses The addresses of what is read.
/// @param targets As many addresses of what is written, as for `sluice_vector_write()`.
/// @param count How many.
/// @param failed Where the bits of the targets go that may not be written: all of them, when something
/// cannot be read. May be `NULL`. Not written when the command was not sent.
///
/// # Returns
///
/// As `sluice_vector_read()`; `-EOPNOTSUPP` for a drive without `SLUICE_VECTOR_CAN_COPY`.
///
/// # Threads
///
/// The queue's.
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

/// Executes any vector command, also with out-of-band bytes, and waits for it.
///
/// @param queue The queue.
/// @param request The command; its `user_data` is returned.
/// @param completion Receives the result. Not written if the command was not sent.
///
/// # Returns
///
/// 0 when the command has completed, successfully or not: see `completion->error`. Or `-EINVAL` or
/// `-EXDEV` for an invalid command, `-EOPNOTSUPP` for a copy if the drive supports none, `-EBUSY`
/// while another call is inside of the queue.
///
/// # Threads
///
/// The queue's.
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

/// Submits vector commands: they are with the drive when the call returns.
///
/// It takes as many as there is room for, in order, and stops at the first that it cannot take: submit the
/// rest again after reaping. The drive carries out those of one parallel unit in their order, and others in
/// any.
///
/// @param queue The queue.
/// @param requests The commands; not looked at after the call.
/// @param count How many.
///
/// # Returns
///
/// How many were taken, at least 1 unless `count` is 0; or, if not even the first was,
///
/// * `-EAGAIN`: the queue is full.
/// * `-EINVAL`, `-EXDEV`, `-EOPNOTSUPP`: as `sluice_vector_run()`. What only the drive can judge, such as an
///   address that it does not have, is in the completion.
/// * `-EBUSY`: another call is inside of the queue.
///
/// # Threads
///
/// The queue's. It neither allocates nor locks.
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

/// Takes vector commands that have ended, without waiting.
///
/// @param queue The queue.
/// @param completions Where they go.
/// @param room How many there is room for.
///
/// # Returns
///
/// How many there were, 0 if nothing has ended; or `-EINVAL`, or `-EBUSY` while another call is inside of
/// the queue.
///
/// # Threads
///
/// The queue's. It neither allocates nor locks.
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

/// Waits for vector commands to end, as the queue was told to wait.
///
/// @param queue The queue.
/// @param completions Where they go.
/// @param room How many there is room for, at least 1.
/// @param min How many to wait for; no more than are outstanding, or than there is room for, are waited for
/// in any case. With 0 it is `sluice_vector_reap()`.
/// @param timeout_ns How long at most; `SLUICE_TIMEOUT_INFINITE` for no limit.
///
/// # Returns
///
/// How many there were, fewer than `min` if the time has passed, or if no more are outstanding; or
/// `-EINVAL`, or `-EBUSY` while another call is inside of the queue.
///
/// # Threads
///
/// The queue's.
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
