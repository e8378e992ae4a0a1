//! The library over physical addresses, against an emulated open-channel drive in virtual time.

mod block;
mod oracle;
mod rig;
mod session;
mod ssd;
