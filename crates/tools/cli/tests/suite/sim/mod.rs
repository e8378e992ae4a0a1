//! Tests of `sluice sim`.

mod command;
mod golden;
mod images;
mod job_files;
mod log;
mod outputs;
mod plots;
mod preconditioned;
