//! Hosts that send arbitrary input: every command gets exactly one completion with the specified
//! status, the drive never panics, and it continues to work.

// guarantee: C-05

mod commands;
mod doorbells;
pub(crate) mod host;
mod queues;
mod random_commands;
