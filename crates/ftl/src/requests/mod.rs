//! Host requests: queued writes and trims, and reads.

pub(crate) mod admit;
pub(crate) mod host_reads;
pub(crate) mod read;
