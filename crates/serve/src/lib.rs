//! Front ends: how somebody else's program reaches a [`block::Device`].
//!
//! | module | noun |
//! |---|---|
//! | [`nbd`] | a network block device server: one thread, one device, many clients |
//! | [`share`] | drives shared between processes: queues and memory of their own for each client |
//!
//! A front end owns its device (rule R4: no lock) and the thread that polls it; [`share`] owns none:
//! its clients reach the drive by themselves.

#![forbid(unsafe_code)]

pub mod nbd;
pub mod share;
