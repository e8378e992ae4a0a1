//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod common;
mod examples;
mod exports;
mod group;
mod hostile;
mod nbd_bytes;
mod programs;
mod protocol;
