//! Wait modes of a handle, and sleeping on its descriptor together with others.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

use time::{Component, Nanos};
use user_io::{DirectError, Handle, WaitMode};

use crate::error::{CallError, call};
use crate::handle::device::HandleDevice;
use crate::handle::options::{SLUICE_WAIT_EVENT, parse_wait, value_error};
use crate::handle::single_thread::{Guard, sluice_handle};

/// Sets the wait mode of a handle; a device or a poller must be able to wake a sleeping one.
pub(crate) fn set_wait(handle: &mut Handle<HandleDevice>, wait: WaitMode) -> Result<(), CallError> {
    handle.set_wait(wait).map_err(|error| match error {
        DirectError::NoInterrupts { .. } => {
            let allowed = "not over a queue with SLUICE_QUEUE_NO_INTERRUPTS, or of a controller that has none \
                           (uio:), that no poller watches: nobody would wake it";
            value_error("wait", SLUICE_WAIT_EVENT, allowed)
        }
        error => error.into(),
    })
}

/// Chooses how a handle waits; nothing may be outstanding.
///
/// @param handle The handle.
/// @param wait `SLUICE_WAIT_POLL`, `SLUICE_WAIT_EVENT` or `SLUICE_WAIT_HYBRID`.
/// @param hybrid_percent As in `struct sluice_handle_options`.
/// @param hybrid_late_ns As in `struct sluice_handle_options`.
///
/// # Returns
///
/// 0, or `-EINVAL`, or `-EBUSY` while another call is inside of the handle.
///
/// # Threads
///
/// The handle's.
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

/// Says how many requests a handle has: taken, and not reaped.
///
/// @param handle The handle.
///
/// # Returns
///
/// How many, or `-EINVAL` for `NULL`, or `-EBUSY` while another call is inside of the handle.
///
/// # Threads
///
/// The handle's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_outstanding(handle: *const sluice_handle) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let inside = unsafe { Guard::enter(handle) }?;
        Ok(inside.handle.outstanding().min(c_int::MAX as u32) as c_int)
    })
}

/// Says which file descriptor becomes readable when something has come for a handle, for `poll(2)` or
/// `epoll(7)` beside others.
///
/// The handle must wait for `SLUICE_WAIT_EVENT`. Before each sleep call `sluice_handle_arm()`, after it
/// `sluice_handle_disarm()`; never read from the descriptor or close it.
///
/// @param handle The handle.
///
/// # Returns
///
/// The descriptor, which lasts as long as the handle, or `-EINVAL` for `NULL`, or `-EBUSY` while another
/// call is inside of the handle.
///
/// # Threads
///
/// The handle's; the descriptor may be waited for anywhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_fd(handle: *const sluice_handle) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let inside = unsafe { Guard::enter(handle) }?;
        Ok(inside.handle.as_fd().as_raw_fd())
    })
}

/// Before sleeping on a handle's descriptor: arms it, and says whether to sleep.
///
/// @param handle The handle.
/// @param timeout_ns How long to sleep at most, since something falls due then that no device announces;
/// `UINT64_MAX` for any time. May be `NULL`.
///
/// # Returns
///
/// 1: sleep, then call `sluice_handle_disarm()`. 0: something has come, and nothing is armed;
/// `sluice_reap()`. Or `-EINVAL`, also for a handle that does not wait for events, or `-EBUSY` while
/// another call is inside of the handle.
///
/// # Threads
///
/// The handle's.
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

/// Makes a handle's descriptor unreadable after a sleep. The descriptor stays so until it is armed
/// again.
///
/// @param handle The handle.
///
/// # Returns
///
/// 0, or `-EINVAL` for `NULL`, or `-EBUSY` while another call is inside of the handle.
///
/// # Threads
///
/// The handle's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_disarm(handle: *mut sluice_handle) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let mut inside = unsafe { Guard::enter(handle) }?;
        inside.handle.disarm();
        Ok(0)
    })
}
