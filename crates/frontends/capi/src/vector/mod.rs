//! `sluice_vector_queue`: a queue for vector commands ([LightNVM17 §3.3]): reads, writes, erases
//! and copies of 1 to 64 physical addresses of an open-channel drive.
//!
//! Guarantees: every accepted command completes exactly once, even if the drive's process has
//! ended; a queue is for one thread at a time, which is checked.

pub(crate) mod io;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;

use event::{Parker, RealClock};
use nvme::Status;
use ocssd::vector::{VectorCompletion, VectorQueue};
use time::Nanos;
use user_io::{IoDevice, QueueConfig};

use crate::device::chunks::media;
use crate::device::device_ref::DeviceRef;
use crate::device::{hand_out, init_out_pointer, object_ref, sluice_device};
use crate::error::{CallError, call};
use crate::handle::options::{SLUICE_WAIT_EVENT, SLUICE_WAIT_POLL, value_error};
use crate::handle::single_thread::{Guard, SingleThreadCell};
use crate::options::{ExtensibleStruct, read_struct};

/// Default number of outstanding commands.
const DEPTH_DEFAULT: u32 = 255;
/// Timeout for outstanding commands when their queue is destroyed.
const CLOSE_TIMEOUT_SECONDS: u64 = 60;

/// A queue for vector commands, for one thread at a time.
pub struct sluice_vector_queue {
    pub(crate) cell: SingleThreadCell<VectorQueueInner>,
}

/// How a vector queue is made. Set `size` to `sizeof(struct sluice_vector_queue_options)` and everything
/// else to 0 that should be as usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_vector_queue_options {
    /// `sizeof(struct sluice_vector_queue_options)`.
    pub size: usize,
    /// Commands outstanding at most, 1 to 65534; 0 for 255.
    pub depth: u32,
    /// How it waits: `SLUICE_WAIT_POLL` or `SLUICE_WAIT_EVENT`.
    pub wait: u32,
}

// SAFETY: begins with its size; numbers of 8 + 2 * 4 bytes, no padding.
unsafe impl ExtensibleStruct for sluice_vector_queue_options {
    const NAME: &'static str = "struct sluice_vector_queue_options";
}

/// State of a vector queue.
pub(crate) struct VectorQueueInner {
    pub(crate) queue: VectorQueue,
    device: IoDevice,
    pub(crate) owner: Arc<DeviceRef>,
    clock: RealClock,
    /// Present if the queue sleeps while it waits.
    parker: Option<Parker>,
    /// Ended, and not reaped; no more together with what is outstanding than the queue holds.
    ready: VecDeque<VectorCompletion>,
    /// Whether the drive supports copy.
    pub(crate) can_copy: bool,
    pub(crate) sector_bytes: u32,
    pub(crate) oob_bytes: u32,
    pub(crate) next_internal_tag: u64,
}

impl VectorQueueInner {
    /// Returns the number of commands accepted and not reaped.
    pub(crate) fn outstanding(&self) -> usize {
        usize::from(self.queue.outstanding()) + self.ready.len()
    }

    /// Returns whether another command can be accepted.
    pub(crate) fn has_capacity(&self) -> bool {
        self.outstanding() < usize::from(self.queue.queue().capacity())
    }

    /// Rings the doorbell and collects completions. Returns whether it made progress.
    pub(crate) fn poll(&mut self) -> bool {
        let rang = self.queue.ring(false);
        let before = self.ready.len();
        while let Some(ended) = self.queue.reap() {
            self.ready.push_back(ended);
        }
        if self.device.removal_reason().is_some() {
            while let Some(ended) = self.queue.abandon(Status::HOST_PATH_ERROR) {
                self.ready.push_back(ended);
            }
        }
        let reaped = self.ready.len() > before;
        self.queue.ring(reaped) || rang || reaped
    }

    /// Returns the next completion.
    pub(crate) fn reap(&mut self) -> Option<VectorCompletion> {
        self.ready.pop_front()
    }

    /// Returns the completion of one of the library's own commands, if it is there.
    pub(crate) fn reap_internal(&mut self, own: u64) -> Option<VectorCompletion> {
        let place = self.ready.iter().position(|ended| ended.user_data == own)?;
        self.ready.remove(place)
    }

    /// Returns the time `timeout` nanoseconds from now.
    pub(crate) fn deadline(&self, timeout: u64) -> Nanos {
        Nanos(self.clock.now().0.saturating_add(timeout))
    }

    /// Returns whether that time has passed.
    pub(crate) fn has_passed(&self, limit: Nanos) -> bool {
        limit != Nanos::MAX && self.clock.now() >= limit
    }

    /// Waits in the configured mode, until `limit` at most.
    pub(crate) fn pause(&mut self, limit: Nanos) {
        let Some(parker) = self.parker.take() else { return std::hint::spin_loop() };
        parker.prepare();
        if self.poll() {
            parker.unpark();
        } else {
            let timeout = match limit {
                Nanos::MAX => Nanos::MAX,
                limit => limit.since(self.clock.now()),
            };
            // EINTR counts as a wakeup; `ppoll` cannot fail otherwise for a valid descriptor.
            let _ = parker.park(&[], timeout);
        }
        self.parker = Some(parker);
    }
}

/// Makes a queue for vector commands.
///
/// @param device The device, an open-channel drive without a target.
/// @param options How, or `NULL` for the defaults.
/// @param queue Where the queue goes; `NULL` goes there if the call fails.
///
/// # Returns
///
/// 0, or
///
/// * `-EINVAL`, `-E2BIG`: an argument or option, or an option of a later version.
/// * `-EOPNOTSUPP`: anything but an open-channel drive, whose targets take no addresses either.
/// * `-ENOSPC`: the device has no queue left.
/// * `-ENOMEM`, `-EMFILE`, ...: what the system says.
/// * `-ETIMEDOUT`, `-ECONNRESET`: a server does not answer, or is gone.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_queue_create(
    device: *const sluice_device,
    options: *const sluice_vector_queue_options,
    queue: *mut *mut sluice_vector_queue,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (device, options) = unsafe {
            init_out_pointer("queue", queue)?;
            (object_ref("device", device)?, read_struct(options)?)
        };
        let entries = match options.depth {
            0 => Some(DEPTH_DEFAULT as u16 + 1),
            depth => depth.checked_add(1).and_then(|entries| u16::try_from(entries).ok()),
        };
        let depth = entries.ok_or_else(|| value_error("depth", options.depth, "1 to 65534"))?;
        let sleeps = match options.wait {
            SLUICE_WAIT_POLL => false,
            SLUICE_WAIT_EVENT => true,
            other => {
                return Err(value_error("wait", other, "SLUICE_WAIT_POLL or SLUICE_WAIT_EVENT"));
            }
        };
        let media = media(&device.device)?;
        let memory = |source| user_io::DirectError::Memory { bytes: 0, source };
        let parker = if sleeps { Some(Parker::new().map_err(memory)?) } else { None };
        let made = device.device.vector_queue(QueueConfig { depth, interrupts: sleeps })?;
        if let Some(parker) = &parker
            && let Err(error) = device.device.set_vector_waker(&made, parker.waker())
        {
            device.device.destroy_vector_queue(made);
            return Err(error.into());
        }
        let inner = VectorQueueInner {
            // Plus one of the library's own.
            ready: VecDeque::with_capacity(usize::from(made.queue().capacity()) + 1),
            queue: made,
            device: device.device.clone(),
            owner: device.owner.clone(),
            clock: device.device.clock(),
            parker,
            can_copy: media.can_copy,
            sector_bytes: media.geometry.sector_bytes,
            oob_bytes: media.geometry.oob_bytes,
            next_internal_tag: 0,
        };
        // SAFETY: accepted above.
        unsafe { hand_out(queue, sluice_vector_queue { cell: SingleThreadCell::new(inner) }) };
        Ok(0)
    })
}

/// Destroys a vector queue.
///
/// What is outstanding is waited for, a minute at most, and its ends are thrown away.
///
/// @param queue The queue; unless the call fails with `-EBUSY`, not to be used any more. `NULL` is nothing to
/// destroy.
///
/// # Returns
///
/// 0, or
///
/// * `-EBUSY`: another call is inside of the queue, which is as it was.
/// * `-ETIMEDOUT`: the device does not answer. The queue is gone; its memory stays with the device.
/// * `-ENOTRECOVERABLE`: the library failed inside of it before. As for `-ETIMEDOUT`.
/// * `-EIO`: this closed the device, and not in order: see `sluice_close()`. The queue is gone.
///
/// # Threads
///
/// The queue's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_queue_destroy(queue: *mut sluice_vector_queue) -> c_int {
    call(|| {
        if queue.is_null() {
            return Ok(0);
        }
        // SAFETY: not NULL, and the pointer is as the header demands.
        let broken = unsafe { object_ref("queue", queue) }?.cell.close()?;
        // SAFETY: made by `hand_out`, the caller releases it, and no thread is inside.
        let queue = unsafe { Box::from_raw(queue) };
        if broken {
            std::mem::forget(queue);
            return Err(CallError::Poisoned);
        }
        let mut inner = queue.cell.into_inner();
        let limit = inner.deadline(CLOSE_TIMEOUT_SECONDS * 1_000_000_000);
        loop {
            inner.poll();
            let outstanding = u32::from(inner.queue.outstanding());
            if outstanding == 0 {
                break;
            }
            if inner.has_passed(limit) {
                // The drive may still write to its memory, so leak it.
                std::mem::forget(inner);
                return Err(CallError::Timeout { outstanding, seconds: CLOSE_TIMEOUT_SECONDS });
            }
            inner.pause(limit);
        }
        let VectorQueueInner { queue, device, owner, .. } = inner;
        device.destroy_vector_queue(queue);
        owner.release(device)?;
        Ok(0)
    })
}

/// Says how many commands a vector queue has: taken, and not reaped.
///
/// @param queue The queue.
///
/// # Returns
///
/// How many, or `-EINVAL` for `NULL`, or `-EBUSY` while another call is inside of the queue.
///
/// # Threads
///
/// The queue's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_outstanding(queue: *const sluice_vector_queue) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let inside = unsafe { enter(queue) }?;
        Ok(inside.outstanding() as c_int)
    })
}

/// Enters a vector queue, unless a thread is inside.
///
/// # Safety
/// `pointer` is `NULL`, or was returned by this library and not destroyed yet.
pub(crate) unsafe fn enter<'a>(
    pointer: *const sluice_vector_queue,
) -> Result<Guard<'a, VectorQueueInner>, CallError> {
    // SAFETY: guaranteed by the caller; the reference is shared, and leads to an atomic and a cell.
    unsafe { object_ref("queue", pointer) }?.cell.enter()
}
