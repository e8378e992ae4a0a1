//! Open-channel drives: geometry, physical addresses, chunk information and notifications, and command hints.

pub(crate) mod chunk;
pub(crate) mod chunk_notification;
pub(crate) mod flash_geometry;
pub(crate) mod flat_id;
pub(crate) mod geometry;
pub(crate) mod geometry_page;
pub(crate) mod ppa;
pub(crate) mod vector_hints;
