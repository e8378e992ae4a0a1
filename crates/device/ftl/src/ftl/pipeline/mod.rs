//! Transactions that span several parts.

pub(crate) mod active_pus;
pub(crate) mod admit;
mod check;
pub(crate) mod control;
pub(crate) mod dispatch;
mod durability;
mod gc;
mod health;
pub(crate) mod kick;
mod line_metadata;
mod map;
mod named;
pub(crate) mod read;
mod redispatch;
pub(crate) mod stall;
