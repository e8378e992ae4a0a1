//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod ahci;
mod common;
mod controller;
mod device;
mod device_bus;
mod interface;
mod metadata;
mod queue_pair;
mod reset;
mod uring;
