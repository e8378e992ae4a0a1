//! Tests that need a process of their own: they count the descriptors of the process.

#[path = "../../../volume/tests/suite/common/mod.rs"]
mod common;
mod hostile;
