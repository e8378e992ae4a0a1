//! Macros that write methods of a [`BlockDevice`](crate::BlockDevice): [`delegate_block_device!`](crate::delegate_block_device)
//! for a device that wraps another, [`answer_block_device!`](crate::answer_block_device) for one with constant answers.
//!
//! The trait has no default bodies, so that a wrapper cannot forget to forward a method.

#[doc(hidden)]
pub mod types {
    pub use event::Waker;
    pub use mem::AddressSpace;
    pub use time::Nanos;
}

/// Writes methods that call another device; for `impl` blocks of
/// [`BlockDevice`](crate::BlockDevice) and [`Component`](time::Component).
///
/// The device is a place expression, or a macro of the caller's that dispatches to the variants of
/// an enum, as `dispatch!(self, device => call)`. Without a list, all methods of `BlockDevice` are
/// written.
///
/// ```
/// use sluice_block::{BlockDevice, Completion, QueueFull, Request};
/// use time::{Component, Nanos};
///
/// struct Counted<D> {
///     device: D,
///     reaped: u64,
/// }
///
/// impl<D: BlockDevice> Component for Counted<D> {
///     sluice_block::delegate_block_device!(self => self.device; poll, deadline);
/// }
///
/// impl<D: BlockDevice> BlockDevice for Counted<D> {
///     sluice_block::delegate_block_device!(self => self.device; limits, submit, memory, set_waker,
///         can_wake, enable_sharing, can_wait, wait_for_event, visit_layers);
///
///     fn reap(&mut self) -> Option<Completion> {
///         let completion = self.device.reap()?;
///         self.reaped += 1;
///         Some(completion)
///     }
/// }
/// ```
#[macro_export]
macro_rules! delegate_block_device {
    ($self:ident => $dispatch:ident!; $($method:ident),+ $(,)?) => {
        $($crate::delegate_block_device!(@$method $self (via $dispatch));)+
    };
    ($self:ident => $dispatch:ident!) => {
        $crate::delegate_block_device!(@all $self (via $dispatch));
    };
    ($self:ident => $device:expr; $($method:ident),+ $(,)?) => {
        $($crate::delegate_block_device!(@$method $self (to $device));)+
    };
    ($self:ident => $device:expr) => {
        $crate::delegate_block_device!(@all $self (to $device));
    };
    (@all $self:ident $how:tt) => {
        $crate::delegate_block_device!(@limits $self $how);
        $crate::delegate_block_device!(@submit $self $how);
        $crate::delegate_block_device!(@reap $self $how);
        $crate::delegate_block_device!(@memory $self $how);
        $crate::delegate_block_device!(@set_waker $self $how);
        $crate::delegate_block_device!(@can_wake $self $how);
        $crate::delegate_block_device!(@enable_sharing $self $how);
        $crate::delegate_block_device!(@can_wait $self $how);
        $crate::delegate_block_device!(@wait_for_event $self $how);
        $crate::delegate_block_device!(@visit_layers $self $how);
    };
    (@poll $self:ident $how:tt) => {
        #[inline]
        fn poll(&mut $self, now: $crate::delegate::types::Nanos) -> bool {
            $crate::delegate_block_device!(@call $self $how poll(now))
        }
    };
    (@deadline $self:ident $how:tt) => {
        #[inline]
        fn deadline(&$self) -> $crate::delegate::types::Nanos {
            $crate::delegate_block_device!(@call $self $how deadline())
        }
    };
    (@limits $self:ident $how:tt) => {
        #[inline]
        fn limits(&$self) -> &$crate::Limits {
            $crate::delegate_block_device!(@call $self $how limits())
        }
    };
    (@submit $self:ident $how:tt) => {
        #[inline]
        fn submit(
            &mut $self,
            now: $crate::delegate::types::Nanos,
            request: $crate::Request,
        ) -> ::core::result::Result<(), $crate::QueueFull> {
            $crate::delegate_block_device!(@call $self $how submit(now, request))
        }
    };
    (@reap $self:ident $how:tt) => {
        #[inline]
        fn reap(&mut $self) -> ::core::option::Option<$crate::Completion> {
            $crate::delegate_block_device!(@call $self $how reap())
        }
    };
    (@memory $self:ident $how:tt) => {
        fn memory(&$self) -> &$crate::delegate::types::AddressSpace {
            $crate::delegate_block_device!(@call $self $how memory())
        }
    };
    (@set_waker $self:ident $how:tt) => {
        fn set_waker(&mut $self, waker: $crate::delegate::types::Waker) {
            $crate::delegate_block_device!(@call $self $how set_waker(waker))
        }
    };
    (@can_wake $self:ident $how:tt) => {
        fn can_wake(&$self) -> bool {
            $crate::delegate_block_device!(@call $self $how can_wake())
        }
    };
    (@enable_sharing $self:ident $how:tt) => {
        fn enable_sharing(&mut $self) {
            $crate::delegate_block_device!(@call $self $how enable_sharing())
        }
    };
    (@can_wait $self:ident $how:tt) => {
        fn can_wait(&$self) -> bool {
            $crate::delegate_block_device!(@call $self $how can_wait())
        }
    };
    (@wait_for_event $self:ident $how:tt) => {
        #[inline]
        fn wait_for_event(
            &mut $self,
            now: $crate::delegate::types::Nanos,
            until: $crate::delegate::types::Nanos,
        ) -> $crate::WaitResult {
            $crate::delegate_block_device!(@call $self $how wait_for_event(now, until))
        }
    };
    (@visit_layers $self:ident $how:tt) => {
        fn visit_layers(
            &mut $self,
            visit: &mut dyn ::core::ops::FnMut(&mut dyn ::core::any::Any),
        ) {
            $crate::delegate_block_device!(@call $self $how visit_layers(visit))
        }
    };
    (@call $self:ident (to $device:expr) $method:ident($($arg:ident),*)) => {
        $device.$method($($arg),*)
    };
    (@call $self:ident (via $dispatch:ident) $method:ident($($arg:ident),*)) => {
        $dispatch!($self, device => device.$method($($arg),*))
    };
}

/// Writes methods of a [`BlockDevice`](crate::BlockDevice) with constant answers: `can_wake: true`
/// (or `false`), `enable_sharing: {}` (the device is ready for several threads), `can_wait: false`,
/// which includes `wait_for_event`, and `visit_layers: {}` (there is nothing to show) or
/// `visit_layers: self` (the device shows itself, and nothing is beneath it).
#[macro_export]
macro_rules! answer_block_device {
    ($($method:ident: $answer:tt),+ $(,)?) => {
        $($crate::answer_block_device!(@$method $answer);)+
    };
    (@can_wake $answer:literal) => {
        fn can_wake(&self) -> bool {
            $answer
        }
    };
    (@enable_sharing {}) => {
        fn enable_sharing(&mut self) {}
    };
    (@visit_layers {}) => {
        fn visit_layers(&mut self, _: &mut dyn ::core::ops::FnMut(&mut dyn ::core::any::Any)) {}
    };
    (@visit_layers self) => {
        fn visit_layers(&mut self, visit: &mut dyn ::core::ops::FnMut(&mut dyn ::core::any::Any)) {
            visit(self);
        }
    };
    (@can_wait false) => {
        fn can_wait(&self) -> bool {
            false
        }
        fn wait_for_event(
            &mut self,
            _: $crate::delegate::types::Nanos,
            _: $crate::delegate::types::Nanos,
        ) -> $crate::WaitResult {
            $crate::WaitResult::Unsupported
        }
    };
}
