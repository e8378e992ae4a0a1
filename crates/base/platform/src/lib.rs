//! [`Platform`]: the processors on which host software runs, native or modeled.
//!
//! Host software is generic over its platform. On [`Native`] a lock is a mutex, and memory accesses
//! and [steps](Step) of work are not reported: the calls are empty and inlined. On a modeled machine
//! (crate `machine`) each of them takes modeled time.

#![forbid(unsafe_code)]

mod step;
mod threads;

use std::fmt::Debug;
use std::ops::DerefMut;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

pub use step::{Layer, Step};
pub use threads::ThreadPlatform;
use time::Nanos;

/// The platform on which host software runs.
pub trait Platform: Copy + Debug + Send + Sync + 'static {
    /// Whether the platform models accesses and work. If not, software does not determine what to
    /// report.
    const OBSERVES: bool = false;

    /// The lock type of this platform.
    type Lock<T: Send>: Lock<T>;

    /// Reports that the running core is about to write `what`, which other cores may have written.
    #[inline]
    fn wrote<T: ?Sized>(what: &T) {
        let _ = what;
    }

    /// Reports that the running core is about to read `what`, which other cores may have written.
    #[inline]
    fn read<T: ?Sized>(what: &T) {
        let _ = what;
    }

    /// Reports that the running core executes a step of work `count` times.
    #[inline]
    fn work(step: Step, count: u32) {
        let _ = (step, count);
    }

    /// Returns the time of an event in a call that began at `began`: software is told the time when
    /// it is called, and on modeled processors the call itself takes time.
    #[inline]
    fn event_time(began: Nanos) -> Nanos {
        began
    }
}

/// A mutual exclusion lock around a `T`.
pub trait Lock<T>: Send + Sync {
    /// Access to the locked value, until dropped.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a;

    /// Creates an unlocked lock.
    fn new(value: T) -> Self;

    /// Acquires the lock; waits if another thread holds it.
    fn lock(&self) -> Self::Guard<'_>;

    /// Acquires the lock unless another thread holds it.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
}

/// Threads of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Native;

impl Platform for Native {
    type Lock<T: Send> = Mutex<T>;
}

/// A mutex that ignores poisoning: after a panic under the lock, counts and queues are consistent,
/// though perhaps incomplete, so other threads continue.
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
