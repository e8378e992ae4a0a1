//! Parts of the state of an open volume. Each has private fields and `check_invariants`.

pub(crate) mod allocator;
pub(crate) mod barrier_order;
pub(crate) mod barriers;
pub(crate) mod checkpoint;
pub(crate) mod lifecycle;
pub(crate) mod log;
pub(crate) mod page_cache;
pub(crate) mod requests;
pub(crate) mod staging;
pub(crate) mod writeback_queue;
