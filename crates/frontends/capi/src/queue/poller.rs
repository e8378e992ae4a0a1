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

/// It sleeps until enough may have come, by how fast requests ended lately.
pub const SLUICE_PERIOD_DYNAMIC: u32 = 0;
/// It sleeps `period_ns` between two looks.
pub const SLUICE_PERIOD_FIXED: u32 = 1;
/// It does not sleep while something is on its way.
pub const SLUICE_PERIOD_BUSY_POLL: u32 = 2;

/// A thread that looks for completions. Any thread may use it, several at a time.
pub struct sluice_poller {
    poller: CompletionPoller,
    watched: Mutex<Vec<Arc<QueueOwner>>>,
}

/// How a poller works. Set `size` to `sizeof(struct sluice_poller_options)` and everything else to 0 that
/// should be as usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_poller_options {
    /// `sizeof(struct sluice_poller_options)`.
    pub size: usize,
    /// `SLUICE_PERIOD_DYNAMIC`, `SLUICE_PERIOD_FIXED` or `SLUICE_PERIOD_BUSY_POLL`.
    pub period: u32,
    /// 0.
    pub reserved: u32,
    /// How long it sleeps between two looks, with `SLUICE_PERIOD_FIXED`, or at most, with
    /// `SLUICE_PERIOD_DYNAMIC`, where 0 is a millisecond; a second at most.
    pub period_ns: u64,
    /// How late this machine wakes sleepers, with `SLUICE_PERIOD_DYNAMIC`; 0 for 60,000.
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
    /// Looks, each at all its queues.
    pub looks: u64,
    /// Completions that it found.
    pub completions: u64,
    /// Times that it slept with something on its way.
    pub naps: u64,
    /// How long its thread has had a core.
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

/// Starts a thread that looks for completions of queues on behalf of the handles bound to them.
///
/// @param device The device whose queues it will watch.
/// @param options How, or `NULL` for the defaults.
/// @param poller Where the poller goes; `NULL` goes there if the call fails.
///
/// # Returns
///
/// 0, or `-EINVAL`, `-E2BIG`, or what the system says: `-EAGAIN` without a thread, `-EMFILE` without a
/// descriptor.
///
/// # Threads
///
/// Any.
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

/// Stops polling a queue that has no handle any more.
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

/// Stops the thread.
///
/// @param poller The poller; unless the call fails, not to be used any more. `NULL` is nothing to stop.
///
/// # Returns
///
/// 0, or `-EBUSY` while a handle is bound to a queue that it watches: the poller goes on, and watches those
/// that are left.
///
/// # Threads
///
/// Any, once no other call uses this pointer.
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

/// Watches a queue from now on. Handles bound to it wait for `SLUICE_WAIT_EVENT`, and the thread wakes them.
///
/// @param poller The poller.
/// @param queue A queue created with `SLUICE_QUEUE_SHARED`.
///
/// # Returns
///
/// 0, or `-EINVAL` for a queue that is not shared, or `-EBUSY` for one that a poller watches.
///
/// # Threads
///
/// Any.
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

/// Ends the watch of a queue.
///
/// @param poller The poller.
/// @param queue A queue that it watches, and no handle is bound to.
///
/// # Returns
///
/// 0, or `-EINVAL` for `NULL`, or `-EBUSY` for a queue that it does not watch, or with handles.
///
/// # Threads
///
/// Any.
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

/// The former name of `sluice_poller_unwatch()`, for one release.
///
/// @param poller The poller.
/// @param queue A queue that it watches, and no handle is bound to.
///
/// # Returns
///
/// As `sluice_poller_unwatch()`.
///
/// # Threads
///
/// Any.
#[deprecated]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_poller_forget(
    poller: *mut sluice_poller,
    queue: *const sluice_queue,
) -> c_int {
    // SAFETY: the pointers are as the header demands.
    unsafe { sluice_poller_unwatch(poller, queue) }
}

/// Says how long requests take, for who knows better than what has been seen.
///
/// @param poller The poller, with `SLUICE_PERIOD_DYNAMIC`; others do not care.
/// @param time_ns How long; 0 takes it back.
///
/// # Returns
///
/// 0, or `-EINVAL` for `NULL`.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_poller_hint(poller: *mut sluice_poller, time_ns: u64) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        unsafe { object_ref("poller", poller) }?.poller.hint(Nanos(time_ns));
        Ok(0)
    })
}

/// Says what a poller has done.
///
/// @param poller The poller.
/// @param stats Filled in as far as `stats->size` reaches.
///
/// # Returns
///
/// 0, or `-EINVAL`, also for a `size` that no version had.
///
/// # Threads
///
/// Any.
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
