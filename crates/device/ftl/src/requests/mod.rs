//! Host requests: queued writes and trims, and reads in progress.

pub(crate) mod host_reads;
pub(crate) mod queue;
