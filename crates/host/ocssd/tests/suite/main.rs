//! The library for physical addressing, on an emulated open-channel drive in virtual time.

mod block;
mod oracle;
mod rig;
mod session;
mod ssd;
