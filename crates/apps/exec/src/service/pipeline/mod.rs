//! Operations that reach several parts of the service.

pub(crate) mod calls;
pub(crate) mod completion;
mod invariants;
pub(crate) mod mapping_sync;
pub(crate) mod posted_writes;
pub(crate) mod syncs;
