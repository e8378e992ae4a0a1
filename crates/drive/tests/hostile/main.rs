//! Hosts that send anything: every command gets exactly one completion with the status that the
//! specification gives, the drive never panics, and it goes on serving.

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod doorbells;
mod host;
mod queues;
mod random_commands;
