//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod closed_forms;
mod common;
mod mismatch;
mod oracle;
mod policy;
