//! Memory mappings of volume files.

pub(crate) mod mappings;
pub(crate) mod memory;
