//! Front ends: servers that make a [`block::BlockDevice`] or a drive available to other programs.
//!
//! The NBD server owns its device and the thread that polls it, so that its path takes no lock
//! (ARCHITECTURE.md, R4). [`share`] owns no device: its clients reach the drive through queues of
//! their own.

#![forbid(unsafe_code)]

pub mod nbd;
pub mod share;
