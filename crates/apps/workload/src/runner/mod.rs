//! Execution of jobs on a device: job threads, their next requests and the verification of data.

pub(crate) mod chunk_states;
pub(crate) mod job_runner;
pub(crate) mod key_source;
pub(crate) mod memory;
pub(crate) mod pattern;
pub(crate) mod source;
pub(crate) mod stages;
pub(crate) mod unit_source;
pub(crate) mod verify;
pub(crate) mod worker;
pub(crate) mod write_stream;
pub(crate) mod ycsb_source;
