//! [`Modelled`]: the block layer's second platform, whose locks and memory take virtual time.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::{Lock, Platform};

use super::tape::{self, LockId};

/// Modelled cores. The layer's own code runs on it unchanged, on one host thread; what it locks and
/// touches is charged to the core whose turn it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modelled;

impl Platform for Modelled {
    const OBSERVES: bool = true;

    type Lock<T: Send> = ModelledLock<T>;

    fn wrote<T: ?Sized>(what: &T) {
        tape::touch(what, true);
    }

    fn read<T: ?Sized>(what: &T) {
        tape::touch(what, false);
    }
}

/// A lock whose waiting happens in virtual time. On the host nobody ever waits for it.
#[derive(Debug)]
pub struct ModelledLock<T> {
    id: LockId,
    value: Mutex<T>,
}

/// Access to what is locked, until dropped.
#[derive(Debug)]
pub struct ModelledGuard<'a, T> {
    id: LockId,
    value: MutexGuard<'a, T>,
}

impl<T: Send> Lock<T> for ModelledLock<T> {
    type Guard<'a>
        = ModelledGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        ModelledLock { id: tape::new_lock(), value: Mutex::new(value) }
    }

    fn lock(&self) -> ModelledGuard<'_, T> {
        tape::acquire(self.id);
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        ModelledGuard { id: self.id, value }
    }

    fn try_lock(&self) -> Option<ModelledGuard<'_, T>> {
        tape::try_acquire(self.id).then(|| {
            let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
            ModelledGuard { id: self.id, value }
        })
    }
}

impl<T> Deref for ModelledGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for ModelledGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for ModelledGuard<'_, T> {
    fn drop(&mut self) {
        tape::release(self.id);
    }
}
