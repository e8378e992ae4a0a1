//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod common;
mod hostile;
mod nbd_bytes;
mod programs;
mod protocol;
mod share;
