//! Time: instants and durations, virtual and real clocks, and the runners that poll components.
//!
//! [`VirtualRunner`] polls its components until none makes progress, and then advances time to the
//! next deadline. [`RealRunner`] polls, spins, and parks on a [`Parker`]; a [`Waker`] wakes it,
//! also from another process ([`RemoteWaker`]).
//!
//! # Invariants
//!
//! No code outside this crate reads a clock.

#![forbid(unsafe_code)]

mod allowed_cpus;
mod component;
mod nanos;
mod parker;
mod real_clock;
mod real_runner;
mod remote_waker;
mod timer;
mod token_bucket;
mod virtual_runner;

pub use allowed_cpus::AllowedCpus;
pub use component::Component;
pub use nanos::Nanos;
pub use parker::{Parker, Waker};
pub use real_clock::{RealClock, disable_timer_slack, thread_cpu_time};
pub use real_runner::{IdlePolicy, RealRunner, StopHandle};
pub use remote_waker::{ParkedFlag, ParkedFlagReader, RemoteWaker};
pub use timer::TimerQueue;
pub use token_bucket::{Rounding, TokenBucket, TokenRate};
pub use virtual_runner::{Deadlock, VirtualRunner};
