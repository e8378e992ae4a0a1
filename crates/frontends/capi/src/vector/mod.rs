//! `sluice_vector_queue`: a queue for vector commands ([LightNVM17 §3.3]): reads, writes, erases
//! and copies of 1 to 64 physical addresses of an open-channel drive.
//!
//! Guarantees: every accepted command completes exactly once, even if the drive's process has
//! ended; a second call on a queue during the first fails with `-EBUSY`.

pub(crate) mod io;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;

use event::{Parker, RealClock};
use nvme::{Status, VendorExtensions};
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

/// Options of a vector queue. Set `size` to `sizeof(struct sluice_vector_queue_options)`. A member
/// that is 0 selects its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_vector_queue_options {
    /// `sizeof(struct sluice_vector_queue_options)`.
    pub size: usize,
    /// Queue depth: maximum number of outstanding commands, 1 to 65534; 0 for 255.
    pub depth: u32,
    /// Wait mode: `SLUICE_WAIT_POLL` or `SLUICE_WAIT_EVENT`.
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
    /// Present in mode `SLUICE_WAIT_EVENT`.
    parker: Option<Parker>,
    /// Completions that were not reaped yet. Together with the outstanding commands they are
    /// at most the capacity of the queue, plus one command of the library itself.
    ready: VecDeque<VectorCompletion>,
    /// Whether the drive supports copy.
    pub(crate) can_copy: bool,
    /// Whether a copy can have out-of-band bytes of its own.
    pub(crate) copies_with_oob: bool,
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

    /// Returns the completion of a command of the library itself, if it has arrived.
    pub(crate) fn reap_internal(&mut self, own: u64) -> Option<VectorCompletion> {
        let place = self.ready.iter().position(|ended| ended.user_data == own)?;
        self.ready.remove(place)
    }

    /// Returns the time `timeout` nanoseconds from now.
    pub(crate) fn deadline(&self, timeout: u64) -> Nanos {
        Nanos(self.clock.now().0.saturating_add(timeout))
    }

    /// Returns whether the time `limit` has passed.
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

/// Creates a queue for vector commands.
///
/// @param device The device, an open-channel drive without a target.
/// @param options Options, or `NULL` for the defaults.
/// @param queue Receives the queue, or `NULL` if the call fails.
///
/// # Returns
///
/// 0, or
///
/// * `-EINVAL`: an invalid argument or option.
/// * `-E2BIG`: an option of a later version.
/// * `-EOPNOTSUPP`: the device is not an open-channel drive without a target.
/// * `-ENOSPC`: the device has no free queue.
/// * `-ENOMEM`, `-EMFILE`, ...: the system's error.
/// * `-ETIMEDOUT`, `-ECONNRESET`: the server of the drive does not answer, or has ended.
///
/// # Threads
///
/// Any thread.
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
            // One more for a command of the library itself.
            ready: VecDeque::with_capacity(usize::from(made.queue().capacity()) + 1),
            queue: made,
            device: device.device.clone(),
            owner: device.owner.clone(),
            clock: device.device.clock(),
            parker,
            can_copy: media.can_copy,
            copies_with_oob: media.extensions.has(VendorExtensions::COPY_METADATA),
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
/// The call waits up to 60 seconds for the outstanding commands, and discards their completions.
///
/// @param queue The queue; unless the call fails with `-EBUSY`, it must not be used after the call.
/// `NULL` has no effect.
///
/// # Returns
///
/// 0, or
///
/// * `-EBUSY`: another call uses the queue; the queue is unchanged.
/// * `-ETIMEDOUT`: the device does not complete the commands. The queue is destroyed; its memory
///   stays allocated.
/// * `-ENOTRECOVERABLE`: an earlier call on the queue failed with an internal error. Otherwise as
///   `-ETIMEDOUT`.
/// * `-EIO`: this call closed the device, and the drive was not shut down cleanly; see
///   `sluice_close()`. The queue is destroyed.
///
/// # Threads
///
/// One thread at a time for each vector queue.
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

/// Returns the number of outstanding commands of a vector queue: submitted and not reaped.
///
/// @param queue The queue.
///
/// # Returns
///
/// The number of commands, or `-EINVAL` if `queue` is `NULL`, or `-EBUSY` if another call uses the
/// queue.
///
/// # Threads
///
/// One thread at a time for each vector queue.
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
