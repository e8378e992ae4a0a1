//! Operations that reach several parts of the cache.

mod bypass;
mod fast_path;
pub(super) mod fill;
pub(super) mod waiters;
pub(super) mod writeback;
