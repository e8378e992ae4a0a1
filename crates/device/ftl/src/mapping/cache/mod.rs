//! The map cache: which translation pages are in memory, how they are read, and how they are rebuilt.

pub(crate) mod fetch;
pub(crate) mod frames;
pub(crate) mod install;
pub(crate) mod map_cache;
pub(crate) mod rebuild;
