//! [`OwnedOrLocked`]: ownership instead of locks (ARCHITECTURE.md, R4).

use std::sync::Arc;

use crate::sync::{Lock, Platform};

/// A value that one core owns or several cores share.
pub(crate) enum OwnedOrLocked<T: Send, P: Platform> {
    /// Owned by one core: no lock, no atomic operation.
    Owned(T),
    /// Shared by several cores, behind a lock.
    Locked(Arc<P::Lock<T>>),
}

impl<T: Send, P: Platform> OwnedOrLocked<T, P> {
    /// Calls `use_it` with the value; waits for the lock.
    #[inline]
    pub(crate) fn with<R>(&mut self, use_it: impl FnOnce(&mut T) -> R) -> R {
        match self {
            OwnedOrLocked::Owned(it) => use_it(it),
            OwnedOrLocked::Locked(lock) => use_it(&mut lock.lock()),
        }
    }

    /// Calls `use_it` with the value, unless another core holds the lock.
    #[inline]
    pub(crate) fn try_with<R>(&mut self, use_it: impl FnOnce(&mut T) -> R) -> Option<R> {
        match self {
            OwnedOrLocked::Owned(it) => Some(use_it(it)),
            OwnedOrLocked::Locked(lock) => Some(use_it(&mut *lock.try_lock()?)),
        }
    }
}
