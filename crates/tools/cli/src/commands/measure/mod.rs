//! The commands that measure: this machine, Sluice on it, and programs.

pub mod bench_command;
pub mod calibrate_command;
pub mod profile_command;
