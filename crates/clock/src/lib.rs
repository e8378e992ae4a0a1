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
//! | [`virtual_run`](VirtualRunner) | the loop that polls until nothing moves, then jumps |
//! | [`real_run`](RealRunner) | the loop that polls, spins, and parks |
//!
//! Nothing outside this crate reads a clock.

#![forbid(unsafe_code)]

mod component;
mod link;
mod nanos;
mod real;
mod real_run;
mod timer;
mod virtual_run;
mod wake;

pub use component::Component;
pub use link::{Flag, Link, Sight};
pub use nanos::Nanos;
pub use real::{RealClock, sleep_exactly, thread_cpu};
pub use real_run::{Idle, RealRunner, Stopper};
pub use timer::TimerQueue;
pub use virtual_run::{Stalled, VirtualRunner};
pub use wake::{Parker, Waker};
