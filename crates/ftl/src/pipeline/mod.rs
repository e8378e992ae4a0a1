//! Transactions that span several parts.

pub(crate) mod dispatch;
