//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod blktrace;
mod commands;
mod controller;
mod exec;
mod matrix;
mod messages;
mod profile;
mod readme;
mod real_programs;
mod repro;
mod rules;
mod scenario_text;
mod served;
mod sharing;
mod sim;
mod sim_folder;
mod sweep;
mod write_log;
