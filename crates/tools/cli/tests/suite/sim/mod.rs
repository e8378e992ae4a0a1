//! Tests of `sluice sim`.

mod command;
mod golden;
mod images;
mod job_files;
mod kept_states;
mod log;
mod outputs;
mod parallel;
mod preconditioned;
mod profile;
mod this_machine;
