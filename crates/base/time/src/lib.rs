//! Time: instants and durations, timers, polled components, and the runner in virtual time.
//!
//! [`VirtualRunner`] polls its components until none makes progress, and then advances time to the
//! next deadline. The runner in real time is that of the crate `event`.
//!
//! # Invariants
//!
//! No code of this crate reads a clock or calls the operating system.

#![forbid(unsafe_code)]

mod component;
mod nanos;
mod timer;
mod token_bucket;
mod virtual_runner;

pub use component::Component;
pub use nanos::Nanos;
pub use timer::TimerQueue;
pub use token_bucket::{Rounding, TokenBucket, TokenRate};
pub use virtual_runner::{Deadlock, VirtualRunner};
