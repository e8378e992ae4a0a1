//! The write buffer: open chunks, the memory of their units, and the durable prefix of the units.

pub(crate) mod durable_prefix;
pub(crate) mod streams;
pub(crate) mod unit_memory;
