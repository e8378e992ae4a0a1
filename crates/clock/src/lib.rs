//! Time: what an instant is, who tells it, and who polls whom when.
//!
//! | file | noun |
//! |---|---|
//! | [`nanos`](Nanos) | an instant or a duration, in nanoseconds |
//! | [`real`](RealClock) | wall time, monotonic, from the start of the process's run |
//! | [`timer`](TimerQueue) | what happens next, in one deterministic order |
//! | [`component`](Component) | a poll-driven state machine (rule R2) |
//! | [`wake`](Waker) | how a parked runner is woken |
//! | [`link`](Link) | how it is woken from another process |
//! | [`virtual_runner`](VirtualRunner) | the loop that polls until nothing moves, then jumps |
//! | [`real_runner`](RealRunner) | the loop that polls, spins, and parks |
//!
//! Nothing outside this crate reads a clock.

#![forbid(unsafe_code)]

mod component;
mod nanos;
mod parker;
mod real_clock;
mod real_runner;
mod remote_waker;
mod timer;
mod virtual_runner;

pub use component::Component;
pub use nanos::Nanos;
pub use parker::{Parker, Waker};
pub use real_clock::{RealClock, disable_timer_slack, thread_cpu_time};
pub use real_runner::{IdlePolicy, RealRunner, StopHandle};
pub use remote_waker::{ParkedFlag, ParkedFlagReader, RemoteWaker};
pub use timer::TimerQueue;
pub use virtual_runner::{Deadlock, VirtualRunner};
