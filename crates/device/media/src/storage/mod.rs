//! Storage of a medium's contents: memory or an image file, or a pattern instead of data.

pub(crate) mod file_lock;
pub(crate) mod host_flush;
pub(crate) mod image;
pub(crate) mod pattern;
pub(crate) mod sector_buffers;
pub(crate) mod store;
pub(crate) mod synced_records;
