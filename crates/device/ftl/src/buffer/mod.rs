//! The write buffer: rings of write units, their sequence numbers, and units that are redispatched.

pub(crate) mod redispatch;
pub(crate) mod sequence;
pub(crate) mod write_ring;
