//! Calls on file descriptors and C streams: open, read, write, sync, locks.

pub(crate) mod control;
pub(crate) mod data;
pub(crate) mod fd_table;
pub(crate) mod open;
mod sockets;
pub(crate) mod streams;
