//! Transactions that span several parts.

pub(crate) mod admit;
pub(crate) mod dispatch;
pub(crate) mod kick;
pub(crate) mod read;
pub(crate) mod stall;
