//! Targets: the interfaces that the host implements on an open-channel drive.

pub(crate) mod kv;
pub(crate) mod overlap;
pub(crate) mod pblk;
pub(crate) mod rrpc;
