//! What the layer's shared state is made of: [`Platform`].
//!
//! The layer is generic over where it runs. On [`Native`] a lock is a mutex and touching memory is
//! just that. A modelled machine gives the same code locks and memory whose every transfer between
//! cores takes modelled time, and under `--cfg loom` the atomics are those of the model checker.

use std::fmt::Debug;
use std::ops::DerefMut;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic;

/// Where the layer runs.
pub trait Platform: Copy + Debug + Send + Sync + 'static {
    /// Whether [`wrote`](Platform::wrote) and [`read`](Platform::read) do anything; where they do
    /// not, nobody looks for what to report.
    const OBSERVES: bool = false;

    /// A lock of this platform.
    type Lock<T: Send>: Lock<T>;

    /// The running core is about to write to `what`, which other cores may have written to.
    #[inline]
    fn wrote<T: ?Sized>(what: &T) {
        let _ = what;
    }

    /// The running core is about to read from `what`, which other cores may have written to.
    #[inline]
    fn read<T: ?Sized>(what: &T) {
        let _ = what;
    }
}

/// A mutual exclusion lock around a `T`.
pub trait Lock<T>: Send + Sync {
    /// Access to what is locked, until dropped.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a;

    /// An unlocked lock.
    fn new(value: T) -> Self;

    /// Waits for the lock.
    fn lock(&self) -> Self::Guard<'_>;

    /// Takes the lock if nobody has it.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
}

/// Threads of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Native;

impl Platform for Native {
    type Lock<T: Send> = Mutex<T>;
}

/// A panic under the lock leaves counts and queues in order, if not complete: others go on.
impl<T: Send> Lock<T> for Mutex<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Mutex::new(value)
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, T> {
        Mutex::lock(self).unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match Mutex::try_lock(self) {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
