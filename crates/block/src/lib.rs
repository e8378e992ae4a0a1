//! The block device that every front end and workload sees, and the ways to one.
//!
//! | file | noun |
//! |---|---|
//! | [`device`](Device) | a block device: submit many, poll, reap many |
//! | [`raw`](Raw) | straight to a driver's queue pair, nothing in between |
//!
//! A drive that manages its own flash is a device through [`Raw`]; a host-managed target (`pblk`)
//! is a device itself. The staging and dispatch queues of the multi-queue block layer will stand
//! between the two without changing either end.

#![forbid(unsafe_code)]

mod device;
mod raw;
pub mod sched;
mod staged;
pub mod trace;

pub use device::{Busy, Device};
pub use driver::{Completion, Extent, ExtentState, Limits, Op, Payload, Request};
pub use raw::Raw;
pub use staged::{Group, Staged, Submitter};
