//! The library for physical addressing, on an emulated open-channel drive in virtual time.

mod block;
mod examples;
mod harness;
mod oracle;
mod session;
mod ssd;
