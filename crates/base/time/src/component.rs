//! [`Component`]: a polled state machine (ARCHITECTURE.md, R2).

use crate::Nanos;

/// A polled state machine. It owns no thread, never sleeps and reads no clock.
pub trait Component {
    /// Does all work that is possible at `now`, which never decreases. Returns whether it made
    /// progress. When every component of a runner returns `false`, time may advance.
    fn poll(&mut self, now: Nanos) -> bool;

    /// Returns the latest time of the next [`poll`](Component::poll) if no other component makes
    /// progress; [`Nanos::MAX`] if only another component can cause work.
    fn deadline(&self) -> Nanos;
}

impl<C: Component + ?Sized> Component for &mut C {
    fn poll(&mut self, now: Nanos) -> bool {
        (**self).poll(now)
    }
    fn deadline(&self) -> Nanos {
        (**self).deadline()
    }
}

impl<C: Component + ?Sized> Component for Box<C> {
    fn poll(&mut self, now: Nanos) -> bool {
        (**self).poll(now)
    }
    fn deadline(&self) -> Nanos {
        (**self).deadline()
    }
}
