//! [`SingleThreadCell`]: at most one thread [inside](Guard) a handle or a vector queue.
//!
//! A handle or a vector queue is for one thread at a time. A second call during the first, from
//! another thread or from a callback, fails with `-EBUSY`. The thread inside therefore may have the
//! only reference.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use event::RealClock;
use user_io::{Buffer, Handle, IoDevice, WaitMode};

use crate::device::device_ref::DeviceRef;
use crate::error::CallError;
use crate::handle::device::HandleStack;
use crate::handle::stats::HandleCounters;
use crate::queue::binding::QueueOwner;

const FREE: u8 = 0;
const ENTERED: u8 = 1;
/// A call panicked, so the state may be inconsistent.
const POISONED: u8 = 2;

/// A value for one thread at a time, with a check.
pub(crate) struct SingleThreadCell<T> {
    state: AtomicU8,
    inner: UnsafeCell<T>,
}

/// A handle: submits and reaps requests, for one thread at a time.
pub struct sluice_handle {
    cell: SingleThreadCell<HandleInner>,
}

/// State of a handle.
pub(crate) struct HandleInner {
    pub(crate) handle: Handle<Box<dyn HandleStack>>,
    pub(crate) wait: WaitMode,
    pub(crate) device: IoDevice,
    pub(crate) owner: Arc<DeviceRef>,
    pub(crate) clock: RealClock,
    /// The queues to which the handle is bound, and its number of outstanding requests on each.
    pub(crate) bindings: Vec<(Arc<QueueOwner>, Arc<AtomicU32>)>,
    /// Whether the handle has a write-back cache.
    pub(crate) has_write_back: bool,
    pub(crate) counters: HandleCounters,
    /// Bounce buffer for memory that is not registered.
    pub(crate) bounce: Option<Buffer>,
    /// Segment table for several fragments of memory.
    pub(crate) table: Option<Buffer>,
}

impl<T> SingleThreadCell<T> {
    pub(crate) fn new(inner: T) -> SingleThreadCell<T> {
        SingleThreadCell { state: AtomicU8::new(FREE), inner: UnsafeCell::new(inner) }
    }

    pub(crate) fn into_inner(self) -> T {
        self.inner.into_inner()
    }

    /// Enters, unless a thread is inside.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Guard<'_, T>, CallError> {
        match self.state.compare_exchange(FREE, ENTERED, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Guard { cell: self }),
            Err(ENTERED) => Err(CallError::InUse(
                "another call uses the handle or vector queue: one thread at a time may, and its \
                 callbacks may not",
            )),
            Err(_) => Err(CallError::Poisoned),
        }
    }

    /// Enters permanently: later calls are refused. Returns whether a call has panicked.
    pub(crate) fn close(&self) -> Result<bool, CallError> {
        match self.state.compare_exchange(FREE, ENTERED, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(false),
            Err(POISONED) => Ok(true),
            Err(_) => Err(CallError::InUse("another call uses the handle or vector queue")),
        }
    }
}

impl sluice_handle {
    pub(crate) fn new(inner: HandleInner) -> sluice_handle {
        sluice_handle { cell: SingleThreadCell::new(inner) }
    }

    pub(crate) fn into_inner(self) -> HandleInner {
        self.cell.into_inner()
    }
}

/// Exclusive access of the thread inside the cell.
pub(crate) struct Guard<'a, T = HandleInner> {
    cell: &'a SingleThreadCell<T>,
}

impl<'a> Guard<'a> {
    /// Enters a handle, unless a thread is inside.
    ///
    /// # Safety
    /// `pointer` is `NULL`, or was returned by this library and not destroyed yet.
    pub(crate) unsafe fn enter(pointer: *const sluice_handle) -> Result<Guard<'a>, CallError> {
        // SAFETY: guaranteed by the caller; the reference is shared, and leads to an atomic and a
        // cell.
        let handle = unsafe { pointer.as_ref() }.ok_or(CallError::Null("handle"))?;
        handle.cell.enter()
    }

    /// Enters permanently: later calls are refused. Returns whether a call on the handle has
    /// panicked.
    pub(crate) fn close(pointer: &'a sluice_handle) -> Result<bool, CallError> {
        pointer.cell.close()
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard changed the state from free to taken, and no second guard exists until
        // it is dropped, so there is no other reference.
        unsafe { &*self.cell.inner.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`, and this value is borrowed mutably.
        unsafe { &mut *self.cell.inner.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let state = if std::thread::panicking() { POISONED } else { FREE };
        self.cell.state.store(state, Ordering::Release);
    }
}
