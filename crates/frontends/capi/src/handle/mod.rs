//! Handles: creation over queues and policies, and destruction (`nvmed_create_handle`,
//! `nvmed_create_mq_handle`).

pub(crate) mod device;
pub(crate) mod event_fd;
pub(crate) mod options;
pub(crate) mod single_thread;
pub(crate) mod stats;

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{Group, Request};
use time::Nanos;
use user_io::{Handle, IoError, MultiQueue, Op, QueueSelector, WritePolicy};

use crate::device::{hand_out, init_out_pointer, object_ref};
use crate::error::{CallError, call};
use crate::handle::device::handle_stack;
use crate::handle::event_fd::set_wait;
use crate::handle::options::{
    SLUICE_WAIT_POLL, parse_cache, parse_selector, parse_wait, sluice_handle_options, value_error,
};
use crate::handle::single_thread::{Guard, HandleInner, sluice_handle};
use crate::options::read_struct;
use crate::queue::binding::{QueueBinding, QueueOwner};
use crate::queue::sluice_queue;

/// Timeout for the device when a handle is destroyed. Longer than the time after which a file's
/// queue abandons commands.
const CLOSE_TIMEOUT_SECONDS: u64 = 60;

/// Creates a handle over queues of one device.
fn create_handle(
    homes: &[Arc<QueueOwner>],
    options: &sluice_handle_options,
) -> Result<HandleInner, CallError> {
    let Some(first) = homes.first() else {
        return Err(value_error("count", 0u32, "1 queue or more"));
    };
    if homes.iter().any(|home| !Arc::ptr_eq(&home.device_ref, &first.device_ref)) {
        return Err(CallError::Foreign("queues"));
    }
    let wait = parse_wait(options.wait, options.hybrid_percent, options.hybrid_late_ns)?;
    let group = u16::try_from(options.group)
        .map_err(|_| value_error("group", options.group, "0 to 65535"))?;
    let cache = parse_cache(options)?;
    let selector = parse_selector(options)?;
    let taken: Result<Vec<QueueBinding>, CallError> =
        homes.iter().map(|home| QueueBinding::bind(home, Group(group))).collect();
    let mut taken = taken?;
    let lanes = homes.iter().cloned().zip(taken.iter().map(|lane| lane.outstanding().clone()));
    let lanes = lanes.collect();
    let device = first.device.clone();
    let one = match (taken.len(), &selector) {
        (1, QueueSelector::RoundRobin) => taken.pop(),
        (1, _) => return Err(value_error("selector", options.selector, "0 with one queue")),
        _ => None,
    };
    let stack = match one {
        Some(queue) => handle_stack(&device, queue, cache)?,
        None => handle_stack(&device, MultiQueue::new(taken, selector)?, cache)?,
    };
    let wait = match (options.wait, device.completion()) {
        (SLUICE_WAIT_POLL, Some(policy)) => policy.into(),
        _ => wait,
    };
    let mut handle = Handle::new(&device, stack)?;
    set_wait(&mut handle, wait)?;
    Ok(HandleInner {
        handle,
        wait,
        clock: device.clock(),
        device,
        owner: first.device_ref.clone(),
        bindings: lanes,
        has_write_back: cache
            .is_some_and(|config| config.write_policy != WritePolicy::WriteThrough),
        counters: Default::default(),
        bounce: None,
        table: None,
    })
}

/// Creates a handle over one queue.
///
/// @param queue The queue. No other handle may be bound to it, unless it was created with
/// `SLUICE_QUEUE_SHARED`.
/// @param options Wait mode, group and block cache, or `NULL` for the defaults.
/// @param handle Receives the handle, or `NULL` if the call fails.
///
/// # Returns
///
/// 0, or
///
/// * `-EINVAL`: an invalid argument or option.
/// * `-E2BIG`: an option of a later version.
/// * `-EBUSY`: another handle is bound to the queue.
/// * `-ENOMEM`, `-EMFILE`: no memory for the cache, no file descriptor.
///
/// # Threads
///
/// Any thread. The handle is not bound to a thread, but is for one thread at a time: a call on the
/// handle during another call on it fails with `-EBUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_create(
    queue: *const sluice_queue,
    options: *const sluice_handle_options,
    handle: *mut *mut sluice_handle,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (queue, options) = unsafe {
            init_out_pointer("handle", handle)?;
            (object_ref("queue", queue)?, read_struct(options)?)
        };
        let inner = create_handle(std::slice::from_ref(&queue.home), &options)?;
        // SAFETY: accepted above.
        unsafe { hand_out(handle, sluice_handle::new(inner)) };
        Ok(0)
    })
}

/// Creates a handle over several queues of one device, for example one for reads and one for
/// writes.
///
/// Requests on different queues are not ordered. A flush goes to one queue, and makes all completed
/// writes durable, on whichever queue they completed.
///
/// @param queues The queues, each at most once.
/// @param count Number of queues, 1 to 65535; at least 2 for `SLUICE_SELECT_BY_DIRECTION` and
/// `SLUICE_SELECT_BY_SIZE`.
/// @param options Queue selection, wait mode, group and block cache, or `NULL` for the defaults.
/// @param handle Receives the handle, or `NULL` if the call fails.
///
/// # Returns
///
/// As `sluice_handle_create()`, and `-EXDEV` if the queues belong to different devices.
///
/// # Threads
///
/// As `sluice_handle_create()`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_create_mq(
    queues: *const *mut sluice_queue,
    count: usize,
    options: *const sluice_handle_options,
    handle: *mut *mut sluice_handle,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let options = unsafe {
            init_out_pointer("handle", handle)?;
            read_struct(options)?
        };
        if queues.is_null() {
            return Err(CallError::Null("queues"));
        }
        if count == 0 || count > u16::MAX.into() {
            return Err(value_error("count", count as u64, "1 to 65535 queues"));
        }
        // SAFETY: not NULL, and the header demands as many pointers there.
        let pointers = unsafe { std::slice::from_raw_parts(queues, count) };
        let homes: Result<Vec<Arc<QueueOwner>>, CallError> = pointers
            .iter()
            // SAFETY: each is as the header demands.
            .map(|queue| Ok(unsafe { object_ref("queues", *queue) }?.home.clone()))
            .collect();
        let inner = create_handle(&homes?, &options)?;
        // SAFETY: accepted above.
        unsafe { hand_out(handle, sluice_handle::new(inner)) };
        Ok(0)
    })
}

/// Waits until the handle has no requests in flight, and flushes a write-back cache.
fn drain_and_flush(inner: &mut HandleInner) -> Result<(), CallError> {
    let limit = inner.clock.now() + Nanos::from_millis(1000 * CLOSE_TIMEOUT_SECONDS);
    let unanswered =
        |outstanding| CallError::Timeout { outstanding, seconds: CLOSE_TIMEOUT_SECONDS };
    while inner.handle.outstanding() > 0 {
        if inner.handle.wait_until(limit).is_none() {
            return Err(unanswered(inner.handle.outstanding()));
        }
    }
    let mut flushed = Ok(());
    if inner.has_write_back {
        inner.handle.submit(Request::flush(0))?;
        match inner.handle.wait_until(limit) {
            None => return Err(unanswered(1)),
            Some(ended) if ended.status.is_success() => {}
            Some(ended) => {
                let status = ended.status;
                let failed = IoError::Status { op: Op::Flush, lba: 0, sectors: 0, status };
                flushed = Err(failed.into());
            }
        }
    }
    // Blocks being read ahead are still being written to memory that will be freed.
    loop {
        let left: u32 = inner.bindings.iter().map(|(_, count)| count.load(Ordering::Relaxed)).sum();
        if left == 0 {
            return flushed;
        }
        if inner.clock.now() > limit {
            return Err(unanswered(left));
        }
        if !inner.handle.poll() {
            std::thread::yield_now();
        }
    }
}

/// Destroys a handle.
///
/// The call waits up to 60 seconds for the outstanding requests, and discards their completions. A
/// write-back cache is written to the device and flushed. Afterwards the queues can be bound to
/// other handles, or destroyed.
///
/// @param handle The handle; unless the call fails with `-EBUSY`, it must not be used after the
/// call. `NULL` has no effect.
///
/// # Returns
///
/// 0, or
///
/// * `-EBUSY`: another call uses the handle; the handle is unchanged.
/// * `-EIO`, ...: the cache could not be written. The handle is destroyed and the contents of its
///   cache are lost. `-EIO` also if this call closed the device and the drive was not shut down
///   cleanly; see `sluice_close()`.
/// * `-ETIMEDOUT`: the device does not complete the requests. The handle is destroyed; its queues
///   stay bound and its memory stays allocated.
/// * `-ENOTRECOVERABLE`: an earlier call on the handle failed with an internal error. Otherwise as
///   `-ETIMEDOUT`.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_destroy(handle: *mut sluice_handle) -> c_int {
    call(|| {
        if handle.is_null() {
            return Ok(0);
        }
        // SAFETY: not NULL, and the pointer is as the header demands.
        let broken = Guard::close(unsafe { object_ref("handle", handle) }?)?;
        // SAFETY: made by `hand_out`, the caller releases it, and no thread is inside.
        let handle = unsafe { Box::from_raw(handle) };
        if broken {
            std::mem::forget(handle);
            return Err(CallError::Poisoned);
        }
        let mut inner = handle.into_inner();
        match drain_and_flush(&mut inner) {
            Err(error @ CallError::Timeout { .. }) => {
                // The device may still write to its memory, so leak it.
                std::mem::forget(inner);
                Err(error)
            }
            settled => {
                let owner = inner.owner.clone();
                let gone = owner.release(inner);
                settled.and(gone).map(|()| 0)
            }
        }
    })
}
