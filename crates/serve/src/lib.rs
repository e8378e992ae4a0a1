//! Front ends: how somebody else's program reaches a [`block::Device`].
//!
//! | module | noun |
//! |---|---|
//! | [`nbd`] | a network block device server: one thread, one device, many clients |
//!
//! A front end owns its device (rule R4: no lock) and the thread that polls it.

#![forbid(unsafe_code)]

pub mod nbd;
