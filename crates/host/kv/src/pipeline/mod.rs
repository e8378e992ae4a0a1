//! Transactions over several parts of a key-value target.

pub(crate) mod compact;
pub(crate) mod execute;
pub(crate) mod get;
pub(crate) mod put;
pub(crate) mod reclaim;
