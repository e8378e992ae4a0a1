//! [`SingleThreadCell`]: one thread [inside](Guard) a handle or a vector queue, and nobody else.
//!
//! Each is for one thread at a time. That is checked, not trusted: a second call that comes while one
//! is under way, from another thread or from a callback, is refused, so that whoever is inside may have
//! the only reference.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use clock::RealClock;
use direct::{Buffer, Handle, IoDevice, WaitMode};

use crate::device_ref::DeviceRef;
use crate::error::CallError;
use crate::handle_device::HandleDevice;
use crate::queue_binding::QueueOwner;
use crate::stats::HandleCounters;

const FREE: u8 = 0;
const ENTERED: u8 = 1;
/// A call panicked: what it left is not to be relied on.
const POISONED: u8 = 2;

/// Something for one thread at a time, which is checked.
pub(crate) struct SingleThreadCell<T> {
    state: AtomicU8,
    inner: UnsafeCell<T>,
}

/// A handle: requests and their ends, for one thread at a time.
pub struct sluice_handle {
    cell: SingleThreadCell<HandleInner>,
}

/// What is in a handle.
pub(crate) struct HandleInner {
    pub(crate) handle: Handle<HandleDevice>,
    pub(crate) wait: WaitMode,
    pub(crate) device: IoDevice,
    pub(crate) owner: Arc<DeviceRef>,
    pub(crate) clock: RealClock,
    /// The queues that it is bound to, and the requests that each has of it.
    pub(crate) bindings: Vec<(Arc<QueueOwner>, Arc<AtomicU32>)>,
    /// Whether there is a cache that keeps what is written.
    pub(crate) has_write_back: bool,
    pub(crate) counters: HandleCounters,
    /// For transfers to and from memory that is no buffer.
    pub(crate) bounce: Option<Buffer>,
    /// For transfers to and from several pieces of memory.
    pub(crate) table: Option<Buffer>,
}

impl<T> SingleThreadCell<T> {
    pub(crate) fn new(inner: T) -> SingleThreadCell<T> {
        SingleThreadCell { state: AtomicU8::new(FREE), inner: UnsafeCell::new(inner) }
    }

    pub(crate) fn into_inner(self) -> T {
        self.inner.into_inner()
    }

    /// Goes in, unless somebody is.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Guard<'_, T>, CallError> {
        match self.state.compare_exchange(FREE, ENTERED, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Guard { cell: self }),
            Err(ENTERED) => Err(CallError::InUse(
                "another call is inside of the handle or vector queue: it is for one thread at a \
                 time, and not for its own callback",
            )),
            Err(_) => Err(CallError::Poisoned),
        }
    }

    /// Goes in for good: nobody comes in after. Returns whether it is broken.
    pub(crate) fn close(&self) -> Result<bool, CallError> {
        match self.state.compare_exchange(FREE, ENTERED, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(false),
            Err(POISONED) => Ok(true),
            Err(_) => Err(CallError::InUse("another call is inside of the handle or vector queue")),
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

/// The thread inside.
pub(crate) struct Guard<'a, T = HandleInner> {
    cell: &'a SingleThreadCell<T>,
}

impl<'a> Guard<'a> {
    /// Goes into a handle, unless somebody is.
    ///
    /// # Safety
    /// `pointer` is `NULL` or was given out by this library and not taken back yet.
    pub(crate) unsafe fn enter(pointer: *const sluice_handle) -> Result<Guard<'a>, CallError> {
        // SAFETY: by the caller's promise; the reference is shared, and what it leads to is an atomic
        // and a cell.
        let handle = unsafe { pointer.as_ref() }.ok_or(CallError::Null("handle"))?;
        handle.cell.enter()
    }

    /// Goes in for good: nobody comes in after. Returns whether the handle is broken.
    pub(crate) fn close(pointer: &'a sluice_handle) -> Result<bool, CallError> {
        pointer.cell.close()
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the state was turned from free to taken by this value, of which there is no second
        // until it is dropped: nobody else has a reference.
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
