//! Attached open-channel drives, which are accessed by physical page addresses [LightNVM17 §3].
//!
//! [`OpenChannelSsd`] attaches a drive. [`ppa`] is the library for applications that place their own data;
//! [`vector`] has the queue of vector commands that it and the targets share.

#![forbid(unsafe_code)]

pub mod ppa;
mod pu_set;
mod ssd;
pub mod vector;

pub use ssd::{OcssdError, OpenChannelSsd, Performance, ReportedChunk};
