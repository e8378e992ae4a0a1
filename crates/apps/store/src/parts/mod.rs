//! Parts of the state of an open volume. Each has private fields.

pub(crate) mod allocator;
pub(crate) mod page_cache;
