//! Commands in flight: their path through the controller's stages, and their data in host memory.

pub(crate) mod data_buffer;
pub(crate) mod host_flush;
pub(crate) mod path;
pub(crate) mod protection;
pub(crate) mod ranges;
pub(crate) mod stage;
pub(crate) mod table;
