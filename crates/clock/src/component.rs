//! [`Component`]: rule R2, components are poll-driven state machines.

use crate::Nanos;

/// A poll-driven state machine. It owns no thread, sleeps nowhere and reads no clock.
pub trait Component {
    /// Does everything that can be done at `now`, which never runs backwards. Returns whether
    /// anything moved: when every component on a runner answers `false`, time may pass.
    fn poll(&mut self, now: Nanos) -> bool;

    /// When [`poll`](Component::poll) must be called again even if nobody else moves;
    /// [`Nanos::MAX`] if only somebody else's move can give it work.
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
