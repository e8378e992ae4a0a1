//! [`Modeled`]: the platform whose locks, memory accesses and work take virtual time.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use platform::{Lock, Platform, Step, ThreadPlatform};
use time::Nanos;

use crate::engine::{TaskId, calls};
use crate::memory::LockId;

/// The cores of an [`Engine`](crate::Engine). Outside of its tasks nothing takes time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modeled;

impl Platform for Modeled {
    const OBSERVES: bool = true;

    type Lock<T: Send> = ModeledLock<T>;

    fn wrote<T: ?Sized>(what: &T) {
        calls::touch(std::ptr::from_ref(what).cast::<u8>() as usize, size_of_val(what), true);
    }

    fn read<T: ?Sized>(what: &T) {
        calls::touch(std::ptr::from_ref(what).cast::<u8>() as usize, size_of_val(what), false);
    }

    fn work(step: Step, count: u32) {
        calls::work(step, count);
    }

    fn event_time(began: Nanos) -> Nanos {
        calls::now().max(began)
    }
}

/// A task, as others wake it; none outside of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeledThread(Option<TaskId>);

impl From<TaskId> for ModeledThread {
    fn from(task: TaskId) -> ModeledThread {
        ModeledThread(Some(task))
    }
}

impl ThreadPlatform for Modeled {
    type Thread = ModeledThread;

    /// All, or the one of the [description](crate::TaskSpec) of a task.
    type Cpus = ();

    fn current() -> ModeledThread {
        ModeledThread(calls::current())
    }

    fn cpus() {}

    fn unpark(thread: &ModeledThread) {
        if let Some(task) = thread.0 {
            calls::unpark(task);
        }
    }

    fn park(limit: Nanos, stays: Option<&()>) {
        calls::stay(stays.is_some());
        match limit {
            Nanos::MAX => calls::park(),
            limit => calls::sleep_until(calls::now() + limit),
        }
    }

    fn now() -> Nanos {
        calls::now()
    }
}

/// A spin lock, taken with interrupts off. Waiting takes virtual time; the mutex of this machine is
/// never contended.
#[derive(Debug)]
pub struct ModeledLock<T> {
    id: LockId,
    value: Mutex<T>,
}

/// Access to the locked value, until dropped.
#[derive(Debug)]
pub struct ModeledGuard<'a, T> {
    id: LockId,
    /// Dropped before the lock is released.
    value: Option<MutexGuard<'a, T>>,
}

impl<T> ModeledLock<T> {
    fn enter(&self) -> ModeledGuard<'_, T> {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        ModeledGuard { id: self.id, value: Some(value) }
    }
}

impl<T: Send> Lock<T> for ModeledLock<T> {
    type Guard<'a>
        = ModeledGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        static LOCKS: AtomicU64 = AtomicU64::new(0);
        let id = LockId(LOCKS.fetch_add(1, Ordering::Relaxed));
        ModeledLock { id, value: Mutex::new(value) }
    }

    fn lock(&self) -> ModeledGuard<'_, T> {
        calls::acquire(self.id);
        self.enter()
    }

    fn try_lock(&self) -> Option<ModeledGuard<'_, T>> {
        calls::try_acquire(self.id).then(|| self.enter())
    }
}

/// The guard has its value until it is dropped.
const HELD: &str = "a guard holds its value";

impl<T> Deref for ModeledGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_deref().expect(HELD)
    }
}

impl<T> DerefMut for ModeledGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_deref_mut().expect(HELD)
    }
}

impl<T> Drop for ModeledGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        calls::release(self.id);
    }
}
