//! The chunks of a drive: owners, grants, quotas, erases, and reconciliation with the drive's report.

pub(crate) mod allocator;
pub(crate) mod erase;
pub(crate) mod grant;
pub(crate) mod quota;
mod reconcile;
