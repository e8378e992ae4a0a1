//! The host's side of a drive: bring-up, queue pairs, tags.
//!
//! | file | noun |
//! |---|---|
//! | [`controller`](Controller) | bring-up over a port, admin commands, making and deleting queue pairs |
//! | `admin` | the admin queue, one command at a time |
//! | [`info`](DriveInfo) | what a drive says about itself, checked |
//! | [`queue_pair`](QueuePair) | submit many, ring once, reap many; owned, without lock or allocation |
//! | [`tag`](Tag) | which commands are outstanding, and whose they are |
//! | `memory` | the registered memory of the two rings |
//! | [`error`](DriverError) | what went wrong, with which command, on which queue |
//!
//! A drive is not trusted: whatever it writes into a completion queue or returns from Identify is
//! an error or a count here, never a panic, a hang or a command completed twice.

#![forbid(unsafe_code)]

mod admin;
mod controller;
mod error;
mod info;
mod memory;
mod queue_pair;
mod tag;

pub use controller::Controller;
pub use error::DriverError;
pub use info::{DriveInfo, OpenChannel};
pub use queue_pair::{Completed, QueueFull, QueuePair};
pub use tag::Tag;
