//! `sluice_poller`: a thread that polls for completions of other threads ([NVMeDirect16 §3.2]).

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use time::Nanos;
use user_io::{CompletionPoller, PollPeriod, PollerConfig};

use crate::device::{hand_out, init_out_pointer, object_ref, reserved, sluice_device};
use crate::error::{CallError, call};
use crate::options::{ExtensibleStruct, read_struct, write_struct};
use crate::queue::binding::{BindingState, QueueOwner};
use crate::queue::sluice_queue;

/// The poller adapts its polling interval to the recent rate of completions: it sleeps until enough
/// requests should have completed while the device still has work.
pub const SLUICE_PERIOD_DYNAMIC: u32 = 0;
/// The poller sleeps `period_ns` between two polls.
pub const SLUICE_PERIOD_FIXED: u32 = 1;
/// The poller busy-polls while requests are outstanding.
pub const SLUICE_PERIOD_BUSY_POLL: u32 = 2;

/// A thread that polls for completions. Several threads may use the object at the same time.
pub struct sluice_poller {
    poller: CompletionPoller,
    watched: Mutex<Vec<Arc<QueueOwner>>>,
}

/// Options of a poller. Set `size` to `sizeof(struct sluice_poller_options)`. A member that is 0
/// selects its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_poller_options {
    /// `sizeof(struct sluice_poller_options)`.
    pub size: usize,
    /// Polling mode: `SLUICE_PERIOD_DYNAMIC`, `SLUICE_PERIOD_FIXED` or `SLUICE_PERIOD_BUSY_POLL`.
    pub period: u32,
    /// Reserved; must be 0.
    pub reserved: u32,
    /// Polling interval in nanoseconds, at most 1,000,000,000. With `SLUICE_PERIOD_FIXED`: the
    /// sleep between two polls, at least 1. With `SLUICE_PERIOD_DYNAMIC`: the longest sleep; 0 for
    /// 1,000,000. Must be 0 with `SLUICE_PERIOD_BUSY_POLL`.
    pub period_ns: u64,
    /// With `SLUICE_PERIOD_DYNAMIC`: initial estimate of the machine's wakeup latency in
    /// nanoseconds; 0 for 60,000. The poller then measures it. Must be 0 with other modes.
    pub late_ns: u64,
}

// SAFETY: begins with its size; numbers in places of their own size, no padding.
unsafe impl ExtensibleStruct for sluice_poller_options {
    const NAME: &'static str = "struct sluice_poller_options";
}

/// Counters of a poller. Set `size` to `sizeof(struct sluice_poller_stats)` before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_poller_stats {
    /// `sizeof(struct sluice_poller_stats)`.
    pub size: usize,
    /// Number of polls, each of all watched queues.
    pub looks: u64,
    /// Number of completions found.
    pub completions: u64,
    /// Number of sleeps while requests were outstanding.
    pub naps: u64,
    /// CPU time of the poller's thread, in nanoseconds.
    pub cpu_ns: u64,
}

// SAFETY: begins with its size; numbers of 8 bytes, no padding.
unsafe impl ExtensibleStruct for sluice_poller_stats {
    const NAME: &'static str = "struct sluice_poller_stats";
}

fn parse_period(options: &sluice_poller_options) -> Result<PollPeriod, CallError> {
    reserved(options.reserved)?;
    let &sluice_poller_options { period, period_ns, late_ns, .. } = options;
    let refused = |what, value, allowed| Err(CallError::Value { what, value, allowed });
    if late_ns != 0 && period != SLUICE_PERIOD_DYNAMIC {
        return refused("late_ns", late_ns, "0 without SLUICE_PERIOD_DYNAMIC");
    }
    match (period, PollerConfig::default().period) {
        (SLUICE_PERIOD_DYNAMIC, PollPeriod::Dynamic { wakeup_latency: late, sleep_max: most }) => {
            Ok(PollPeriod::Dynamic {
                wakeup_latency: if late_ns == 0 { late } else { Nanos(late_ns) },
                sleep_max: if period_ns == 0 { most } else { Nanos(period_ns) },
            })
        }
        (SLUICE_PERIOD_DYNAMIC, default) => Ok(default),
        (SLUICE_PERIOD_FIXED, _) => Ok(PollPeriod::Fixed(Nanos(period_ns))),
        (SLUICE_PERIOD_BUSY_POLL, _) if period_ns == 0 => Ok(PollPeriod::Busy),
        (SLUICE_PERIOD_BUSY_POLL, _) => {
            refused("period_ns", period_ns, "0 with SLUICE_PERIOD_BUSY_POLL")
        }
        _ => refused("period", period.into(), "SLUICE_PERIOD_DYNAMIC, _FIXED or _BUSY"),
    }
}

impl sluice_poller {
    fn name(&self) -> usize {
        std::ptr::from_ref(&self.poller) as usize
    }
}

/// Starts a thread that polls for completions on behalf of the handles bound to the watched queues.
/// The poller watches no queue until `sluice_poller_watch()` is called.
///
/// @param device The device whose queues the poller will watch.
/// @param options Options, or `NULL` for the defaults.
/// @param poller Receives the poller, or `NULL` if the call fails.
///
/// # Returns
///
/// 0, or `-EINVAL` if an argument or option is invalid, or `-E2BIG` for an option of a later
/// version, or the system's error: `-EAGAIN` if no thread can be created, `-EMFILE` if no file
/// descriptor is left.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_poller_create(
    device: *const sluice_device,
    options: *const sluice_poller_options,
    poller: *mut *mut sluice_poller,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (device, options) = unsafe {
            init_out_pointer("poller", poller)?;
            (object_ref("device", device)?, read_struct(options)?)
        };
        let config = PollerConfig { period: parse_period(&options)? };
        let started = CompletionPoller::start(device.device.clock(), config)?;
        // SAFETY: accepted above.
        unsafe { hand_out(poller, sluice_poller { poller: started, watched: Mutex::default() }) };
        Ok(0)
    })
}

/// Stops watching a queue. No handle may be bound to it.
fn unwatch(poller: &sluice_poller, home: &QueueOwner) -> Result<(), CallError> {
    let mut state = home.state();
    if state.watched != Some(poller.name()) {
        return Err(CallError::InUse("the poller does not watch the queue"));
    }
    if state.handles > 0 {
        return Err(CallError::InUse(
            "handles are bound to the queue, and the poller wakes them: destroy them first",
        ));
    }
    state.watched = None;
    if let BindingState::Shared(queue) = &state.queue {
        poller.poller.unwatch(queue);
    }
    Ok(())
}

/// Stops a poller's thread and destroys the poller.
///
/// @param poller The poller; unless the call fails, it must not be used after the call. `NULL` has
/// no effect.
///
/// # Returns
///
/// 0, or `-EBUSY` if a handle is bound to a watched queue. The poller then keeps running and keeps
/// watching that queue; it may have stopped watching others.
///
/// # Threads
///
/// Any thread. No other call may use the pointer at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_poller_destroy(poller: *mut sluice_poller) -> c_int {
    call(|| {
        if poller.is_null() {
            return Ok(0);
        }
        // SAFETY: not NULL, and the pointer is as the header demands.
        let stopped = unsafe { object_ref("poller", poller) }?;
        let mut watched = stopped.watched.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(home) = watched.last() {
            unwatch(stopped, home)?;
            watched.pop();
        }
        drop(watched);
        // SAFETY: made by `hand_out`, and the caller gives it up.
        drop(unsafe { Box::from_raw(poller) });
        Ok(0)
    })
}

/// Starts watching a queue. Handles bound to the queue should be in mode `SLUICE_WAIT_EVENT`; the
/// poller wakes them.
///
/// @param poller The poller.
/// @param queue A queue created with `SLUICE_QUEUE_SHARED`.
///
/// # Returns
///
/// 0, or `-EINVAL` if an argument is `NULL` or the queue is not shared, or `-EBUSY` if a poller
/// already watches the queue.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_poller_watch(
    poller: *mut sluice_poller,
    queue: *const sluice_queue,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (poller, queue) =
            unsafe { (object_ref("poller", poller)?, object_ref("queue", queue)?) };
        let mut watched = poller.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = queue.home.state();
        if state.watched.is_some() {
            return Err(CallError::InUse("a poller watches the queue already"));
        }
        let BindingState::Shared(shared) = &state.queue else {
            let allowed = "a queue created with SLUICE_QUEUE_SHARED";
            return Err(CallError::Value { what: "queue", value: 0, allowed });
        };
        poller.poller.watch(shared);
        state.watched = Some(poller.name());
        drop(state);
        watched.push(queue.home.clone());
        Ok(0)
    })
}

/// Stops watching a queue.
///
/// @param poller The poller.
/// @param queue A queue that the poller watches and no handle is bound to.
///
/// # Returns
///
/// 0, or `-EINVAL` if an argument is `NULL`, or `-EBUSY` if the poller does not watch the queue or
/// a handle is bound to it.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_poller_unwatch(
    poller: *mut sluice_poller,
    queue: *const sluice_queue,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (poller, queue) =
            unsafe { (object_ref("poller", poller)?, object_ref("queue", queue)?) };
        let mut watched = poller.watched.lock().unwrap_or_else(PoisonError::into_inner);
        unwatch(poller, &queue.home)?;
        watched.retain(|home| !Arc::ptr_eq(home, &queue.home));
        Ok(0)
    })
}

/// Former name of `sluice_poller_unwatch()`, for one release.
///
/// @param poller The poller.
/// @param queue A queue that the poller watches and no handle is bound to.
///
/// # Returns
///
/// As `sluice_poller_unwatch()`.
///
/// # Threads
///
/// Any thread.
#[deprecated]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_poller_forget(
    poller: *mut sluice_poller,
    queue: *const sluice_queue,
) -> c_int {
    // SAFETY: the pointers are as the header demands.
    unsafe { sluice_poller_unwatch(poller, queue) }
}

/// Sets the expected latency of requests, which replaces the measured one.
///
/// @param poller The poller. The hint has an effect with `SLUICE_PERIOD_DYNAMIC` only.
/// @param time_ns Expected latency in nanoseconds; 0 returns to the measured latency.
///
/// # Returns
///
/// 0, or `-EINVAL` if `poller` is `NULL`.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_poller_hint(poller: *mut sluice_poller, time_ns: u64) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        unsafe { object_ref("poller", poller) }?.poller.hint(Nanos(time_ns));
        Ok(0)
    })
}

/// Returns the counters of a poller.
///
/// @param poller The poller.
/// @param stats Receives the counters, up to `stats->size` bytes.
///
/// # Returns
///
/// 0, or `-EINVAL` if an argument is `NULL` or `stats->size` is not a size of any version, or
/// `-E2BIG` if it is larger than 4096.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_poller_get_stats(
    poller: *const sluice_poller,
    stats: *mut sluice_poller_stats,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let of = unsafe { object_ref("poller", poller) }?.poller.stats();
        let value = sluice_poller_stats {
            size: 0,
            looks: of.polls,
            completions: of.completions,
            naps: of.sleeps,
            cpu_ns: of.cpu_time.0,
        };
        // SAFETY: as above.
        unsafe { write_struct("stats", stats, &value) }?;
        Ok(0)
    })
}
