//! Sleeping and waking: [`Parker`] and [`Waker`], the real clock, and the runner in real time.
//!
//! [`RealRunner`] polls its components, spins, and parks on a [`Parker`]; a [`Waker`] wakes it, also
//! from another process ([`RemoteWaker`]).
//!
//! # Invariants
//!
//! No code outside this crate reads a clock.

#![forbid(unsafe_code)]

mod allowed_cpus;
mod parker;
mod real_clock;
mod real_runner;
mod remote_waker;
mod thread_gaps;

pub use allowed_cpus::AllowedCpus;
pub use parker::{Parker, Waker};
pub use real_clock::{RealClock, disable_timer_slack, monotonic_now, thread_cpu_time};
pub use real_runner::{IdlePolicy, IdleWait, RealRunner, StopHandle};
pub use remote_waker::{ParkedFlag, ParkedFlagReader, RemoteWaker};
pub use thread_gaps::{BUSY_GAP_MIN, IDLE_GAP_MIN, ThreadGap, ThreadGapMeter, ThreadUse};
