//! [`OwnedOrLocked`]: rule R4, ownership instead of locks.

use std::sync::Arc;

use crate::sync::{Lock, Platform};

/// Something that one core uses, or several.
pub(crate) enum OwnedOrLocked<T: Send, P: Platform> {
    /// This core alone: no lock, no atomic.
    Owned(T),
    /// Several cores: the same type behind a lock.
    Locked(Arc<P::Lock<T>>),
}

impl<T: Send, P: Platform> OwnedOrLocked<T, P> {
    /// Uses it, after having waited for others.
    #[inline]
    pub(crate) fn with<R>(&mut self, use_it: impl FnOnce(&mut T) -> R) -> R {
        match self {
            OwnedOrLocked::Owned(it) => use_it(it),
            OwnedOrLocked::Locked(lock) => use_it(&mut lock.lock()),
        }
    }

    /// Uses it unless somebody else does.
    #[inline]
    pub(crate) fn try_with<R>(&mut self, use_it: impl FnOnce(&mut T) -> R) -> Option<R> {
        match self {
            OwnedOrLocked::Owned(it) => Some(use_it(it)),
            OwnedOrLocked::Locked(lock) => Some(use_it(&mut *lock.try_lock()?)),
        }
    }
}
