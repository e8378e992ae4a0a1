//! Detection of failing media: the log of media events, and scrubbing.

pub(crate) mod events;
pub(crate) mod scrub;
