//! Wait modes of a handle, and its file descriptor for `poll(2)` and `epoll(7)`.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

use time::{Component, Nanos};
use user_io::{DirectError, Handle, WaitMode};

use crate::error::{CallError, call};
use crate::handle::device::HandleStack;
use crate::handle::options::{SLUICE_WAIT_EVENT, parse_wait, value_error};
use crate::handle::single_thread::{Guard, sluice_handle};

/// Sets the wait mode of a handle. A mode that sleeps needs a device or a poller that can wake the
/// handle.
pub(crate) fn set_wait(
    handle: &mut Handle<Box<dyn HandleStack>>,
    wait: WaitMode,
) -> Result<(), CallError> {
    handle.set_wait(wait).map_err(|error| match error {
        DirectError::NoInterrupts { .. } => {
            let allowed = "not over a queue with SLUICE_QUEUE_NO_INTERRUPTS, or of a controller that has none \
                           (uio:), that no poller watches: nobody would wake it";
            value_error("wait", SLUICE_WAIT_EVENT, allowed)
        }
        error => error.into(),
    })
}

/// Sets the wait mode of a handle. The handle must have no outstanding requests.
///
/// @param handle The handle.
/// @param wait `SLUICE_WAIT_POLL`, `SLUICE_WAIT_EVENT` or `SLUICE_WAIT_HYBRID`.
/// @param hybrid_percent As in `struct sluice_handle_options`.
/// @param hybrid_late_ns As in `struct sluice_handle_options`, in nanoseconds.
///
/// # Returns
///
/// 0, or `-EINVAL` if an argument is invalid, requests are outstanding, or neither the device nor a
/// poller can wake the handle (`SLUICE_WAIT_EVENT`), or `-EBUSY` if another call uses the handle.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_set_wait(
    handle: *mut sluice_handle,
    wait: u32,
    hybrid_percent: u32,
    hybrid_late_ns: u64,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { Guard::enter(handle) }?;
        let wait = parse_wait(wait, hybrid_percent, hybrid_late_ns)?;
        set_wait(&mut inside.handle, wait)?;
        inside.wait = wait;
        Ok(0)
    })
}

/// Returns the number of outstanding requests of a handle: submitted and not reaped.
///
/// @param handle The handle.
///
/// # Returns
///
/// The number of requests, or `-EINVAL` if `handle` is `NULL`, or `-EBUSY` if another call uses the
/// handle.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_outstanding(handle: *const sluice_handle) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let inside = unsafe { Guard::enter(handle) }?;
        Ok(inside.handle.outstanding().min(c_int::MAX as u32) as c_int)
    })
}

/// Returns a file descriptor that becomes readable when the handle has completions, for `poll(2)`
/// or `epoll(7)` together with other descriptors.
///
/// The handle must be in mode `SLUICE_WAIT_EVENT`. Call `sluice_handle_arm()` before each sleep and
/// `sluice_handle_disarm()` after it. The application must neither read from the descriptor nor
/// close it.
///
/// @param handle The handle.
///
/// # Returns
///
/// The descriptor, valid until the handle is destroyed, or `-EINVAL` if `handle` is `NULL`, or
/// `-EBUSY` if another call uses the handle.
///
/// # Threads
///
/// One thread at a time for each handle. Any thread may wait for the descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_fd(handle: *const sluice_handle) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let inside = unsafe { Guard::enter(handle) }?;
        Ok(inside.handle.as_fd().as_raw_fd())
    })
}

/// Arms a handle's descriptor before a sleep, and returns whether the caller may sleep.
///
/// @param handle The handle.
/// @param timeout_ns Receives the maximum time to sleep, in nanoseconds: the time until the handle
/// must be polled although the device raises no event, for example because a rate limit ends;
/// `UINT64_MAX` for no limit; 0 if the call returns 0. May be `NULL`.
///
/// # Returns
///
/// 1: the descriptor is armed; sleep, then call `sluice_handle_disarm()`. 0: completions are
/// available and the descriptor is not armed; call `sluice_reap()`. Or `-EINVAL` if `handle` is
/// `NULL` or not in mode `SLUICE_WAIT_EVENT`, or `-EBUSY` if another call uses the handle.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_arm(
    handle: *mut sluice_handle,
    timeout_ns: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { Guard::enter(handle) }?;
        if inside.wait != WaitMode::Interrupt {
            let allowed =
                "a handle that waits for events: sluice_handle_set_wait(), SLUICE_WAIT_EVENT";
            return Err(value_error("handle", 0u32, allowed));
        }
        let sleep = inside.handle.arm();
        let left = match inside.handle.device().deadline() {
            Nanos::MAX => u64::MAX,
            deadline => deadline.since(inside.clock.now()).0,
        };
        if !timeout_ns.is_null() {
            // SAFETY: not NULL, and writable as the header demands.
            unsafe { timeout_ns.write(if sleep { left } else { 0 }) };
        }
        Ok(sleep.into())
    })
}

/// Disarms a handle's descriptor after a sleep. The descriptor is not readable until it is armed
/// again.
///
/// @param handle The handle.
///
/// # Returns
///
/// 0, or `-EINVAL` if `handle` is `NULL`, or `-EBUSY` if another call uses the handle.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_disarm(handle: *mut sluice_handle) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { Guard::enter(handle) }?;
        inside.handle.disarm();
        Ok(0)
    })
}
