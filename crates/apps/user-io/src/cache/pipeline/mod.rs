//! Operations that reach several parts of the cache.

pub(super) mod bypass;
mod fast_path;
mod fill;
mod invariants;
#[cfg(test)]
mod invariants_tests;
mod waiters;
mod writeback;
