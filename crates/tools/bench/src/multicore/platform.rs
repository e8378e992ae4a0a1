//! [`Modeled`]: the second platform of the block layer, whose locks and memory accesses take
//! virtual time.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::{Lock, Platform};

use super::access_log::{self, LockId};

/// Modeled cores. The layer's code runs unchanged on one host thread; its lock operations and
/// memory accesses are charged to the current core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modeled;

impl Platform for Modeled {
    const OBSERVES: bool = true;

    type Lock<T: Send> = ModeledLock<T>;

    fn wrote<T: ?Sized>(what: &T) {
        access_log::touch(what, true);
    }

    fn read<T: ?Sized>(what: &T) {
        access_log::touch(what, false);
    }
}

/// A lock whose waiting happens in virtual time. On the host it is never contended.
#[derive(Debug)]
pub struct ModeledLock<T> {
    id: LockId,
    value: Mutex<T>,
}

/// Access to the locked value, until dropped.
#[derive(Debug)]
pub struct ModeledGuard<'a, T> {
    id: LockId,
    value: MutexGuard<'a, T>,
}

impl<T: Send> Lock<T> for ModeledLock<T> {
    type Guard<'a>
        = ModeledGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        ModeledLock { id: access_log::new_lock(), value: Mutex::new(value) }
    }

    fn lock(&self) -> ModeledGuard<'_, T> {
        access_log::acquire(self.id);
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        ModeledGuard { id: self.id, value }
    }

    fn try_lock(&self) -> Option<ModeledGuard<'_, T>> {
        access_log::try_acquire(self.id).then(|| {
            let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
            ModeledGuard { id: self.id, value }
        })
    }
}

impl<T> Deref for ModeledGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for ModeledGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for ModeledGuard<'_, T> {
    fn drop(&mut self) {
        access_log::release(self.id);
    }
}
