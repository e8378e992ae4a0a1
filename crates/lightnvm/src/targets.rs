//! Targets: what the host makes of an open-channel drive.

pub(crate) mod pblk;
